"""A model cut in two: the body, the tail that it carries, and where to cut."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.fails import fails
from tests.fixtures.networks import detection_net, rng, weight
from trtcal.backends.sessions import open_session
from trtcal.errors import InputError
from trtcal.evaluate.replay import runner
from trtcal.model import load_model
from trtcal.model.cut import KEY, cut, cut_before, metadata_of, tail_of


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    return load_model(detection_net(tmp_path_factory.mktemp("cut") / "detector.onnx"))


FEEDS = {"x": rng(3).standard_normal((5, 3, 8, 8)).astype(np.float32)}


def outputs(model, names):
    return runner(open_session(model.proto), names)(FEEDS)


def test_a_body_and_its_tail_give_the_outputs_of_the_whole(detector):
    body = cut(detector, ["boxes", "scores"])
    assert [spec.name for spec in body.outputs][:2] == ["boxes", "scores"]
    whole, both = outputs(detector, ["y", "classes"]), outputs(body, ["y", "classes"])
    assert whole["y"].size
    for name, values in whole.items():
        np.testing.assert_array_equal(both[name], values)


def test_what_the_rest_reads_of_the_body_is_no_work_twice(detector):
    body = cut(detector, ["boxes", "scores"])
    tail = tail_of(metadata_of(body.proto))
    assert tail.operators == {"Neg": 1, "NonMaxSuppression": 1, "Shape": 1, "Gather": 1, "Add": 1}
    assert {node.op_type for node in body.proto.graph.node} == {
        "Conv", "GlobalAveragePool", "Flatten", "Gemm", "Reshape",
    }  # fmt: skip
    assert tail.cut == ("boxes", "scores", "classes")


def test_tensors_before_a_node_are_suggested(detector):
    nodes = [node for node in detector.proto.graph.node if node.name == "nms"]
    assert cut_before(detector.proto, nodes) == ("boxes", "scores")
    first = [node for node in detector.proto.graph.node if node.name == "conv"]
    assert cut_before(detector.proto, first) == ()


def test_a_cut_that_drops_nothing_carries_nothing(detector):
    body = cut(detector, ["y", "classes"])
    assert KEY not in metadata_of(body.proto)


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["boxs"], "boxes"),
        (["few"], "inputs"),
        ([], "--outputs"),
    ],
)
def test_wrong_names_are_refused(detector, names, hint):
    with fails(InputError, hint=hint):
        cut(detector, names)


def test_a_body_is_not_cut_again(detector):
    with fails(InputError, "detector.onnx"):
        cut(cut(detector, ["boxes", "scores"]), ["boxes"])


def test_a_damaged_tail_is_an_error(detector):
    text = metadata_of(cut(detector, ["boxes", "scores"]).proto)[KEY]
    for damaged in (text[:-9], text.replace("sha256:", "sha256:0"), "[]", "{}"):
        with fails(InputError, "trtcal.tail", hint="trtcal prepare"):
            tail_of({KEY: damaged})


def test_a_subgraph_reads_across_the_cut(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Add", ["a", "kept"], ["o"], "inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("Relu", ["a"], ["kept"], "relu"),
        helper.make_node("ReduceMax", ["kept"], ["most"], "most", keepdims=0),
        helper.make_node("Cast", ["most"], ["is"], "is", to=TensorProto.BOOL),
        helper.make_node("If", ["is"], ["y"], "if", then_branch=branch, else_branch=branch),
    ]
    graph = helper.make_graph(
        nodes,
        "choice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 6, 6])],
        [numpy_helper.from_array(weight(4, 3, 3, 3), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    model = load_model(proto)
    body = cut(model, ["kept"])
    assert {spec.name for spec in body.outputs} == {"a", "kept"}
    np.testing.assert_array_equal(outputs(body, ["y"])["y"], outputs(model, ["y"])["y"])
