"""`trtcal search`: its files make the same plans again, a second call measures nothing."""

import json

import numpy as np
import pytest

from tests.evaluate.search.nets import far_net
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.slow import SLOW
from trtcal.backends.registry import BACKENDS
from trtcal.cli.main import run_command
from trtcal.cli.search import _gpu_of
from trtcal.documents import read_document
from trtcal.quantization import read_plan

SLOW_MEMORY = "bandwidth_gb_s = 0.001\nint8_tops = 4\nfp16_tflops = 2\nfp32_tflops = 1.0\n"
"""A GPU on which a small network's bytes take longer than its launches."""
RTX = BACKENDS["tensorrt-rtx"].availability()


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    net, data = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "data.npz")
    words = ["calibrate", str(net), "--data", str(data)]
    assert run_command(words) == 0
    return ["search", str(net), "--data", str(data)]


def searched(capsys, words):
    capsys.readouterr()
    status = run_command([*words, "--json"])
    return status, json.loads(capsys.readouterr().out or "null")


def test_plans_can_be_made_again_by_the_command_that_is_given(files, tmp_path, capsys):
    status, document = searched(capsys, [*files, "--rest", "fp32"])
    assert status == 0
    assert read_document(tmp_path / "search" / "search.json", "search", 2) == document
    assert [row["recommended"] for row in document["front"]].count(True) == 1
    for row in document["front"]:
        plan = read_plan(tmp_path / "search" / row["plan"])
        assert sorted(plan.layers) == sorted(row["float_layers"])
        assert plan.to_document()["digest"] == row["plan_digest"]
    row = next(row for row in document["front"] if row["recommended"])
    assert run_command(row["command"].split()[1:]) == 0
    assert (tmp_path / "search" / row["plan"]).with_suffix(".onnx").exists()


def test_a_second_call_gives_the_same_and_measures_nothing(files, tmp_path, capsys):
    _, first = searched(capsys, files)
    lines = (tmp_path / "search" / "evaluations.jsonl").read_text()
    _, second = searched(capsys, files)
    assert first["digest"] == second["digest"]
    assert (tmp_path / "search" / "evaluations.jsonl").read_text() == lines


def test_where_no_plan_holds_the_limits_the_status_is_1_and_it_is_said_why(files, capsys):
    assert run_command([*files, "--limit", "speedup >= 1000", "--limit", "sqnr_db >= 10"]) == 1
    assert "speedup >= 1000.0 x to" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [["--gpu", "none"], ["--limit", "top1 >= 1"], ["--data", "no.npz"]],
)
def test_bad_input_is_one_line_and_status_2(files, capsys, more):
    assert run_command([*files, *more]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@SLOW
def test_what_was_cut_short_is_said_and_the_same_command_goes_on(files, capsys):
    status, cut = searched(capsys, [*files, "--time-limit", "0"])
    assert status == 0
    assert not cut["complete"]
    assert "sensitivities of 4 of 4 layers" in cut["missing"][0]
    assert cut["sensitivities"] == []
    assert len(cut["measured_plans"]) == 2
    assert run_command([*files, "--time-limit", "0"]) == 0
    assert "sensitivities of 4" in capsys.readouterr().err
    _, whole = searched(capsys, files)
    assert whole["complete"]
    assert whole["missing"] == []
    assert len(whole["sensitivities"]) == 4


def test_the_recommended_plan_is_tested_on_held_back_samples(files, tmp_path, capsys):
    samples(tmp_path / "data.npz", count=60)
    (tmp_path / "slow.toml").write_text(SLOW_MEMORY)
    files += ["--gpu", "slow.toml"]
    words = [*files, "--evaluate", "40"]
    status, document = searched(capsys, words)
    assert status == 0
    assert (document["tested"]["samples"], document["tested"]["held_back"]) == (20, True)
    assert document["shared_samples"] == {"shared": 24, "samples": 60, "estimate": None}
    assert run_command(words) == 0
    shown = capsys.readouterr()
    assert "on 20 held-back samples" in shown.out
    assert shown.err.count("warning") == 1
    assert "24 of 60 samples are calibration samples" in shown.err
    (plan,) = (row for row in document["front"] if row["recommended"])
    images = np.load(tmp_path / "data.npz")["x"]
    images[40:] *= 8  # far outside of the ranges
    np.savez(tmp_path / "other.npz", x=images)
    limit = f"sqnr_db >= {plan['sqnr_db'] - 0.01}"
    other = ["--data", "other.npz", "--evaluate", "40", "--limit", limit]
    assert run_command([*files, *other]) == 1
    assert "the verdict is DO NOT SHIP" in capsys.readouterr().err


def test_a_plan_with_little_in_int8_ships_with_care_and_one_answer_says_whether_int8_pays(
    files, tmp_path, capsys
):
    samples(tmp_path / "data.npz", count=60)
    np.savez(tmp_path / "data.npz", x=np.load(tmp_path / "data.npz")["x"])
    for least_db, word, share in ((40, "SHIP", 100), (80, "SHIP WITH CARE", 0)):
        limit = ["--gpu", "l4", "--rest", "fp32", "--limit", f"sqnr_db >= {least_db}"]
        _, document = searched(capsys, [*files, *limit])
        assert document["tested"]["word"] == word, document["tested"]["sentence"]
        assert document["int8_pays"] is None
        assert document["int8_over_float"]["pays"] == "device"
        assert (f"only {share} % of the MACs" in document["tested"]["sentence"]) == (share == 0)


@SLOW
def test_layers_beyond_float16_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    net, data = far_net(tmp_path / "net.onnx"), samples(tmp_path / "data.npz")
    assert run_command(["calibrate", str(net), "--data", str(data)]) == 0
    status, document = searched(capsys, ["search", str(net), "--data", str(data)])
    assert status == 0
    assert document["beyond_float16"] == ["far1", "far2"]
    assert all(row["finite"] for row in document["measured_plans"])
    assert run_command(["search", str(net), "--data", str(data)]) == 0
    assert "which run in INT8 or float32: 2: far1, far2" in capsys.readouterr().err


@pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))
def test_the_front_is_built_and_counted(files, capsys):
    status, document = searched(capsys, [*files, "--target", "sm89", "--plans", "4"])
    assert status == 0
    assert "the compiler lists" in document["costs"]
    for row in document["front"]:
        assert row["built"]["bytes_moved"] > 0
        assert row["built"]["float_heavy"] == 0


def test_times_are_estimated_for_the_target_of_the_build(capsys):
    assert _gpu_of("sm89") == "l4"
    assert _gpu_of("sm100,sm80") == "a100-sxm4-40gb"
    assert _gpu_of(None) == "t4"
    assert not capsys.readouterr().err
    assert _gpu_of("sm100") == "t4"
    assert "no datasheet of sm100" in capsys.readouterr().err
