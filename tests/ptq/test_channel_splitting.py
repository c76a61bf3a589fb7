"""Splitting: idle channels carry a part of the others' values, and INT8 loses less."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper

from tests.ptq.nets import idle_net, separable_net
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import Inside
from trtcal.ptq.changes import with_constants
from trtcal.ptq.channel_splitting import split_channels


def split_net(subject, *arguments):
    net = subject(idle_net, *arguments)
    found = split_channels(net.prepared, net.calibrated(), net.dataset, 48)
    return (
        net,
        found,
        replace(net.prepared, proto=with_constants(net.prepared.proto, found.constants)),
    )


def difference(net, model):
    feeds = next(net.dataset.batches(48))
    (before,), (after,) = (
        run_session(open_session(one.proto), None, feeds) for one in (net.prepared, model)
    )
    return np.abs(after - before).max() / np.abs(before).max()


def gain(net, model):
    return net.decibels() - net.decibels(model, net.calibrated(model))


def test_copies_differ_by_half_a_step(subject):
    net, found, model = split_net(subject)
    assert gain(net, model) > 1.0
    assert {"c0", "r0", "c1", "r1", "y"} == found.moved
    weights = found.constants["w0"]
    for idle in (3, 7, 11, 15):
        assert any((weights[k] == weights[idle]).all() for k in range(16) if k % 4 != 3)
    assert difference(net, model) < 0.02  # of half a step, where a Relu or the padding cuts


def test_scaled_copies_where_a_relu_cuts(subject):
    net, found, model = split_net(subject, 0.2, 2.0)
    assert gain(net, model) > 0.3
    assert difference(net, model) < 1e-4
    ratios = found.constants["w0"][3] / found.constants["w0"]
    constant = [ratio.mean() for ratio in ratios if ratio.std() < 1e-3 * abs(ratio.mean())]
    assert any(one == pytest.approx(0.93, rel=1e-3) for one in constant)


def test_what_an_idle_channel_gave_is_kept(subject):
    net, found, model = split_net(subject)
    assert net.prepared.proto != model.proto
    assert (found.constants["b2"] != 0).any()  # 0.5, times the weights of the idle ones


def test_without_idle_channels_nothing_is_split(subject):
    net = subject(separable_net, "Clip")
    assert split_channels(net.prepared, net.calibrated(), net.dataset, 48) is None


def test_a_channel_that_nearly_fires_keeps_its_place(subject):
    net = subject(idle_net)
    sums = Inside(net.prepared.proto, ["c0"]).read(next(net.dataset.batches(48)))["c0"]
    peaks = sums[:, 3::4].max(axis=(0, 2, 3)) + 50.0
    nearest = 3 + 4 * int(peaks.argmax())
    _, found, _ = split_net(subject, 3.0, 4.0, 1.02 * float(peaks.max()))
    given = numpy_helper.to_array(net.prepared.proto.graph.initializer[0])
    assert found is None or (found.constants["w0"][nearest] == given[nearest]).all()
