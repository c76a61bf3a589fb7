"""Estimates of layers, the shipped targets, and files of one's own."""

import pytest

from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evidence.gpus import Target, find_target, target_names
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.reading import Engine, engine_document
from trtcal.evidence.times import layer_ms

GPU = Target("toy", bandwidth_gb_s=1, int8_tops=4, fp16_tflops=2, fp32_tflops=1, tf32_tflops=5)
X = TensorInfo("x", "int8", (1000, 1000))


def conv(macs, **fields):
    return Layer("c", "CaskConvolution", (X,), (X,), macs=macs, weights="int8", **fields)


def shown(layer):
    """Return the estimate that `layers show` gives of one layer."""
    return engine_document(Engine("one", (layer,)), GPU)["layers"][0]["estimate"]


@each(
    "layer, bound",
    [
        (conv(10**11), "compute"),
        (conv(10**6), "memory"),
        (conv(None), "unknown"),
        (Layer("k", "kgen", (TensorInfo("x", "odd", (9,)),)), "unknown"),
        (Layer("k", "kgen", (TensorInfo("x", "fp32", (9,)),)), "launch"),
        (Layer("n", "NoOp", (X,), (X,)), "none"),
    ],
)
def test_what_takes_longest_is_said(layer, bound):
    assert shown(layer)["bound"] == bound


def test_the_estimate_of_a_layer_is_that_of_the_model():
    layer = conv(10**10)
    assert shown(layer)["estimated_ms"] == layer_ms(layer, GPU)
    assert shown(conv(None))["estimated_ms"] is None


def test_a_measured_time_gives_an_efficiency():
    layer = conv(10**10, time_ms=20.0)
    assert shown(layer)["efficiency"] == layer_ms(layer, GPU) / 20.0
    assert shown(conv(10**10))["efficiency"] is None
    assert shown(conv(10**10, time_ms=0.0))["efficiency"] is None


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
