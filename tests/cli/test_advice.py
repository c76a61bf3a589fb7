"""Every command ends with the one that is worth running next."""

import shlex

import numpy as np
import pytest

from tests.fixtures.networks import conv_net, samples
from trtcal.backends.registry import targets_here
from trtcal.cli.advice import MADE, recall, remember
from trtcal.cli.main import run_command
from trtcal.documents import state_path


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "a net.onnx")
    samples(tmp_path / "data.npz")
    return tmp_path


def run(capsys, words):
    """Return the status of a command and the words of the one that it advises, if it does."""
    status = run_command([str(word) for word in words])
    *_, last = ["", *capsys.readouterr().err.splitlines()]
    return status, shlex.split(last.removeprefix("next: ")) if last.startswith("next: ") else None


def test_each_command_is_the_next_from_calibrate_to_the_report(place, capsys):
    words, ran = ["trtcal", "calibrate", "a net.onnx", "--data", "data.npz"], []
    while words is not None and words[1] != "report":
        assert words[0] == "trtcal"
        status, following = run(capsys, words[1:])
        assert status in (0, 1), words
        ran.append(words[1])
        words = following if len(ran) < 6 else None
    assert ran[:5] == ["calibrate", "quantize", "build", "diagnose", "compare"]
    target = "sm89" if "sm89" in targets_here() else "cpu"
    assert (place / "builds" / target / "build.json").exists()
    assert (place / "a net-int8.onnx").exists()


def test_a_loss_leads_to_optimizations_and_then_to_the_search(place, capsys):
    run(capsys, ["calibrate", "a net.onnx", "--data", "data.npz", "-q"])
    run(capsys, ["quantize", "a net.onnx", "-o", "int8.onnx", "-q"])
    words = ["compare", "a net.onnx", "int8.onnx", "--data", "data.npz", "--limit", "sqnr_db >= 99"]
    status, improve = run(capsys, words)
    assert status == 1
    assert improve[1:3] == ["quantize", "a net.onnx"]
    assert improve[3:] == ["--data", "data.npz", "--improve", "fast", "-o", "a net-improved.onnx"]
    assert run(capsys, improve[1:])[0] == 0
    status, search = run(capsys, [*words[:2], improve[-1], *words[3:]])
    assert status == 1
    assert search[1:3] == ["search", "a net.onnx"]
    assert {"--calibration", "--optimizations", "--data"} <= set(search)
    status, mixed = run(capsys, [*search[1:], "--plans", "2", "--samples", "2"])
    assert status == 0
    assert mixed[1:3] == ["quantize", "a net.onnx"]
    assert run(capsys, mixed[1:])[0] == 0


def test_an_open_verdict_says_how_many_samples_are_needed(place, capsys):
    labels = np.arange(24) % 5
    images = np.random.default_rng(1).normal(size=(24, 3, 8, 8)).astype(np.float32)
    np.savez(place / "few.npz", x=images, labels=labels)
    run(capsys, ["calibrate", "a net.onnx", "--data", "data.npz", "-q"])
    run(capsys, ["quantize", "a net.onnx", "-o", "int8.onnx", "-q"])
    words = ["compare", "a net.onnx", "int8.onnx", "--data", "few.npz", "--limit", "top1 >= -1"]
    run_command(words)
    err = capsys.readouterr().err
    assert " more samples would settle it, " in err


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_nothing_is_advised_where_nobody_reads_it(place, capsys, option):
    words = ["calibrate", "a net.onnx", "--data", "data.npz", option]
    assert run(capsys, words) == (0, None)


def test_a_failed_command_advises_nothing(place, capsys):
    assert run(capsys, ["calibrate", "none.onnx", "--data", "data.npz"]) == (2, None)


def test_damaged_lines_about_what_was_made_say_nothing(place):
    remember(place / "q.onnx", model=place / "a net.onnx")
    path = state_path(MADE)
    good = path.read_bytes()
    lines = [
        b"[]",
        b"3",
        b'{"made": 1}',
        b"\xff",
        b"[" * 5000,
        b'{"made": "x", "model": [1]}',
        good,
    ]
    path.write_bytes(b"\n".join(lines))
    assert recall(place / "q.onnx") == {"model": "a net.onnx"}


def test_what_is_written_has_a_name_without_o(place, capsys):
    run(capsys, ["calibrate", "a net.onnx", "--data", "data.npz", "-q"])
    assert run(capsys, ["prepare", "a net.onnx", "-q"])[0] == 0
    assert run(capsys, ["quantize", "a net.onnx", "-q"])[0] == 0
    assert run(capsys, ["build", "a net-int8.onnx", "--target", "cpu", "-q"])[0] == 0
    written = ("a net-prepared.onnx", "a net-int8.onnx", "builds/cpu/build.json")
    assert all((place / name).is_file() for name in written)
