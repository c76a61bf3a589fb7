import dataclasses
import math

import pytest

from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, transposed_net
from tests.fixtures.quantized import calibrated
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.backends.sessions import run_session
from trtcal.check import evaluation_data
from trtcal.check.evaluation_data import EvaluationCheck
from trtcal.data.slices import read_attributes
from trtcal.documents import seal, write_document
from trtcal.errors import InputError
from trtcal.evaluate import comparison as comparing
from trtcal.evaluate import latency
from trtcal.evaluate import replay as replaying
from trtcal.evaluate.collectors import CollectSettings
from trtcal.evaluate.comparison import (
    CompareSettings,
    Comparison,
    compare,
    notes,
    warnings,
    with_layers,
)
from trtcal.evaluate.equality import Simulation
from trtcal.evaluate.groups import Breakdown, Group
from trtcal.evaluate.latency import GLANCE, GLANCED
from trtcal.evaluate.metrics import load_metric
from trtcal.evaluate.replay import Kept
from trtcal.evaluate.variants import open_variant
from trtcal.limits import parse_limits
from trtcal.model import load_model
from trtcal.quantization import quantize, write_quantized


@pytest.fixture
def scene(tmp_path):
    path = conv_net(tmp_path / "net.onnx")
    model, calibration, data = calibrated(path, tmp_path)
    write_quantized(tmp_path / "int8.onnx", quantize(model, calibration))
    return path, tmp_path / "int8.onnx", data


def test_a_comparison_survives_being_written(scene, tmp_path):
    reference, variant, data = scene
    made = compare(
        open_variant(reference), [open_variant(variant)], data, (), CompareSettings(rounds=4)
    )
    made.write(tmp_path / "comparison.json")
    assert Comparison.read(tmp_path / "comparison.json") == made
    assert [row.name for row in made.rows] == ["net", "int8"]
    assert made.rows[1].accuracy.sqnr_db > 20


def test_the_digest_is_of_accuracy_not_of_time(scene):
    reference, variant, data = scene
    first, second = (
        compare(
            open_variant(reference), [open_variant(variant)], data, (), CompareSettings(rounds=n)
        )
        for n in (3, 4)
    )
    assert first.digest == second.digest
    stricter = dataclasses.replace(first, limits=parse_limits(["top1 >= -0.1"]))
    assert stricter.digest != first.digest


def test_an_onnxruntime_build_is_a_variant_too(scene, tmp_path):
    reference, variant, data = scene
    backend = BACKENDS["onnxruntime"]
    build(load_model(variant), backend, BuildOptions("cpu"), tmp_path / "build")
    engine = open_variant(tmp_path / "build")
    made = compare(
        open_variant(reference),
        [engine, open_variant(variant, "onnx")],
        data,
        (),
        CompareSettings(rounds=3),
    )
    assert made.rows[1].accuracy == made.rows[2].accuracy
    (tmp_path / "build" / "engine.onnx").write_bytes(reference.read_bytes())
    with fails(InputError, "engine.onnx"):
        open_variant(tmp_path / "build")


def test_variants_must_differ_in_name_and_agree_in_inputs(scene, tmp_path):
    reference, _, data = scene
    with fails(InputError, "net"):
        compare(open_variant(reference), [open_variant(reference)], data, ())
    other = tmp_path / "other"
    other.mkdir()
    path = transposed_net(other / "up.onnx")
    model, calibration, _ = calibrated(path, other)
    assert model.inputs == load_model(reference).inputs
    write_quantized(other / "up8.onnx", quantize(model, calibration))
    with fails(InputError, "up8"):
        compare(open_variant(reference), [open_variant(other / "up8.onnx")], data, ())


def test_a_folder_that_is_no_build_is_refused(tmp_path):
    with fails(InputError, str(tmp_path), hint="trtcal build"):
        open_variant(tmp_path)


def test_everything_that_can_be_asked_survives_being_written(scene, tmp_path):
    reference, variant, data = scene
    (tmp_path / "slices.csv").write_text("tier\n" + "low\nhigh\n" * (len(data) // 2))
    (tmp_path / "metric.py").write_text(
        "def metric(outputs, labels):\n    return {'largest': outputs['y'].max()}\n"
    )
    wanted = CollectSettings(
        read_attributes(tmp_path / "slices.csv", len(data)), load_metric(tmp_path / "metric.py")
    )
    everyone = [open_variant(reference), open_variant(variant)]
    made = compare(everyone[0], everyone[1:], data, (), CompareSettings(8, 4, wanted, None, (1, 4)))
    made = with_layers(made, load_model(reference), {"int8": load_model(variant)}, data)
    made.write(tmp_path / "comparison.json")
    assert Comparison.read(tmp_path / "comparison.json") == made
    first, second = made.rows
    assert (first.simulation, first.breakdowns, first.layers) == (None, (), None)
    assert {one.figure for one in second.breakdowns} == {"top1", "largest"}
    assert {one.by for one in second.breakdowns} == {"slices", "classes"}
    assert second.own[0].name == "largest"
    assert second.simulation.accuracy.sqnr_db > 20
    assert second.layers.samples == len(data)
    assert [one.batch for one in second.latency.throughput] == [1, 4]


def test_comparisons_of_earlier_versions_are_read(scene, tmp_path):
    reference, variant, data = scene
    made = compare(
        open_variant(reference), [open_variant(variant)], data, (), CompareSettings(rounds=4)
    )
    document = made.to_document()
    for row in document["rows"]:
        for name in ("simulation", "own", "breakdowns", "worst", "layers"):
            del row[name]
    for one in document["measured"]["variants"].values():
        for name in ("warm_up", "outliers", "drift", "warnings", "throughput"):
            del one["latency"][name]
    write_document(tmp_path / "comparison.json", seal(document))
    read = Comparison.read(tmp_path / "comparison.json")
    assert read.rows[1].accuracy == made.rows[1].accuracy
    assert read.rows[1].latency.speedup == made.rows[1].latency.speedup


def test_a_slice_that_got_worse_is_in_the_warnings(scene, tmp_path):
    reference, variant, data = scene
    made = compare(
        open_variant(reference), [open_variant(variant)], data, (), CompareSettings(rounds=4)
    )
    group = Group("tier=\x1b[31mlow", 100, 85.0, 75.0, 10.0, (4.0, 16.0), 0.001, 0.003)
    found = Breakdown("slices", "top1", "points", (group,))
    gap = Simulation(made.rows[1].accuracy, "top-1", -0.6, (-1.0, 0.2), 97.0, 25.0)
    rows = (made.rows[0], dataclasses.replace(made.rows[1], breakdowns=(found,), simulation=gap))
    known = dataclasses.replace(made, rows=rows)
    printed = "\n".join(warnings(known))
    shows(printed, "tier=\x1b[31mlow", "10 points", "100 samples", "p 0.003")
    assert "simulated" not in printed
    shows("".join(notes(known)), "-0.60")


def test_a_batch_size_that_cannot_be_had_is_refused(scene):
    reference, variant, data = scene
    with fails(InputError, "25", "24", hint="--batch"):
        compare(
            open_variant(reference),
            [open_variant(variant)],
            data,
            (),
            CompareSettings(batch_sizes=[25]),
        )


def test_a_file_that_changes_meanwhile_is_simulated_as_it_was(scene):
    reference, variant, data = scene
    opened = open_variant(variant)
    variant.write_bytes(reference.read_bytes())
    comparison = compare(open_variant(reference), [opened], data, (), CompareSettings(rounds=4))
    assert comparison.rows[1].simulation is not None


@pytest.fixture
def counted(monkeypatch):
    """The sessions that the replay runs and those that are timed, one entry a run."""
    runs = {"replay": [], "timed": []}
    for module, kind in ((replaying, "replay"), (comparing, "timed")):

        def run(session, *rest, kind=kind):
            runs[kind].append(id(session))
            return run_session(session, *rest)

        monkeypatch.setattr(module, "run_session", run)
    return runs


def test_a_later_comparison_has_the_references_outputs_and_checks_no_data(
    scene, counted, monkeypatch
):
    path, variant, data = scene
    checks, take = [], evaluation_data.take_samples
    monkeypatch.setattr(evaluation_data, "take_samples", lambda *of: checks.append(of) or take(*of))
    reference, kept = open_variant(path), Kept()
    checker = EvaluationCheck(load_model(path), data)
    settings = CompareSettings(
        1, wanted=CollectSettings(simulate=False, checker=checker, kept=kept)
    )
    pair = []
    for name in "ab":
        before = counted["replay"].count(id(reference.session))
        pair.append(compare(reference, [open_variant(variant, name)], data, (), settings))
        before = counted["replay"].count(id(reference.session)) - before
        assert before == 1 + {"a": len(data), "b": GLANCED}[name]  # the first shows the task
    first, second = pair
    assert dataclasses.replace(second.rows[1], name="a").lasting() == first.rows[1].lasting()
    assert (second.task, second.issues, len(checks)) == (first.task, first.issues, 1)


def test_rough_times_are_those_of_the_replay_where_it_has_enough(scene, counted, monkeypatch):
    path, variant, data = scene
    reference, int8 = open_variant(path), open_variant(variant)
    cases = ((1, 0.0, 0), (1, math.inf, 1 + GLANCE), (len(data), 0.0, 1 + GLANCE))  # one warms up
    for batch, least_ms, runs in cases:
        monkeypatch.setattr(latency, "GLANCE_MS", least_ms)
        counted["timed"].clear()
        rough = compare(reference, [int8], data, (), CompareSettings(batch))
        assert (len(counted["timed"]), rough.is_rough) == (2 * runs, True)
        assert [row.latency.runs for row in rough.rows] == [GLANCE, GLANCE]
