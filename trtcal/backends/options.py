"""What an engine is built with."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from trtcal.config import ImagesConfig
from trtcal.documents.overview import Shown
from trtcal.errors import InputError, check_choice
from trtcal.model import Model, TensorSpec
from trtcal.quantization.coverage import recorded_sizes
from trtcal.quantization.qdq import quantization_record

CACHE = "calibration.cache"  # what TensorRT was given, or chose from our data
QDQ = "qdq"
ROUTES = (QDQ, "cache", "dynamic-ranges", "calibrator")
CONSTRAINTS = ("obey", "prefer")
CALIBRATOR_CLASSES = ("entropy2", "minmax", "entropy")
USE_QDQ = "quantize the model (`trtcal quantize`) and leave --route out"


@dataclass(frozen=True)
class Route(Shown):
    """One way to INT8, with what it needs.

    `ranges` are amaxes by tensor, `precisions` what the plan asks for each node; `constraints` hold
    TensorRT to it, which takes what is fastest without them. `kind` is the class of calibrator, `data`
    what it feeds, with `images` if that is a folder of pictures. `calibration` is the digest of where
    the ranges came from.
    """

    name: str = QDQ
    ranges: Mapping[str, float] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)
    constraints: str | None = None
    kind: str = "entropy2"
    data: Path | None = None
    images: ImagesConfig | None = None
    calibration: str | None = None

    def __post_init__(self) -> None:
        constraints = self.constraints
        check_choice(self.name, ROUTES, f"unknown route {self.name!r}")
        check_choice(constraints, (None, *CONSTRAINTS), f"unknown constraints {constraints!r}")
        check_choice(self.kind, CALIBRATOR_CLASSES, f"unknown calibrator {self.kind!r}")
        fed, ranged = self.name == "calibrator", self.name in ("cache", "dynamic-ranges")
        if ranged != bool(self.ranges) or fed != (self.data is not None):
            needs = "data" if fed else "ranges" if ranged else "a model with Q/DQ"
            raise InputError(f"route {self.name!r} needs {needs}, and nothing else", "see --help")
        if self.name == QDQ and (self.precisions or self.constraints):
            what = "route 'qdq' reads the plan from the Q/DQ of the model"
            raise InputError(what, "give the plan to `trtcal quantize`")

    def check(self, backend: str, routes: Collection[str], model: Model) -> None:
        """`InputError` if a backend does not have this way, or TensorRT would ignore it."""
        if self.name == QDQ:
            return
        if self.name not in routes:
            what = f"backend {backend!r} has only the route qdq, not {self.name!r}"
            raise InputError(what, USE_QDQ)
        if any(node.op_type == "QuantizeLinear" for node in model.proto.graph.node):
            what = "has Q/DQ, with which TensorRT ignores or refuses calibrators and ranges"
            raise InputError(f"{model.path} {what}", "give the float model, or leave --route out")

    def asked(self, precisions: Mapping[str, str]) -> dict[str, str]:
        """Return what is asked for each node of a model whose Q/DQ and types ask for `precisions`."""
        return {n: self.precisions.get(n, precision) for n, precision in precisions.items()}

    def record(self) -> dict[str, str]:
        """Return what a build's manifest records of it."""
        facts = {"route": self.name, "calibration": self.calibration}
        return {} if self.name == QDQ else {key: text for key, text in facts.items() if text}

    def to_request(
        self, inputs: tuple[TensorSpec, ...], shapes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what the worker gets, as JSON; `shapes` are the ranges of dynamic inputs.

        The builder calibrates with their optima, and with no float but float32.
        """
        kinds = {"route": self.name, "constraints": self.constraints, "kind": self.kind}
        body = {**kinds, "ranges": dict(self.ranges), "precisions": dict(self.precisions)}
        if self.data is None:
            return body
        images = asdict(self.images) if self.images else None
        feeds = {x.name: list(shapes[x.name][1] if x.name in shapes else x.shape) for x in inputs}
        types = {x.name: "float32" if x.dtype.startswith("float") else x.dtype for x in inputs}
        data = {"data": str(self.data.absolute()), "images": images}
        return {**body, **data, "feeds": feeds, "types": types}


SHAPE = re.compile(r"\d+(x\d+)*")
DEFAULT_BATCHES = (1, 8, 32)
EXAMPLE = "1x16:8x16:32x16"


def parse_shapes(texts: Mapping[str, str]) -> ShapeRanges:
    """Read `{input: "MIN:OPT:MAX"}`, each a shape such as 8x3x224x224, or one shape for all three."""
    return {name: _range(name, text) for name, text in texts.items()}


def parse_profiles(pairs: Sequence[str]) -> tuple[ShapeRanges, ...]:
    """Read `INPUT=MIN:OPT:MAX` options as optimization profiles, at least one.

    An input given several times has its first range in the first profile, and so on; an input given
    once has that range in all of them.
    """
    ranges_of: dict[str, list[ShapeRange]] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not (name and separator):
            raise InputError(f"{pair!r} is not INPUT=MIN:OPT:MAX", f"use the form x={EXAMPLE}")
        ranges_of.setdefault(name, []).append(_range(name, text))
    count = max(map(len, ranges_of.values()), default=1)
    for name, ranges in ranges_of.items():
        if len(ranges) not in (1, count):
            what = f"input {name!r} has {len(ranges)} shapes, but another input has {count}"
            hint = "give --shapes of each input once, or once for each optimization profile"
            raise InputError(what, hint)
    return tuple({name: of[i % len(of)] for name, of in ranges_of.items()} for i in range(count))


def _range(name: str, text: str) -> ShapeRange:
    parts = text.split(":")
    parts *= 3 if len(parts) == 1 else 1
    if len(parts) != 3 or not all(SHAPE.fullmatch(part) for part in parts):
        what = f"shape {text!r} of input {name!r} is not MIN:OPT:MAX"
        raise InputError(what, f"write it like {EXAMPLE}")
    low, usual, high = (tuple(int(size) for size in part.split("x")) for part in parts)
    if not len(low) == len(usual) == len(high) or not _rise((low, usual, high)):
        what = f"the shapes of input {name!r} are not in rising order: {text}"
        raise InputError(what, "use the order smallest:usual:largest")
    return low, usual, high


def with_sizes(
    options: BuildOptions, model: Model, sizes: ShapeRanges | None = None
) -> BuildOptions:
    """Return the options with shapes for inputs that have dynamic sizes besides the batch.

    `sizes` are the least, median and most sizes of a sample by input; without them those that
    `quantize` recorded in the model are taken. Shapes that were given stay.
    """
    ranges = _recorded_sizes(model) if sizes is None else sizes
    firsts = {spec.shape[0] for spec in model.inputs if spec.shape}
    batches = {name for name in firsts if isinstance(name, str) and name.isidentifier()}
    known = {
        spec.name: _with_batches(spec, ranges[spec.name], batches)
        for spec in model.inputs
        if spec.name in ranges and any(isinstance(size, str) for size in spec.shape[1:])
    }
    first, *further = ({**known, **profile} for profile in options.profiles)
    return replace(options, shapes=first, further_profiles=tuple(further))


def _recorded_sizes(model: Model) -> ShapeRanges:
    """Return the sizes in a model's metadata that fit its inputs: others may have written them."""
    specs = {spec.name: spec for spec in model.inputs}
    return {
        name: shapes
        for name, shapes in recorded_sizes(quantization_record(model.proto)).items()
        if name in specs and all(_fits(shape, specs[name]) for shape in shapes) and _rise(shapes)
    }


def _with_batches(spec: TensorSpec, sizes: ShapeRange, batches: Collection[str]) -> ShapeRange:
    """Return the shapes of samples, in batches where an axis counts them: the first, or of its name."""
    axes = list(zip(*sizes, strict=True))
    for axis, name in enumerate(spec.shape):
        counts_samples = isinstance(name, str) and (axis == 0 or name in batches)
        if counts_samples and {*axes[axis]} == {1}:
            axes[axis] = DEFAULT_BATCHES
    low, usual, high = zip(*axes, strict=True)
    return low, usual, high


def write_range(shapes: ShapeRange) -> str:
    """Return a shape range as MIN:OPT:MAX."""
    return ":".join("x".join(map(str, shape)) for shape in shapes)


def _rise(shapes: ShapeRange) -> bool:
    return all(a <= b <= c for a, b, c in zip(*shapes, strict=True))


def shape_ranges(inputs: tuple[TensorSpec, ...], ranges: ShapeRanges) -> ShapeRanges:
    """Return minimum, optimum and maximum shape of every input with a dynamic size.

    A dynamic first axis is taken as the batch (1, 8, 32); `InputError` for other dynamic axes
    without a given range.
    """
    dynamic = [spec for spec in inputs if any(isinstance(size, str) for size in spec.shape)]
    return {spec.name: ranges.get(spec.name) or _default_shapes(spec) for spec in dynamic}


def _default_shapes(spec: TensorSpec) -> ShapeRange:
    if any(isinstance(size, str) for size in spec.shape[1:]):
        known = "".join(f"x{'?' if isinstance(size, str) else size}" for size in spec.shape[1:])
        first = spec.shape[0]
        batches = (first,) * 3 if isinstance(first, int) else DEFAULT_BATCHES
        example = f"--shapes {spec.name}=" + ":".join(f"{batch}{known}" for batch in batches)
        hint = f"give --data, to take the sizes of its samples, or {example}"
        what = f"input {spec} has dynamic dimensions besides the batch"
        raise InputError(what, f"{hint} with your sizes for each ?")
    rest = tuple(int(size) for size in spec.shape[1:])
    low, usual, high = ((n, *rest) for n in DEFAULT_BATCHES)
    return low, usual, high


ShapeRange: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Minimum, optimum and maximum shape."""

ShapeRanges: TypeAlias = Mapping[str, ShapeRange]
"""The shape range of each dynamic input, by name: one optimization profile."""

VERBOSITIES = ("detailed", "layer_names_only", "none")


@dataclass(frozen=True)
class BuildOptions(Shown):
    """How to build: `shapes` for dynamic inputs (else the default), and a time limit in seconds.

    `further_profiles` are optimization profiles in addition to that of `shapes`. The timing cache
    is read if it exists, and written back. The builder decides what is None.

    >>> BuildOptions("sm89", {"image": ((1, 1, 8, 8), (8, 1, 8, 8), (32, 1, 8, 8))}).time_limit_s
    1800.0
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
        verbosity = self.verbosity
        check_choice(verbosity, VERBOSITIES, f"unknown profiling verbosity {verbosity!r}")
        if self.workspace_bytes is not None and not 0 < self.workspace_bytes < 2**63:
            raise InputError(f"a workspace of {self.workspace_bytes} bytes", "give a size like 2GB")
        if self.optimization_level is not None and not 0 <= self.optimization_level <= 5:
            raise InputError(f"optimization level {self.optimization_level}", "give 0 to 5")

    @property
    def profiles(self) -> tuple[ShapeRanges, ...]:
        """All optimization profiles, in order."""
        return (self.shapes, *self.further_profiles)

    def named(self) -> tuple[str, ...]:
        """Return the command line's names of the options given that not every backend takes."""
        named = {
            "several --shapes": bool(self.further_profiles),
            "--workspace": self.workspace_bytes is not None,
            "--timing-cache": self.timing_cache is not None,
            "--profiling-verbosity": self.verbosity != "detailed",
            "--optimization-level": self.optimization_level is not None,
            "--layer-times": self.layer_times,
        }
        return tuple(filter(named.get, named))

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


def check_shapes(inputs: tuple[TensorSpec, ...], ranges: ShapeRanges) -> None:
    """`InputError` if a range is for an unknown input, or does not fit its input's fixed sizes."""
    specs = {spec.name: spec for spec in inputs}
    for name, shapes in ranges.items():
        if name not in specs:
            raise InputError(f"shapes name {name!r}", f"inputs are: {', '.join(sorted(specs))}")
        for shape in shapes:
            if not _fits(shape, specs[name]):
                wrong = "x".join(map(str, shape))
                raise InputError(f"shape {wrong} does not fit {specs[name]}", "check --shapes")


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    # Other axes than that of the samples may be empty: a past in the first step.
    is_shape = all(0 <= size < 2**31 for size in shape) and 0 not in shape[:1]
    pairs = zip(shape, spec.shape, strict=False)
    fits = all(isinstance(expected, str) or size == expected for size, expected in pairs)
    return is_shape and fits and len(shape) == len(spec.shape)
