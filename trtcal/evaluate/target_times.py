"""How long a variant takes on the GPU that it is for: measured there, else estimated.

An estimate is of the layers that TensorRT is expected to make of the model; where the model is not
there, of those that a build lists, and says which compiler's they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from trtcal.backends.options import (
    DEFAULT_BATCHES,
    BuildOptions,
    ShapeRanges,
    check_shapes,
    shape_ranges,
    with_sizes,
)
from trtcal.documents import Document
from trtcal.evaluate.latency import Latency
from trtcal.evidence.gpus import Target, datasheet_of, find_target
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.predicted import predict_layers
from trtcal.evidence.layers.roofline import time_of
from trtcal.evidence.manifest import Build
from trtcal.evidence.times import (
    TENSORRT,
    TENSORRT_RTX,
    TOO_SMALL,
    SpeedupEstimate,
    TimeEstimate,
    estimate_engine,
    speedup,
)
from trtcal.model import Model
from trtcal.model.shapes import Shape

if TYPE_CHECKING:
    from trtcal.evidence.layers.reading import Engine

SIZES = ("least", "usual", "largest")
Sized = tuple[str, int, tuple[Layer, ...]]
"""A size, its batch, and the layers of an engine for it."""


@dataclass(frozen=True)
class TargetTime(TimeEstimate):
    """One inference of `batch` samples on a target.

    `latency` is what was measured of whole inferences on a device; the measured sum of an engine's
    layers has no interval.
    """

    target: str
    batch: int
    is_measured: bool = False
    latency: Latency | None = None

    @property
    def where(self) -> str:
        """The target as people read it."""
        return self.latency.where if self.latency else self.target

    @property
    def source(self) -> str:
        """Where the figure comes from, as it ends a sentence."""
        if self.latency or (self.is_measured and not self.kernels):
            return f"measured on {self.gpu}"
        if self.is_measured:
            return f"measured layer by layer on {self.gpu}"
        return f"estimated for {self.engine}, not measured"

    @property
    def engine(self) -> str:
        """Whose engine it is, and of which size."""
        tf32 = ", with TF32" * self.tf32
        return f"{self.compiler} on the {self.gpu}, batch of {self.batch}{tf32}"


@dataclass(frozen=True)
class Speed(SpeedupEstimate):
    """How many times as fast as `against` a variant is on a target."""

    against: str
    time: TargetTime
    other: TargetTime

    @property
    def is_too_small(self) -> bool:
        """Whether launches decide in both, so that no estimate says which is faster."""
        return self.time.too_small and self.other.too_small

    @property
    def sentence(self) -> str:
        """The figure with its interval, or why there is none."""
        if self.is_too_small:
            return TOO_SMALL.format(self.time.kernels)
        text = f"{self.ratio:.3g} times the speed of {self.against}"
        ends = f" ({self.low:.3g} to {self.high:.3g})" if self.low != self.high else ""
        about = "about " if ends and not (self.time.latency and self.other.latency) else ""
        return f"{about}{text}{ends}"

    def to_document(self) -> dict[str, object]:
        """Return the JSON form."""
        names = ("against", "ratio", "low", "high", "sentence")
        time = {name: value for name, value in vars(self.time).items() if name != "latency"}
        return {
            **time,
            **{name: getattr(self, name) for name in names},
            "where": self.time.where,
            "too_small": self.is_too_small,
            "against_kernels": self.other.kernels,
            "source": self.time.engine if self.is_too_small else self.time.source,
        }


def sizes_of(
    model: Model, user_shapes: ShapeRanges, data: ShapeRanges | None = None
) -> ShapeRanges:
    """Return the least, usual and largest shape of each input that has dynamic sizes.

    They are those given, of the data, of the model's metadata, or batches of 1, 8 and 32;
    `InputError` if another axis has no size.
    """
    return shape_ranges(model.inputs, with_sizes(BuildOptions("", user_shapes), model, data).shapes)


def estimate_model(
    model: Model, targets: Iterable[str], ranges: ShapeRanges
) -> tuple[TargetTime, ...]:
    """Estimate a model in its usual size for each target whose GPU is known."""
    shapes = {name: usual for name, (_, usual, _) in ranges.items()}
    gpus = {target: find_target(gpu) for target in targets if (gpu := datasheet_of(target))}
    layers = cache(lambda has_tf32: predict_layers(model, tf32=has_tf32, shapes=shapes))
    times = (
        (target, estimate_engine(layers(gpu.tf32_tflops is not None), gpu))
        for target, gpu in gpus.items()
    )
    batch = _batch(model, shapes)
    return tuple(TargetTime(**vars(time), target=name, batch=batch) for name, time in times if time)


def _batch(model: Model, shapes: Mapping[str, Shape]) -> int:
    first = next(iter(model.inputs), None)
    shape = shapes.get(first.name, first.shape) if first else ()
    return next((size for size in shape[:1] if isinstance(size, int)), 1)


def sized(
    engine: Engine, user_shapes: ShapeRanges, model: Model | None, gpu: Target
) -> list[Sized]:
    """Return the layers of an engine for its sizes, of a model those that TensorRT is to make of it.

    A list says no more of dynamic sizes than the batch, which is that of `user_shapes`, or 1, 8 and 32.
    """
    if model is not None:
        check_shapes(model.inputs, user_shapes)
        ranges = sizes_of(model, user_shapes)
        shapes = [{name: of[size] for name, of in ranges.items()} for size in range(len(SIZES))]
        batches = [_batch(model, each) for each in shapes]
        tf32 = gpu.tf32_tflops is not None
        every = [predict_layers(model, tf32=tf32, shapes=each) for each in shapes]
    else:
        batches = [s[0] for s in next(iter(user_shapes.values()), [(n,) for n in DEFAULT_BATCHES])]
        every = [tuple(_at_batch(layer, batch) for layer in engine.layers) for batch in batches]
    if every[0] == every[-1]:
        return [(SIZES[1], _first(every[0]), every[0])]
    return list(zip(SIZES, batches, every, strict=True))


def estimates_of(sizes: Sequence[Sized], gpu: Target, compiler: str) -> Document | None:
    """Return the estimate for the usual size, and in `sizes` that for each."""
    known = [
        {"size": size, "batch": batch, **vars(estimate)}
        for size, batch, layers in sizes
        if (estimate := estimate_engine(layers, gpu, compiler=compiler))
    ]
    return {**known[len(known) // 2], "sizes": known} if known else None


def _at_batch(layer: Layer, batch: int) -> Layer:
    """Return a layer for a batch, where its first axis is known only at run time."""

    def fixed(tensor: TensorInfo) -> TensorInfo:
        is_open = tensor.shape[:1] == (-1,)
        return replace(tensor, shape=(batch, *tensor.shape[1:])) if is_open else tensor

    inputs, outputs = tuple(map(fixed, layer.inputs)), tuple(map(fixed, layer.outputs))
    is_dynamic = (inputs, outputs) != (layer.inputs, layer.outputs)
    macs = layer.macs * batch if layer.macs and is_dynamic else layer.macs
    return replace(layer, inputs=inputs, outputs=outputs, macs=macs)


def _first(layers: Sequence[Layer]) -> int:
    shapes = (tensor.shape for layer in layers for tensor in layer.inputs)
    return next((shape[0] for shape in shapes if shape), 1)


def of_build(build: Build) -> TargetTime | None:
    """Return the measured time of an engine, else the estimate of the layers that it lists."""
    gpu, ms = datasheet_of(build.target), time_of(build.layers)
    compiler = TENSORRT_RTX if build.backend == "tensorrt-rtx" else TENSORRT
    if ms is not None:
        kernels = sum(not layer.is_idle for layer in build.layers)
        device = build.gpu or build.target
        exact = TimeEstimate(ms, ms, ms, kernels, 0, device, compiler, too_small=False)
        return TargetTime(**vars(exact), target=build.target, batch=0, is_measured=True)
    layers = [_at_batch(layer, DEFAULT_BATCHES[1]) for layer in build.layers]
    listed = estimate_engine(layers, find_target(gpu), compiler=compiler) if gpu else None
    if listed is None:
        return None
    return TargetTime(**vars(listed), target=build.target, batch=_first(layers))


def of_latency(latency: Latency) -> TargetTime:
    """Return the time of an engine that was timed on a device."""
    where = f"{latency.where} ({latency.hardware.removeprefix('CPU, ')})"
    runtime, ends = latency.hardware.rpartition(", ")[2], latency.p50_interval_ms
    known = TimeEstimate(latency.p50_ms, *ends, 0, 0, where, runtime, too_small=False)
    return TargetTime(
        **vars(known), target=latency.on, batch=latency.batch, is_measured=True, latency=latency
    )


def speed_of(fast: TargetTime, slow: TargetTime, against: str) -> Speed:
    """Return how many times as fast one is; of a measured and an estimated one by both intervals.

    Where both were timed in turns with the reference and `slow` is that, its rounds are paired.
    """
    if fast.latency and slow.latency and slow.latency.speedup_interval == (1.0, 1.0):
        paired = fast.latency
        return Speed(paired.speedup, *paired.speedup_interval, against, fast, slow)
    known = speedup(slow, fast)
    low, high = known.low, known.high
    if fast.is_measured or slow.is_measured:
        low, high = slow.low_ms / fast.high_ms, slow.high_ms / fast.low_ms
    return Speed(known.ratio, low, high, against, fast, slow)


def best_known(times: Sequence[TargetTime], builds: Iterable[Build]) -> tuple[TargetTime, ...]:
    """Return a model's time on each target: measured, else estimated, else of the layers listed.

    Whole inferences come before the sum of an engine's layers.
    """
    built = {time.target: time for build in builds if (time := of_build(build))}
    measured = {target: time for target, time in built.items() if time.is_measured}
    known = {time.target: time for time in times}  # in the order of the targets, the first judged
    whole = {target: time for target, time in known.items() if time.latency}
    return tuple((known | {**built, **known} | measured | whole).values())
