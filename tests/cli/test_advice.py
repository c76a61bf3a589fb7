"""Every command ends with the one that is worth running next."""

import shlex

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

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


def test_what_holds_its_limits_is_tested_next_with_the_same_configuration(place, capsys):
    model = onnx.load(place / "a net.onnx")
    onnx.save(model, "same.onnx")
    weight = next(item for item in model.graph.initializer if item.name == "w2")
    weight.CopyFrom(numpy_helper.from_array(-2 * numpy_helper.to_array(weight), "w2"))
    onnx.save(model, "other.onnx")
    np.savez(place / "x.npz", x=np.load(place / "data.npz")["x"])
    (place / "own.toml").write_text('[evaluation]\ndata = "x.npz"\n')
    limit = ("--limit", "sqnr_db >= 30", "--task", "regression")
    words = ["compare", "a net.onnx", "other.onnx", "same.onnx", "--config", "own.toml", *limit]
    status, following = run(capsys, [*words, "--rounds", "2"])
    assert (status, following[:4]) == (1, ["trtcal", "ab", "a net.onnx", "same.onnx"])
    assert {"--config", "own.toml", *limit} <= {*following}
    assert run_command(following[1:]) == 0
