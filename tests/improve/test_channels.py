"""Scaling channels must not change what a network computes, whatever it is made of."""

import numpy as np
import onnx
import pytest

from tests.zoo import ZOO
from trtcal.backends.sessions import open_session, run_session
from trtcal.graph import import_graph
from trtcal.improve.channel_rules import find_channels
from trtcal.improve.equalize import edited
from trtcal.improve.repairs import with_constants
from trtcal.model import load_model
from trtcal.quantize import prepare

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
    count = len(channels.parent)
    roots = channels.roots(np.arange(count))
    factors = np.exp(np.random.default_rng(0).uniform(-2, 2, count))[roots]
    limited = [roots[channels.of[name][1]] for name in channels.limits]
    bounded = np.isin(roots, np.concatenate([[-1], *limited]))
    return edited(graph, channels.edits, np.where(channels.is_free() & ~bounded, factors, 1.0))


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
