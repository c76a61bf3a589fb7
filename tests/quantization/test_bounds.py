"""Bounds: as small as sums of magnitudes allow, and never exceeded."""

import numpy as np
import pytest
from onnx import helper

from tests.fixtures.networks import rng, save
from trtcal.backends.sessions import open_session, run_session
from trtcal.model import load_model
from trtcal.model.graph import import_graph
from trtcal.quantization.bounds import bounds

WEIGHT = np.array([[1, -2, 4], [3, 5, -1]], np.float32)  # columns sum up to 4, 7, 5


def bound_of(tmp_path, node, weight, shape, observed=2.0):
    """Return the bound of a node's output, and what samples within `observed` really reach."""
    path = save(
        tmp_path / "n.onnx", [node], {"w": weight}, {"x": shape}, {"y": [None] * len(shape)}
    )
    model = load_model(path)
    known = bounds(import_graph(model.proto), {"x": observed})["y"]
    signs = rng(0).choice([-observed, observed], (200, *shape[1:])).astype(np.float32)
    session = open_session(model.proto)
    reached = max(np.abs(run_session(session, None, {"x": x[None]})[0]).max() for x in signs)
    return known, reached


@pytest.mark.parametrize(
    "weight", [WEIGHT, np.stack([WEIGHT, WEIGHT[:, ::-1] / 2, WEIGHT / 4])], ids=["matrix", "stack"]
)
def test_a_product_sums_over_the_contracted_axis_alone(tmp_path, weight):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    known, reached = bound_of(tmp_path, node, weight, [1, 3, 4, 2])
    assert known == reached == 2 * 7


def test_a_constant_left_operand_is_bounded_by_its_rows(tmp_path):
    node = helper.make_node("MatMul", ["w", "x"], ["y"], "product")
    known, reached = bound_of(tmp_path, node, WEIGHT.T.copy(), [1, 2, 4])
    assert known == reached == 2 * 7


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_gemm_sums_over_the_inputs_of_an_output(tmp_path, transposed):
    node = helper.make_node("Gemm", ["x", "w"], ["y"], "product", transB=transposed)
    weight = WEIGHT.T.copy() if transposed else WEIGHT
    known, reached = bound_of(tmp_path, node, weight, [1, 2])
    assert known == reached == 2 * 7


def test_a_convolution_sums_over_channels_and_taps(tmp_path):
    weight = np.arange(-8, 8, dtype=np.float32).reshape(2, 2, 2, 2)
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv")
    known, reached = bound_of(tmp_path, node, weight, [1, 2, 2, 2])
    assert known == 2 * 36
    assert reached <= known


@pytest.mark.parametrize("inputs", [["x", "pads"], ["x", "pads", ""], ["x", "pads", "value"]])
def test_what_a_pad_adds_may_be_left_out(tmp_path, inputs):
    nodes = [helper.make_node("Pad", inputs, ["y"], "pad")]
    constants = {"pads": np.array([0, 1, 0, 1]), "value": np.array(-3, np.float32)}
    weights = {name: constants[name] for name in inputs if name in constants}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": [1, 2]}, {"y": [1, 4]})
    known = bounds(import_graph(load_model(path).proto), {"x": 2.0})
    assert known["y"] == (3.0 if "value" in inputs else 2.0)
