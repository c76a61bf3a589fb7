"""Sensitivities: the same as running whole models, whatever the segments, and resumable."""

import dataclasses
import math

import numpy as np
import pytest

from tests.evaluate.search.nets import random_net
from trtcal.backends.sessions import open_session, run_session
from trtcal.cli.sensitivity import show
from trtcal.errors import InputError
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.metrics import Loss, rows_of, task_rows, total
from trtcal.evaluate.replay import Batch
from trtcal.evaluate.search.segments import PairedGraph
from trtcal.evaluate.search.sensitivity import (
    Sampling,
    Sensitivities,
    Sensitivity,
    measure_sensitivities,
)
from trtcal.evaluate.tasks import TaskReader
from trtcal.quantization import Plan, quantize

ROUNDING = 0.1  # integer kernels round a value between two steps to the other side now and then


def whole_run(one, int8):
    """Return the loss of a plan, its Q/DQ run literally, without segments or lowering."""
    plan = Plan("int8", {name: "fp32" for name in one.units if name not in int8})
    proto = quantize(one.prepared, one.calibration, plan).proto
    feeds = next(one.dataset.batches(len(one.dataset)))
    expected = run_session(open_session(one.prepared.proto), None, feeds)
    made = run_session(open_session(proto, as_it_is=True), None, feeds)
    return total(rows_of(expected, made, one.dataset.labels))


def check(one):
    seen = measure_sensitivities(
        one.prepared, one.calibration, one.dataset, Sampling(tolerance=0.0)
    )
    assert [layer.layer for layer in seen.layers] == one.units
    everything = set(one.units)
    assert seen.whole.noise == pytest.approx(whole_run(one, everything).noise, rel=ROUNDING)
    for layer in seen.layers:
        assert layer.alone.samples == layer.left.samples == len(one.dataset)
        alone = whole_run(one, {layer.layer})
        assert layer.alone.noise == pytest.approx(alone.noise, rel=0.02, abs=1e-9)
        left = whole_run(one, everything - {layer.layer})
        assert layer.left.noise == pytest.approx(left.noise, rel=ROUNDING)
        assert layer.left.top1_drop == pytest.approx(left.top1_drop, abs=5)


def test_of_a_residual_network_they_are_those_of_whole_runs(residual):
    check(residual)


def test_of_a_chain_cut_into_segments_they_are_those_of_whole_runs(make):
    one = make(random_net, 3, 9)
    pair = PairedGraph(one.prepared, quantize(one.prepared, one.calibration).proto)
    parts = pair.segments(one.units)
    assert len(parts) == 3
    assert [name for part in parts for name in part.units] == one.units
    assert all(len(part.inputs) == 1 for part in parts)
    check(one)


def test_a_layer_that_is_known_early_is_not_run_on_all_samples(make):
    one = make(random_net, 1, 5)
    arguments = (one.prepared, one.calibration, one.dataset)
    quick = measure_sensitivities(*arguments, Sampling(tolerance=10.0))
    assert {layer.alone.samples for layer in quick.layers} == {16}
    assert quick.whole.samples == len(one.dataset)
    for layer in quick.layers:
        assert layer.whole.samples == layer.left.samples


def test_what_was_measured_is_not_measured_again(residual, tmp_path):
    arguments = (residual.prepared, residual.calibration, residual.dataset, Sampling(24))
    path = tmp_path / "evaluations.jsonl"
    first = EvaluationCache(path, {})
    seen = measure_sensitivities(*arguments, cache=first)
    assert first.measured == 2 * len(residual.units)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:-1], lines[-1][:20]]))  # killed while it wrote
    again = EvaluationCache(path, {})
    assert measure_sensitivities(*arguments, cache=again) == seen
    assert again.measured == 1
    other = EvaluationCache(path, {"model": "another"})
    measure_sensitivities(*arguments, cache=other)
    assert other.measured == first.measured


def test_without_time_what_is_known_is_used_and_the_rest_named(residual, tmp_path):
    arguments = (residual.prepared, residual.calibration, residual.dataset)
    cache, asked = EvaluationCache(tmp_path / "evaluations.jsonl", {}), iter([True, True])
    twice = Sampling(24, may=lambda: next(asked, False))
    seen = measure_sensitivities(*arguments, twice, cache)
    assert [one.layer for one in seen.layers] == residual.units[:2]
    assert list(seen.missing) == residual.units[2:]
    shares = seen.shares("noise")
    assert list(shares) == residual.units
    rest = max(seen.whole.noise - sum(one.share("noise") for one in seen.layers), 0)
    assert sum(shares[name] for name in seen.missing) == pytest.approx(rest)
    again = measure_sensitivities(*arguments, Sampling(24, may=lambda: False), cache)
    assert again == seen
    full = measure_sensitivities(*arguments, Sampling(24), cache)
    assert full == measure_sensitivities(*arguments, Sampling(24))
    assert full.layers[:2] == seen.layers
    assert not full.missing


def test_infinite_noise_is_remembered(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    EvaluationCache(path, {}).recall({"plan": 1}, lambda: Loss(8, math.inf))
    known = EvaluationCache(path, {}).recall({"plan": 1}, lambda: Loss(8, 0.0))
    assert known == Loss(8, math.inf)
    assert known.sqnr_db == -math.inf
    assert known.of("kl") == math.inf
    assert not known.is_fit


def test_lines_that_mean_nothing_are_skipped(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    path.write_text('{"key": 1}\n[]\nnull\n{"key": "a", "loss": {"samples": "x"}}\n\xff\n')
    assert EvaluationCache(path, {}).known == {}


def test_without_ranges_there_is_nothing_to_measure(residual):
    bare = dataclasses.replace(residual.calibration, ranges={})
    with pytest.raises(InputError):
        measure_sensitivities(residual.prepared, bare, residual.dataset)


def test_a_share_is_the_mean_of_what_a_layer_adds_first_and_last(residual):
    seen = measure_sensitivities(residual.prepared, residual.calibration, residual.dataset)
    one = seen.layers[0]
    last = max(one.whole.noise - one.left.noise, 0)
    assert one.share("noise") == np.mean([one.alone.noise, last])


def test_a_reference_that_is_not_finite_is_named_and_a_variant_loses_infinitely_much():
    finite = {"y": np.arange(8.0, dtype=np.float32).reshape(2, 4)}
    infinite = {"y": np.full((2, 4), math.inf, np.float32)}
    batch = Batch(np.arange(2), 2, None, finite, (infinite,))
    assert not total(task_rows(TaskReader("classification"), batch)).is_fit
    with pytest.raises(InputError, match="NaN or infinite"):
        task_rows(TaskReader("regression"), dataclasses.replace(batch, expected=infinite))


def test_a_share_of_an_infinite_loss_is_a_dash(capsys):
    infinite = Loss(8, math.inf)
    show(Sensitivities((Sensitivity("conv", "Conv", infinite, infinite, infinite),), infinite))
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "Conv" in line)
    assert "nan" not in row
    assert " - " in row
