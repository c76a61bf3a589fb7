"""Bounds of the readers of what others wrote."""

import faulthandler
import gzip
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.commands import refused, succeed
from tests.fixtures.fails import fails
from tests.fixtures.networks import rng
from tests.fixtures.tables import each
from tests.runs.runs import report
from trtcal.calibration.formats.convert import read_ranges
from trtcal.config import read_config
from trtcal.data.arrays import open_npy, open_npz
from trtcal.data.slices import read_slices
from trtcal.documents import bounds, read_json, read_npz
from trtcal.errors import InputError, ResourceError
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evidence.log.files import portions_of_file
from trtcal.model import load_model
from trtcal.model.checking import check, in_child
from trtcal.runs.history import History

READERS = [
    ("x.json", read_json),
    ("x.toml", read_config),
    ("x.npz", read_npz),
    ("x.npz", open_npz),
    ("x.npy", open_npy),
    ("x.csv", lambda path: read_slices(path, 1)),
    ("x.cache", read_ranges),
    ("x.onnx", load_model),
    ("x.jsonl", lambda path: EvaluationCache(path, {})),
]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes that lie in folders")
@pytest.mark.parametrize(("name", "read"), READERS)
def test_pipes_and_devices_are_not_read(tmp_path, name, read):
    os.mkfifo(tmp_path / name)
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / name, tmp_path / "zero"):
        with fails(InputError, path.name):
            read(path)


def test_a_log_is_no_device():
    with fails(InputError, "/dev/zero"):
        next(portions_of_file(Path("/dev/zero")))


def test_files_are_read_up_to_a_bound_that_can_be_raised(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text(json.dumps("x" * 300_000))
    monkeypatch.setenv("TRTCAL_BOUNDS", "0.001")
    with fails(InputError, "x.json", "0 MB", hint="TRTCAL_BOUNDS"):
        read_json(path)
    monkeypatch.setenv("TRTCAL_BOUNDS", "0.01")
    assert len(read_json(path)) == 300_000
    monkeypatch.setenv("TRTCAL_BOUNDS", "many")
    with fails(InputError, "TRTCAL_BOUNDS", "many"):
        read_json(path)


@pytest.mark.parametrize(
    "read",
    [read_npz, lambda path: open_npz(path)["x"][:], lambda path: open_npz(path)["x"].whole()],
)
def test_arrays_that_expand_very_much_are_not_unpacked(tmp_path, monkeypatch, read):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1, 1_000_000), np.float32))
    np.savez_compressed(tmp_path / "y.npz", x=rng().standard_normal((1, 1_000_000)))
    monkeypatch.setenv("TRTCAL_BOUNDS", "0.01")  # 2.56 MB, and as many as there are in the file
    with fails(InputError, "4 MB"):
        read(tmp_path / "x.npz")
    monkeypatch.setenv("TRTCAL_BOUNDS", "0.02")
    assert read(tmp_path / "y.npz") is not None


def test_a_log_that_expands_very_much_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "x.log.gz"
    path.write_bytes(gzip.compress(b"[I] one more line\n" * 200_000))
    monkeypatch.setenv("TRTCAL_BOUNDS", "0.01")
    with fails(InputError, "x.log"):
        list(portions_of_file(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 200 + "]" * 200, "100 deep"),
        ("[" * 100_000, "100 deep"),
        ('{"a": ' * 150 + "1" + "}" * 150, "100 deep"),
        ("1" + "0" * 30, "64 bits"),
        ("1" + "0" * 9000, "64 bits"),
        ("1e999", "too large"),
        ("-1e400", "too large"),
    ],
)
def test_json_is_neither_deep_nor_has_it_numbers_that_none_can_hold(tmp_path, text, says):
    (tmp_path / "x.json").write_text(text)
    with fails(InputError, says):
        read_json(tmp_path / "x.json")


def test_numbers_of_64_bits_and_lists_100_deep_are_read():
    for value in (2**64 - 1, -(2**63), 1e308, 1e100, [2**63] * 3):
        assert bounds.parse_json(json.dumps(value)) == value
    assert bounds.parse_json("[" * 100 + "]" * 100)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a = " + "[" * 150 + "]" * 150, "100 deep"),
        ("[calibration]\nbatch = 0x" + "f" * 3000, "1 to 1,000,000"),
        ("[evaluation]\nrounds = 9223372036854775807", "1 to 1,000,000"),
        ("images = { mean = 1" + "0" * 400 + " }", "a number or a list of numbers"),
        ('model = "a\\u0000b"', "must be a string"),
    ],
)
def test_toml_is_neither_deep_nor_has_it_numbers_that_none_can_hold(tmp_path, line, says):
    (tmp_path / "trtcal.toml").write_text(line)
    with fails(InputError, says):
        read_config(tmp_path / "trtcal.toml")


SLOW = [
    ("x.toml", "a = [" + "1, " * 100_000 + "]", read_config),
    ("x.csv", "a\n" + "b\n" * 100_000, lambda path: read_slices(path, 1)),
    ("x.log", "[I] one more line\n" * 2_000_000, lambda path: list(portions_of_file(path))),
]


@pytest.mark.parametrize(("name", "text", "read"), SLOW)
def test_a_reader_that_takes_too_long_is_stopped(tmp_path, monkeypatch, name, text, read):
    (tmp_path / name).write_text(text)
    monkeypatch.setattr(bounds, "FIRST_S", 2e-6)
    monkeypatch.setattr(bounds, "S_PER_MB", 0.0)
    with fails(ResourceError, name, "0 s", hint="TRTCAL_BOUNDS"):
        read(tmp_path / name)


def test_what_catches_everything_is_stopped_too(monkeypatch):
    monkeypatch.setattr(bounds, "FIRST_S", 0.01)
    monkeypatch.setattr(bounds, "AGAIN_S", 0.01)

    def stubborn():
        try:
            while True:
                pass
        except ResourceError:
            while True:
                pass

    with pytest.raises(ResourceError), bounds.in_time("x", 0):
        stubborn()
    assert signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL


def test_other_threads_read_without_a_timer():
    done = []

    def read():
        with bounds.in_time("x", 0):
            done.append(1)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert done


def test_a_child_that_crashes_or_never_ends_is_only_that():
    assert in_child(lambda: "text", 5) == ("text", 0)
    assert in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV), 5) == ("", signal.SIGSEGV)

    def endless():
        while True:
            pass

    assert in_child(endless, 0.1)[1] in (signal.SIGXCPU, signal.SIGKILL)


def test_a_child_touches_nothing_of_its_parents_but_the_pipe_for_its_answer(tmp_path, capfd):
    def crash():
        print("a word", flush=True)
        os.write(2, b"a crash")
        os.kill(os.getpid(), signal.SIGSEGV)

    def open_ones():
        return " ".join(str(one) for one in range(3, 1000) if _is_open(one))

    faulthandler.enable()  # as pytest does: it would write a traceback into what the parent has open
    with (tmp_path / "held").open("w") as held:
        before = os.fstat(held.fileno())
        assert in_child(crash, 5) == ("", signal.SIGSEGV)
        seen, _ = in_child(open_ones, 5)
        assert len(seen.split()) == 1  # where the answer goes
        assert os.fstat(held.fileno()) == before
    assert capfd.readouterr() == ("", "")


def _is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_the_crash_of_a_child_prints_nothing_where_python_reports_faults():
    code = (
        "import os, signal, onnx; from trtcal.model.checking import in_child; "
        "print(in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV), 5)[1])"
    )
    program = [sys.executable, "-X", "faulthandler", "-c", code]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (str(int(signal.SIGSEGV)), "")


def test_a_model_on_which_the_checker_crashes_is_an_input_error(tmp_path, monkeypatch, digits):
    def crash(_):
        os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr("trtcal.model.checking.PASSED", set())
    monkeypatch.setattr(onnx.checker, "check_model", crash)
    with fails(InputError, "digits.onnx", "SIGSEGV"):
        load_model(digits / "digits.onnx")


def test_what_passed_once_is_not_checked_again(monkeypatch, digits):
    model, calls = onnx.load(digits / "digits.onnx"), []
    monkeypatch.setattr("trtcal.model.checking.PASSED", set())
    monkeypatch.setattr("trtcal.model.checking.in_child", lambda *_: calls.append(1) or ("", 0))
    for name in ("one", "one", "other"):
        model.graph.name = name
        check(model, digits)
    assert len(calls) == 2


def small_model():
    weight = numpy_helper.from_array(rng().standard_normal((8, 4)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s])
        for n, s in zip("xy", (8, 4), strict=True)
    ]
    graph = helper.make_graph(nodes, "test", values[:1], values[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def goes_through(capsys, proto):
    """Calibrate, quantize and compare a model, of positive data, in the current folder."""
    onnx.save(proto, "net.onnx")
    np.savez("data.npz", x=np.abs(rng().standard_normal((16, 8))).astype(np.float32))
    for command in (
        "calibrate net.onnx --data data.npz --method minmax",
        "quantize net.onnx -o q.onnx",
        "compare net.onnx q.onnx --data data.npz --rounds 2",
    ):
        succeed(capsys, *command.split())


def test_a_graph_output_without_a_shape_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    proto = small_model()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert str(load_model(proto).outputs[0]) == "y: float32[n, 4]"
    assert not proto.graph.output[0].type.tensor_type.HasField("shape")
    goes_through(capsys, proto)
    assert str(load_model("net.onnx").outputs[0]) == "y: float32[n, 4]"


OF_TWO_RANKS = """<ir_version: 8, opset_import: ["" : 17]>
ranks (float[n, 8] x) => (float[n, 4] y) <float[8, 4] w = {WEIGHTS}> {
  product = MatMul (x, w)
  total = ReduceSum <keepdims = 0> (product)
  half = Constant <value: tensor = float {0.5}> ()
  over = Greater (total, half)
  twice = Constant <value: tensor = int64[3] {-1, 2, 2}> ()
  y = If (over) <
    then_branch = one () => (float[n, 4] a) { a = Relu (product) },
    else_branch = two () => (float[n, 2, 2] b) { b = Reshape (product, twice) }
  >
}"""


def test_a_graph_output_whose_shape_nothing_tells_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    weights = ", ".join(f"{0.1 + one / 100:.2f}" for one in range(32))
    proto = onnx.parser.parse_model(OF_TWO_RANKS.replace("WEIGHTS", weights))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    goes_through(capsys, proto)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        ("short", "64 bytes"),
        ("type", "'x' is of"),
        ("values", "2 values"),
    ],
)
def test_small_constants_that_are_broken_are_named(tmp_path, act, says):
    proto = small_model()
    if act == "short":
        proto.graph.initializer[0].raw_data = bytes(64)
    elif act == "values":
        proto.graph.initializer[0].ClearField("raw_data")
        proto.graph.initializer[0].float_data.extend([0.5, 0.5])
    else:
        proto.graph.input[0].type.tensor_type.elem_type = 2**31 - 1
    onnx.save(proto, tmp_path / "net.onnx")
    with fails(InputError, says):
        load_model(tmp_path / "net.onnx")


def test_a_tensor_of_a_branch_has_a_type_that_there_is(tmp_path):
    proto = onnx.parser.parse_model(OF_TWO_RANKS.replace("WEIGHTS", ", ".join(["0.5"] * 32)))
    branch = proto.graph.node[-1].attribute[0].g
    branch.output[0].type.tensor_type.elem_type = 100
    onnx.save(proto, tmp_path / "net.onnx")
    with fails(InputError, "'a'", "type 100"):
        load_model(tmp_path / "net.onnx")


def test_an_npz_whose_header_is_cut_off_is_named(tmp_path):
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", file.getvalue().replace(b"}", b" "))
    with fails(InputError, "x.npz"):
        read_npz(tmp_path / "x.npz")


@each("wrong", [{}, [], None, 1.5])
def test_ids_of_annotations_are_numbers_or_names(tmp_path, capsys, digits, wrong):
    np.save(tmp_path / "data.npy", rng().standard_normal((2, 1, 8, 8)).astype(np.float32))
    images = [{"id": one, "width": 8, "height": 8} for one in (wrong, 1)]
    boxes = [{"image_id": 1, "category_id": 1, "bbox": [1, 1, 2, 2]}]
    document = {"images": images, "annotations": boxes, "categories": [{"id": 1}]}
    (tmp_path / "labels.json").write_text(json.dumps(document))
    given = ("--data", tmp_path / "data.npy", "--labels", tmp_path / "labels.json")
    assert "images[0]" in refused(capsys, "calibrate", digits / "digits.onnx", *given)


@pytest.mark.parametrize("column", ["name = x'ff'", "digests = '[1]'", "digests = 'no JSON'"])
def test_a_history_of_other_types_is_damaged(tmp_path, column):
    history = History(tmp_path / "h.sqlite")
    history.record(report(1))
    with sqlite3.connect(tmp_path / "h.sqlite") as connection:
        connection.execute(f"UPDATE runs SET {column}")  # noqa: S608
    with fails(InputError, "h.sqlite"):
        history.entries()
