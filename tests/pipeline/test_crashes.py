"""Native crashes: a variant that crashes is a finding, and a run that is killed goes on."""

import json
import os
import signal

import numpy as np
import onnx
import pytest

from tests.fixtures.commands import refused, succeed
from tests.fixtures.fails import fails
from tests.fixtures.killing import forked, tree
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.recurrent import ROWS, batch_first, forget_trials, fusing, save_pair
from tests.fixtures.slow import SLOW
from trtcal.backends import sessions
from trtcal.config import read_config
from trtcal.documents import resuming_entries
from trtcal.errors import InputError, NativeCrash, ResourceError
from trtcal.evaluate.comparison import Comparison
from trtcal.model import load_model
from trtcal.model.files import write_onnx
from trtcal.pipeline import stages
from trtcal.pipeline.api import compare
from trtcal.pipeline.job import run
from trtcal.quantization import Plan, quantize
from trtcal.reporting.verdict import judge
from trtcal.runs.verify import verify

CONFIG = """
model = "net.onnx"
output = "out"
[calibration]
data = "data.npz"
methods = ["minmax"]
{improve}
[evaluation]
data = "test.npz"
rounds = 3
[plans.mixed]
layers = {{ "second" = "fp32" }}
[build]
targets = ["cpu"]
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forget_trials(monkeypatch)
    conv_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz", count=40)
    samples(tmp_path / "test.npz", count=40)
    (tmp_path / "trtcal.toml").write_text(CONFIG.format(improve=""))
    return tmp_path


@pytest.fixture
def recurrent(tmp_path, monkeypatch):
    """A folder with networks of which those in float16 crash, and their data."""
    fusing(monkeypatch)
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", **batch_first("LSTM").make(np.random.default_rng(0), 12))
    return tmp_path


def crashing(folder, count):
    """Write networks in float16 that crash, each of other layers than those before."""
    kinds = [(op, classes) for classes in range(2, 2 + count) for op in ROWS][:count]
    for number, kind in enumerate(kinds):
        path = batch_first(*kind).save(folder / "full.onnx")
        half = folder / f"crash-{number}.onnx"
        write_onnx(half, quantize(load_model(path), None, Plan(default="fp16")).proto)
        yield half


@pytest.mark.parametrize("count", [2, pytest.param(20, marks=SLOW)])
def test_variants_that_crash_are_findings_and_the_others_are_compared(recurrent, capsys, count):
    full, _ = save_pair(recurrent, "LSTM")
    (recurrent / "same.onnx").write_bytes(full.read_bytes())
    halves = list(crashing(recurrent, count))
    data = ("--data", "x.npz", "--rounds", 2)
    printed = refused(capsys, "compare", full, *halves, "same.onnx", *data, status=3)
    assert "SIGSEGV" in printed
    comparison = Comparison.read(recurrent / "comparison.json")
    assert [row.name for row in comparison.rows] == ["LSTM", "same"]
    assert [crash["variant"] for crash in comparison.crashes] == [half.stem for half in halves]
    for crash in comparison.crashes:
        assert (crash["kind"], crash["signal"]) == ("native_crash", "SIGSEGV")
        assert {"Cast", "MatMul"} <= {*crash["ops"]}
    verdict = judge(comparison)
    assert verdict.variant == "same"
    assert all(any(half.stem in reason for reason in verdict.reasons) for half in halves)


def test_a_comparison_of_variants_that_all_crash_says_do_not_ship(recurrent, capsys):
    full, half = save_pair(recurrent, "GRU")
    refused(capsys, "compare", full, half, "--data", "x.npz", "--rounds", 2, status=3)
    verdict = judge(Comparison.read(recurrent / "comparison.json"))
    assert verdict.word == "DO NOT SHIP"
    assert "SIGSEGV" in verdict.sentence


def test_a_reference_or_candidate_that_crashes_is_an_error_that_names_it(recurrent, capsys):
    full, half = save_pair(recurrent, "RNN")
    for command in (["compare", half, full], ["ab", full, half]):
        assert "RNN-fp16" in refused(capsys, *command, "--data", "x.npz", status=3)


def plant(monkeypatch, crashes):
    """Let trials of quantized graphs crash where `crashes(number)`; return those."""
    opened, planted, number = sessions.crash_of, [], iter(range(1 << 20))

    def with_kill(parts, work):
        def end():
            os.kill(os.getpid(), signal.SIGSEGV)

        graph = work.__closure__ and next(
            cell.cell_contents
            for cell in work.__closure__
            if isinstance(cell.cell_contents, onnx.ModelProto)
        )
        text = " ".join(node.op_type for node in graph.graph.node)
        if ("Q" in text or "Integer" in text) and crashes(next(number)):
            planted.append(text)
            return opened(frozenset({hash(text), len(planted)}), end)
        return opened(parts, work)

    monkeypatch.setattr(sessions, "crash_of", with_kill)
    return planted


@SLOW
@pytest.mark.filterwarnings("ignore:ONNX Runtime:RuntimeWarning")
def test_a_run_survives_the_crash_of_everything_that_it_quantizes(place, monkeypatch):
    (place / "trtcal.toml").write_text(CONFIG.format(improve='improve = "fast"'))
    planted = plant(monkeypatch, lambda number: True)
    result = run(read_config(place / "trtcal.toml"))
    assert len(planted) >= 8
    verdict = result.report["measured"]["verdict"]
    assert verdict["word"] == "DO NOT SHIP"
    for name in ("int8-minmax", "mixed", "int8-improved"):
        assert f"{name} does not run: ONNX Runtime" in verdict["sentence"]


@SLOW
@pytest.mark.filterwarnings("ignore:ONNX Runtime:RuntimeWarning")
def test_a_run_with_some_crashes_judges_the_variants_that_are_left(place, monkeypatch):
    planted = plant(monkeypatch, lambda number: number == 0)
    result = run(read_config(place / "trtcal.toml"))
    assert len(planted) == 1
    comparison = Comparison.read(place / "out" / "comparison.json")
    assert [crash["variant"] for crash in comparison.crashes] == ["int8-minmax"]
    verdict = result.report["measured"]["verdict"]
    assert (verdict["variant"], verdict["word"] != "SHIP") == ("mixed", True)
    assert any("int8-minmax" in reason and "SIGSEGV" in reason for reason in verdict["reasons"])


def test_a_run_whose_process_is_killed_goes_on_after_its_last_stage(place, monkeypatch):
    config = read_config(place / "trtcal.toml")

    def killed():
        stages.compare = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        run(config)

    assert forked(killed) == -signal.SIGKILL
    left = tree(place / "out.unfinished")
    lines = [json.loads(line) for line in left["steps.jsonl"].splitlines()]
    assert {"histograms.npz", "models/mixed.onnx", "builds/mixed-cpu/build.json"} <= {*left}
    for stage in ("observe", "build", "check_data"):
        monkeypatch.setattr(stages, stage, None)  # whatever calls it fails
    said = []
    run(config, say=said.append)
    monkeypatch.undo()
    assert any("out.unfinished" in line for line in said)
    assert sorted(item.name for item in place.iterdir() if "out" in item.name) == ["out"]
    finished = {line["step"]["output"]: line["step"]["digest"] for line in lines}
    after = json.loads((place / "out" / "run.json").read_text())
    assert finished.items() <= {one["output"]: one["digest"] for one in after["stages"]}.items()
    reads = {read["purpose"]: read["samples"] for read in after["data_reads"]}
    assert reads.pop("comparison with the evaluation data") == 40  # which the kill prevented
    assert list(reads.items()) == list(lines[-1]["reads"].items())
    left_out = [check.what for check in verify(place / "out") if check.problem or check.unchecked]
    assert left_out == ["out"]  # which has no signature


@SLOW
def test_a_run_of_other_data_does_not_go_on_with_what_is_left(place, monkeypatch):
    config, compare = read_config(place / "trtcal.toml"), stages.compare

    def fail(*_):
        raise NativeCrash("it crashes", "", "SIGSEGV", ())

    monkeypatch.setattr(stages, "compare", fail)
    with fails(NativeCrash):
        run(config)
    assert (place / "out.unfinished" / "histograms.npz").exists()
    lines = []
    (place / "out.unfinished" / "models" / "stray.onnx").write_text("of another run")
    samples(place / "data.npz", count=48)
    monkeypatch.setattr(stages, "compare", compare)
    run(config, say=lines.append)
    assert not any("unfinished" in line for line in lines)
    assert not (place / "out" / "models" / "stray.onnx").exists()
    report = json.loads((place / "out" / "report.json").read_text())
    assert "48" in json.dumps(report["calibrations"])


def test_a_folder_of_unfinished_work_is_deleted_if_nothing_was_done_and_is_of_one_process(tmp_path):
    out = tmp_path / "out"
    with fails(InputError), resuming_entries(out, ["a"], "key") as work:
        (work / "a").write_text("half")
        with fails(ResourceError, "out.unfinished"), resuming_entries(out, ["a"], "key"):
            pass
        raise InputError("x")
    assert not list(tmp_path.iterdir())
    mine = tmp_path / "out.unfinished" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with fails(InputError, "out.unfinished"), resuming_entries(out, ["a"], "key"):
        pass
    assert mine.read_text() == "years of work"


@SLOW
@pytest.mark.filterwarnings("ignore:ONNX Runtime:RuntimeWarning")
def test_search_survives_crashes_of_the_graphs_that_it_measures(place, monkeypatch, capsys):
    succeed(capsys, "calibrate", "net.onnx", "--data", "data.npz", "-o", "c.json")
    planted = plant(monkeypatch, lambda number: number in (0, 2, 4, 6))
    words = ("--calibration", "c.json", "--data", "test.npz", "--samples", 8, "--plans", 3)
    succeed(capsys, "search", "net.onnx", *words)
    assert len(planted) == 4


def test_python_compares_what_does_not_crash(recurrent):
    full, half = save_pair(recurrent, "LSTM")
    comparison = compare(full, {"half": half, "same": full}, "x.npz", rounds=2)
    assert [row.name for row in comparison.rows[1:]] == ["same"]
    assert [crash["variant"] for crash in comparison.crashes] == ["half"]
