from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from scipy.stats import norm

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import rng, save
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import Inside
from trtcal.evaluate.search.segments import PairedGraph
from trtcal.model import load_model
from trtcal.ptq.bias_correction import activation_of, solve_shift
from trtcal.ptq.reconstruction import LayerwiseReconstruction
from trtcal.quantization import prepare, quantize

BEHIND = {
    "relu": ([("Relu", ["c"], "a")], lambda v: np.maximum(v, 0)),
    "silu": ([("Sigmoid", ["c"], "s"), ("Mul", ["c", "s"], "a")], lambda v: v / (1 + np.exp(-v))),
    "hard swish, spelled out and scaled": (
        [
            ("Add", ["c", "three"], "s"),
            ("Clip", ["s", "zero", "six"], "t"),
            ("Mul", ["c", "t"], "u"),
            ("Div", ["u", "six"], "v"),
            ("Mul", ["v", "three"], "a"),
        ],
        lambda v: 3 * v * np.clip(v + 3, 0, 6) / 6,
    ),
    "gelu, spelled out": (
        [
            ("Div", ["c", "root"], "s"), ("Erf", ["s"], "t"), ("Add", ["t", "one"], "u"),
            ("Mul", ["c", "u"], "v"), ("Mul", ["v", "half"], "a"),
        ],
        lambda v: v * norm.cdf(v),
    ),
    "linear": ([("Mul", ["c", "three"], "a")], None),
    "a sum with something else": ([("Add", ["c", "x"], "s"), ("Relu", ["s"], "a")], None),
}  # fmt: skip
VALUES = {"zero": 0, "three": 3, "six": 6, "root": 2**0.5, "one": 1, "half": 0.5}


def net(path, behind):
    draw = rng(3)
    weights = {
        "w0": draw.standard_normal((3, 3, 3, 3)).astype(np.float32),
        "b0": draw.standard_normal(3).astype(np.float32),
        "w1": draw.standard_normal((4, 3, 1, 1)).astype(np.float32),
        **{name: np.float32(v) for name, v in VALUES.items()},
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c"], "first", pads=[1] * 4),
        *(helper.make_node(op, read, [made], made) for op, read, made in behind),
        helper.make_node("Conv", ["a", "w1"], ["y"], "second"),
    ]
    read = {name for node in nodes for name in node.input}
    used = {name: one for name, one in weights.items() if name in read}
    return save(path, nodes, used, {"x": ["n", 3, 8, 8]}, {"y": ["n", 4, 8, 8]})


@pytest.mark.parametrize("name", BEHIND)
def test_what_stands_before_the_next_reader(tmp_path, name):
    behind, expected = BEHIND[name]
    model = prepare(load_model(net(tmp_path / "net.onnx", behind)))
    found = activation_of(PairedGraph(model, model.proto), 0)
    values = rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32) * 4
    assert (found is None) == (expected is None)
    if found is not None:
        np.testing.assert_allclose(found(values), expected(values), rtol=1e-5, atol=1e-5)


def test_an_output_of_the_model_has_nothing_behind_it(tmp_path):
    nodes = as_nodes("[first] c = Conv(x, w0)  [relu] y = Relu(c)")
    weights = {"w0": rng().standard_normal((3, 3, 1, 1)).astype(np.float32)}
    shape = ["n", 3, 8, 8]
    path = save(tmp_path / "net.onnx", nodes, weights, {"x": shape}, {"c": shape, "y": shape})
    model = prepare(load_model(path))
    assert activation_of(PairedGraph(model, model.proto), 0) is None


def test_the_mean_behind_a_relu_is_matched(subject):
    """Noise before a Relu makes its mean too large, which a correction before it leaves as it is."""
    network = subject(net, BEHIND["relu"][0])
    calibration = network.calibrated()
    with LayerwiseReconstruction(network.prepared, calibration, network.dataset, 48) as work:
        overrides = work.run()
    optimized = replace(network.prepared, overrides=overrides)
    means = [
        Inside(proto, ["a"]).read(feeds)["a"].mean(axis=(0, 2, 3), dtype=np.float64)
        for feeds in network.dataset.batches(48)
        for proto in (
            network.prepared.proto,
            quantize(network.prepared, calibration).proto,
            quantize(optimized, calibration).proto,
        )
    ]
    expected, *others = means
    before, after = (np.abs(one - expected).max() for one in others)
    assert after < 0.2 * before


def test_a_channel_that_never_fires_is_hardly_moved():
    values = np.array([[-5.0, -6.0, -7.0], [1.0, 2.0, -3.0]])

    def excess(shift):
        return np.maximum(values + 0.1 + shift[:, None], 0).mean(1) - np.maximum(values, 0).mean(1)

    found = solve_shift(np.array([-0.3, -0.3]), excess)
    assert abs(found[0]) <= 0.3
    np.testing.assert_allclose(found[1], -0.1, atol=1e-6)


def test_a_single_number_is_handed_on_as_it_is(tmp_path):
    """A tensor without axes is none with one axis: a Concat of the two would fail."""
    nodes = [helper.make_node("Unsqueeze", ["x", "axes"], ["y"], "unsqueeze")]
    path = save(tmp_path / "net.onnx", nodes, {"axes": np.array([0])}, {"x": []}, {"y": [1]})
    session = open_session(load_model(path).proto)
    (found,) = run_session(session, None, {"x": np.float32(3.0)})
    assert found.shape == (1,)
