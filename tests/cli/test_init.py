"""`trtcal init`, and `trtcal run MODEL --data ...` without a file."""

import json
import shlex
import shutil

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.fixtures.commands import refused, run, succeed
from tests.fixtures.graphs import as_nodes
from tests.fixtures.kinds import KINDS
from tests.fixtures.networks import conv_net, rng, save
from tests.fixtures.pictures import CLASSES, paint, template_classifier
from tests.fixtures.slow import SLOW
from trtcal.check.preprocessing import CAFFE_MEAN, MEAN_SUBTRACTED
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
    [("LSTM", "regression"), ("segmentation", "segmentation"), ("BERT", "tokens")],
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


def test_states_that_the_data_lack_are_proposed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nodes = as_nodes("new_state = Tanh(state)  y = Add(x, new_state)")
    inputs, outputs = (
        {name: [1, 4] for name in names} for names in (("x", "state"), ("y", "new_state"))
    )
    save(tmp_path / "cell.onnx", nodes, {}, inputs, outputs)
    np.savez("data.npz", x=rng().normal(size=(40, 4)).astype(np.float32))
    succeed(capsys, "init", "cell.onnx", "--data", "data.npz", "--target", "cpu")
    assert read_config(tmp_path / "trtcal.toml").data.states == {"new_state": "state"}


def test_a_value_that_the_data_lack_is_asked_for(tmp_path, capsys):
    nodes = as_nodes("y = Mul(x, rate)")
    model = save(tmp_path / "net.onnx", nodes, {}, {"x": ["n", 4], "rate": []}, {"y": ["n", 4]})
    np.savez(tmp_path / "data.npz", x=np.ones((40, 4), np.float32))
    error = refused(capsys, "init", str(model), "--data", str(tmp_path / "data.npz"))
    assert "give `rate`" in error


@pytest.fixture(scope="module")
def painted(tmp_path_factory):
    """A classifier of BGR less Caffe's mean, and pictures of its classes, with and without labels."""
    folder = tmp_path_factory.mktemp("painted")
    labels = np.arange(60) % CLASSES
    pixels, _ = paint(labels, 2)
    template_classifier(folder / "net.onnx", MEAN_SUBTRACTED)
    for number, (label, planes) in enumerate(zip(labels, pixels, strict=True)):
        picture = Image.fromarray(planes[::-1].transpose(1, 2, 0).round().astype(np.uint8))
        for file in (f"labelled/{label}/{number:02}.png", f"plain/{number:02}.png"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            picture.save(folder / file)
    return folder


def test_labels_choose_the_preprocessing_by_the_accuracy_of_fp32(painted, monkeypatch, capsys):
    monkeypatch.chdir(painted)
    for data in (["--data", "labelled"], ["--data", "plain", "--test", "labelled"]):
        err = run(capsys, "init", "net.onnx", *data, "--force")[2]
        images = read_config(painted / "trtcal.toml").images
        assert (images.channels, images.scale, images.mean) == ("BGR", 1, CAFFE_MEAN)
        shows = {line.split(" = ")[0]: line for line in err.splitlines()}
        assert ": FP32 gets 100.0 % of 60 labels right with BGR, " in shows["guessed: channels"]
        scale = shows["guessed: scale"]
        assert (
            ": FP32 gets 100.0 % of 60 labels right with 0 to 255 minus (104, 117, 123), " in scale
        )
        assert " with 0 to 1 minus ImageNet's mean, over its std" in scale
        assert " points, 95 % interval -" in scale


def test_without_labels_the_preprocessing_is_a_guess_that_labels_would_decide(
    painted, monkeypatch, capsys
):
    monkeypatch.chdir(painted)
    err = run(capsys, "init", "net.onnx", "--data", "plain", "--force")[2]
    lines = [line for line in err.splitlines() if line.startswith("guessed: scale = ")]
    assert [line.endswith("; labels would decide it (--labels)") for line in lines] == [True]


def test_labelled_test_images_prove_that_others_are_wrong(painted, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = (
        f'model = "{painted}/net.onnx"\noutput = "out"\n[images]\nchannels = "BGR"\n'
        f'layout = "NCHW"\nscale = "1/255"\n[calibration]\ndata = "{painted}/plain"\n'
        f'methods = ["minmax"]\n[evaluation]\ndata = "{painted}/labelled"\nlabels = "folders"\n'
        '[build]\ntargets = ["cpu"]\n'
    )
    (tmp_path / "trtcal.toml").write_text(text)
    err = run(capsys, "run", "--no-history")[2]
    document = json.loads((tmp_path / "out" / "data_check.json").read_text())
    assert (len(document["issues"]), document["questions"]) == (1, [])
    assert "warning: 'x' has values from 0" in err
    assert "% of 60 labels right instead of " in err
    assert "under [images]: scale = 1, mean = [104.0, 117.0, 123.0], std = [1]" in err
    assert (tmp_path / "trtcal.toml").read_text() == text


@SLOW
def test_what_a_run_guessed_stands_in_its_folder_and_runs_again(
    painted, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(painted / "net.onnx", tmp_path)
    shutil.copytree(painted / "labelled", "images")
    line = "run net.onnx --data images --target cpu --no-history"
    status, _, err = run(capsys, *line.split())
    assert status < 2
    assert "note: Add samples to the test data: " in err
    first = report_of(tmp_path / "net-run")
    files = {"model": "net.onnx", "config": "net-run/trtcal.toml", "folder": "net-run"}
    assert first["measured"]["run"]["measured"]["files"] == files
    assert run(capsys, "run", "net-run/trtcal.toml", "--no-history")[0] < 2
    again = report_of(tmp_path / "net-run")
    assert again["comparison"]["digest"] == first["comparison"]["digest"]
    assert (tmp_path / "net-run" / "trtcal.toml").exists()
