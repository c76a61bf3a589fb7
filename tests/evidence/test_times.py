"""The time model: its terms, its intervals, and the constants that the committed facts give."""

import dataclasses

import pytest

from benchmarks import times as benchmark
from tests.fixtures.tables import each
from trtcal.evidence.gpus import Target, find_target
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.times import (
    CONSTANTS,
    PRODUCT,
    estimate_engine,
    floor_ms,
    kernel_ms,
    layer_ms,
    memory_lines,
    speedup,
)

GPU = Target("toy", 1000, 200, 100, 10, 50, boost_ghz=2.0, l2_mb=40.0)
X = TensorInfo("x", "fp32", (1, 64, 100, 100))
CONV = Layer("c", "CaskConvolution", (X,), (X,), macs=10**11, weights="fp32")
IDLE = Layer("n", "NoOp", (X,), (X,))
UNKNOWN = Layer("k", "kgen", (TensorInfo("x", "odd", (9,)),))
MYELIN = Layer("{ForeignNode[a...b]}", "Myelin", (X,), (X,))


Q = dataclasses.replace(X, dtype="int8")
INT8 = dataclasses.replace(CONV, inputs=(Q,), outputs=(Q,), weights="int8")


@each("work", [("bytes", lambda n: (n, 0)), ("products", lambda n: (0, 1000 * n))])
def test_more_work_takes_no_less_and_nothing_takes_less_than_the_floor(work):
    _, of = work
    sizes = [0, 1, *(10**n for n in range(3, 12))]
    times = [kernel_ms(*of(n), "int8", PRODUCT, GPU) for n in sizes]
    assert times == sorted(times)
    assert times[0] == floor_ms(GPU) == CONSTANTS["kernel"]["floor_kilocycles"] / 2 / 1e3
    assert times[-1] > 100 * times[0]


def test_beyond_the_cache_bytes_take_as_long_as_the_memory_lets_them():
    (fast, start), (slow, offset) = memory_lines(GPU)
    assert start == 0
    assert fast * 1e7 == pytest.approx(slow * 1e7 + offset)  # a quarter of 40 MB
    assert slow == pytest.approx(fast * CONSTANTS["kernel"]["l2_speedup"])
    without = dataclasses.replace(GPU, l2_mb=None)
    assert kernel_ms(1e7, 0, "fp32", PRODUCT, without) > kernel_ms(1e7, 0, "fp32", PRODUCT, GPU)


def test_float32_products_take_tf32_where_the_gpu_has_it():
    old = dataclasses.replace(GPU, tf32_tflops=None)
    assert layer_ms(CONV, GPU) < layer_ms(CONV, old)
    assert layer_ms(INT8, GPU) == layer_ms(INT8, old)
    many = TensorInfo("y", "fp32", (1, 64, 100_000, 1000))
    depthwise = Layer("d", "CaskConvolution", (X,), (many,), macs=9 * 64 * 10**8, weights="fp32")
    assert layer_ms(depthwise, GPU) == layer_ms(depthwise, old)


def test_what_is_not_known_is_counted_and_not_made_up():
    assert [layer_ms(layer, GPU) for layer in (UNKNOWN, MYELIN, IDLE)] == [None, None, 0.0]
    assert layer_ms(dataclasses.replace(CONV, macs=None), GPU) is None
    assert [
        estimate_engine(some, GPU) for some in ([IDLE], [CONV, UNKNOWN], [CONV] * 20 + [MYELIN])
    ] == [
        None,
        None,
        None,
    ]
    whole = estimate_engine([CONV] * 9 + [UNKNOWN, IDLE], GPU)
    assert (whole.kernels, whole.unknown, whole.compiler) == (10, 1, "TensorRT")
    assert whole.ms == pytest.approx(9 * layer_ms(CONV, GPU) + floor_ms(GPU))
    assert not whole.too_small
    assert estimate_engine([dataclasses.replace(INT8, macs=1)] * 9, GPU).too_small


def test_a_ratio_is_surer_than_its_two_estimates_and_a_fitted_gpu_than_another():
    slow, fast = (estimate_engine([layer], GPU) for layer in (CONV, INT8))
    ratio = speedup(slow, fast)
    assert slow.low_ms < slow.ms < slow.high_ms
    assert ratio.low < ratio.ratio == slow.ms / fast.ms < ratio.high
    assert ratio.high / ratio.low < slow.high_ms / slow.low_ms
    known = estimate_engine([CONV], find_target("t4"))
    assert known.high_ms / known.low_ms < slow.high_ms / slow.low_ms


def test_the_committed_facts_give_the_committed_constants():
    fitted = benchmark.fit(benchmark.engines())
    for section, name in benchmark.FITTED:
        assert fitted[section][name] == pytest.approx(CONSTANTS[section][name], rel=0.01), name
    small = [engine for engine in benchmark.engines() if engine.target.name in ("T4", "L4", "A30")]
    low, high = CONSTANTS["interval"]["other"]["total"]
    inside = [low <= e.latency_ms / e.estimate(CONSTANTS) <= high for e in small]
    assert sum(inside) >= 0.95 * len(inside)
