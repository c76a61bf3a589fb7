"""Inputs of dynamic size, scalars and constants, through the commands."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.fixtures.commands import refused, run, succeed
from tests.fixtures.engines import needs_rtx
from tests.fixtures.networks import rng, save, weight
from tests.fixtures.slow import SLOW
from tests.fixtures.states import cell
from trtcal.evidence.manifest import read_build

WIDTHS = (8, 8, 12, 12, 12, 16)


def any_width(path):
    """conv -> relu -> conv over images of any width, scaled by a scalar input."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["gain"], ["g"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["c", "g"], ["y"], "scale"),
    ]
    weights = {"w1": weight(8, 3, 3, 3), "w2": weight(8, 8, 3, 3, seed=1)}
    shapes = {"x": ["n", 3, 8, "w"], "gain": []}
    save(path, nodes, weights, shapes, {"y": ["n", 8, 8, "w"]})
    proto = onnx.load(path)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(proto, path)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A model, and 24 samples of three widths, four in a file."""
    monkeypatch.chdir(tmp_path)
    any_width(tmp_path / "net.onnx")
    (tmp_path / "data").mkdir()
    for number, width in enumerate(WIDTHS):
        images = rng(number).standard_normal((4, 3, 8, width)).astype(np.float32)
        np.savez(tmp_path / "data" / f"{number}.npz", x=images, gain=np.int64(2))
    return tmp_path


def quantized(capsys):
    assert run(capsys, "calibrate", "net.onnx", "--data", "data", "--method", "minmax")[0] == 0
    assert run(capsys, "quantize", "net.onnx", "-o", "q.onnx")[0] == 0


def test_sizes_of_samples_go_from_the_data_into_the_quantized_model(place, capsys):
    quantized(capsys)
    sizes = json.loads((place / "calibration.json").read_text())["sizes"]
    assert sizes == {"x": [[1, 3, 8, 8], [1, 3, 8, 12], [1, 3, 8, 16]]}
    compared = ("compare", "net.onnx", "q.onnx", "--data", "data", "--rounds", 2)
    assert "SQNR" in succeed(capsys, *compared)


@SLOW
@pytest.mark.parametrize(
    "command",
    [
        ("check-data", "net.onnx", "--data", "data"),
        ("ab", "net.onnx", "q.onnx", "--data", "data", "--limit", "cosine >= 0.5"),
        ("sensitivity", "net.onnx", "--data", "data", "--samples", 8, "-o", "s"),
        ("search", "net.onnx", "--data", "data", "--samples", 8, "--evaluate", 16, "-o", "found"),
        ("quantize", "net.onnx", "--improve", "fast", "--data", "data", "-o", "improved.onnx"),
        ("calibrate", "net.onnx", "--data", "data", "--method", "auto"),
        ("prepare", "net.onnx", "--data", "data", "-o", "prepared.onnx"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_scalars_and_samples_of_several_sizes(place, capsys, command):
    quantized(capsys)
    status, out, err = run(capsys, *command)
    assert status in (0, 1), err
    assert "Traceback" not in out + err


@needs_rtx
def test_a_build_takes_the_sizes_of_the_data(place, capsys):
    quantized(capsys)
    wanted = [[[1, 3, 8, 8], [8, 3, 8, 12], [32, 3, 8, 16]]]

    def profiles(folder):
        return [one["x"] for one in read_build(place / folder).options["profiles"]]

    status, _, err = run(capsys, "build", "q.onnx", "--target", "sm89", "-o", "b")
    assert (status, "1x3x8x8:8x3x8x12:32x3x8x16" in err) == (0, True)
    assert profiles("b") == wanted
    float_one = ("build", "net.onnx", "--target", "sm89", "-o", "f")
    assert "--shapes x=1x3x8x?:8x3x8x?:32x3x8x?" in refused(capsys, *float_one)
    succeed(capsys, *float_one, "--data", "data")
    assert profiles("f") == wanted
    _, _, err = run(capsys, *float_one, "--shapes", "x=1x3x8x8:2x3x8x8:4x3x8x8")
    assert "32x3x8x16" not in err
    assert profiles("f")[0][2] == [4, 3, 8, 8]


def test_few_samples_are_enough_to_improve_with_a_warning(place, capsys):
    line = ("quantize", "net.onnx", "--improve", "fast", "--data", "data", "-o", "i.onnx")
    status, _, err = run(capsys, *line)
    assert status == 0, err
    assert re.search(r"warning: .*\b16 samples .*\b8\b", err)
    calibration = json.loads((place / "i.calibration.json").read_text())
    assert calibration["sizes"]["x"][2] == [1, 3, 8, 16]


@SLOW
def test_a_run_takes_constants_and_sizes_by_itself(place, capsys):
    images = rng(5).standard_normal((24, 3, 8, 12)).astype(np.float32)
    np.savez(place / "images.npz", x=images)
    (place / "trtcal.toml").write_text(
        'model = "net.onnx"\ndata = { constants = { gain = 3 } }\n'
        '[calibration]\ndata = "images.npz"\nmethods = ["minmax"]\n'
        '[evaluation]\ndata = "data"\nrounds = 2\n'
    )
    status, _, err = run(capsys, "run", "--allow-undecided")
    assert status == 0, err
    assert "1x3x8x12:8x3x8x12:32x3x8x12" in err


@SLOW
def test_states_of_trtcal_toml_are_carried_in_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cell(tmp_path / "cell.onnx")
    np.savez(tmp_path / "data.npz", x=rng(1).standard_normal((24, 4)).astype(np.float32))
    (tmp_path / "trtcal.toml").write_text('[data]\nstates = { next = "state" }\n')
    for line in (
        "calibrate cell.onnx --data data.npz --method minmax",
        "quantize cell.onnx -o q.onnx",
        "compare cell.onnx q.onnx --data data.npz --rounds 2",
        "sensitivity cell.onnx --data data.npz --samples 8 -o s",
        "quantize cell.onnx --improve fast --data data.npz -o i.onnx",
    ):
        succeed(capsys, *line.split())
    ranges = json.loads((tmp_path / "calibration.json").read_text())["ranges"]
    assert 0 < ranges["state"]["amax"] <= 1


def one_image(path):
    """conv -> relu -> conv -> pool -> product over one image, of which no axis counts samples."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["u"], "unsqueeze"),
        helper.make_node("Conv", ["u", "w1", "b"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2", "b"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "w3"], ["m"], "head"),
        helper.make_node("Squeeze", ["m", "axis"], ["y"], "squeeze"),
    ]
    weights = {"w1": weight(8, 3, 3, 3), "w2": weight(8, 8, 3, 3, seed=1), "w3": weight(8, 5)}
    weights |= {"b": rng(2).standard_normal(8).astype(np.float32), "axis": np.array([0])}
    save(path, nodes, weights, {"x": [3, 8, 8]}, {"y": [5]})


@SLOW
def test_a_model_without_an_axis_for_samples_goes_through_every_command(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    one_image(tmp_path / "net.onnx")
    images = rng(1).standard_normal((24, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=images, labels=np.arange(24) % 5)
    for line in (
        "check-data net.onnx --data data.npz",
        "calibrate net.onnx --data data.npz --method minmax",
        "quantize net.onnx -o q.onnx",
        "compare net.onnx q.onnx --data data.npz --rounds 2",
        "sensitivity net.onnx --data data.npz --samples 8 -o s",
        "search net.onnx --data data.npz --samples 8 --evaluate 16 -o found",
        "quantize net.onnx --improve best --data data.npz -o i.onnx",
    ):
        status, _, err = run(capsys, *line.split())
        assert status in (0, 1), (line, err)
    comparison = json.loads((tmp_path / "comparison.json").read_text())
    assert comparison["samples"] == 24
