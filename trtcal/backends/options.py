"""What an engine is built with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from trtcal.backends.routes import Route
from trtcal.errors import InputError
from trtcal.model import TensorSpec

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
