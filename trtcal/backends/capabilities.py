"""Which narrow formats a target has, by compute capability, and who has those that it lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trtcal.backends.targets import (
    CAPABILITY,
    PORTABLE,
    Capability,
    canonical,
    find_gpu,
    named_gpus,
    parse_target,
)
from trtcal.errors import InputError
from trtcal.evidence.layers.roofline import GPUS
from trtcal.quantization.formats import NARROW

FIRST: dict[str, Capability] = {"int8": (6, 1), "fp8": (8, 9), "int4": (8, 0), "nvfp4": (10, 0)}
"""The first compute capability of each format.

Sources: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities"; what TensorRT-RTX 1.7 refuses: FP8
for sm86, INT4 for sm75, FP4 for sm89.
"""
PORTABLE_FIRST = (8, 0)


def has(target: str, precision: str) -> bool:
    """Whether every part of a target has a precision; what names no known GPU is not judged.

    >>> has("sm89", "fp8"), has("sm86,sm120", "fp8"), has("portable", "int4"), has("cpu", "nvfp4")
    (True, False, True, True)
    """
    return not any(_lacking(target, precision))


def _lacking(target: str, precision: str) -> Iterator[str]:
    """Yield the parts of a target that lack a precision."""
    first = FIRST.get(precision, (0, 0))
    for part in target.split(","):
        capability = _capability(canonical(part))
        if capability is not None and capability < first:
            yield part


def _capability(part: str) -> Capability | None:
    """Return the least capability of a part of a target; None for ONNX Runtime, or without a GPU."""
    if part == PORTABLE:
        return PORTABLE_FIRST
    if part == "gpu":
        gpu = find_gpu()
        return gpu.capability if gpu else None
    return parse_target(part)[0] if CAPABILITY.fullmatch(part) else None


def check_precisions(asked: Collection[str], targets: Collection[str]) -> None:
    """`InputError` if a target lacks a precision that is asked for, with those that have it."""
    for precision in (one for one in NARROW if one in asked):
        for target in targets:
            for part in _lacking(target, precision):
                raise InputError(
                    f"{_shown(part)} has no {precision}; {', '.join(_having(precision))} have",
                    f"ask for one of {_offer(target)}, or name targets that have it",
                )


def _shown(part: str) -> str:
    name, given = canonical(part), part.strip()
    if name == PORTABLE:
        return f"{PORTABLE}, which is also for sm80,"
    return f"{name}{named_gpus(name)}" if name == given else f"{name} ({given})"


def _having(precision: str) -> Iterator[str]:
    return (one for one in GPUS if has(one, precision))


def _offer(target: str) -> str:
    return ", ".join([*(one for one in NARROW if has(target, one)), "fp16"])
