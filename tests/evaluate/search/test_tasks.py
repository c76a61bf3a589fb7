"""Sensitivity and search judge the outputs that count, as their task has it."""

import json

import numpy as np
import pytest
from onnx import helper

import trtcal
from tests.fixtures.kinds import KINDS
from tests.fixtures.networks import save
from trtcal.cli.main import run_command


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], "trunk"),
        helper.make_node("Relu", ["a"], ["h"], "relu"),
        helper.make_node("MatMul", ["h", "w1"], ["y1"], "left"),
        helper.make_node("MatMul", ["h", "w2"], ["y2"], "right"),
    ]
    shapes = {"w0": (12, 32), "w1": (32, 6), "w2": (32, 9)}
    weights = {name: rng.standard_normal(one).astype(np.float32) for name, one in shapes.items()}
    outputs = {"y1": ["n", 6], "y2": ["n", 9]}
    save(tmp_path / "net.onnx", nodes, weights, {"x": ["n", 12]}, outputs)
    data = rng.standard_normal((48, 12)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=data)
    trtcal.calibrate("net.onnx", data, "minmax").write(tmp_path / "calibration.json")
    return tmp_path


def shares(place, *options):
    words = ["sensitivity", "net.onnx", "--data", "data.npz", "--exact", "-o", "s.json", *options]
    assert run_command(words) == 0
    document = json.loads((place / "s.json").read_text())
    return {one["layer"]: one["share"] for one in document["layers"]}, document


def test_a_layer_that_no_output_that_counts_reads_loses_nothing(place):
    both, _ = shares(place)
    assert min(both.values()) > 0
    left, document = shares(place, "--outputs", "y1", "--task", "y1=classification")
    assert left["right"] == 0 < left["left"]
    assert (document["outputs"], document["measure"]) == (["y1"], "kl")
    raw, document = shares(place, "--outputs", "y1,y2", "--task", "regression")
    assert (document["task"], document["measure"]) == ("regression", "noise")
    assert min(raw.values()) > 0


def test_a_search_keeps_its_measurements_apart_by_outputs(place):
    words = ["search", "net.onnx", "--data", "data.npz", "--samples", "16", "--evaluate", "24"]
    assert run_command([*words, "--outputs", "y1", "-o", "s"]) == 0
    first = len((place / "s" / "evaluations.jsonl").read_text().splitlines())
    assert run_command([*words, "--outputs", "y1", "-o", "s"]) == 0
    assert len((place / "s" / "evaluations.jsonl").read_text().splitlines()) == first
    assert run_command([*words, "--outputs", "y2", "-o", "s"]) == 0
    assert len((place / "s" / "evaluations.jsonl").read_text().splitlines()) > first
    assert run_command([*words, "--outputs", "y3", "-o", "s"]) == 2


@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [("agreement >= -60", 80, 100), ("agreement >= -0.5", 0, 0), ("int8_macs >= 80%", 80, 100)],
)
def test_boxes_and_the_share_in_int8_are_limits_of_a_search(place, limit, least, most):
    kind = KINDS["detector with NMS"]
    feeds = kind.make(np.random.default_rng(0), 24)
    np.savez("data.npz", **feeds)
    trtcal.calibrate(kind.save(place / "net.onnx"), feeds, "minmax").write("calibration.json")
    words = ["search", "net.onnx", "--data", "data.npz", "--samples", "8", "--evaluate", "24"]
    run_command([*words, "--plans", "6", "--limit", limit])
    document = json.loads((place / "search" / "search.json").read_text())
    (recommended,) = (one for one in document["front"] if one["recommended"])
    assert least <= recommended["int8_macs"] <= most
