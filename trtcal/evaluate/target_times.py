"""How long a variant takes on the GPU that it is for: measured there, else estimated.

An estimate is of the layers that TensorRT is expected to make of the model; where the model is not
there, of those that a build lists, and says which compiler's they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trtcal.backends.options import BuildOptions, ShapeRanges, shape_ranges, with_sizes
from trtcal.evidence.layers.predicted import predict_layers
from trtcal.evidence.layers.roofline import datasheet_of, find_target, time_of
from trtcal.evidence.manifest import Build
from trtcal.evidence.times import (
    TENSORRT,
    TENSORRT_RTX,
    SpeedupEstimate,
    TimeEstimate,
    estimate_engine,
    speedup,
)
from trtcal.model import Model
from trtcal.model.shapes import Shape


@dataclass(frozen=True)
class TargetTime(TimeEstimate):
    """One inference of `batch` samples on a target; a measured one has no interval."""

    target: str
    batch: int
    is_measured: bool = False

    @property
    def source(self) -> str:
        """Where the figure comes from, as it ends a sentence."""
        if self.is_measured:
            return f"measured layer by layer on {self.gpu}"
        of_batch = f", batch of {self.batch}" if self.batch else ""
        return f"estimated for {self.compiler} on the {self.gpu}{of_batch}, not measured"


@dataclass(frozen=True)
class Speed(SpeedupEstimate):
    """How many times as fast as `against` a variant is on a target."""

    against: str
    time: TargetTime
    other: TargetTime

    @property
    def is_too_small(self) -> bool:
        """Whether launches decide, so that no estimate says which is faster."""
        return self.time.too_small and not self.time.is_measured

    @property
    def sentence(self) -> str:
        """The figure with its interval, or why there is none."""
        if self.is_too_small:
            kernels = f"{self.time.kernels} kernels, {self.against} has {self.other.kernels}"
            return f"too small to estimate: {kernels}; launch time decides"
        exact = self.low == self.high
        ends = "" if exact else f" ({self.low:.3g} to {self.high:.3g})"
        about = "" if exact else "about "
        return f"{about}{self.ratio:.3g} times the speed of {self.against}{ends}"

    def to_document(self) -> dict[str, object]:
        """Return the JSON form."""
        ends = {name: getattr(self, name) for name in ("against", "ratio", "low", "high")}
        words = {"sentence": self.sentence, "source": self.time.source}
        return {**vars(self.time), **ends, "against_kernels": self.other.kernels, **words}


def sizes_of(model: Model, given: ShapeRanges, data: ShapeRanges | None = None) -> ShapeRanges:
    """Return the least, usual and largest shape of each input that has dynamic sizes.

    They are those given, of the data, of the model's metadata, or batches of 1, 8 and 32;
    `InputError` if another axis has no size.
    """
    return shape_ranges(model.inputs, with_sizes(BuildOptions("", given), model, data).shapes)


def estimate_model(
    model: Model, targets: Iterable[str], ranges: ShapeRanges, size: int = 1
) -> tuple[TargetTime, ...]:
    """Estimate a model for each target whose GPU is known, with its least, usual or largest size."""
    shapes = {name: shape[size] for name, shape in ranges.items()}
    times = ((target, _estimated(model, target, shapes)) for target in targets)
    batch = _batch(model, shapes)
    return tuple(
        TargetTime(**vars(time), target=target, batch=batch) for target, time in times if time
    )


def _estimated(model: Model, target: str, shapes: Mapping[str, Shape]) -> TimeEstimate | None:
    gpu = datasheet_of(target)
    if gpu is None:
        return None
    return estimate_engine(predict_layers(model, gpu, shapes=shapes), find_target(gpu))


def _batch(model: Model, shapes: Mapping[str, Shape]) -> int:
    first = next(iter(model.inputs), None)
    shape = shapes.get(first.name, first.shape) if first else ()
    return next((size for size in shape[:1] if isinstance(size, int)), 1)


def of_build(build: Build) -> TargetTime | None:
    """Return the measured time of an engine, else the estimate of the layers that it lists."""
    gpu, ms = datasheet_of(build.target), time_of(build.layers)
    compiler = TENSORRT_RTX if build.backend == "tensorrt-rtx" else TENSORRT
    if ms is not None:
        kernels = sum(not layer.is_idle for layer in build.layers)
        device = build.gpu or build.target
        exact = TimeEstimate(ms, ms, ms, kernels, 0, device, compiler, too_small=False)
        return TargetTime(**vars(exact), target=build.target, batch=0, is_measured=True)
    listed = estimate_engine(build.layers, find_target(gpu), compiler=compiler) if gpu else None
    return listed and TargetTime(**vars(listed), target=build.target, batch=0)


def speed_of(fast: TargetTime, slow: TargetTime, against: str) -> Speed:
    """Return how many times as fast one is; of a measured and an estimated one by both intervals."""
    ratio = slow.ms / fast.ms
    if fast.is_measured or slow.is_measured:
        ends = slow.low_ms / fast.high_ms, slow.high_ms / fast.low_ms
        return Speed(ratio, *ends, against, fast, slow)
    estimate = speedup(slow, fast)
    return Speed(estimate.ratio, estimate.low, estimate.high, against, fast, slow)


def best_known(times: Sequence[TargetTime], builds: Iterable[Build]) -> dict[str, TargetTime]:
    """Return a model's time on each target: measured, else estimated, else of the layers listed."""
    built = [time for build in builds if (time := of_build(build))]
    measured = {time.target: time for time in built if time.is_measured}
    listed = {time.target: time for time in built}
    return listed | {time.target: time for time in times} | measured
