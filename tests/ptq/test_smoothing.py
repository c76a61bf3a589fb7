"""Smoothing gives each channel its share of the range, whatever makes it, and changes nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.fails import fails
from tests.fixtures.zoo import ZOO
from tests.ptq.conftest import applied, assert_the_same, outputs
from tests.ptq.nets import block_net, separable_net
from trtcal.backends.lowering import lower
from trtcal.errors import InputError
from trtcal.model.graph import import_graph
from trtcal.model.model import Overrides
from trtcal.ptq.artifact import Optimizations, read_optimizations, write_optimizations
from trtcal.ptq.changes import with_affines
from trtcal.ptq.compensation import find_extremes
from trtcal.ptq.equalization import find_affines, smooth
from trtcal.quantization import Plan, find_layers, quantize

SMOOTHED = {
    "encoder_layer": 2, "encoder_normed_before": 1, "gelu_mlp": 1, "layer_norm": 0,
    "layer_norm_spelled_out": 1, "swiglu": 1,
}  # fmt: skip
"""Networks that are smoothed, and for how many of their tensors an affine is put in."""


@pytest.mark.parametrize("name", sorted(ZOO))
def test_a_smoothed_network_computes_the_same(from_zoo, name):
    model, dataset, feeds = from_zoo(name)
    found = smooth(model, dataset, 16)
    assert name not in SMOOTHED or len(found.affines) == SMOOTHED[name]
    if found is None:
        return
    after = applied(model, found)
    layers, before = find_layers(after).layers, find_layers(model).layers
    assert [one.name for one in layers] == [one.name for one in before]
    assert_the_same(model, after, feeds)


def test_channels_lie_around_zero_and_noise_falls(subject):
    net = subject(block_net)
    found = smooth(net.prepared, net.dataset, 48)
    assert found.affines == ("n", "g", "r")
    model = applied(net.prepared, found)
    assert net.decibels(model) < net.decibels() - 10.0
    up, down, head = (next(iter(one.activations.values())) for one in find_layers(model).layers)
    extremes = find_extremes(model, net.dataset, 48, dict.fromkeys((up, down, head), 2))
    for name, one in extremes.items():
        around_zero = np.allclose(one.least, -one.largest, rtol=1e-3, atol=1e-4)
        assert around_zero == (name != head)  # the head has no bias
        assert one.peak.max() < 30.0 * one.peak.min()


def test_others_read_what_they_did(subject):
    net = subject(block_net)
    found = smooth(net.prepared, net.dataset, 48)
    model = applied(net.prepared, found)
    nodes = {node.name: node for node in model.proto.graph.node}
    assert set(nodes["residual"].input) == {"v", "n"}
    assert "n" not in nodes["up"].input
    assert {"n", "v", "u"}.isdisjoint(found.moved)
    assert {"m0", "m1"} <= found.moved


def test_a_linear_network_gets_no_affines(subject):
    net = subject(separable_net)
    assert find_affines(import_graph(net.prepared.proto), find_layers(net.prepared)) == []
    assert smooth(net.prepared, net.dataset, 48) is None


def test_affines_lie_in_the_file(tmp_path, subject):
    net = subject(block_net)
    found = smooth(net.prepared, net.dataset, 48)
    optimizations = Optimizations(net.prepared.fingerprint, found, Overrides(moved=found.moved), {})
    write_optimizations(tmp_path / "optimizations.npz", optimizations)
    read = read_optimizations(tmp_path / "optimizations.npz")
    assert read.changes.affines == ("n", "g", "r")
    assert read.apply(net.prepared).proto == optimizations.apply(net.prepared).proto
    assert (
        replace(optimizations, changes=replace(found, affines=("n",))).digest
        != optimizations.digest
    )
    model = read.apply(net.prepared)
    ranges = replace(net.calibrated(model), model=model.fingerprint)
    ops = [one.op_type for one in quantize(model, ranges).proto.graph.node]
    assert (ops.count("Mul"), ops.count("Add")) == (2 + 3, 4 + 2)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_plans_take_smoothed_layers_out(subject, precision):
    net = subject(block_net)
    model = applied(net.prepared, smooth(net.prepared, net.dataset, 48))
    feeds = next(net.dataset.batches(16))
    (expected,) = outputs(net.prepared.proto, feeds)
    plan = Plan(layers={"up": precision, "down": precision})
    errors = []
    for one in (net.prepared, model):
        (made,) = outputs(lower(quantize(one, net.calibrated(one), plan).proto), feeds)
        errors.append(np.abs(made - expected).mean())
    assert errors[1] < 0.8 * errors[0]
    whole = quantize(model, net.calibrated(model), Plan(precision))
    (made,) = outputs(whole.proto, feeds)
    assert np.abs(made - expected).max() <= 5e-3 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["x", "y", "nobody"])
def test_affines_for_something_else_are_refused(subject, name):
    with fails(InputError, name):
        with_affines(subject(block_net).prepared.proto, ["n", name])
