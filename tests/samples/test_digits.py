"""What the README promises of samples/digits."""

import numpy as np
import onnx
import pytest

from tests.fixtures.slow import SLOW
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.calibration import calibrate, observe
from trtcal.data import open_dataset
from trtcal.evaluate.comparison import CompareSettings, compare
from trtcal.evaluate.variants import open_variant
from trtcal.model import load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe, write_quantized

METHODS = {"minmax": {}, "percentile": {"percentile": 99.99}, "entropy": {}}
RTX = BACKENDS["tensorrt-rtx"].availability()


def drops(digits, folder, data):
    """Return points of top-1 lost by each method, calibrated on one of the two sets."""
    model = load_model(digits / "digits.onnx")
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    seen = observe(prepared, open_dataset(digits / data, model), tensors)
    variants = []
    for method, parameters in METHODS.items():
        calibration = calibrate(seen, method, parameters)
        write_quantized(folder / f"{method}.onnx", quantize(prepared, calibration))
        variants.append(open_variant(folder / f"{method}.onnx"))
    test = open_dataset(digits / "test.npz", model)
    made = compare(open_variant(model.path), variants, test, (), CompareSettings(rounds=2))
    assert made.rows[0].accuracy.top1 >= 97.5
    return {row.name: row.accuracy.top1_drop for row in made.rows[1:]}


@SLOW
def test_on_clean_data_no_method_loses_more_than_a_point(digits, tmp_path):
    assert all(drop <= 1 for drop in drops(digits, tmp_path, "calibration.npz").values())


def test_saturated_pixels_ruin_minmax_and_not_percentile(digits, tmp_path):
    lost = drops(digits, tmp_path, "glitch.npz")
    assert lost["minmax"] >= 5
    assert lost["percentile"] <= 1


def test_glitch_is_the_calibration_set_with_three_pixels_changed(digits):
    clean, glitch = (np.load(digits / f"{name}.npz")["image"] for name in ("calibration", "glitch"))
    changed = np.argwhere(clean != glitch)
    assert len(changed) == 3
    assert len(set(changed[:, 0])) == 3
    assert (glitch[glitch != clean] == 4095 / 16).all()


def test_the_network_has_what_real_networks_have(digits):
    ops = [node.op_type for node in onnx.load(digits / "digits.onnx").graph.node]
    wanted = {"Conv", "BatchNormalization", "Relu", "LeakyRelu", "Add", "Concat", "MaxPool", "Gemm"}
    assert wanted <= set(ops)
    assert sum(file.stat().st_size for file in digits.iterdir()) < 2_000_000


@SLOW
@pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))
def test_every_layer_asked_in_int8_is_int8_on_the_compiler(digits, tmp_path):
    model = load_model(digits / "digits.onnx")
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    seen = observe(prepared, open_dataset(digits / "calibration.npz", model), tensors)
    write_quantized(tmp_path / "int8.onnx", quantize(prepared, calibrate(seen, "percentile")))
    options = BuildOptions("sm89")
    made = build(
        load_model(tmp_path / "int8.onnx"), BACKENDS["tensorrt-rtx"], options, tmp_path / "b"
    )
    assert [outcome.got for outcome in made.outcomes] == ["int8"] * 9
    heavy = [layer for layer in made.layers if layer.is_heavy]
    assert {layer.precision for layer in heavy} == {"int8"}
