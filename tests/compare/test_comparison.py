import dataclasses

import pytest

from tests.networks import conv_net, transposed_net
from tests.quantize.test_quantize import calibrated
from trtcal.backends.base import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.compare import Gates, compare, open_candidate, read_comparison, write_comparison
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.quantize import quantize, write_quantized


@pytest.fixture
def scene(tmp_path):
    path = conv_net(tmp_path / "net.onnx")
    model, calibration, data = calibrated(path, tmp_path)
    write_quantized(tmp_path / "int8.onnx", quantize(model, calibration))
    return path, tmp_path / "int8.onnx", data


def test_a_comparison_survives_being_written(scene, tmp_path):
    reference, candidate, data = scene
    made = compare(open_candidate(reference), [open_candidate(candidate)], data, Gates(), rounds=4)
    write_comparison(tmp_path / "comparison.json", made)
    assert read_comparison(tmp_path / "comparison.json") == made
    assert [row.name for row in made.rows] == ["net", "int8"]
    assert made.rows[1].accuracy.sqnr_db > 20


def test_the_digest_is_of_accuracy_not_of_time(scene):
    reference, candidate, data = scene
    first, second = (
        compare(open_candidate(reference), [open_candidate(candidate)], data, Gates(), rounds=n)
        for n in (3, 4)
    )
    assert first.digest == second.digest
    stricter = dataclasses.replace(first, gates=Gates(max_top1_drop=0.1))
    assert stricter.digest != first.digest


def test_an_onnxruntime_build_is_a_candidate_too(scene, tmp_path):
    reference, candidate, data = scene
    backend = BACKENDS["onnxruntime"]
    build(load_model(candidate), backend, BuildOptions("cpu"), tmp_path / "build")
    engine = open_candidate(tmp_path / "build")
    made = compare(
        open_candidate(reference),
        [engine, open_candidate(candidate, "onnx")],
        data,
        Gates(),
        rounds=3,
    )
    assert made.rows[1].accuracy == made.rows[2].accuracy
    (tmp_path / "build" / "engine.onnx").write_bytes(reference.read_bytes())
    with pytest.raises(InputError, match="is not the engine that was built"):
        open_candidate(tmp_path / "build")


def test_candidates_must_differ_in_name_and_agree_in_inputs(scene, tmp_path):
    reference, _, data = scene
    with pytest.raises(InputError, match="two candidates are called 'net'"):
        compare(open_candidate(reference), [open_candidate(reference)], data, Gates())
    other = tmp_path / "other"
    other.mkdir()
    path = transposed_net(other / "up.onnx")
    model, calibration, _ = calibrated(path, other)
    assert model.inputs == load_model(reference).inputs
    write_quantized(other / "up8.onnx", quantize(model, calibration))
    with pytest.raises(InputError, match="outputs"):
        compare(open_candidate(reference), [open_candidate(other / "up8.onnx")], data, Gates())


def test_a_folder_that_is_no_build_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a build folder"):
        open_candidate(tmp_path)
