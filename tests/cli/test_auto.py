"""`trtcal calibrate --method auto`: judged by outputs, on samples held back."""

import json

import onnx
import pytest

from calibrators import create
from tests.fixtures.commands import answer, run, succeed
from tests.fixtures.networks import samples
from tests.fixtures.slow import SLOW
from tests.ptq.nets import separable_net
from trtcal.data import held_back, open_dataset
from trtcal.evaluate.judging import METHODS, Judge
from trtcal.model import load_model
from trtcal.quantization import prepare, quantize
from trtcal.ranges import Calibration

ARGUMENTS = ("calibrate", "net.onnx", "--data", "data.npz", "--method")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    separable_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz", count=64)
    return tmp_path


def test_the_chosen_one_loses_least_or_nearly(place, capsys):
    out = succeed(capsys, *ARGUMENTS, "auto")
    chosen = Calibration.read(place / "calibration.json")
    model = load_model(place / "net.onnx")
    prepared = prepare(model)
    held = held_back(open_dataset(place / "data.npz", model), 16)[1]
    with Judge(prepared, held) as judge:
        verdict = judge.measure(quantize(prepared, chosen).proto)
        plain = succeed(capsys, *ARGUMENTS, "percentile", "-o", "plain.json")
        other = judge.measure(quantize(prepared, Calibration.read(place / "plain.json")).proto)
    assert chosen.method in METHODS
    assert chosen.samples == 48
    assert verdict.value <= other.value + 0.5
    assert "on 16 samples held back" in out
    rows = [line for line in out.splitlines() if "chosen" in line]
    assert chosen.method in rows[0]
    assert f"{-verdict.value:.2f}" in rows[0]
    assert "held back" not in plain


def test_the_json_is_the_file(place, capsys):
    document = answer(capsys, *ARGUMENTS, "auto")
    assert document == json.loads((place / "calibration.json").read_text())


@SLOW
@pytest.mark.parametrize("option", [("--workers", "2"), ("--histograms", "h.npz")])
def test_the_ways_to_observe_go_with_it(place, capsys, option):
    first = succeed(capsys, *ARGUMENTS, "auto")
    again = [succeed(capsys, *ARGUMENTS, "auto", *option) for _ in range(2)]
    assert again == [first, first]


def test_few_samples_go_by_the_tensor(place, capsys):
    samples(place / "data.npz", count=24)
    status, _, err = run(capsys, *ARGUMENTS, "auto")
    assert status == 0
    assert "judging by outputs takes 32 samples" in err
    found = Calibration.read(place / "calibration.json")
    assert (found.method, found.samples) == ("auto", 24)
    assert create("auto").min_gain_db == found.parameters["min_gain_db"]


@pytest.mark.parametrize("method", ["percentile", "auto"])
def test_a_model_of_one_sample_a_batch(place, capsys, method):
    proto = onnx.load(place / "net.onnx")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(proto, place / "net.onnx")
    succeed(capsys, *ARGUMENTS, method)
    assert Calibration.read(place / "calibration.json").samples == (48 if method == "auto" else 64)
