"""All that is said of one engine, as a JSON document: what `trtcal layers show --json` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtcal.evidence.layers.layer import FLOATS, UNKNOWN, Layer, is_quantize_step

if TYPE_CHECKING:
    from trtcal.evidence.layers.reading import Engine

LONGEST = 60


def short(name: str) -> str:
    """Return a name cut to 60 characters."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(short(name) for name in every[:most]) + more


NONE = "none"
ORDER = ("int8", "fp16", "fp32", "other", UNKNOWN, NONE)
KINDS = ("convolution and product", "pooling", "reformat or Q/DQ", "element-wise and other", "idle")


@dataclass(frozen=True)
class Share:
    """A part of an engine: its layers, milliseconds and bytes, and its share of all.

    `share` is of the time, or where the engine has no times, of the bytes. None if neither is
    known. Layers whose bytes are not known are counted in `unsized`.
    """

    name: str
    layers: int
    time_ms: float | None
    moved_bytes: int
    unsized: int
    share: float | None


def counted_precision(layer: Layer) -> str:
    """Return the precision a layer's time is counted under.

    `none` is for what computes nothing: copies, reformats, quantize steps, idle layers. An
    element-wise kernel expands narrow values first, so it counts under the float type among its
    tensors.
    """
    if layer.is_idle or layer.is_reformat or is_quantize_step(layer):
        return NONE
    if layer.is_heavy or layer.is_pooling or layer.is_opaque:
        return _named(layer.precision)
    types = {tensor.dtype for tensor in (*layer.inputs, *layer.constants, *layer.outputs)}
    wide = next((dtype for dtype in ("fp32", "fp16", "bf16") if dtype in types & FLOATS), None)
    return _named(wide or layer.precision)


def _named(precision: str) -> str:
    return precision if precision in ORDER else "other"


def kind_of(layer: Layer) -> str:
    """Return the group of kinds that a layer belongs to."""
    if layer.is_idle:
        return KINDS[4]
    if layer.is_reformat or is_quantize_step(layer):
        return KINDS[2]
    if layer.is_heavy:
        return KINDS[0]
    return KINDS[1] if layer.is_pooling else KINDS[3]


def share_by_precision(engine: Engine) -> tuple[Share, ...]:
    """Return the share of each precision over all layers; the shares add up to 1."""
    return _shares(engine, counted_precision, ORDER)


def share_by_kind(engine: Engine) -> tuple[Share, ...]:
    """Return the share of each kind of layer over all layers; the shares add up to 1."""
    return _shares(engine, kind_of, KINDS)


def time_of(layers: Sequence[Layer]) -> float | None:
    """Add up times; None if no layer has one."""
    times = [layer.time_ms for layer in layers if layer.time_ms is not None]
    return math.fsum(times) if times else None


def bytes_of(layers: Sequence[Layer]) -> int:
    """Add up the bytes that are known."""
    return sum(layer.bytes_moved or 0 for layer in layers)


def _shares(
    engine: Engine, group_of: Callable[[Layer], str], order: Sequence[str]
) -> tuple[Share, ...]:
    groups = {name: [layer for layer in engine.layers if group_of(layer) == name] for name in order}
    return tuple(_share(name, found, engine) for name, found in groups.items() if found)


def _share(name: str, found: Sequence[Layer], engine: Engine) -> Share:
    time_ms, moved = time_of(found), bytes_of(found)
    if engine.is_timed:
        part, whole = time_ms or 0.0, time_of(engine.layers) or 0.0
    else:
        part, whole = float(moved), float(bytes_of(engine.layers))
    unsized = sum(layer.bytes_moved is None for layer in found)
    return Share(name, len(found), time_ms, moved, unsized, part / whole if whole else None)
