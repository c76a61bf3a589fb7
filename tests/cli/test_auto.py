"""`trtcal calibrate`, whose default is auto: judged by outputs, on some of the samples."""

import json

import numpy as np
import onnx
import pytest

from calibrators import create
from tests.fixtures.commands import answer, run, succeed
from tests.fixtures.networks import samples
from tests.fixtures.slow import SLOW
from tests.ptq.nets import separable_net
from trtcal.calibration import observe
from trtcal.data import open_dataset
from trtcal.evaluate.judging import Judge
from trtcal.evaluate.range_choice import BETWEEN, SINGLE, candidates
from trtcal.model import load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe
from trtcal.ranges import Calibration

KNOWN = {*SINGLE, *BETWEEN}
ARGUMENTS = ("calibrate", "net.onnx", "--data", "data.npz", "--method")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    separable_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz", count=64)
    return tmp_path


def test_the_chosen_one_loses_least_or_nearly(place, capsys):
    out = succeed(capsys, *ARGUMENTS[:-1])
    chosen = Calibration.read(place / "calibration.json")
    model = load_model(place / "net.onnx")
    prepared = prepare(model)
    with Judge(prepared, open_dataset(place / "data.npz", model)) as judge:
        verdict = judge.measure(quantize(prepared, chosen).proto)
        plain = succeed(capsys, *ARGUMENTS, "percentile", "-o", "plain.json")
        other = judge.measure(quantize(prepared, Calibration.read(place / "plain.json")).proto)
    assert (chosen.method, chosen.samples) == ("auto", 64)
    assert verdict.value <= other.value + 0.1
    assert "INT8 on 64 of the samples" in out
    assert all(row.note.partition(":")[0] in KNOWN for row in chosen.ranges.values())
    (row,) = [line for line in out.splitlines() if "chosen: " in line]
    assert float(row.split("│")[2]) == pytest.approx(-verdict.value, abs=0.2)
    assert "INT8 on" not in plain


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
    samples(place / "data.npz", count=7)
    status, _, err = run(capsys, *ARGUMENTS, "auto")
    assert status == 0
    assert "judging by outputs takes 8 samples" in err
    found = Calibration.read(place / "calibration.json")
    assert (found.method, found.samples) == ("auto", 7)
    assert create("auto").min_gain_db == found.parameters["min_gain_db"]


@pytest.mark.parametrize("method", ["percentile", "auto"])
def test_a_model_of_one_sample_a_batch(place, capsys, method):
    proto = onnx.load(place / "net.onnx")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(proto, place / "net.onnx")
    succeed(capsys, *ARGUMENTS, method)
    assert Calibration.read(place / "calibration.json").samples == 64


def test_what_lies_between_two_methods_is_tried(place):
    model = load_model(place / "net.onnx")
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    observed = observe(prepared, open_dataset(place / "data.npz", model), tensors)
    tables = candidates(observed)
    for name, between in tables["between mse and minmax"].items():
        ends = [tables[method][name].amax for method in ("mse", "minmax")]
        assert between.amax == pytest.approx(np.sqrt(np.prod(ends)))
    assert all(table.keys() == observed.histograms.keys() for table in tables.values())
