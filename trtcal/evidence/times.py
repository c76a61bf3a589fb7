"""How long kernels take on a GPU: a model fitted to published engines, with its error.

A kernel takes floor + max(memory, compute). The floor is its launch and its latency, a number of
cycles at the boost clock. Memory is bytes at a share of the bandwidth, faster for what the L2 cache
holds; compute is multiply-accumulates at a share of the rate of their precision. The constants, and
which of them are fitted, are in times.toml; `python -m benchmarks.times` fits and judges them.
A measured time always goes before an estimate: nothing here looks at `Layer.time_ms`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtcal.config import read_toml
from trtcal.evidence.gpus import Target
from trtcal.evidence.layers.layer import Layer
from trtcal.formats import BY_LISTED

Constants = Mapping[str, Any]
Lines = tuple[tuple[float, float], ...]
CONSTANTS: Constants = read_toml(Path(__file__).parent / "times.toml")
PRODUCT, DEPTHWISE, OTHER = "product", "depthwise", "other"
TENSORRT, TENSORRT_RTX = "TensorRT", "TensorRT-RTX"
USUAL_CLOCK_GHZ, USUAL_L2_MB = 1.6, 4.0


@dataclass(frozen=True)
class TimeEstimate:
    """Estimated GPU time of one inference of an engine, without copies from and to the host.

    `ms` is the estimate, `low_ms` and `high_ms` its interval (level and coverage: docs/benchmarks.md).
    `kernels` counts the layers that launch one, `unknown` those of them without bytes or
    multiply-accumulates: they count as the floor alone. `compiler` is the one whose layers these are
    (`TensorRT`, `TensorRT-RTX`). `too_small`: launching the kernels takes more than half of the time,
    so that precision decides little. `tf32`: some of its float32 products count as TF32.
    """

    ms: float
    low_ms: float
    high_ms: float
    kernels: int
    unknown: int
    gpu: str
    compiler: str
    too_small: bool
    tf32: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class SpeedupEstimate:
    """How many times faster one engine of a network is than another on one GPU, with interval."""

    ratio: float
    low: float
    high: float


def floor_ms(target: Target, constants: Constants = CONSTANTS) -> float:
    """Return what a kernel with almost no work takes on a GPU."""
    cycles: float = constants["kernel"]["floor_kilocycles"]
    return cycles / (target.boost_ghz or USUAL_CLOCK_GHZ) / 1e3


def memory_lines(target: Target, constants: Constants = CONSTANTS) -> Lines:
    """Return slope (ms a byte) and offset (ms) of lines: their maximum is the time of moving bytes.

    Up to a share of the L2 cache, bytes take the first line; what is more comes from memory.
    """
    kernel = constants["kernel"]
    slow = 1 / (kernel["bandwidth_share"] * target.bandwidth_gb_s * 1e6)
    fast = slow / kernel["l2_speedup"]
    cached = kernel["l2_share"] * (target.l2_mb or USUAL_L2_MB) * 1e6
    return (fast, 0.0), (slow, cached * (fast - slow))


def memory_ms(size_bytes: float, target: Target, constants: Constants = CONSTANTS) -> float:
    """Return how long moving bytes takes, without the floor."""
    return max(slope * size_bytes + offset for slope, offset in memory_lines(target, constants))


def compute_ms(
    macs: float, precision: str, kind: str, target: Target, constants: Constants = CONSTANTS
) -> float | None:
    """Return how long multiply-accumulates take, without the floor; None if the GPU has no rate.

    `precision` is the name in `trtcal.formats`. As by TensorRT's default, float32 products take the
    rate of TF32 where the GPU has it. Depthwise convolutions take that of float32.
    """
    form = "fp32" if kind == DEPTHWISE else precision
    if form == "fp32" and kind == PRODUCT and target.tf32_tflops is not None:
        form = "tf32"
    rate = target.tf32_tflops if form == "tf32" else target.rate_in(form)
    shares = constants["rate_share"]
    share = shares.get(form, shares["fp16"])
    if form != "fp32":
        share *= constants["sustained"].get(target.name, 1.0)
    return None if rate is None else 2 * macs / (rate * share) / 1e9


def kernel_ms(
    size_bytes: float,
    macs: float,
    precision: str,
    kind: str,
    target: Target,
    constants: Constants = CONSTANTS,
) -> float | None:
    """Return how long one kernel takes, floor included; None if the GPU has no such rate."""
    compute = compute_ms(macs, precision, kind, target, constants) if macs else 0.0
    if compute is None:
        return None
    return floor_ms(target, constants) + max(memory_ms(size_bytes, target, constants), compute)


def product_kind(macs: int, values: int) -> str:
    """Return the kind of a convolution or product by its multiply-accumulates and output values.

    Tensor cores do not help where a value has fewer than 64 of them, as in depthwise convolutions.
    """
    return DEPTHWISE if 0 < macs < 64 * values else PRODUCT


def layer_ms(layer: Layer, target: Target) -> float | None:
    """Return how long a layer takes, floor included; None if its bytes or products are unknown.

    A layer that moves no data takes none.
    """
    if layer.is_idle:
        return 0.0
    moved, macs = layer.bytes_moved, layer.macs or 0
    if moved is None or layer.is_opaque or (layer.is_heavy and not macs):
        return None
    kind, precision = _rated(layer)
    return kernel_ms(moved, macs, precision, kind, target)


def estimate_engine(
    layers: Iterable[Layer], target: Target, *, compiler: str = TENSORRT
) -> TimeEstimate | None:
    """Estimate one inference of an engine from its layers; None if too much of it is not known.

    That is a whole subgraph in one layer (`Myelin`), or more than a tenth of the layers.
    """
    kernels = [layer for layer in layers if not layer.is_idle]
    times = [layer_ms(layer, target) for layer in kernels]
    unknown = times.count(None)
    if not kernels or 10 * unknown > len(kernels) or any(layer.is_opaque for layer in kernels):
        return None
    ms = math.fsum(time for time in times if time is not None) + unknown * floor_ms(target)
    tf32 = target.tf32_tflops is not None and (PRODUCT, "fp32") in map(_rated, kernels)
    return replace(total(ms, len(kernels), target, unknown, compiler), tf32=tf32)


def _rated(layer: Layer) -> tuple[str, str]:
    """Return the kind of a layer's work, and the precision whose rate it takes."""
    values = sum(math.prod(map(abs, tensor.shape)) for tensor in layer.outputs[:1])
    kind = product_kind(layer.macs or 0, values) if layer.is_heavy else OTHER
    return kind, BY_LISTED[layer.precision].name if layer.precision in BY_LISTED else "fp32"


def total(
    ms: float, kernels: int, target: Target, unknown: int = 0, compiler: str = TENSORRT
) -> TimeEstimate:
    """Return the estimate of an engine whose kernels take `ms` in all, with its interval."""
    low, high = _interval("total", target.name)
    small = floor_ms(target) * kernels > ms / 2
    return TimeEstimate(ms, ms * low, ms * high, kernels, unknown, target.name, compiler, small)


def _interval(figure: str, gpu: str) -> tuple[float, float]:
    """Return the factors of an interval: narrower on GPUs whose engines are among those fitted."""
    kind = "fitted" if gpu in CONSTANTS["fitted"]["gpus"] else "other"
    low, high = CONSTANTS["interval"][kind][figure]
    return low, high


def speedup(slow: TimeEstimate, fast: TimeEstimate) -> SpeedupEstimate:
    """Return how many times faster `fast` is; for two variants of one network on one GPU only.

    Its interval is narrower than that of two independent estimates: they share their errors.
    """
    ratio = slow.ms / fast.ms
    low, high = _interval("speedup", fast.gpu)
    return SpeedupEstimate(ratio, ratio * low, ratio * high)


PAYS = 1.02
"""The speed-up from which ModelOpt keeps Q/DQ (NVIDIA, TensorRT-Model-Optimizer, PR 2318)."""
INT8, FP16, DEVICE = "int8", "fp16", "device"
TOO_SMALL = "too small to estimate: {} kernels, launch time decides"


def pays(over_fp16: SpeedupEstimate) -> str:
    """Return whether INT8 pays over FP16, FP16 does as well, or only the device decides."""
    if over_fp16.low > PAYS:
        return INT8
    return FP16 if over_fp16.high <= PAYS else DEVICE
