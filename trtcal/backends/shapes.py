"""Shapes of dynamic inputs, as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trtcal.backends.base import ShapeRanges
from trtcal.errors import InputError

SHAPE = re.compile(r"\d+(x\d+)*")


def parse_shapes(given: Mapping[str, str]) -> ShapeRanges:
    """Read `{input: "MIN:OPT:MAX"}`, each a shape such as 8x3x224x224, or one shape for all three."""
    return {name: _range(name, text) for name, text in given.items()}


def _range(name: str, text: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    parts = text.split(":")
    if len(parts) == 1:
        parts = parts * 3
    if len(parts) != 3 or not all(SHAPE.fullmatch(part) for part in parts):
        raise InputError(
            f"shape {text!r} of input {name!r} is not MIN:OPT:MAX",
            "write it like 1x3x224x224:8x3x224x224:32x3x224x224",
        )
    low, usual, high = (tuple(int(size) for size in part.split("x")) for part in parts)
    if not len(low) == len(usual) == len(high) or not all(
        a <= b <= c for a, b, c in zip(low, usual, high, strict=True)
    ):
        raise InputError(
            f"shapes of input {name!r} do not rise: {text}", "write smallest:usual:largest"
        )
    return low, usual, high
