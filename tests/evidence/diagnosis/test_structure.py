"""Q/DQ that TensorRT computes in float: each fault is named, and the compiler agrees."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.fixtures.structures import (
    computed_scale,
    conv,
    image,
    pair,
    weight,
    whole,
    with_bias,
    wrong_axis,
    zero_point,
)
from tests.fixtures.tables import each
from tests.fixtures.zoo_net import Net
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.evidence.diagnosis.reasons import find_faults, find_refused
from trtcal.model import load_model

RTX = BACKENDS["tensorrt-rtx"].availability()


def rows():
    return Net(x=(4, 16))


def scalar_weight():
    net = image()
    return conv(net, pair(net, "x"), weight(net, (8, 8, 3, 3)))


def float_weights():
    net = image()
    return conv(net, pair(net, "x"), net.weight(8, 8, 3, 3))


def float_input():
    net = image()
    return conv(net, "x", weight(net, (8, 8, 3, 3)))


def per_channel_activation():
    net = image()
    return conv(net, pair(net, "x", np.full(8, 0.05), axis=1), weight(net, (8, 8, 3, 3)))


def vector_scale():
    net = image()
    return conv(net, pair(net, "x", np.full(1, 0.05)), weight(net, (8, 8, 3, 3)))


def before_relu():
    net = image()
    return conv(net, net.relu(pair(net, "x")), weight(net, (8, 8, 3, 3)))


def gemm_wrong_axis():
    net = rows()
    w = weight(net, (16, 16), np.full(16, 0.01), axis=1)
    return net.done(net.add("Gemm", pair(net, "x"), w, name="node", transB=1))


def gemm_whole():
    net = rows()
    w = weight(net, (16, 16), np.full(16, 0.01), axis=0)
    return net.done(net.add("Gemm", pair(net, "x"), w, name="node", transB=1))


def matmul_wrong_axis():
    net = rows()
    w = weight(net, (16, 16), np.full(16, 0.01), axis=0)
    return net.done(net.add("MatMul", pair(net, "x"), w, name="node"))


def one_of_two_activations():
    net = rows()
    turned = net.add("Transpose", net.relu("x"), perm=[1, 0])
    return net.done(net.add("MatMul", pair(net, "x"), turned, name="node"))


def behind_transpose():
    net = rows()
    return net.done(
        net.add("MatMul", pair(net, "x"), net.add("Transpose", pair(net, "x")), name="node")
    )


# name of the case: cause, or None where nothing is wrong
CASES = {
    whole: None,
    scalar_weight: None,
    gemm_whole: None,
    behind_transpose: None,
    wrong_axis: "wrong_axis",
    float_weights: "one_sided",
    float_input: "one_sided",
    per_channel_activation: "per_channel_activation",
    vector_scale: "vector_scale",
    before_relu: "not_adjacent",
    gemm_wrong_axis: "wrong_axis",
    matmul_wrong_axis: "wrong_axis",
    one_of_two_activations: "one_sided",
}
IDS = [case.__name__ for case in CASES]


@each("make, cause", CASES.items())
def test_a_fault_is_named(make, cause):
    faults = find_faults(make().proto())
    assert {node: fault.cause for node, fault in faults.items()} == (
        {"node": cause} if cause else {}
    )


@pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))
@pytest.mark.parametrize(("make", "cause"), CASES.items(), ids=IDS)
def test_the_compiler_runs_in_float_what_has_a_fault_and_only_that(make, cause, tmp_path):
    onnx.save(make().proto(), tmp_path / "model.onnx")
    model = load_model(tmp_path / "model.onnx")
    made = build(model, BACKENDS["tensorrt-rtx"], BuildOptions("sm89"), tmp_path / "build")
    (outcome,) = made.outcomes
    assert (outcome.asked, outcome.is_lost, outcome.cause) == ("int8", cause is not None, cause)


def with_scale(value):
    net = whole()
    name = next(name for name, array in net.constants.items() if array.shape == (8,))
    net.constants[name] = np.array([value] + [0.01] * 7, np.float32)
    return net.proto()


@each("value", [0.0, -0.1, 1e-42, np.inf, np.nan])
def test_scales_that_give_no_integers_are_faults(value):
    assert find_faults(with_scale(value))["node"].cause == "bad_scale"


def test_what_the_parser_refuses_is_named():
    assert [*find_refused(zero_point())] == ["zero_point"]
    assert [*find_refused(with_bias(np.int32))] == ["quantized_bias"]
    assert not find_refused(with_bias(np.int8)), "TensorRT-RTX builds it in INT8"
    assert [*find_refused(computed_scale())] == ["computed_scale"]


def test_constants_in_nodes_count_as_constants():
    proto = wrong_axis().proto()
    for tensor in list(proto.graph.initializer):
        node = onnx.helper.make_node(
            "Constant", [], [tensor.name], f"const_{tensor.name}", value=tensor
        )
        proto.graph.node.insert(0, node)
    del proto.graph.initializer[:]
    assert find_faults(proto)["node"].cause == "wrong_axis"
    assert numpy_helper.to_array(proto.graph.node[0].attribute[0].t) is not None


def test_a_model_without_qdq_has_no_faults():
    net = image()
    assert not find_faults(conv(net, "x", net.weight(8, 8, 3, 3)).proto())
