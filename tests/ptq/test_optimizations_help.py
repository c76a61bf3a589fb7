"""Each optimization on a network that needs it: INT8 loses less, and float stays as it was."""

import weakref
from dataclasses import replace

import numpy as np
import pytest

from tests.ptq.nets import log_net, separable_net, token_net
from trtcal.backends.sessions import open_session, run_session
from trtcal.ptq.changes import with_constants
from trtcal.ptq.equalization import equalize
from trtcal.ptq.reconstruction import LayerwiseReconstruction
from trtcal.quantization import quantize


def outputs(model, dataset):
    return run_session(open_session(model.proto), None, next(dataset.batches(48)))[0]


def moved(subject, found):
    proto = with_constants(subject.prepared.proto, found.constants)
    return replace(subject.prepared, proto=proto)


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_equalization_before_a_depthwise_layer(subject, activation):
    net = subject(separable_net, activation)
    found = equalize(net.prepared, net.dataset, 48)
    model = moved(net, found)
    expected = outputs(net.prepared, net.dataset)
    error = np.abs(outputs(model, net.dataset) - expected).max() / np.abs(expected).max()
    assert error < 1e-4
    assert net.decibels(model) < net.decibels() - 6.0
    assert {"r0", "c0", "c1"} <= found.moved


def test_a_relu6_cuts_off_where_it_did(subject):
    net = subject(separable_net, "Clip")
    scaled = moved(net, equalize(net.prepared, net.dataset, 48))
    feeds = {"x": 30.0 * next(net.dataset.batches(16))["x"]}  # far beyond the observed values
    session, other = open_session(net.prepared.proto), open_session(scaled.proto)
    (before,), (after,) = run_session(session, None, feeds), run_session(other, None, feeds)
    assert np.abs(after).max() <= 1.5 * np.abs(before).max()


def test_biases_are_corrected(subject):
    net = subject(separable_net)
    calibration = net.calibrated()
    with LayerwiseReconstruction(net.prepared, calibration, net.dataset, 48) as work:
        overrides = work.run()
    optimized = replace(net.prepared, overrides=overrides)
    assert set(overrides.biases) == {"dense", "depthwise", "head"}
    assert not overrides.weights
    expected = outputs(net.prepared, net.dataset)
    shifts = []
    for model in (net.prepared, optimized):
        quantized = replace(model, proto=quantize(model, calibration).proto)
        shifts.append(np.abs((outputs(quantized, net.dataset) - expected).mean(axis=0)).max())
    assert shifts[1] < 0.05 * shifts[0]


def test_rounding_goes_further(subject):
    net = subject(separable_net)
    calibration = net.calibrated()
    found = {}
    for rounding in (False, True):
        with LayerwiseReconstruction(net.prepared, calibration, net.dataset, 48) as work:
            overrides = work.run(rounding)
        found[rounding] = net.decibels(replace(net.prepared, overrides=overrides), calibration)
    assert set(overrides.weights) == {"dense", "depthwise", "head"}
    assert found[True] < found[False]


def test_a_layer_that_reads_nan_stays_as_it_is(subject):
    net = subject(log_net)
    with LayerwiseReconstruction(net.prepared, net.calibrated(), net.dataset, 48) as work:
        overrides = work.run(rounding=True)
    assert set(overrides.weights) == {"bands"}
    assert set(overrides.biases) == {"bands"}


@pytest.mark.parametrize("rounding", [False, True])
def test_one_huge_token_does_not_decide_for_all(subject, rounding):
    net = subject(token_net)
    table = net.calibrated()
    table = replace(
        table, ranges={name: replace(one, amax=4.0) for name, one in table.ranges.items()}
    )
    with LayerwiseReconstruction(net.prepared, table, net.dataset, 48) as work:
        overrides = work.run(rounding)
    optimized = replace(net.prepared, overrides=overrides)
    assert "layer" in overrides.biases
    assert net.decibels(optimized, table) < net.decibels(calibration=table) + 0.1


def test_a_reconstruction_holds_the_weights_of_one_layer_at_a_time(subject, monkeypatch):
    net, steps, alive = subject(separable_net), [], []
    listed, advance = LayerwiseReconstruction._steps, LayerwiseReconstruction._advance

    def seen(self, *options):
        for step in listed(self, *options):
            steps.append(weakref.ref(step))
            yield step

    def counted(self, *options):
        alive.append(sum(step() is not None for step in steps))
        advance(self, *options)

    monkeypatch.setattr(LayerwiseReconstruction, "_steps", seen)
    monkeypatch.setattr(LayerwiseReconstruction, "_advance", counted)
    with LayerwiseReconstruction(net.prepared, net.calibrated(), net.dataset, 48) as work:
        work.run()
    assert alive == [1, 1, 1]


def test_reconstruction_is_the_same_every_time(subject):
    net = subject(separable_net)
    calibration = net.calibrated()
    twice = []
    for _ in range(2):
        with LayerwiseReconstruction(net.prepared, calibration, net.dataset, 48) as work:
            twice.append(work.run(rounding=True))
    first, second = twice
    assert all((first.biases[name] == second.biases[name]).all() for name in first.biases)
    assert all((first.weights[n].values == second.weights[n].values).all() for n in first.weights)
