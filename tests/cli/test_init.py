"""`trtcal init`, and `trtcal run MODEL --data ...` without a file."""

import json
import shlex

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.fixtures.commands import refused, run, succeed
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


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


def test_a_file_is_written_from_model_and_images(place, capsys):
    status, out, err = run(capsys, "init", "--data", "images")
    assert (status, out.splitlines()[-1]) == (0, "next: trtcal run")
    config = read_config(place / "trtcal.toml")
    assert (config.model, config.calibration.data) == (place / "net.onnx", place / "images")
    assert (config.images.layout, config.images.channels) == ("NCHW", "RGB")
    assert (config.images.resize, config.images.crop) == (9, (8, 8))
    assert (config.task, config.calibration.labels) == ("classification", "folders")
    assert config.evaluation.data is None
    text = (place / "trtcal.toml").read_text()
    guessed = [line for line in text.splitlines() if "# guessed: " in line]
    assert err.count("guessed: ") == len(guessed) >= 5
    assert "trtcal.toml" in refused(capsys, "init", "--data", "images")
    assert (place / "trtcal.toml").read_text() == text


def test_the_file_runs_and_holds_data_back(place, capsys):
    succeed(capsys, "init", "--data", "images", "--target", "cpu")
    status, _, err = run(capsys, "run", "--no-history")
    assert (status < 2, "12 samples" in err) == (True, True)
    report = report_of(place / "reports")
    assert report["comparison"]["samples"] == 12
    assert report["comparison"]["rows"][1]["shared_samples"] is None
    assert {build["target"] for build in report["builds"]} == {"cpu"}


def test_a_model_and_data_are_enough_for_a_run(place, capsys):
    images(place / "test", each=4)
    command = "run net.onnx --data images --test test --target cpu"
    status, out, err = run(capsys, *command.split(), "--no-history")
    assert (status < 2, 'labels = "folders"' in err, "--rounds 60" in out) == (True, True, True)
    report = report_of(place / "net-run")
    assert report["comparison"]["samples"] == 20
    assert report["measured"]["run"]["command"] == f"trtcal {command}"
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
    ("line", "says"),
    [
        ("init net.onnx --data nowhere", "nowhere"),
        ("init net.onnx", "the data is not given"),
        ("init other.onnx --data images", "has the shape of an image"),
        ("run other.onnx", "the data is not given"),
        ("init --data images", "2 .onnx files"),
    ],
)
def test_what_cannot_be_read_is_one_error(place, capsys, line, says):
    KINDS["LSTM"].save(place / "other.onnx")
    err = refused(capsys, *line.split())
    assert says in err
    assert "hint: " in err
    assert not (place / "trtcal.toml").exists()


def following(err):
    """Return the words of the command that was advised."""
    last = err.splitlines()[-1]
    assert last.startswith("next: trtcal "), last
    return shlex.split(last.removeprefix("next: trtcal "))


@SLOW
def test_a_run_that_loses_advises_commands_that_work_until_layers_stay_in_float(place, capsys):
    (place / "models").mkdir()
    conv_net(place / "models" / "net.onnx")
    images(place / "more", each=50)
    succeed(capsys, "init", "models/net.onnx", "--data", "more", "--target", "cpu")
    text = (place / "trtcal.toml").read_text()
    loses = text.replace("# limits = [", 'limits = ["relative_error <= 1e-6"]  # [')
    (place / "trtcal.toml").write_text(loses)
    improve = following(refused(capsys, "run", "--no-history", "--improve", "off", status=1))
    assert improve == ["run", "trtcal.toml", "--improve", "fast"]
    search = following(refused(capsys, "run", "--no-history", status=1))
    assert search[0] == "search"
    status, _, err = run(capsys, *search, "--plans", "2", "--samples", "4")
    assert (status < 2, "`trtcal run`" in err) == (True, True)


@SLOW
def test_what_a_run_guessed_stands_in_its_folder_and_runs_again(place, capsys):
    line = "run net.onnx --data images --target cpu --no-history"
    status, _, err = run(capsys, *line.split())
    assert status < 2
    assert "note: Add samples to the test data: " in err
    first = report_of(place / "net-run")
    files = {"model": "net.onnx", "config": "net-run/trtcal.toml", "folder": "net-run"}
    assert first["measured"]["run"]["measured"]["files"] == files
    assert run(capsys, "run", "net-run/trtcal.toml", "--no-history")[0] < 2
    again = report_of(place / "net-run")
    assert again["comparison"]["digest"] == first["comparison"]["digest"]
    assert (place / "net-run" / "trtcal.toml").exists()


@pytest.mark.parametrize("batch", [1, 4])
def test_models_with_a_fixed_batch_need_nothing_else(place, batch, capsys):
    model = onnx.load(place / "net.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(model, place / "net.onnx")
    succeed(capsys, "init", "net.onnx", "--data", "images", "-o", "written.toml")
    line = "run net.onnx --data images --target cpu --no-history -o out"
    status, _, err = run(capsys, *line.split())
    assert status < 2, err
    assert report_of(place / "out")["comparison"]["samples"] == 12
