"""`trtcal init`, and `trtcal run MODEL --data ...` without a file."""

import json
import shlex

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.fixtures.commands import refused
from tests.fixtures.kinds import KINDS
from tests.fixtures.networks import conv_net, rng
from tests.fixtures.slow import SLOW
from trtcal.cli.main import run_command
from trtcal.config import read_config


def images(folder, classes=5, each=8, size=(12, 12)):
    """Write smooth images of random colours in a folder for each class."""
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            coarse = rng(100 * label + number).integers(0, 256, (4, 4, 3), np.uint8)
            Image.fromarray(coarse).resize(size).save(folder / f"class{label}" / f"{number}.png")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx")
    images(tmp_path / "images")
    return tmp_path


def test_a_file_is_written_from_model_and_images(place, capsys):
    assert run_command(["init", "--data", "images"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "next: trtcal run"
    config = read_config(place / "trtcal.toml")
    assert (config.model, config.calibration.data) == (place / "net.onnx", place / "images")
    assert (config.images.layout, config.images.channels) == ("NCHW", "RGB")
    assert (config.images.resize, config.images.crop) == (9, (8, 8))
    assert (config.task, config.calibration.labels) == ("classification", "folders")
    assert config.evaluation.data is None
    text = (place / "trtcal.toml").read_text()
    guessed = [line for line in text.splitlines() if "# guessed: " in line]
    assert err.count("guessed: ") == len(guessed) >= 5
    assert "trtcal.toml already exists" in refused(capsys, "init", "--data", "images")
    assert (place / "trtcal.toml").read_text() == text


def test_the_file_runs_and_holds_data_back(place, capsys):
    assert run_command(["init", "--data", "images", "--target", "cpu"]) == 0
    assert run_command(["run", "--no-history"]) in (0, 1)
    captured = capsys.readouterr()
    assert "no test data are given: 12 samples are held back" in captured.err
    report = json.loads((place / "reports" / "report.json").read_text())
    assert report["comparison"]["samples"] == 12
    assert report["comparison"]["rows"][1]["shared_samples"] is None
    assert {build["target"] for build in report["builds"]} == {"cpu"}


def test_a_model_and_data_are_enough_for_a_run(place, capsys):
    images(place / "test", each=4)
    words = ["run", "net.onnx", "--data", "images", "--test", "test", "--target", "cpu"]
    assert run_command([*words, "--no-history"]) in (0, 1)
    captured = capsys.readouterr()
    assert 'guessed: labels = "folders"' in captured.err
    assert "a rough measure; use --rounds 60" in captured.out
    report = json.loads((place / "net-run" / "report.json").read_text())
    assert report["comparison"]["samples"] == 20
    command = "trtcal run net.onnx --data images --test test --target cpu"
    assert report["measured"]["run"]["command"] == command
    assert not (place / "trtcal.toml").exists()


@pytest.mark.parametrize(
    ("name", "task"),
    [("LSTM", "classification"), ("segmentation", "segmentation"), ("BERT", "tokens")],
)
def test_arrays_need_no_images(place, name, task):
    KINDS[name].save(place / "other.onnx")
    np.savez("data.npz", **KINDS[name].make(rng(), 24))
    assert run_command(["init", "other.onnx", "--data", "data.npz", "-o", "a/b.toml"]) == 0
    config = read_config(place / "a" / "b.toml")
    assert (config.model, config.task, config.images) == (place / "other.onnx", task, None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["init", "net.onnx", "--data", "nowhere"], "nowhere"),
        (["init", "net.onnx"], "the data is not given"),
        (
            ["init", "other.onnx", "--data", "images"],
            "no input of the model has the shape of an image",
        ),
        (["run", "other.onnx"], "the data is not given"),
    ],
)
def test_what_cannot_be_read_is_one_error(place, capsys, words, says):
    KINDS["LSTM"].save(place / "other.onnx")
    assert run_command(words) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert "hint: " in captured.err
    assert not (place / "trtcal.toml").exists()


def test_two_models_are_not_chosen_between(place, capsys):
    KINDS["LSTM"].save(place / "other.onnx")
    assert "2 .onnx files" in refused(capsys, "init", "--data", "images")


def following(captured):
    """Return the words of the command that was advised."""
    last = captured.err.splitlines()[-1]
    assert last.startswith("next: trtcal "), last
    return shlex.split(last.removeprefix("next: trtcal "))


@SLOW
def test_a_run_that_loses_advises_commands_that_work_until_layers_stay_in_float(place, capsys):
    (place / "models").mkdir()
    conv_net(place / "models" / "net.onnx")
    images(place / "more", each=50)
    assert run_command(["init", "models/net.onnx", "--data", "more", "--target", "cpu"]) == 0
    text = (place / "trtcal.toml").read_text()
    loses = text.replace("# limits = [", 'limits = ["relative_error <= 1e-6"]  # [')
    (place / "trtcal.toml").write_text(loses)
    capsys.readouterr()
    assert run_command(["run", "--no-history"]) == 1
    improve = following(capsys.readouterr())
    assert improve[:3] == ["quantize", "models/net.onnx", "--improve"]
    assert run_command(improve) == 0
    (place / "trtcal.toml").write_text(
        loses.replace("[calibration]", '[calibration]\nimprove = "fast"')
    )
    capsys.readouterr()
    assert run_command(["run", "--no-history"]) == 1
    search = following(capsys.readouterr())
    assert search[0] == "search"
    assert run_command([*search, "--plans", "2", "--samples", "4"]) in (0, 1)
    assert "which `trtcal run` holds back" in capsys.readouterr().err


@SLOW
def test_what_a_run_guessed_stands_in_its_folder_and_runs_again(place, capsys):
    words = ["run", "net.onnx", "--data", "images", "--target", "cpu", "--no-history"]
    assert run_command(words) in (0, 1)
    following(capsys.readouterr())
    first = json.loads((place / "net-run" / "report.json").read_text())
    assert first["measured"]["run"]["measured"]["files"] == {
        "model": "net.onnx",
        "config": "net-run/trtcal.toml",
        "folder": "net-run",
    }
    assert run_command(["run", "net-run/trtcal.toml", "--no-history"]) in (0, 1)
    again = json.loads((place / "net-run" / "report.json").read_text())
    assert again["comparison"]["digest"] == first["comparison"]["digest"]
    assert (place / "net-run" / "trtcal.toml").exists()


@pytest.mark.parametrize("batch", [1, 4])
def test_models_with_a_fixed_batch_need_nothing_else(place, batch, capsys):
    model = onnx.load(place / "net.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(model, place / "net.onnx")
    assert run_command(["init", "net.onnx", "--data", "images", "-o", "written.toml"]) == 0
    line = ["run", "net.onnx", "--data", "images", "--target", "cpu", "--no-history"]
    assert run_command([*line, "-o", "out"]) in (0, 1), capsys.readouterr().err
    report = json.loads((place / "out" / "report.json").read_text())
    assert report["comparison"]["samples"] == 12
