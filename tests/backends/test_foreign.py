"""Q/DQ of other tools: what is computed here is what the Q/DQ say, in every form that ONNX allows."""

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.fixtures import commands
from tests.fixtures.examples import FACTOR
from tests.fixtures.foreign import Foreign
from tests.fixtures.networks import rng
from tests.fixtures.slow import SLOW, slow_but
from tests.fixtures.structures import image, pair, weight
from tests.fixtures.tables import each
from trtcal.backends.lowering import lower_with_reasons
from trtcal.backends.sessions import open_session, run_session

FEW = range(40)
MANY = range(40, 40 + int(300 * FACTOR))
ROUNDING_DB = 28.0  # another rounding of the values between two layers leaves this


def literal(proto, feeds):
    """Run Q/DQ as written: no graph optimization, every Q and DQ in float."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)


def legal(graph):
    """Return what the Q/DQ of a graph say, None if ONNX's checker or ONNX Runtime refuses it."""
    try:
        onnx.checker.check_model(graph.proto, full_check=True)
        return literal(graph.proto, graph.feeds)
    except Exception:  # neither names its errors
        return None


def noise_db(expected, computed):
    expected, computed = expected.astype(np.float64), computed.astype(np.float64)
    noise = np.square(expected - computed).sum()
    return 10 * np.log10(np.square(expected).sum() / noise) if noise else np.inf


def check(seeds):
    """Hold each graph to what its Q/DQ say; return those that were held, and their reasons."""
    checked = {}
    for seed in seeds:
        graph = Foreign(seed)
        expected = legal(graph)
        if expected is None:
            continue
        lowered, checked[seed] = lower_with_reasons(graph.proto)
        computed = run_session(open_session(lowered, threads=1), None, graph.feeds)
        for name, before, after in zip(graph.outputs, expected, computed, strict=True):
            assert after.shape == before.shape, (seed, name)
            assert noise_db(before, after) > ROUNDING_DB, (seed, name)
        layers = {node.name for node in graph.proto.graph.node}
        assert graph.is_nested or layers >= {*checked[seed]}, seed
    return checked


def test_foreign_graphs_are_computed_as_their_qdq_say():
    checked = check(FEW)
    assert len(checked) > 0.9 * len(FEW)
    named = sum(map(bool, checked.values()))
    assert 0.1 * len(checked) < named < 0.6 * len(checked)  # the others go to integer kernels


@SLOW
def test_many_foreign_graphs_are_computed_as_their_qdq_say():
    assert len(check(MANY)) > 0.9 * len(MANY)


def square(scale=0.01, shape=(), bias=True, between="", **attributes):
    """Return a convolution of eight channels to eight, and its Q/DQ: the axis shows in no size."""
    net = image()
    read = pair(net, "x", np.full(shape, 0.05))
    read = net.add(between, read) if between else read
    w = weight(net, (8, 8, 3, 3), scale, **attributes)
    more = [net.vector(8)] if bias else []
    return pair(net, net.relu(net.add("Conv", read, w, *more, name="node", pads=[1] * 4)), 0.1), net


def shared_zero_points():
    read, net = square(np.full(8, 0.01), axis=0)
    zeros = next(n for n, array in net.constants.items() if array.shape == (8,) and not array.any())
    for _ in range(2):
        steps = net.value(np.linspace(0.005, 0.01, 8))
        stored = net.value(rng().integers(-99, 99, (8, 8, 1, 1)), np.int8)
        w = net.add("DequantizeLinear", stored, steps, zeros, axis=0)
        read = pair(net, net.add("Conv", read, w, net.vector(8)), 0.2)
    return read, net


def without_zero_points():
    read, net = square(np.full(8, 0.01), axis=-4)
    for node in net.nodes:
        if node.op_type == "DequantizeLinear":
            del node.input[2]
    return read, net


BY_CHANNEL = np.linspace(0.001, 0.02, 8)
FORMS = {
    "one weight scale and a bias": (lambda: square(), ""),
    "scales of the shape [1]": (lambda: square(np.full(1, 0.01), (1,)), ""),
    "no zero points": (without_zero_points, ""),
    "a shared zero point": (shared_zero_points, ""),
    "an Identity before the layer": (lambda: square(between="Identity"), ""),
    "scales of inputs": (
        lambda: square(BY_CHANNEL, axis=1),
        "axis 1, its output channels on axis 0",
    ),
    "scales of inputs, no bias": (lambda: square(BY_CHANNEL, bias=False, axis=-3), "on axis 1"),
    "zero points by channel": (lambda: square(BY_CHANNEL, axis=0, zero=3), "are not 0"),
}


@each("form", FORMS)
def test_a_form_takes_the_integer_kernels_or_is_named(form, tmp_path):
    make, reason = FORMS[form]
    output, net = make()
    proto = net.done(output).proto()
    lowered, reasons = lower_with_reasons(proto)
    session = open_session(lowered, optimized=tmp_path / "optimized.onnx")
    kernels = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert ("QLinearConv" in kernels) == (not reason)
    assert list(reasons) == ["node"] * bool(reason)
    assert reason in reasons.get("node", "")
    feeds = net.samples(1)
    (computed,), (expected,) = run_session(session, None, feeds), literal(proto, feeds)
    assert noise_db(expected, computed) > ROUNDING_DB


COMMANDS = {"compare": ("--rounds", "2"), "ab": ()}


@pytest.mark.parametrize("command", slow_but(COMMANDS, "compare"))
def test_layers_in_float_are_named(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, axis in (("other", 0), ("int8", 1)):
        output, net = square(BY_CHANNEL, axis=axis)
        onnx.save(net.done(output).proto(), f"{name}.onnx")
    np.savez("x.npz", **{name: np.repeat(a, 4, 0) for name, a in net.samples(1).items()})
    options = ("--data", "x.npz", "--batch", "1", *COMMANDS[command])
    _, out, _ = commands.run(capsys, command, "other.onnx", "int8.onnx", *options)
    assert "in float 'node' (its weight scales are on axis 1" in out


QGEMM = """
<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
product (float[2, 4] x) => (float[2, 1] y)
<KIND zero = {0}, float scale = {0.5}, int8[4, 1] weight = {100, 100, 100, 100}, int8 none = {0}>
{
    codes = QuantizeLinear (x, scale, zero)
    y = com.microsoft.QGemm (codes, scale, zero, weight, scale, none)
}
"""


@each("kind", ["int8", "uint8"])
def test_a_product_of_integers_opens_and_is_exact(kind):
    session = open_session(onnx.parser.parse_model(QGEMM.replace("KIND", kind)))
    (result,) = session.run(None, {"x": np.full((2, 4), 50, np.float32)})
    assert (result == 4 * 50 * 50).all()
