"""Scaling channels must not change what a network computes, whatever it is made of."""

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import rng, save, weight
from tests.fixtures.zoo import ZOO
from trtcal.backends.sessions import open_session, run_session
from trtcal.model import load_model
from trtcal.model.graph import import_graph
from trtcal.ptq.changes import with_constants
from trtcal.ptq.channels import find_channels
from trtcal.ptq.compensation import scaled_constants
from trtcal.quantization import prepare

SCALED = (
    *("stem", "residual", "residual_projected", "bottleneck", "inception", "fire", "dense_block"),
    *("grouped", "average_pooled", "max_pooled", "prelu", "leaky", "layer_norm"),
    *("encoder_normed_before", "perceptron"),
)


@pytest.fixture
def prepared(tmp_path, request):
    onnx.save(ZOO[request.param].make().proto(), tmp_path / "net.onnx")
    return prepare(load_model(tmp_path / "net.onnx"))


def scaled_at_random(model):
    graph = import_graph(model.proto)
    channels = find_channels(graph)
    roots = channels.roots()
    factors = np.exp(np.random.default_rng(0).uniform(-2, 2, channels.count))[roots]
    limited = [roots[channels.of[name][1]] for name in channels.limits]
    bounded = np.isin(roots, np.concatenate([[-1], *limited]))
    return scaled_constants(
        graph, channels.edits, np.where(channels.is_free() & ~bounded, factors, 1.0)
    )


@pytest.mark.parametrize("prepared", sorted(ZOO), indirect=True, ids=str)
def test_scaled_channels_compute_the_same(prepared, request):
    constants = scaled_at_random(prepared)
    name = request.node.callspec.params["prepared"]
    assert constants or name not in SCALED
    if not constants:
        return
    feeds = ZOO[name].make().samples(4)
    before = run_session(open_session(prepared.proto), None, feeds)
    after = run_session(open_session(with_constants(prepared.proto, constants)), None, feeds)
    for expected, found in zip(before, after, strict=True):
        assert np.abs(found - expected).max() <= 2e-4 * np.abs(expected).max()


def free_channels(path, nodes, weights, outputs):
    save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, outputs)
    channels = find_channels(import_graph(prepare(load_model(path)).proto))
    return channels.is_free()[channels.of["r"][1]]


def pair_of_layers(reading):
    return [
        helper.make_node("Conv", ["x", "w0"], ["c"], "first"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", [reading, "w1"], ["y"], "second"),
    ]


PAIR = {"w0": weight(8, 3, 1, 1), "w1": weight(4, 8, 1, 1)}
Y = {"y": ["n", 4, 8, 8]}


def test_what_reads_a_shape_holds_no_channels(tmp_path):
    nodes = [
        *pair_of_layers("r"),
        helper.make_node("Shape", ["r"], ["s"], "shape"),
        helper.make_node("Cast", ["s"], ["f"], "cast", to=1),
    ]
    assert free_channels(tmp_path / "net.onnx", nodes, PAIR, {**Y, "f": [4]}).all()


@pytest.mark.parametrize("swapped", [False, True])
def test_a_gate_hands_channels_on(tmp_path, swapped):
    gated = ["g", "r"] if swapped else ["r", "g"]
    nodes = pair_of_layers("m")
    nodes[2:2] = [
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Conv", ["p", "w2"], ["q"], "squeeze"),
        helper.make_node("Sigmoid", ["q"], ["g"], "sigmoid"),
        helper.make_node("Mul", gated, ["m"], "gate"),
    ]
    weights = {**PAIR, "w2": weight(8, 8, 1, 1, seed=1)}
    path = tmp_path / "net.onnx"
    assert free_channels(path, nodes, weights, Y).all()
    model = prepare(load_model(path))
    feeds = {"x": rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    scaled = with_constants(model.proto, scaled_at_random(model))
    (before,), (after,) = (
        run_session(open_session(proto), None, feeds) for proto in (model.proto, scaled)
    )
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def test_a_value_times_its_own_gate_holds_its_channels(tmp_path):
    nodes = pair_of_layers("m")
    nodes[2:2] = as_nodes("[sigmoid] g = Sigmoid(r)  [swish] m = Mul(r, g)")
    assert not free_channels(tmp_path / "net.onnx", nodes, PAIR, Y).any()


def test_a_product_of_unknown_rank_is_passed_over(tmp_path):
    nodes = [
        *pair_of_layers("r")[:2],
        helper.make_node("Shape", ["r"], ["s"], "shape"),
        helper.make_node("Slice", ["s", "from", "to"], ["t"], "slice"),
        helper.make_node("Concat", ["t", "rest"], ["u"], "concat", axis=0),
        helper.make_node("Reshape", ["r", "u"], ["v"], "reshape"),
        helper.make_node("MatMul", ["v", "v"], ["y"], "product"),
    ]
    weights = {
        "w0": PAIR["w0"],
        "from": np.array([0]),
        "to": np.array([2]),
        "rest": np.array([8, 8]),
    }
    path = save(tmp_path / "net.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": list("abcd")})
    graph = import_graph(load_model(path).proto)
    for tensor in graph.tensors().values():
        if isinstance(tensor, gs.Variable) and tensor.name != "x":
            tensor.shape = None
    assert not find_channels(graph).is_free().any()


def body(kind, nodes, outputs):
    """Return a subgraph that reads tensors of the graph around it."""
    values = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    return helper.make_graph(nodes, "body", [], values)


def branching(path, read):
    """A layer, a Relu and a layer; the branches of an If read one of their tensors."""
    picked = helper.make_node("ReduceSum", [read], ["kept"], "sum", keepdims=0)
    other = helper.make_node("ReduceMax", [read], ["kept"], "max", keepdims=0)
    floats = onnx.TensorProto.FLOAT
    branches = {"then_branch": body(floats, [picked], ["kept"])}
    branches["else_branch"] = body(floats, [other], ["kept"])
    nodes = [
        *as_nodes(
            "[first] c = Conv(x, w0)  [relu] r = Relu(c)  [second] y = Conv(r, w1)  "
            "[top] top = ReduceMax<keepdims=0>(x)  [compare] large = Greater(top, limit)"
        ),
        helper.make_node("If", ["large"], ["z"], "branch", **branches),
    ]
    weights = {"w0": weight(8, 3, 1, 1), "w1": weight(4, 8, 1, 1, seed=1), "limit": np.float32(0.0)}
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 4, 8, 8], "z": []})


def looping(path, read):
    """A layer, a Relu and a layer; the body of a Loop adds up one of their tensors."""
    kinds = onnx.TensorProto
    inputs = [
        helper.make_tensor_value_info(name, kind, [])
        for name, kind in (("i", kinds.INT64), ("go", kinds.BOOL), ("before", kinds.FLOAT))
    ]
    outputs = [
        helper.make_tensor_value_info(name, kind, [])
        for name, kind in (("on", kinds.BOOL), ("after", kinds.FLOAT))
    ]
    inner = [
        helper.make_node("Identity", ["go"], ["on"], "go on"),
        helper.make_node("ReduceSum", [read], ["sum"], "sum", keepdims=0),
        helper.make_node("Add", ["before", "sum"], ["after"], "add"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c"], "first"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w1"], ["y"], "second"),
        helper.make_node(
            "Loop",
            ["times", "", "zero"],
            ["z"],
            "loop",
            body=helper.make_graph(inner, "body", inputs, outputs),
        ),
    ]
    weights = {
        "w0": weight(8, 3, 1, 1),
        "w1": weight(4, 8, 1, 1, seed=1),
        "times": np.int64(3),
        "zero": np.float32(0.0),
    }
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 4, 8, 8], "z": []})


@pytest.mark.parametrize("read", ["r", "c", "w0", "w1"])
@pytest.mark.parametrize("make", [branching, looping])
def test_what_a_subgraph_captures_is_not_scaled(tmp_path, make, read):
    model = prepare(load_model(make(tmp_path / "net.onnx", read)))
    constants = scaled_at_random(model)
    feeds = {"x": rng().standard_normal((2, 3, 8, 8)).astype(np.float32)}
    before = run_session(open_session(model.proto), None, feeds)
    after = run_session(open_session(with_constants(model.proto, constants)), None, feeds)
    for expected, found in zip(before, after, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_no_subgraph_captures_is_scaled_beside_one(tmp_path):
    model = prepare(load_model(branching(tmp_path / "net.onnx", "x")))
    assert set(scaled_at_random(model)) == {"w0", "w1"}
