"""`trtcal compare` from the command line: what it prints beside the means, and what it refuses."""

import json

import numpy as np
import pytest

from tests.fixtures.commands import shows
from tests.fixtures.networks import linear_classifier
from trtcal.cli.main import run_command

SAMPLES, DIM = 1000, 50


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A classifier whose inputs from one device are dim: one range for all is too coarse for them."""
    folder = tmp_path_factory.mktemp("dim")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((8, 16))
    x = rng.standard_normal((SAMPLES, 16))
    x[:DIM] *= 0.02
    order = rng.permutation(SAMPLES)
    tiers = np.array(["dim\x1b[31m", "bright"])[(order >= DIM).astype(int)]
    linear_classifier(folder / "net.onnx", weights)
    labels = (x @ weights.T).argmax(1)
    np.savez(folder / "data.npz", x=x[order].astype(np.float32), labels=labels[order])
    (folder / "slices.csv").write_text("tier\n" + "\n".join(tiers) + "\n")
    (folder / "metric.py").write_text(
        "def metric(outputs, labels):\n"
        "    return {'margin': float(outputs['scores'].max() - outputs['scores'].min())}\n"
    )
    for command in (
        ["calibrate", folder / "net.onnx", "--data", folder / "data.npz", "-o", folder / "c.json"],
        ["quantize", folder / "net.onnx", "--calibration", folder / "c.json"],
    ):
        extra = ["-o", folder / "int8.onnx"] if command[0] == "quantize" else ["--method", "minmax"]
        assert run_command([str(one) for one in [*command, *extra]]) == 0
    return folder


def run(capsys, place, *options):
    models = [str(place / "net.onnx"), str(place / "int8.onnx")]
    fixed = ["--data", str(place / "data.npz"), "--rounds", "12", "-o", str(place / "out.json")]
    status = run_command(["compare", *models, *fixed, *map(str, options)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_drop_in_one_slice_that_the_mean_hides_is_reported(place, capsys):
    options = ("--slices", place / "slices.csv", "--metric-file", place / "metric.py")
    status, out, err = run(capsys, place, *options, "--batch-sizes", "1,16", "--per-layer")
    assert status == 0, err
    shows(out, "warning: int8: top1", "tier=dim\\x1b[31m")
    assert "tier=bright by" not in out
    assert "\x1b[31m" not in out
    for text in ("margin", "Q/DQ computed in float", "samples/s", "error enters most at"):
        assert text in out
    row = json.loads((place / "out.json").read_text())["rows"][1]
    assert row["accuracy"]["top1_drop"] < 5
    worst = next(one for one in row["breakdowns"] if one["figure"] == "top1")["groups"][0]
    assert worst["drop"] >= 10
    assert worst["adjusted_p"] < 0.05


def test_less_is_done_where_less_is_asked(place, capsys):
    status, out, _ = run(capsys, place, "--no-simulate", "--json")
    row = json.loads(out)["rows"][1]
    assert status == 0
    assert (row["simulation"], row["layers"], row["own"]) == (None, None, [])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--batch-sizes", "1,x"), "'1,x'"),
        (("--batch-sizes", "0"), "'0'"),
        (("--batch-sizes", SAMPLES + 1), f"{SAMPLES} samples"),
        (("--slices", "nowhere.csv"), "nowhere.csv"),
        (("--metric-file", "nowhere.py"), "nowhere.py"),
    ],
)
def test_what_cannot_be_done_is_refused(place, capsys, options, name):
    status, out, err = run(capsys, place, *options)
    assert (status, out) == (2, "")
    shows(err, name)


def test_the_figures_of_a_metric_are_broken_down_in_the_order_of_their_names(
    place, capsys, tmp_path
):
    names = [f"figure {number}" for number in (5, 2, 0, 4, 1, 3)]
    (tmp_path / "metric.py").write_text(
        "def metric(outputs, labels):\n"
        f"    return dict.fromkeys({names}, float(outputs['scores'].max()))\n"
    )
    options = ("--slices", place / "slices.csv", "--metric-file", tmp_path / "metric.py", "--json")
    _, out, _ = run(capsys, place, *options)
    broken_down = [part["figure"] for part in json.loads(out)["rows"][1]["breakdowns"]]
    assert list(dict.fromkeys(broken_down)) == ["top1", *sorted(names)]


def test_a_metric_with_the_name_of_a_figure_of_trtcal_is_refused(place, capsys, tmp_path):
    (tmp_path / "metric.py").write_text("def metric(outputs, labels):\n    return {'top1': 1}\n")
    status, _, err = run(capsys, place, "--metric-file", tmp_path / "metric.py")
    assert status == 2
    shows(err, "name")


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_what_has_no_integer_kernels_is_compared_without_a_simulation(place, capsys, precision):
    made = place / f"{precision}.onnx"
    words = ["quantize", place / "net.onnx", "--precision", precision, "-o", made]
    words += ["--calibration", place / "c.json"] if precision == "fp8" else []
    assert run_command([str(one) for one in words]) == 0
    fixed = ["--data", place / "data.npz", "--rounds", "12", "-o", place / "narrow.json"]
    capsys.readouterr()
    status = run_command([str(one) for one in ["compare", place / "net.onnx", made, *fixed]])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    shows(captured.out, precision, "simulation")
