"""Which narrow formats a target has, by compute capability, and who has those that it lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product

from trtcal.backends.targets import (
    CAPABILITY,
    PORTABLE,
    Capability,
    canonical,
    find_gpu,
    named_gpus,
    parse_target,
)
from trtcal.config import hardware_of
from trtcal.errors import InputError
from trtcal.evidence.gpus import GPUS
from trtcal.formats import NARROW, PRECISIONS

PORTABLE_FIRST = (8, 0)


def has(target: str, precision: str) -> bool:
    """Whether every part of a target has a precision; what names no known GPU is not judged.

    >>> has("sm89", "fp8"), has("sm86,sm120", "fp8"), has("portable", "int4"), has("cpu", "int4")
    (True, False, True, True)
    """
    return not any(_lacking(target, precision))


def _lacking(target: str, precision: str) -> Iterator[str]:
    """Yield the parts of a target that lack a precision."""
    first = PRECISIONS[precision].capability
    for part in hardware_of(target).split(","):
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


def check_precisions(precisions: Collection[str], targets: Collection[str]) -> None:
    """`InputError` if a target lacks a precision that is asked for, with those that have it."""
    for precision, target in product([name for name in NARROW if name in precisions], targets):
        for part in _lacking(target, precision):
            having = ", ".join(gpu for gpu in GPUS if has(gpu, precision))
            offer = ", ".join([*(name for name in NARROW if has(target, name)), "fp16"])
            hint = f"ask for one of {offer}, or name targets that have it"
            raise InputError(f"{_shown(part)} has no {precision}; {having} have", hint)


def _shown(part: str) -> str:
    name, typed = canonical(part), part.strip()
    if name == PORTABLE:
        return f"{PORTABLE}, which is also for sm80,"
    return f"{name}{named_gpus(name)}" if name == typed else f"{name} ({typed})"
