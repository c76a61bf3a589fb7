"""How long kernels take on a GPU: a model fitted to published profiles, with its error.

A kernel takes floor + max(bytes / bandwidth, operations / rate). The floor is the launch and the
latency of a kernel with almost no work; bandwidth and rate are shares of those of the datasheet.
The constants and their source stand in times.toml; benchmarks/times.py fits and judges them.
A measured time always goes before an estimate: nothing here looks at `Layer.time_ms`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trtcal.config import read_toml
from trtcal.evidence.layers.layer import Layer, is_quantize_step
from trtcal.evidence.layers.roofline import Target
from trtcal.formats import BY_LISTED

CONSTANTS = read_toml(Path(__file__).parent / "times.toml")
PRODUCT, DEPTHWISE, POOLING, COPY, OTHER = "product", "depthwise", "pooling", "copy", "other"
TENSORRT, TENSORRT_RTX = "TensorRT", "TensorRT-RTX"


@dataclass(frozen=True)
class TimeEstimate:
    """Estimated time of one inference of an engine that was not measured.

    `ms` is the estimate, `low_ms` and `high_ms` its interval (its level and coverage:
    docs/benchmarks.md). `kernels` counts the layers that launch one, `unknown` those of them
    whose bytes or multiply-accumulates are not known: they count as the floor alone. `compiler` is
    the one whose layers these are (`TensorRT`, `TensorRT-RTX`). `too_small` says that launching the
    kernels takes more than half of the time, so that precision decides little.
    """

    ms: float
    low_ms: float
    high_ms: float
    kernels: int
    unknown: int
    gpu: str
    compiler: str
    too_small: bool


@dataclass(frozen=True)
class SpeedupEstimate:
    """How many times faster one engine of a network is than another on one GPU, with interval."""

    ratio: float
    low: float
    high: float


def floor_ms(target: Target) -> float:
    """Return what a kernel with almost no work takes on a GPU."""
    floors = CONSTANTS["floor_us"]
    return float(floors.get(target.capability, floors["default"])) / 1e3


def memory_ms(size_bytes: float, kind: str, target: Target) -> float:
    """Return how long moving bytes takes, without the floor; linear in the bytes."""
    return size_bytes / (CONSTANTS["bandwidth_share"][kind] * target.bandwidth_gb_s * 1e6)


def compute_ms(
    macs: float, precision: str, kind: str, target: Target, tf32: bool = True
) -> float | None:
    """Return how long multiply-accumulates take, without the floor; None if the GPU has no rate.

    `precision` is the name in `trtcal.formats`. With `tf32`, as TensorRT has it by default, float32
    products take the rate of TF32 where the GPU has it.
    """
    is_tf32 = precision == "fp32" and tf32 and kind == PRODUCT and target.tf32_tflops is not None
    rate = target.tf32_tflops if is_tf32 else target.rate_in(precision)
    shares = CONSTANTS["rate_share"]
    share = shares.get("tf32" if is_tf32 else precision, shares["fp16"])
    return None if rate is None else 2 * macs / (rate * share) / 1e9


def kernel_ms(
    size_bytes: float, macs: float, precision: str, kind: str, target: Target, tf32: bool = True
) -> float | None:
    """Return how long one kernel takes, floor included; None if the GPU has no such rate."""
    compute = compute_ms(macs, precision, kind, target, tf32) if macs else 0.0
    if compute is None:
        return None
    return floor_ms(target) + max(memory_ms(size_bytes, kind, target), compute)


def kind_of(layer: Layer) -> str:
    """Return the kind of a layer that decides its shares of the datasheet's rates."""
    if layer.is_heavy:
        values = sum(math.prod(map(abs, tensor.shape)) for tensor in layer.outputs[:1])
        return product_kind(layer.macs or 0, values)
    if layer.is_reformat or is_quantize_step(layer):
        return COPY
    return POOLING if layer.is_pooling else OTHER


def product_kind(macs: int, values: int) -> str:
    """Return the kind of a convolution or product by its multiply-accumulates and output values.

    Under 64 of them for a value, as in depthwise convolutions and the first of small networks,
    tensor cores have nothing to share.
    """
    return DEPTHWISE if 0 < macs < 64 * values else PRODUCT


def layer_ms(layer: Layer, target: Target, *, tf32: bool = True) -> float | None:
    """Return how long a layer takes, floor included; None if its bytes or products are unknown.

    A layer that moves no data takes none.
    """
    if layer.is_idle:
        return 0.0
    kind, moved, macs = kind_of(layer), layer.bytes_moved, layer.macs or 0
    if moved is None or layer.is_opaque or (layer.is_heavy and not macs):
        return None
    precision = BY_LISTED[layer.precision].name if layer.precision in BY_LISTED else "fp32"
    return kernel_ms(moved, macs, precision, kind, target, tf32)


def estimate_engine(
    layers: Iterable[Layer], target: Target, *, tf32: bool = True, compiler: str = TENSORRT
) -> TimeEstimate | None:
    """Estimate one inference of an engine from its layers; None if none of them can be estimated."""
    kernels = [layer for layer in layers if not layer.is_idle]
    times = [layer_ms(layer, target, tf32=tf32) for layer in kernels]
    unknown = times.count(None)
    if unknown == len(kernels):
        return None
    ms = math.fsum(time for time in times if time is not None) + unknown * floor_ms(target)
    return total(ms, len(kernels), target, unknown, compiler)


def total(
    ms: float, kernels: int, target: Target, unknown: int = 0, compiler: str = TENSORRT
) -> TimeEstimate:
    """Return the estimate of an engine whose kernels take `ms` in all, with its interval."""
    low, high = CONSTANTS["interval"]["total"]
    small = floor_ms(target) * kernels > ms / 2
    return TimeEstimate(ms, ms * low, ms * high, kernels, unknown, target.name, compiler, small)


def speedup(slow: TimeEstimate, fast: TimeEstimate) -> SpeedupEstimate:
    """Return how many times faster `fast` is; for two variants of one network on one GPU only.

    Its interval is narrower than that of two independent estimates: they share their errors.
    """
    ratio = slow.ms / fast.ms
    low, high = CONSTANTS["interval"]["speedup"]
    return SpeedupEstimate(ratio, ratio * low, ratio * high)


PAYS = 1.02
"""The speed-up from which ModelOpt keeps Q/DQ (NVIDIA, TensorRT-Model-Optimizer, PR 2318)."""
INT8, FP16, DEVICE = "int8", "fp16", "device"


def pays(over_fp16: SpeedupEstimate) -> str:
    """Return whether INT8 pays over FP16, FP16 does as well, or only the device decides."""
    if over_fp16.low > PAYS:
        return INT8
    return FP16 if over_fp16.high <= PAYS else DEVICE
