"""The whole of `--improve`: it helps, it composes, it refuses what does not fit."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.fixtures.commands import run, shows, succeed
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, rng, samples, save
from tests.ptq.nets import block_net, idle_net, separable_net
from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import calibrate, observe
from trtcal.data import open_dataset
from trtcal.documents import read_document
from trtcal.errors import BackendError, InputError
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.judging import Judge, Verdict
from trtcal.evaluate.layerwise import compare_layers
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.replay import silent
from trtcal.evaluate.search.plan_loss import Evaluator, Plans, Reference
from trtcal.evaluate.search.sensitivity import Sampling, measure_sensitivities
from trtcal.model import load_model
from trtcal.ptq import improver as improving
from trtcal.ptq import optimizations as table
from trtcal.ptq.artifact import in_float, read_optimizations, write_optimizations
from trtcal.ptq.changes import Changes
from trtcal.ptq.improver import improve
from trtcal.ptq.optimizations import OPTIMIZATIONS, ImproveOptions
from trtcal.ptq.reconstruction import samples_in_memory
from trtcal.quantization import Plan, find_layers, prepare, quantize, tensors_to_observe


def improved(net, wanted):
    return improve(net.prepared, net.dataset, wanted, silent)


@pytest.fixture
def net(subject):
    return subject(separable_net, count=64)


@pytest.fixture
def best(net):
    return improved(net, ImproveOptions("best"))


def judged(net, quantized):
    with Judge(net.prepared, net.dataset) as judge:
        return judge.measure(quantized.proto).value


def test_best_loses_much_less_than_percentile(net, best):
    assert best.tries[0].name == "ranges: auto"
    assert judged(net, best.quantized) < net.decibels() - 10.0
    kept = {one.name for one in best.tries if one.kept}
    assert "cross-layer equalization" in kept
    assert kept & {"bias correction", "adaptive rounding"}


def test_what_is_kept_is_less_than_what_was_kept_before(best):
    kept = [one.value for one in best.tries if one.kept]
    assert best.tries[0].kept
    assert kept == sorted(kept, reverse=True)


def verdict(*values):
    return Verdict(Loss(len(values), 0.1), np.array(values, float))


def test_a_difference_within_its_error_is_no_evidence():
    before = verdict(-10, -12, -14, -16)
    assert verdict(-11, -13, -15, -17).is_better(before)
    assert not verdict(-20, -5, -15, -13).is_better(before)
    assert not verdict(-9, -12, -14, -16).is_better(before)
    assert not verdict(np.inf, -30, -30, -30).is_better(before)
    assert before.is_better(verdict(np.inf, -30, -30, -30))


def test_the_same_layers_are_asked_in_int8(net, best):
    plain = quantize(net.prepared, net.calibrated())
    assert best.quantized.asked == plain.asked
    ops = [sorted(node.op_type for node in one.proto.graph.node) for one in (plain, best.quantized)]
    assert ops[0] == ops[1]


def test_two_runs_find_the_same(net, best):
    again = improved(net, ImproveOptions("best"))
    assert again.optimizations.digest == best.optimizations.digest
    assert again.quantized.digest == best.quantized.digest


@pytest.mark.parametrize(
    ("write", "optimization"),
    [
        (separable_net, "cross-layer equalization"),
        (idle_net, "channel splitting"),
        (block_net, "smoothing"),
    ],
)
def test_ranges_are_those_of_the_optimized_model(subject, write, optimization):
    net = subject(write, count=64)
    found = improved(net, ImproveOptions("best", only=(optimization,)))
    assert found.tries[-1].kept
    fit, _ = improving.split_samples(net.prepared, net.dataset)
    tensors = tensors_to_observe(find_layers(found.optimized))
    moved = [name for name in tensors if name in found.optimizations.changes.moved]
    seen = observe(found.optimized, fit, tensors)
    fresh = [calibrate(seen, method).ranges for method in table.METHODS]
    assert list(found.calibration.ranges) == list(fresh[0])
    assert moved
    for name in moved:
        own = found.calibration.ranges[name].amax
        assert any(own == pytest.approx(ranges[name].amax, rel=1e-4) for ranges in fresh)


def test_optimizations_are_read_as_they_were_written(net, best, tmp_path):
    write_optimizations(tmp_path / "optimizations.npz", best.optimizations)
    again = read_optimizations(tmp_path / "optimizations.npz")
    assert again.digest == best.optimizations.digest
    model = again.apply(net.prepared)
    assert model.fingerprint == best.calibration.model != net.prepared.fingerprint
    assert quantize(model, best.calibration).digest == best.quantized.digest


def test_optimizations_of_another_model_are_refused(net, best, tmp_path):
    other = prepare(load_model(conv_net(tmp_path / "other.onnx")))
    with fails(InputError, "other.onnx"):
        best.optimizations.apply(other)
    with fails(InputError, "net.onnx"):
        quantize(net.prepared, best.calibration)


def test_an_altered_file_is_refused(best, tmp_path):
    path = tmp_path / "optimizations.npz"
    write_optimizations(path, best.optimizations)
    arrays = dict(np.load(path))
    arrays["biases/0"] = arrays["biases/0"] + np.float32(1.0)
    np.savez(path, **arrays)
    with fails(InputError, "optimizations.npz"):
        read_optimizations(path)
    path.write_bytes(b"PK nothing")
    with fails(InputError, "optimizations.npz"):
        read_optimizations(path)


def test_a_plan_leaves_optimized_layers_in_float_as_they_were(net, best):
    model = best.optimizations.apply(net.prepared)
    floats = dict.fromkeys([one.name for one in find_layers(model).layers], "fp32")
    quantized = quantize(model, best.calibration, Plan("int8", floats))
    feeds = next(net.dataset.batches(16))
    (before,) = run_session(open_session(net.prepared.proto), None, feeds)
    (after,) = run_session(open_session(quantized.proto), None, feeds)
    assert np.abs(after - before).max() < 1e-3 * np.abs(before).max()


def test_sensitivities_of_the_optimized_model_are_less(net, best):
    model = best.optimizations.apply(net.prepared)
    optimized = measure_sensitivities(model, best.calibration, net.dataset, Sampling(32))
    plain = measure_sensitivities(net.prepared, net.calibrated(), net.dataset, Sampling(32))
    assert optimized.whole.noise < 0.2 * plain.whole.noise


def test_plans_are_held_against_the_given_model(net, best):
    name, values = next(iter(best.optimizations.changes.constants.items()))
    changes = best.optimizations.changes.then(Changes({name: 1.1 * values}))
    worse = replace(best.optimizations, changes=changes)
    losses = []
    for optimizations in (best.optimizations, worse):
        model = optimizations.apply(net.prepared)
        ranges = replace(best.calibration, model=model.fingerprint)
        units = [one.name for one in find_layers(model).layers]
        with Reference(model, net.dataset, 32) as reference:
            plans = Plans(model, ranges, units)
            losses.append(Evaluator(plans, reference, EvaluationCache(None, {})).loss().noise)
    assert losses[0] < 1e-4 < losses[1]


def test_the_optimized_model_in_float_is_near_the_quantized_one(net, best):
    model = in_float(best.optimizations.apply(net.prepared))
    calibration = replace(best.calibration, model=model.fingerprint)
    again = quantize(model, calibration)
    assert abs(judged(net, again) - judged(net, best.quantized)) < 3.0


def test_moved_tensors_are_not_held_against_the_given_model(net, best):
    quantized = replace(net.given, proto=best.quantized.proto)
    found = compare_layers(net.given, [quantized], net.dataset)[0]
    plain = replace(net.given, proto=quantize(net.prepared, net.calibrated()).proto)
    all_of_them = compare_layers(net.given, [plain], net.dataset)[0]
    assert len(all_of_them.figures) - len(found.figures) == found.unknown > 0
    assert min(one.arrives_db or 99.0 for one in found.figures) > 10.0


def test_no_time_tries_ranges_only(net):
    made = improved(net, ImproveOptions("best", seconds=0.0))
    assert all(one.name.startswith("ranges") for one in made.tries)
    assert "adaptive rounding" in made.optimizations.record["untried"]


def test_an_optimization_that_takes_too_long_is_left(net, monkeypatch):
    def found_by(seconds):
        ticks = itertools.count()  # one for each reading of the clock
        for module in (table, improving):
            monkeypatch.setattr(module, "now", lambda: next(ticks))
        return improved(net, ImproveOptions("best", seconds=seconds)), next(ticks)

    whole, ticks = found_by(1e9)
    assert not whole.optimizations.record["untried"]
    # within the last reconstruction, which checks the time once a layer
    part, _ = found_by(ticks - 5)
    assert part.optimizations.record["untried"] == ["adaptive rounding"]
    assert [one.name for one in part.tries] == [one.name for one in whole.tries[:-1]]


@pytest.mark.parametrize("error", [IndexError("axis 4"), MemoryError(), BackendError("no", "yes")])
def test_an_optimization_that_fails_ends_nothing(net, monkeypatch, error):
    def fail(*_):
        raise error

    def broken(_context, state, _):
        weight = np.full((16, 3, 3, 3), np.nan, np.float32)
        return [state.with_changes(Changes({"w0": weight}))]

    first, *_ = OPTIMIZATIONS
    rows = [
        replace(first, name="fails", apply=fail),
        replace(first, name="gives NaN", apply=broken, finer=True),
        first,
    ]
    monkeypatch.setattr(improving, "OPTIMIZATIONS", rows)
    result = improved(net, ImproveOptions())
    kept = {row.name: row.kept for row in result.tries}
    assert not kept["fails"] | kept["gives NaN"]
    assert kept[first.name]
    warned = [line for line in result.warnings if line.startswith("fails was not kept")]
    shows(warned[0], str(error) or "MemoryError")


def test_too_few_samples_are_refused(subject):
    with fails(InputError, "7"):
        improved(subject(separable_net, count=7), ImproveOptions())


@pytest.mark.parametrize(("side", "samples"), [(8, 32), (512, 16)])
def test_reconstruction_holds_as_many_images_as_their_size_allows(tmp_path, side, samples):
    """The model says nothing of the size: the data do."""
    weight = rng().standard_normal((64, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    shape = ["n", 64, "h", "w"]
    path = save(tmp_path / "n.onnx", nodes, {"w": weight}, {"x": ["n", 3, "h", "w"]}, {"y": shape})
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 3, side, side), np.float32))
    model = load_model(path)
    assert samples_in_memory(model, open_dataset(tmp_path / "data.npz", model), 32) == samples


def test_one_batch_of_a_fixed_size_is_enough(tmp_path):
    path = separable_net(tmp_path / "net.onnx")
    proto = onnx.load(path)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 16
    onnx.save(proto, path)
    given = load_model(path)
    data = open_dataset(samples(tmp_path / "data.npz", count=32), given)
    made = improve(prepare(given), data, ImproveOptions("best"), silent)
    assert {one.name for one in made.tries} >= {"bias correction", "adaptive rounding"}


def test_few_samples_are_warned_of(subject):
    made = improved(subject(separable_net, count=40), ImproveOptions())
    shows(made.warnings[0], "24")


def test_divergence_wants_class_scores(subject):
    with fails(InputError, "kl"):
        improved(subject(idle_net, count=64), ImproveOptions("fast", objective="kl"))


def test_a_metric_decides(net, tmp_path):
    from trtcal.evaluate.metrics import load_metric

    path = tmp_path / "metric.py"
    code = "def metric(outputs, labels):\n    return {'less': float(outputs['y'].sum())}\n"
    path.write_text(code)
    made = improved(net, ImproveOptions("fast", metric=load_metric(path)))
    values = [one.value for one in made.tries]
    assert made.optimizations.record["objective"] == "metric"
    assert len(set(values)) > 1


def test_the_command_writes_all_that_later_ones_take(tmp_path, capsys):
    model = separable_net(tmp_path / "net.onnx")
    data = samples(tmp_path / "data.npz", count=48)
    output, floats, again = (tmp_path / f"{name}.onnx" for name in ("int8", "optimized", "again"))
    arguments = ("quantize", model, "--improve", "fast", "--data", data, "-o", output)
    shows(succeed(capsys, *arguments, "--float-output", floats), "bias correction")
    record = read_document(tmp_path / "int8.optimizations.json", "optimizations")
    assert record["samples"]["selection"] == 16
    ranges = ("--calibration", tmp_path / "int8.calibration.json")
    optimizations = ("--optimizations", tmp_path / "int8.optimizations.npz")
    succeed(capsys, "quantize", model, *ranges, *optimizations, "-o", again)
    assert again.read_bytes() == output.read_bytes()
    status, _, err = run(capsys, "quantize", model, *ranges, "-o", again)
    assert status == 2
    shows(err, "net.onnx", "calibration")
    own = ("--calibration", tmp_path / "optimized.calibration.json")
    succeed(capsys, "quantize", floats, *own, "-o", again)
    succeed(capsys, "sensitivity", model, *ranges, *optimizations, "--data", data)


def test_options_that_say_nothing_together(tmp_path, capsys):
    model, data = separable_net(tmp_path / "net.onnx"), samples(tmp_path / "data.npz")
    status, _, err = run(capsys, "quantize", model, "--data", data, "-o", tmp_path / "y.onnx")
    assert status == 2
    shows(err, "--improve")
    both = ("--improve", "fast", "--optimizations", "none.npz")
    assert run(capsys, "quantize", model, *both, "-o", tmp_path / "y.onnx")[0] == 2
    assert open_dataset(data, load_model(model)).name == "data"


def test_the_page_has_the_table_of_optimizations():
    lines = Path("docs/ptq.md").read_text().splitlines()
    start = lines.index("| optimization | what it does | needs | source | effort |") + 2
    shown = [line.strip("| ").split(" | ") for line in lines[start : start + len(OPTIMIZATIONS)]]
    assert shown == [
        [one.name, one.what, one.needs, one.source, "fast" if one.fast else "best"]
        for one in OPTIMIZATIONS
    ]
    assert not lines[start + len(OPTIMIZATIONS)]
