"""The tensors that TensorRT's calibration cache lists: all observed, or left out with the reason."""

import json
import shlex
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests.conftest import SAMPLES
from tests.fixtures.commands import environment, refused, run, shows, succeed
from tests.fixtures.engines import needs_rtx
from tests.fixtures.kinds import KINDS, Kind, normal
from tests.fixtures.slow import SLOW
from tests.fixtures.zoo import ZOO
from trtcal.calibration.cache_tensors import cache_tensors
from trtcal.calibration.formats.convert import compare_names
from trtcal.calibration.formats.table import imported
from trtcal.model import load_model
from trtcal.ranges import Calibration

NET = Kind(
    """\
net (float[n,3,8,8] x, int64[n] rows) => (float[n,4] y, float[n,8,8,8] z, int64[n] next)
<float[8,3,3,3] w, float[8] scale, float[8] shift, float[8] mean, float[8,8,1,1] near,
 float[4,8] g, float[4] bias, float[8] var = {1, 2, 1, 2, 1, 2, 1, 2}, float two = {2},
 float three = {3}, float zero = {0}, int64 one = {1}, int64[1] axes = {1},
 int64[1] first = {0}, int64[1] last = {8}>
{
  [conv] a = Conv<pads=[1,1,1,1]>(x, w)
  b = BatchNormalization(a, scale, shift, mean, var)
  r = Relu(b)
  six = Mul(two, three)
  c = Mul(r, six)
  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)
  d = Dropout(p)
  t = Transpose<perm=[0,2,3,1]>(d)
  u = Transpose<perm=[0,3,1,2]>(t)
  k = Concat<axis=1>(u, p)
  half = Slice(k, first, last, axes)
  m = GlobalAveragePool(half)
  f = Flatten(m)
  [gemm] y = Gemm<transB=1>(f, g, bias)
  next = Add(rows, one)
  whole = ReduceMean<keepdims=0>(x)
  flag = Greater(whole, zero)
  [if] z = If (flag) <
    then_branch = then () => (float[n,8,8,8] i) { i = Conv(r, near) },
    else_branch = other () => (float[n,8,8,8] j) { j = Identity(r) }
  >
}""",
    normal(x=(3, 8, 8)),
)
OBSERVED = ["x", "a", "b", "r", "six", "c", "k", "half", "m", "y", "whole", "z"]
DERIVED = {"p": "c", "d": "c", "t": "c", "u": "c", "f": "m"}
EXPORT = ("--format", "tensorrt-cache", "--tensorrt", "8.6.1", "-o", "net.cache")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = onnx.load(NET.save(tmp_path / "net.onnx"))
    model.graph.node[5].name = ""
    onnx.save(model, tmp_path / "net.onnx")
    data = NET.make(np.random.default_rng(0), 16) | {"rows": np.arange(16)}
    np.savez(tmp_path / "data.npz", **data)
    return tmp_path


def calibrate(capsys, name, *more):
    """Calibrate the network of this place and return its ranges."""
    succeed(capsys, "calibrate", "net.onnx", "--data", "data.npz", "-o", name, *more)
    return Calibration.read(name)


def test_every_float_tensor_has_a_range_and_the_rest_a_reason(place, capsys):
    every = calibrate(capsys, "every.json", "--all-tensors", "--method", "entropy")
    assert set(every.ranges) == {*OBSERVED, *DERIVED}
    for name, origin in DERIVED.items():
        assert every.ranges[name] == every.ranges[origin]
    assert every.ranges["six"].observed_amax == 6.0
    reasons = {"rows": "int64", "next": "int64", "flag": "bool", "i": "'if'", "j": "'if'"}
    assert every.unranged.keys() == reasons.keys()
    assert all(reason in every.unranged[name] for name, reason in reasons.items())
    nodes = onnx.load("net.onnx").graph.node
    made = [name for node in nodes for name in node.output]
    assert [name for name in every.ranges if name != "x"] == [n for n in made if n in every.ranges]


def test_a_pooling_gives_its_input_no_range(tmp_path):
    model = load_model(NET.save(tmp_path / "net.onnx"))
    listed = cache_tensors(model)
    ranges = {"p": imported(1.0), "f": imported(2.0)}
    assert {"c", "k"} <= {*listed.beyond(ranges)}
    assert listed.beyond(["c", "f"]) == [n for n in OBSERVED if n not in ("c", "m")]
    assert {name: each.amax for name, each in listed.follow(ranges).items()} == {
        **dict.fromkeys("pdtu", 1.0), "m": 2.0, "f": 2.0,
    }  # fmt: skip


def test_the_ranges_of_qdq_and_the_model_stay(place, capsys):
    plain = calibrate(capsys, "plain.json")
    every = calibrate(capsys, "every.json", "--all-tensors", "--histograms", "seen.npz")
    assert plain.ranges.keys() < every.ranges.keys()
    assert plain.ranges == {name: every.ranges[name] for name in plain.ranges}
    kept = calibrate(capsys, "kept.json", "--all-tensors", "--histograms", "seen.npz")
    assert kept.digest == every.digest
    for name in ("plain", "every"):
        ranges = ("--calibration", f"{name}.json", "-o", f"{name}.onnx")
        succeed(capsys, "quantize", "net.onnx", *ranges)
    graphs = [onnx.load(f"{name}.onnx").graph for name in ("plain", "every")]
    assert graphs[0] == graphs[1]


def test_a_cache_that_lacks_ranges_is_refused_with_the_command_that_observes_them(place, capsys):
    plain = calibrate(capsys, "net.json")
    err = refused(capsys, "ranges", "export", "net.json", *EXPORT)
    error, hint, *_ = err.splitlines()
    missing = len({*OBSERVED, *DERIVED} - {*plain.ranges})
    shows(error, "net.json", f"{missing} of the 17", "b")
    assert not (place / "net.cache").exists()
    succeed(capsys, *shlex.split(hint.split("`")[1])[1:])
    _, out, err = run(capsys, "ranges", "export", "net.json", *EXPORT)
    shows(out, "17 ranges")
    shows(err, "rows, next", "int64", "bool", "j, i")
    assert len((place / "net.cache").read_text().splitlines()) == 18
    succeed(capsys, "ranges", "import", "net.cache", "--model", "net.onnx", "-o", "again.json")
    written = (place / "net.cache").read_bytes()
    succeed(capsys, "ranges", "export", "again.json", *EXPORT, "--partial")
    assert (place / "net.cache").read_bytes() == written


def test_what_is_not_checked_is_said(place, capsys):
    calibrate(capsys, "net.json").write("copy.json")
    status, _, err = run(capsys, "ranges", "export", "copy.json", *EXPORT)
    assert status == 0
    shows(err, "--model")
    err = refused(capsys, "ranges", "export", "copy.json", *EXPORT, "--model", "net.onnx")
    shows(err, "copy.json", "--data DATA --all-tensors -o copy.json")
    status, _, err = run(capsys, "ranges", "export", "net.json", *EXPORT, "--partial")
    assert (status, err) == (0, "")
    model = KINDS["classifier"].save(place / "other.onnx")
    shows(refused(capsys, "ranges", "export", "copy.json", *EXPORT, "--model", model), "copy.json")


def test_names_that_tensorrts_parser_makes_are_not_of_another_model(place):
    """As TensorRT 10 writes them: of constants, of parts of a node, and of layers of its own."""
    model = load_model(place / "net.onnx")
    made = ["ONNXTRT_Broadcast_12_output", "ONNXTRT_unsqueezeTensor_output", "g_output"]
    made += [
        "gemm_output",
        "gemm_3_output",
        "node_of_p_output",
        "(Unnamed Layer* 8) [Constant]_output",
        "t copy",
    ]
    assert compare_names(["x", *made], model).unknown == ()
    assert compare_names(["x", "other_output", "conv_out"], model).unknown == (
        "other_output",
        "conv_out",
    )


PARSE = """
import json, sys
import tensorrt_rtx as trt
from trtcal.backends.tensorrt_objects import float_tensors, with_parser_tensors
log = trt.Logger(trt.Logger.INTERNAL_ERROR)
for path, ours in json.load(sys.stdin).items():
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if parser.parse_from_file(path):
        known = with_parser_tensors(trt, network, dict.fromkeys(ours, 1.0))
        print(json.dumps([path, [[name, name in known] for name in float_tensors(trt, network)]]))
"""
LOOPS = ("LSTM", "GRU", "Loop", "If", "recurrent")  # whose bodies have tensors of their own
PARTS = ("embedding", "multi-label", "hard", "gemm_scaled", "three_added")
"""Networks with a node of which the parser makes several layers that compute."""


@needs_rtx
@SLOW
def test_the_names_are_those_of_the_network_that_tensorrts_parser_makes(tmp_path):
    models = {name: kind.save(tmp_path / f"{name}.onnx") for name, kind in KINDS.items()}
    for name, entry in [*ZOO.items()][::3]:
        models[name] = tmp_path / f"{name}.onnx"
        onnx.save(entry.make().proto(), models[name])
    models |= {path.stem: path for path in SAMPLES.rglob("*.onnx")}
    listed = {str(path): [*cache_tensors(load_model(path)).origins] for path in models.values()}
    command = [sys.executable, "-c", PARSE]
    done = subprocess.run(
        command, input=json.dumps(listed), env=environment(), capture_output=True, text=True
    )
    parsed = dict(map(json.loads, done.stdout.splitlines()))
    assert len(parsed) > 50, done.stderr
    names = {str(path): name for name, path in models.items()}
    for path, tensors in parsed.items():
        theirs = dict(tensors)
        assert set(listed[path]) <= theirs.keys(), path
        if names[path] in KINDS:
            assert compare_names(theirs, load_model(path)).unknown == (), path
        if names[path] not in LOOPS + PARTS:
            assert all(theirs.values()), path
