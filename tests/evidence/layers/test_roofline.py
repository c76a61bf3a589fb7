"""Estimates: the arithmetic, the shipped targets, and files of one's own."""

import dataclasses

import pytest

from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.roofline import Target, estimate, find_target, target_names

GPU = Target("toy", bandwidth_gb_s=1, int8_tops=4, fp16_tflops=2, fp32_tflops=1, tf32_tflops=1.5)
X = TensorInfo("x", "int8", (1000, 1000))


def conv(macs, **fields):
    return Layer("c", "CaskConvolution", (X,), (X,), macs=macs, weights="int8", **fields)


def test_the_longer_of_both_is_the_limit():
    slow = estimate(conv(10**10), GPU)
    assert (slow.bound, slow.compute_ms, slow.memory_ms) == ("compute", 5.0, 2.0)
    assert slow.estimated_ms == 5.0
    assert estimate(conv(10**9), GPU).bound == "memory"


def test_a_measured_time_gives_an_efficiency():
    assert estimate(conv(10**10, time_ms=20.0), GPU).efficiency == 0.25
    assert estimate(conv(10**10), GPU).efficiency is None
    assert estimate(conv(10**10, time_ms=0.0), GPU).efficiency is None


def test_each_precision_has_its_rate():
    fp16 = dataclasses.replace(conv(10**10), weights="fp16")
    single = dataclasses.replace(conv(10**10), weights="fp32")
    tf32 = dataclasses.replace(single, tactic="sm80_xmma_f32f32_tf32f32_f32")
    times = [estimate(layer, GPU).compute_ms for layer in (fp16, single, tf32)]
    assert times == [10.0, 20.0, pytest.approx(20 / 1.5)]


def test_what_is_not_known_is_not_made_up():
    assert estimate(conv(None), GPU).bound == "unknown"
    unsized = Layer("k", "kgen", (TensorInfo("x", "odd", (9,)),))
    assert estimate(unsized, GPU).estimated_ms is None
    idle = Layer("n", "NoOp", (X,), (X,))
    assert (estimate(idle, GPU).bound, estimate(idle, GPU).estimated_ms) == ("none", 0.0)
    assert estimate(Layer("k", "kgen", (X,), (X,)), GPU).bound == "memory"


@each("name", target_names())
def test_shipped_targets_are_dense_rates_of_one_gpu(name):
    target = find_target(name)
    assert target.fp32_tflops < target.fp16_tflops < target.int8_tops
    assert target.int8_tops == pytest.approx(2 * target.fp16_tflops, rel=0.01)


def test_the_promised_gpus_are_there():
    assert {"a100-sxm4-40gb", "t4", "l4", "rtx-4090", "orin-agx-64gb"} <= set(target_names())


GOOD = "bandwidth_gb_s = 100\nint8_tops = 4\nfp16_tflops = 2\nfp32_tflops = 1.0\n"


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert find_target(str(path)) == Target("mine", 100, 4, 2, 1)


@each(
    "text",
    [
        "", "= 3", GOOD.replace("100", "0"), GOOD.replace("100", "-1"),
        GOOD.replace("100", "nan"), GOOD.replace("100", "inf"), GOOD.replace("100", "true"),
        GOOD.replace("100", '"fast"'), GOOD + "sparse = 1\n", GOOD.replace("fp32", "fp31"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_an_input_error(text, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError):
        find_target(str(path))


def test_an_unknown_name_says_the_known_ones():
    with pytest.raises(InputError) as caught:
        find_target("h100000")
    assert "rtx-4090" in caught.value.hint
