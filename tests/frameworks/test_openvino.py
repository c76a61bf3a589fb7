"""`trtcal export openvino`: IRs compute what ONNX Runtime computes of the Q/DQ, and run in INT8.

The IR is compared without OpenVINO's low precision passes, in float: its INT8 saturates on CPUs without
VNNI, which says nothing of the IR.
"""

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.conftest import SAMPLES
from tests.fixtures.commands import answer, refused, succeed
from tests.frameworks.conftest import needs

LEAST_DB = 40.0  # of what rounding to other steps costs here; a wrong scale leaves less than 20
pytestmark = [needs("openvino"), pytest.mark.slow]
NAMES = ("digits", "classifier", "vit", "detector")


def data_of(name):
    return SAMPLES / ("classifier" if name == "vit" else name)


def quantized(name, folder, capsys, *options):
    ranges, output = folder / "ranges.json", folder / f"{name}.onnx"
    model = next((SAMPLES / name).glob("*.onnx"))
    words = ("--data", data_of(name) / "calibration.npz", "--method", "minmax", "-o", ranges)
    succeed(capsys, "calibrate", model, *words)
    succeed(capsys, "quantize", model, "--calibration", ranges, "-o", output, *options)
    return output


def feeds(name, session):
    with np.load(data_of(name) / "test.npz") as data:
        return {item.name: data[item.name][:32] for item in session.get_inputs()}


def sqnr_db(expected, actual):
    noise = np.square(expected.astype(float) - actual).sum()
    return 10 * np.log10(np.square(expected.astype(float)).sum() / max(noise, 1e-30))


def by_onnx_runtime(path, name):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session, session.run(None, feeds(name, session))


@pytest.mark.parametrize("name", NAMES)
def test_an_ir_computes_the_same_and_runs_in_int8(tmp_path, capsys, name):
    import openvino

    path = quantized(name, tmp_path, capsys)
    facts = answer(capsys, "export", "openvino", path, "-o", tmp_path / "ir.xml")
    assert facts["layers_in_int8"] == facts["layers"] > 0
    pairs = {node.op_type for node in onnx.load(path).graph.node}
    assert ("QuantizeLinear" in pairs, facts["fake_quantize"] > 0) == (True, True)
    session, expected = by_onnx_runtime(path, name)
    plain = {"LP_TRANSFORMS_MODE": "NO", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(tmp_path / "ir.xml", "CPU", plain)
    found = [*compiled(feeds(name, session)).values()]
    figures = [sqnr_db(a, b) for a, b in zip(expected, found, strict=True)]
    assert min(figures) > LEAST_DB


def test_weights_keep_their_int8_values_and_a_scale_for_each_channel(tmp_path, capsys):
    import openvino

    path = quantized("digits", tmp_path, capsys)
    answer(capsys, "export", "openvino", path, "-o", tmp_path / "ir.xml")
    model = openvino.Core().read_model(tmp_path / "ir.xml")
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    narrow = [node.data for node in constants if node.get_element_type().get_type_name() == "i8"]
    known = [onnx.numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer]
    weights = [array for array in known if array.dtype == np.int8 and array.ndim > 1]
    assert sorted(array.size for array in weights) == sorted(array.size for array in narrow)
    values = sorted(array.tobytes() for array in weights)
    assert values == sorted(np.ascontiguousarray(array).tobytes() for array in narrow)


@pytest.mark.parametrize("precision", ["fp8", "int4", "nvfp4"])
def test_other_precisions_are_refused(tmp_path, capsys, precision):
    path = quantized("digits", tmp_path, capsys, "--precision", precision)
    err = refused(capsys, "export", "openvino", path, "-o", tmp_path / "ir.xml")
    assert (precision in err, (tmp_path / "ir.xml").exists()) == (True, False)
