"""What an engine is built with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from trtcal.backends.routes import Route
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


ShapeRange: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Minimum, optimum and maximum shape."""

ShapeRanges: TypeAlias = Mapping[str, ShapeRange]
"""The shape range of each dynamic input, by name: one optimization profile."""

VERBOSITIES = ("detailed", "layer_names_only", "none")


@dataclass(frozen=True)
class BuildOptions:
    """How to build: `shapes` for dynamic inputs (else the default), and a time limit in seconds.

    `further_profiles` are optimization profiles besides that of `shapes`. The timing cache is read
    if it exists, and written back. What is None is left to the builder.
    """

    target: str
    shapes: ShapeRanges = field(default_factory=dict)
    time_limit_s: float = 1800.0
    further_profiles: tuple[ShapeRanges, ...] = ()
    workspace_bytes: int | None = None
    timing_cache: Path | None = None
    verbosity: str = "detailed"
    optimization_level: int | None = None
    layer_times: bool = False
    route: Route = field(default_factory=Route)

    def __post_init__(self) -> None:
        if self.verbosity not in VERBOSITIES:
            known = ", ".join(VERBOSITIES)
            raise InputError(f"profiling verbosity {self.verbosity!r} is unknown", f"use {known}")
        if self.workspace_bytes is not None and not 0 < self.workspace_bytes < 2**63:
            raise InputError(f"a workspace of {self.workspace_bytes} bytes", "write it like 2GB")
        if self.optimization_level is not None and not 0 <= self.optimization_level <= 5:
            raise InputError(f"optimization level {self.optimization_level}", "give 0 to 5")

    @property
    def profiles(self) -> tuple[ShapeRanges, ...]:
        """All optimization profiles, in order."""
        return (self.shapes, *self.further_profiles)

    def named(self) -> tuple[str, ...]:
        """Return the command line's names of the options given that not every backend takes."""
        given = {
            "several --shapes": bool(self.further_profiles),
            "--workspace": self.workspace_bytes is not None,
            "--timing-cache": self.timing_cache is not None,
            "--profiling-verbosity": self.verbosity != "detailed",
            "--optimization-level": self.optimization_level is not None,
            "--layer-times": self.layer_times,
        }
        return tuple(name for name, is_given in given.items() if is_given)

    def to_document(self) -> dict[str, Any]:
        """Return what bears on the engine, as JSON without paths."""
        return {
            "profiles": [
                {name: [list(shape) for shape in shapes] for name, shapes in profile.items()}
                for profile in self.profiles
            ],
            "workspace_bytes": self.workspace_bytes,
            "timing_cache": self.timing_cache is not None,
            "verbosity": self.verbosity,
            "optimization_level": self.optimization_level,
        }


def check_shapes(inputs: tuple[TensorSpec, ...], given: ShapeRanges) -> None:
    """`InputError` if a range is for an unknown input, or does not fit its input's fixed sizes."""
    specs = {spec.name: spec for spec in inputs}
    for name, shapes in given.items():
        if name not in specs:
            raise InputError(f"shapes name {name!r}", f"inputs are: {', '.join(sorted(specs))}")
        for shape in shapes:
            if not _fits(shape, specs[name]):
                wrong = "x".join(map(str, shape))
                raise InputError(f"shape {wrong} does not fit {specs[name]}", "check --shapes")


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    if len(shape) != len(spec.shape) or not all(0 < size < 2**31 for size in shape):
        return False
    pairs = zip(shape, spec.shape, strict=True)
    return all(isinstance(wanted, str) or size == wanted for size, wanted in pairs)
