import json
import shutil

import numpy as np
import pytest

from trtcal.cli.main import run_command
from trtcal.data.issues import DataCheck


@pytest.fixture
def place(tmp_path, monkeypatch, digits):
    monkeypatch.chdir(tmp_path)
    shutil.copy(digits / "digits.onnx", tmp_path)
    stored = np.load(digits / "calibration.npz")
    right = {"image": stored["image"][:96], "labels": stored["labels"][:96]}
    np.savez(tmp_path / "right.npz", **right)
    np.savez(tmp_path / "raw.npz", **{**right, "image": right["image"] * 255})
    return tmp_path


def run(capsys, *arguments):
    status = run_command(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_right_data_end_with_status_0(place, capsys):
    status, out, err = run(capsys, "check-data", "digits.onnx", "--data", "right.npz")
    assert (status, err) == (0, "next: trtcal calibrate digits.onnx --data right.npz\n")
    assert "no issue with right (64 of 96 samples checked)" in out


def test_an_issue_ends_with_status_1_and_stands_in_the_json(place, capsys):
    status, out, err = run(capsys, "check-data", "digits.onnx", "--data", "raw.npz", "--json")
    assert status == 1
    assert "pixels_not_scaled" in err
    (found,) = json.loads(out)["issues"]
    assert found["kind"] == "pixels_not_scaled"
    assert found["subject"] == "image"
    assert "0 to 255" in found["sentence"]
    assert found["evidence"]["highest"] == 255
    assert found["evidence"]["labels_won"] > found["evidence"]["labels_lost"] == 0
    assert "divide" in found["fix"]


def test_calibrate_warns_and_goes_on(place, capsys):
    command = ["calibrate", "digits.onnx", "--json", "--data"]
    status, out, err = run(capsys, *command, "raw.npz")
    assert status == 0
    assert json.loads(out)["samples"] == 96
    assert "warning: 'image' has values from 0 to 255" in err
    check = DataCheck.read(place / "calibration.data-check.json")
    assert [issue.kind for issue in check.issues] == ["pixels_not_scaled"]
    assert check.dataset == json.loads(out)["dataset"]
    status, _, err = run(capsys, *command, "right.npz")
    assert (status, "warning" in err) == (0, False)
    assert DataCheck.read(place / "calibration.data-check.json").issues == ()


def test_a_run_warns_before_it_observes(place, capsys):
    (place / "trtcal.toml").write_text(
        'model = "digits.onnx"\noutput = "made"\n[calibration]\ndata = "raw.npz"\n'
        'methods = ["minmax"]\n[evaluation]\ndata = "right.npz"\n[build]\ntargets = ["cpu"]\n'
    )
    status, out, err = run(capsys, "run", "--no-history", "--json")
    assert "warning: 'image' has values from 0 to 255" in err
    assert json.loads(out)["measured"]
    assert status in (0, 1)  # the ranges are wrong for the right data


def test_without_labels_it_is_a_question_that_stops_and_counts_nothing(place, capsys):
    stored = np.load(place / "raw.npz")
    np.savez(place / "bare.npz", image=stored["image"])
    status, out, err = run(capsys, "check-data", "digits.onnx", "--data", "bare.npz")
    assert (status, "no issue" in out, "next: trtcal calibrate" in err) == (0, False, True)
    assert "question (pixels_not_scaled): is 'image' prepared as in training? Perhaps " in out
    assert "class labels decide it (`labels` in an .npz, --labels for images)" in out
    _, out, _ = run(capsys, "check-data", "digits.onnx", "--data", "bare.npz", "--json")
    document = json.loads(out)
    assert (document["issues"], len(document["questions"])) == ([], 1)
    status, _, err = run(capsys, "calibrate", "digits.onnx", "--data", "bare.npz")
    assert (status, "question: is 'image'" in err, "warning" in err) == (0, True, False)
