"""Equalization leaves room for what the samples did not show."""

import numpy as np

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import save
from tests.ptq.conftest import applied, assert_the_same
from trtcal.data import open_dataset
from trtcal.model import load_model
from trtcal.model.graph import import_graph
from trtcal.ptq.equalization import equalize
from trtcal.quantization import prepare


def rare_net(path):
    """Two channels under a Relu6: one fires on few samples, and weakly on those; one on all."""
    weights = {
        "w0": np.float32([[2, 0], [0, 1]])[:, :, None, None],
        "b0": np.float32([-1.8, 3]),
        "w1": np.ones((2, 1, 1, 1), np.float32),
        "b1": np.zeros(2, np.float32),
        "low": np.float32(0.0),
        "high": np.float32(6.0),
    }
    nodes = as_nodes(
        "[first] c = Conv(x, w0, b0)  [relu6] r = Clip(c, low, high)  "
        "[second] y = Conv<group=2>(r, w1, b1)"
    )
    return save(path, nodes, weights, {"x": ["n", 2, 4, 4]}, {"y": ["n", 2, 4, 4]})


def test_a_limit_cuts_off_nothing_that_other_samples_may_reach(tmp_path):
    model = prepare(load_model(rare_net(tmp_path / "net.onnx")))
    seen = np.random.default_rng(0).uniform(-1, 1, (32, 2, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=seen)  # the first channel's sums lie from -3.8 to 0.2
    found = equalize(model, open_dataset(tmp_path / "data.npz", model), 32)
    graph = import_graph(model.proto)
    weight = graph.tensors()["w0"].values
    scaled = found.constants["w0"] / np.where(weight, weight, 1)
    assert scaled[0, 0, 0, 0] > 4.0  # there is room for it
    assert_the_same(model, applied(model, found), {"x": 1.25 * seen})
