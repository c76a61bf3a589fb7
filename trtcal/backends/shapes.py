"""Shapes of dynamic inputs: as people write them, and those that are taken where none are given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trtcal.backends.options import ShapeRange, ShapeRanges
from trtcal.errors import InputError
from trtcal.model import TensorSpec

SHAPE = re.compile(r"\d+(x\d+)*")
DEFAULT_BATCHES = (1, 8, 32)
EXAMPLE = "1x3x224x224:8x3x224x224:32x3x224x224"


def parse_shapes(given: Mapping[str, str]) -> ShapeRanges:
    """Read `{input: "MIN:OPT:MAX"}`, each a shape such as 8x3x224x224, or one shape for all three."""
    return {name: _range(name, text) for name, text in given.items()}


def parse_profiles(pairs: Sequence[str]) -> tuple[ShapeRanges, ...]:
    """Read `INPUT=MIN:OPT:MAX` options as optimization profiles, at least one.

    An input given several times has its first range in the first profile, and so on; an input given
    once has that range in all of them.
    """
    given: dict[str, list[ShapeRange]] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not (name and separator):
            raise InputError(f"{pair!r} is not INPUT=MIN:OPT:MAX", f"write it like x={EXAMPLE}")
        given.setdefault(name, []).append(_range(name, text))
    count = max(map(len, given.values()), default=1)
    for name, ranges in given.items():
        if len(ranges) not in (1, count):
            raise InputError(
                f"input {name!r} has {len(ranges)} shapes where another has {count}",
                "give --shapes of each input once, or once for each optimization profile",
            )
    return tuple(
        {name: ranges[number % len(ranges)] for name, ranges in given.items()}
        for number in range(count)
    )


def _range(name: str, text: str) -> ShapeRange:
    parts = text.split(":")
    if len(parts) == 1:
        parts = parts * 3
    if len(parts) != 3 or not all(SHAPE.fullmatch(part) for part in parts):
        raise InputError(
            f"shape {text!r} of input {name!r} is not MIN:OPT:MAX", f"write it like {EXAMPLE}"
        )
    low, usual, high = (tuple(int(size) for size in part.split("x")) for part in parts)
    if not len(low) == len(usual) == len(high) or not all(
        a <= b <= c for a, b, c in zip(low, usual, high, strict=True)
    ):
        raise InputError(
            f"shapes of input {name!r} do not rise: {text}", "write smallest:usual:largest"
        )
    return low, usual, high


def shape_ranges(inputs: tuple[TensorSpec, ...], given: ShapeRanges) -> ShapeRanges:
    """Return minimum, optimum and maximum shape of every input with a dynamic size.

    A dynamic first axis is taken as the batch (1, 8, 32); `InputError` for other dynamic axes
    without a given range.
    """
    dynamic = [spec for spec in inputs if any(isinstance(size, str) for size in spec.shape)]
    return {spec.name: given.get(spec.name) or _default_shapes(spec) for spec in dynamic}


def _default_shapes(spec: TensorSpec) -> ShapeRange:
    if any(isinstance(size, str) for size in spec.shape[1:]):
        raise InputError(
            f"input {spec} has dynamic sizes besides the batch",
            f"give --shapes {spec.name}=MIN:OPT:MAX, such as {spec.name}={EXAMPLE}",
        )
    rest = tuple(int(size) for size in spec.shape[1:])
    low, usual, high = ((batch, *rest) for batch in DEFAULT_BATCHES)
    return low, usual, high
