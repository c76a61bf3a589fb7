import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.fixtures.commands import shows
from tests.fixtures.engines import int8, made, needs_rtx, worker
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, detection_net, transposed_net
from tests.fixtures.tables import each
from trtcal.backends.building import build
from trtcal.backends.child import run_worker
from trtcal.backends.options import (
    BuildOptions,
    check_shapes,
    parse_shapes,
    shape_ranges,
    with_sizes,
)
from trtcal.backends.registry import BACKENDS, find_backend
from trtcal.backends.unsupported import refused_operators
from trtcal.data import open_dataset, size_ranges
from trtcal.errors import BackendError, InputError, ResourceError
from trtcal.evidence.manifest import read_build
from trtcal.model import TensorSpec, load_model
from trtcal.model.cut import cut


def test_onnxruntime_runs_int8_in_integer_kernels(tmp_path):
    result = made(int8(conv_net(tmp_path / "net.onnx"), tmp_path), "cpu", tmp_path / "build")
    got = {outcome.node: outcome.got for outcome in result.outcomes}
    assert got == {"first": "int8", "second": "fp32", "gemm": "int8"}
    assert {"QLinearConv", "QGemm"} <= {layer.kind for layer in result.layers}
    assert read_build(tmp_path / "build") == result
    assert result.engine.exists()
    assert result.log.stat().st_size > 0


@needs_rtx
def test_tensorrt_rtx_gives_what_was_asked(tmp_path):
    result = made(int8(conv_net(tmp_path / "net.onnx"), tmp_path), "sm89", tmp_path / "build")
    got = [(outcome.node, outcome.got) for outcome in result.outcomes]
    assert got == [("first", "int8"), ("second", "int8"), ("gemm", "int8")]
    assert result.engine.read_bytes()[:4] == b"vtrt"
    assert read_build(tmp_path / "build") == result


@needs_rtx
def test_a_silent_fallback_is_named(tmp_path):
    result = made(int8(transposed_net(tmp_path / "up.onnx"), tmp_path), "sm89", tmp_path / "build")
    got = {outcome.node: outcome for outcome in result.outcomes}
    assert got["conv"].got == "int8"
    assert (got["up"].asked, got["up"].got) == ("int8", "fp32")
    assert got["up"].is_lost
    assert got["up"].reason


@needs_rtx
def test_a_build_of_the_same_model_has_the_same_digest(tmp_path):
    model = int8(conv_net(tmp_path / "net.onnx"), tmp_path)
    digests = {made(model, "sm89", tmp_path / name).digest for name in ("one", "two")}
    assert len(digests) == 1


@needs_rtx
def test_a_refused_model_leaves_its_log_and_no_engine(tmp_path):
    text = "g (string[n] s) => (string[n] t) { [strings] t = StringNormalizer(s) }"
    graph = onnx.parser.parse_graph(text)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "strings.onnx")
    with fails(BackendError, "strings", "StringNormalizer", hint="trtcal build"):
        made(load_model(tmp_path / "strings.onnx"), "sm89", tmp_path / "build")
    left = {item.name for item in (tmp_path / "build").iterdir()}
    assert left == {"build.log", "build.jsonl", "diagnosis.json"}


@needs_rtx
def test_a_failed_build_leaves_an_older_one_as_it_was(tmp_path):
    older = made(load_model(conv_net(tmp_path / "net.onnx")), "sm89", tmp_path / "build")
    with fails(ResourceError, "0.01 s", hint="--time-limit"):
        made(load_model(tmp_path / "net.onnx"), "sm89", tmp_path / "build", time_limit_s=0.01)
    assert read_build(tmp_path / "build") == older
    assert (tmp_path / "build" / "failed-build.log").exists()


@pytest.mark.parametrize("name", ["build.json", "build.log", "build.jsonl", "model.onnx"])
def test_a_build_replaces_no_files_of_others(tmp_path, name):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    folder = tmp_path / "build"
    folder.mkdir()
    engine = find_backend(None, "cpu")[0].engine_file
    theirs = folder / (engine if name == "model.onnx" else name)
    theirs.write_text('{"kind": "of another program"}')
    with fails(InputError, str(folder), theirs.name):
        made(model, "cpu", folder)
    assert [*folder.iterdir()] == [theirs]
    assert theirs.read_text() == '{"kind": "of another program"}'


def test_what_a_killed_build_left_is_replaced(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    first = made(model, "cpu", tmp_path / "build")
    (tmp_path / "build" / "build.json").unlink()
    assert made(model, "cpu", tmp_path / "build").digest == first.digest


def test_a_crash_is_one_error_with_the_last_line(tmp_path, monkeypatch):
    body = "import os, signal\nos.write(2, b'[V] at node seven\\n')\nos.kill(os.getpid(), 11)\n"
    with fails(BackendError, "SIGSEGV", "at node seven"):
        worker(tmp_path, monkeypatch, body)
    assert "at node seven" in (tmp_path / "work" / "build.log").read_text()


def test_a_workers_own_sentence_is_the_error(tmp_path, monkeypatch):
    body = "from trtcal.backends.worker import fail\nfail('no such operator')\n"
    with fails(BackendError, "no such operator"):
        worker(tmp_path, monkeypatch, body)


def test_the_child_imports_this_trtcal_and_nothing_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('hijacked')")
    folder = tmp_path / "work"
    folder.mkdir()
    with pytest.raises(BackendError) as caught:
        run_worker("trtcal.backends.onnxruntime_worker", {}, folder, 60)
    assert "hijacked" not in caught.value.message


def test_missing_backends_say_how_to_get_them(tmp_path):
    state = BACKENDS["tensorrt"].availability()
    if state.works:
        pytest.skip("this machine has TensorRT and a driver")
    model = load_model(conv_net(tmp_path / "net.onnx"))
    with pytest.raises(BackendError) as caught:
        build(model, BACKENDS["tensorrt"], BuildOptions("gpu"), tmp_path / "build")
    assert caught.value.hint
    assert not (tmp_path / "build").exists()


@each(
    "name, target, expected",
    [
        ("onnxruntime", None, ("onnxruntime", "cpu")),
        ("tensorrt", None, ("tensorrt", "gpu")),
        (None, "cpu", ("onnxruntime", "cpu")),
        (None, "sm86", ("tensorrt-rtx", "sm86")),
        (None, "rtx3090,NVIDIA L4", ("tensorrt-rtx", "sm86,sm89")),
        ("tensorrt-rtx", "sm_120", ("tensorrt-rtx", "sm120")),
        (None, "gpu", ("tensorrt", "gpu")),
    ],
)
def test_backend_and_target_follow_from_each_other(name, target, expected):
    backend, chosen = find_backend(name, target)
    assert (backend.name, chosen) == expected


@each(
    "name, target",
    [
        ("magic", None), (None, "tpu"), (None, None), ("tensorrt-rtx", None),
        ("onnxruntime", "sm89"), ("tensorrt", "sm89"),
    ],
)  # fmt: skip
def test_impossible_targets_are_refused(name, target):
    with pytest.raises(InputError):
        find_backend(name, target)


def test_shapes_are_read_and_checked():
    assert parse_shapes({"x": "1x3:2x3:4x3"}) == {"x": ((1, 3), (2, 3), (4, 3))}
    assert parse_shapes({"x": "2x3"}) == {"x": ((2, 3),) * 3}
    for wrong in ("", "1x3:2x3", "axb", "4x3:2x3:1x3", "1:2:3x4"):
        with pytest.raises(InputError):
            parse_shapes({"x": wrong})


def test_only_a_dynamic_batch_has_a_default():
    image = TensorSpec("x", "float32", ("n", 3, 8, 8))
    assert shape_ranges((image,), {})["x"][0] == (1, 3, 8, 8)
    assert shape_ranges((TensorSpec("x", "float32", (1, 3)),), {}) == {}
    with fails(InputError, "x", hint="--shapes x="):
        shape_ranges((TensorSpec("x", "float32", ("n", "length")),), {})
    with fails(InputError, "z"):
        check_shapes((image,), {"z": ((1,), (1,), (1,))})
    for wrong in ((1, 3), (1, 4, 8, 8), (0, 3, 8, 8), (2**40, 3, 8, 8)):
        with fails(InputError, "x", "float32[n, 3, 8, 8]", hint="--shapes"):
            check_shapes((image,), {"x": (wrong, wrong, wrong)})


def test_shapes_come_from_the_sizes_of_samples():
    text = "net (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Relu(x) }"
    net = load_model(helper.make_model(onnx.parser.parse_graph(text)))
    feeds = [np.zeros((2, 3, 8, width), np.float32) for width in (16, 24, 24, 40)]
    sizes = size_ranges(net, open_dataset(feeds, net))
    assert sizes == {"x": ((1, 3, 8, 16), (1, 3, 8, 24), (1, 3, 8, 40))}
    options = with_sizes(BuildOptions("sm89"), net, sizes)
    assert options.shapes == {"x": ((1, 3, 8, 16), (8, 3, 8, 24), (32, 3, 8, 40))}
    given = BuildOptions("sm89", parse_shapes({"x": "1x3x8x8"}))
    assert with_sizes(given, net, sizes) == given
    with fails(InputError, "x", hint="--shapes x=1x3x?x?:8x3x?x?:32x3x?x?"):
        shape_ranges(net.inputs, with_sizes(BuildOptions("sm89"), net).shapes)


def test_states_have_the_batches_of_the_input_that_names_them():
    text = "net (float[n, t] x, float[2, n, 4] h) => (float[n, t] y, float[2, n, 4] g) "
    text += "{ y = Relu(x) g = Relu(h) }"
    net = load_model(helper.make_model(onnx.parser.parse_graph(text)))
    sizes = {"x": ((1, 9), (1, 9), (1, 9)), "h": ((2, 1, 4), (2, 1, 4), (2, 1, 4))}
    shapes = with_sizes(BuildOptions("sm89"), net, sizes).shapes
    assert shapes["x"] == ((1, 9), (8, 9), (32, 9))
    assert shapes["h"] == ((2, 1, 4), (2, 8, 4), (2, 32, 4))


@needs_rtx
def test_axes_that_an_exporter_called_alike_may_differ(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    for dim in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "?"
    options = {"shapes": parse_shapes({"x": "1x3x8x16"})}
    result = build(
        load_model(proto), BACKENDS["tensorrt-rtx"], BuildOptions("sm89", **options), tmp_path / "b"
    )
    assert result.layers


@pytest.mark.parametrize(
    "sizes", [3, {"x": 3}, {"x": [[1, 3], [1, 3], [1, 3]]}, {"x": [[1, 3, 8, 9]] * 2}, {"z": []}]
)
def test_sizes_in_a_model_of_others_that_do_not_fit_are_left_out(tmp_path, sizes):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    proto.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "w"
    helper.set_model_props(proto, {"trtcal.quantization": json.dumps({"sizes": sizes})})
    assert with_sizes(BuildOptions("sm89"), load_model(proto)).shapes == {}


@needs_rtx
def test_polygraphy_and_plain_onnxruntime_run_the_int8_model(tmp_path):
    model = int8(conv_net(tmp_path / "net.onnx"), tmp_path)
    program = Path(sys.executable).with_name("polygraphy")
    command = [program, "run", str(model.path), "--onnxrt"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "PASSED" in done.stdout


def test_the_manifest_is_json_without_paths(tmp_path):
    made(load_model(conv_net(tmp_path / "net.onnx")), "cpu", tmp_path / "build")
    text = (tmp_path / "build" / "build.json").read_text()
    assert str(tmp_path) not in text
    assert json.loads(text)["backend"] == "onnxruntime"


@needs_rtx
def test_what_a_backend_lacks_is_named_with_the_command_that_helps(tmp_path):
    model = load_model(detection_net(tmp_path / "detector.onnx"))
    names = ("nms", "NonMaxSuppression", "onnxruntime", "tensorrt")
    with fails(BackendError, *names, hint="--outputs boxes,scores -o "):
        made(model, "sm89", tmp_path / "build")
    body = cut(model, ["boxes", "scores"])
    assert made(body, "sm89", tmp_path / "body").engine.exists()


@pytest.mark.parametrize("target", ["cpu", pytest.param("sm89", marks=needs_rtx)])
def test_a_custom_operator_is_cut_off(tmp_path, target):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    proto.graph.node[4].op_type, proto.graph.node[4].domain = "Magic", "mine"
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    onnx.save(proto, tmp_path / "net.onnx")
    with fails(BackendError, "relu2", "Magic", "plug-in", hint="--outputs d") as error:
        made(load_model(tmp_path / "net.onnx"), target, tmp_path / "build")
    shows(error.value.hint, "1 of 3")


def test_the_messages_of_older_builders_name_the_operator_too():
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x) => (int64[2, k] y) { h = Relu (x) y = NonZero (h) }""")
    assert refused_operators("No importer registered for op: NonZero. Attempting", proto) == {
        "NonZero"
    }
    assert not refused_operators("Internal Error (GPU memory)", proto)
