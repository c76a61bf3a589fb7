"""What layers do and move: shares by precision and kind, multiply-accumulates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtcal.errors import some
from trtcal.evidence.layers.layer import UNKNOWN, Layer, TensorInfo, is_quantize_step
from trtcal.formats import PLANNED, PRECISIONS
from trtcal.model.macs import MOST_MACS, convolution_macs, product_macs
from trtcal.model.shapes import Shape

if TYPE_CHECKING:
    from trtcal.evidence.layers.reading import Engine


def short(name: str) -> str:
    """Return a name cut to 60 characters."""
    return name if len(name) <= 60 else f"{name[:59]}…"


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    return some(map(short, names), most)


NONE = "none"
ORDER = (*(PRECISIONS[name].listed for name in PLANNED), "other", UNKNOWN, NONE)
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
    precision = layer.precision
    if not (layer.is_heavy or layer.is_pooling or layer.is_opaque):
        types = {tensor.dtype for tensor in (*layer.inputs, *layer.constants, *layer.outputs)}
        precision = next((wide for wide in ("fp32", "fp16", "bf16") if wide in types), precision)
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


def time_of(layers: Sequence[Layer]) -> float | None:
    """Add up times; None if no layer has one."""
    times = [layer.time_ms for layer in layers if layer.time_ms is not None]
    return math.fsum(times) if times else None


def bytes_of(layers: Sequence[Layer]) -> int:
    """Add up the bytes that are known."""
    return sum(layer.bytes_moved or 0 for layer in layers)


def share_by(group_of: Callable[[Layer], str], engine: Engine) -> tuple[Share, ...]:
    """Return the share of each precision or kind over all layers; the shares add up to 1."""
    groups: dict[str, list[Layer]] = {name: [] for name in (*ORDER, *KINDS)}
    for layer in engine.layers:
        groups[group_of(layer)].append(layer)
    return tuple(_share(name, layers, engine) for name, layers in groups.items() if layers)


def _share(name: str, layers: Sequence[Layer], engine: Engine) -> Share:
    time_ms, moved = time_of(layers), bytes_of(layers)
    part, whole = float(moved), float(bytes_of(engine.layers))
    if engine.is_timed:
        part, whole = time_ms or 0.0, time_of(engine.layers) or 0.0
    unsized = sum(layer.bytes_moved is None for layer in layers)
    return Share(name, len(layers), time_ms, moved, unsized, part / whole if whole else None)


CONVOLUTIONS = ("correlation", "corrltn")
TRANSPOSED = ("deconv", "deconvolution")
PRODUCTS = ("gemm", "fully_connected", "matrixmultiply", "batched_gemm")

Tensors = Sequence[TensorInfo]


def count_operands(kind: str, inputs: Tensors, constants: Tensors, outputs: Tensors) -> int | None:
    """Count those of a convolution or product whose operands are all listed; else None.

    A convolution's weights are (out, in / groups, kernel...), those of a transposed one
    (in, out / groups, kernel...), a product's operands (..., m, k) and (..., k, n).
    """
    operands = [tensor.shape for tensor in (*inputs, *constants) if len(tensor.shape) > 1]
    if len(operands) < 2 or not outputs:
        return None
    kind, first, output = kind.lower(), operands[0], outputs[0].shape
    channels = {**dict.fromkeys(CONVOLUTIONS, output), **dict.fromkeys(TRANSPOSED, first)}
    second = _weights(operands[1:], channels[kind]) if kind in channels else operands[1]
    return None if second is None else _bounded(_count(kind, first, second, output))


def _weights(operands: Sequence[Shape], channels: Shape) -> Shape | None:
    """Return the shape of a convolution's weights; what is added behind it may stand before them."""
    known = [o for o in operands if len(o) == len(channels) and o[0] == channels[1]]
    return known[-1] if known else None


def _count(kind: str, first: Shape, second: Shape, output: Shape) -> int | None:
    first, second, output = map(_fixed, (first, second, output))
    if kind in CONVOLUTIONS and len(first) == len(second):
        return convolution_macs(output[0], output[2:], second)
    if kind in TRANSPOSED and len(first) == len(second):
        return convolution_macs(first[0], first[2:], second)
    if kind in PRODUCTS and first[-1] == second[-2]:
        return product_macs(output, first[-1])
    return None


def count_described(entry: Mapping[str, Any], first: Shape, output: Shape) -> int | None:
    """Count those of a layer from the inspector's `Kernel`, `OutMaps`, `Groups` and weight count.

    `first` and `output` are the shapes (batch, channels, ...) of its first input and output. The
    size before a pooling that is fused behind is computed from stride, padding and dilation.
    """
    kernel = _sizes(entry.get("Kernel"))
    if not kernel or len(first) != len(kernel) + 2:
        return None
    weights = _weight_count(entry) or _implied_count(entry, kernel, first[1])
    if weights is None:
        return None
    is_transposed = "deconv" in str(entry.get("ParameterType")).lower()
    places = first[2:] if is_transposed else _places(entry, kernel, first[2:]) or output[2:]
    batch, *sizes = _fixed((first[0], *places))
    return _bounded(convolution_macs(batch, tuple(sizes), (weights,)))


def _weight_count(entry: Mapping[str, Any]) -> int | None:
    weights = entry.get("Weights")
    return _size(weights.get("Count")) if isinstance(weights, Mapping) else None


def _implied_count(entry: Mapping[str, Any], kernel: Shape, channels: int) -> int | None:
    maps, groups = _size(entry.get("OutMaps")), _size(entry.get("Groups", 1))
    if maps is None or groups is None or channels < 1:
        return None
    return maps * channels * math.prod(kernel) // groups


def _places(entry: Mapping[str, Any], kernel: Shape, sizes: Shape) -> Shape | None:
    names = ("PrePadding", "PostPadding", "Stride", "Dilation")
    vectors = [_sizes(entry.get(name)) for name in names]
    if any(len(vector) != len(kernel) for vector in vectors) or min(*sizes, *vectors[2]) < 1:
        return None
    rows = zip(sizes, *vectors, kernel, strict=True)
    return tuple((n + b + a - d * (k - 1) - 1) // s + 1 for n, b, a, s, d, k in rows)


def _sizes(value: Any) -> Shape:
    items = value if isinstance(value, list) else []
    return tuple(items) if all(type(item) is int and item >= 0 for item in items) else ()


def _size(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _fixed(shape: Shape) -> Shape:
    """Return a shape with 1 for what is known only at run time."""
    return tuple(1 if size < 0 else size for size in shape)


def _bounded(count: int | None) -> int | None:
    return count if count is not None and 0 < count <= MOST_MACS else None
