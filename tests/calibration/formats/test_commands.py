import json

import pytest

from tests.calibration.formats.tables import calibration
from tests.fixtures.commands import run, shows, succeed
from tests.fixtures.networks import conv_net, samples
from trtcal.model import load_model
from trtcal.ranges import Calibration

AMAXES = {"x": 2.7, "b": 1.0, "g": 0.9}
EXPORT = ("ranges", "export", "calibration.json", "--format", "tensorrt-cache", "-o", "m.cache")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = load_model(conv_net(tmp_path / "net.onnx"))
    ranges = calibration(AMAXES, model=model.fingerprint, unranged={"dead": "no values"})
    ranges.write(tmp_path / "calibration.json")
    return tmp_path


def test_out_and_in_again_gives_no_difference(place, capsys):
    status, out, err = run(capsys, *EXPORT, "--tensorrt", "10.3.0")
    assert status == 0
    shows(out, "3 ranges", "m.cache")
    shows(err, "dead")
    assert (place / "m.cache").read_text().startswith("TRT-100300-EntropyCalibration2\nx: ")
    succeed(capsys, "ranges", "import", "m.cache", "--model", "net.onnx", "-o", "again.json")
    assert Calibration.read(place / "again.json").ranges["b"].amax == 1.0
    out = succeed(capsys, "ranges", "diff", "calibration.json", "again.json")
    shows(out, "0 ranges", "3")
    succeed(capsys, "quantize", "net.onnx", "--calibration", "again.json", "-o", "int8.onnx")
    out = succeed(capsys, "ranges", "diff", "int8.onnx", "m.cache")
    shows(out, "0 ranges", "3")


def test_a_cache_in_place_of_a_calibration_is_refused_with_the_command(place, capsys):
    succeed(capsys, *EXPORT, "--tensorrt", "8.6.1")
    command = ("quantize", "net.onnx", "--calibration", "m.cache", "-o", "int8.onnx")
    status, _, err = run(capsys, *command)
    assert status == 2
    shows(err, "trtcal ranges import FILE --model MODEL")


def test_tensors_of_one_file_only_are_counted_in_one_line(place, capsys):
    few = calibration({"x": 2.7})
    few.write(place / "few.json")
    many = calibration(dict.fromkeys("xabcde", 1.0))
    many.write(place / "many.json")
    command = ("ranges", "diff", "many.json", "few.json")
    lines = succeed(capsys, *command).splitlines()
    only = "only in many.json: a, b, c and 2 more: the other file has no entry for it"
    assert [line for line in lines if line.startswith("only")] == [only]
    assert "a, b, c, d, e: " in succeed(capsys, *command, "-v")


def test_ranges_of_other_data_are_refused(place, capsys):
    samples(place / "data.npz")
    command = ("ranges", "import", "calibration.json", "--model", "net.onnx")
    status, _, err = run(capsys, *command, "--data", "data.npz", "-o", "again.json")
    assert status == 2
    shows(err, "calibration.json")


def test_show_lists_ranges_and_what_is_none(place, capsys):
    (place / "m.cache").write_text("TRT-7000-EntropyCalibration2\ndata: 3c008912\nprob: 0\n")
    out = succeed(capsys, "ranges", "show", "m.cache")
    shows(out, "version 7000", "0.996338", "prob", "0")


def test_diff_says_what_moved(place, capsys):
    (place / "m.txt").write_text("x 5.4\nb 1.0\nz 1.0\n")
    out = succeed(capsys, "ranges", "diff", "calibration.json", "m.txt")
    shows(out, "+6.021", "calibration.json: g", "m.txt: z")


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "calibration.json"),
        ("diff", "calibration.json", "calibration.json"),
        (*EXPORT[1:], "--tensorrt", "8.6.1", "--tensor", "x"),
        ("import", "calibration.json", "--model", "net.onnx", "-o", "again.json"),
    ],
)
def test_json_is_all_that_json_prints(place, capsys, arguments):
    assert isinstance(json.loads(succeed(capsys, "ranges", *arguments, "--json")), dict)


@pytest.mark.parametrize("name", ["show", "diff", "export", "import"])
def test_every_help_has_an_example(capsys, name):
    words = " ".join(succeed(capsys, "ranges", name, "--help").split())
    assert f"Example: trtcal ranges {name}" in words


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("show", "none.cache"), "none.cache"),
        (EXPORT[1:], "TensorRT"),
        ((*EXPORT[1:], "--tensorrt", "11.0"), "11.0"),
        ((*EXPORT[1:], "--tensorrt", "8.6.1", "--tensor", "dead"), "dead"),
        (("import", "other.txt", "--model", "net.onnx", "-o", "out.json"), "other.txt"),
        (("import", "foreign.txt", "--model", "net.onnx", "-o", "out.json"), "foreign"),
    ],
)
def test_bad_input_is_one_error_a_hint_and_no_output(place, capsys, arguments, name):
    (place / "foreign.txt").write_text("foreign 1.0\n")
    before = sorted(place.iterdir())
    status, out, err = run(capsys, "ranges", *arguments)
    error, hint, *page = err.strip().splitlines()
    assert (status, out) == (2, "")
    assert error.startswith("error: ")
    shows(error, name)
    assert hint.startswith("hint: ")
    assert all(line.startswith("docs: docs/calibration.md") for line in page)
    assert sorted(place.iterdir()) == before
