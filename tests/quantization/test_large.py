"""Models whose weights stay in their files: small ones by a low limit, and one of 2.2 GiB.

The latter is left out by default: run it by `TRTCAL_LARGE=1 pytest -s tests/quantize/test_large.py`. It
needs 12 GB of disk below the temporary folder, 4 GB of memory, and a few minutes.
"""

import os
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from benchmarks.language_model import commands, measure, write_data
from tests.fixtures.graphs import as_nodes
from tests.fixtures.language_models import LARGE as LARGE_DECODER
from tests.fixtures.networks import conv_net, rng, samples, save, weight
from trtcal.backends.building import build
from trtcal.backends.onnxruntime import OnnxRuntime
from trtcal.backends.options import BuildOptions
from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import calibrate, observe
from trtcal.data import open_dataset
from trtcal.evaluate.variants import open_variant
from trtcal.model import load_model
from trtcal.quantization import (
    Plan,
    find_layers,
    prepare,
    quantize,
    tensors_to_observe,
    write_quantized,
)

LARGE = "TRTCAL_LARGE"


def external(source, path):
    onnx.save(onnx.load(source), path, save_as_external_data=True, location="w.bin")
    return path


def calibrated(model, data):
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    return prepared, calibrate(observe(prepared, data, tensors), "minmax")


def outside(proto):
    return [one.name for one in proto.graph.initializer if uses_external_data(one)]


def test_mapped_weights_give_the_same_ranges_and_the_same_quantized_model(tmp_path):
    path = external(conv_net(tmp_path / "net.onnx"), tmp_path / "external.onnx")
    data = open_dataset(samples(tmp_path / "data.npz"), load_model(path))
    made = []
    for embedded in (0, 1 << 20):
        prepared, calibration = calibrated(load_model(path, embedded), data)
        assert outside(prepared.proto) == ([] if embedded else ["w2"])
        quantized = quantize(prepared, calibration)
        made.append((calibration.digest, quantized.digest))
        written = write_quantized(tmp_path / f"{embedded}.onnx", quantized)
        assert (written.digest, written.weights) == (quantized.digest, None)
    assert made[0] == made[1]


def test_what_a_plan_leaves_in_float_stays_in_a_file(tmp_path):
    path = external(conv_net(tmp_path / "net.onnx"), tmp_path / "external.onnx")
    data = open_dataset(samples(tmp_path / "data.npz"), load_model(path))
    results = []
    for embedded in (0, 1 << 20):
        prepared, calibration = calibrated(load_model(path, embedded), data)
        quantized = quantize(prepared, calibration, Plan(layers={"second": "fp32"}))
        output = tmp_path / f"out{embedded}" / "mixed.onnx"
        assert write_quantized(output, quantized).digest == quantized.digest
        assert len(os.listdir(output.parent)) == (1 if embedded else 2)
        written = load_model(output, embedded)
        results.append(run_session(open_session(written.proto), None, next(data.batches(24)))[0])
        open_variant(output)
        made = build(written, OnnxRuntime(), BuildOptions("cpu"), tmp_path / f"build{embedded}")
        assert {one.node: one.got for one in made.outcomes}["gemm"] == "int8"
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("embedded", [0, 1 << 20])
def test_computed_weights_are_folded(tmp_path, embedded):
    """As exporters leave them: transposed, and scaled by a constant."""
    nodes = as_nodes(
        "[transpose] t = Transpose<perm=[1, 0]>(w)  [first] a = MatMul(x, t)  "
        "[scale] s = Mul(v, two)  [turn] u = Transpose(s)  [second] y = MatMul(a, u)"
    )
    weights = {"w": weight(24, 16), "v": weight(20, 24), "two": np.full(1, 2, np.float32)}
    source = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 16]}, {"y": ["n", 20]})
    prepared = prepare(load_model(external(source, tmp_path / "external.onnx"), embedded))
    assert [node.op_type for node in prepared.proto.graph.node] == ["MatMul", "MatMul"]
    values = {one.name: numpy_helper.to_array(one) for one in prepared.proto.graph.initializer}
    np.testing.assert_array_equal(values["t"], weights["w"].T)
    np.testing.assert_array_equal(values["u"], 2 * weights["v"].T)
    assert [layer.name for layer in find_layers(prepared).layers] == ["first", "second"]


@pytest.mark.parametrize("embedded", [0, 1 << 20])
def test_subgraphs_read_weights_of_the_graph(tmp_path, embedded):
    def branch(name, op, inputs):
        made = helper.make_node(op, inputs, [f"{name}/out"], name)
        value = helper.make_tensor_value_info(f"{name}/out", TensorProto.FLOAT, None)
        return helper.make_graph([made], name, [], [value])

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], "max", keepdims=0),
        helper.make_node("Greater", ["m", "zero"], ["c"], "greater"),
        helper.make_node("If", ["c"], ["i"], "if",
                         then_branch=branch("then", "MatMul", ["x", "w"]),
                         else_branch=branch("else", "MatMul", ["x", "v"])),
        helper.make_node("MatMul", ["i", "w"], ["y"], "product"),
    ]  # fmt: skip
    weights = {"w": weight(20, 20), "v": weight(20, 20), "zero": np.zeros((), np.float32)}
    source = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 20]}, {"y": ["n", 20]})
    feeds = {"x": rng(3).standard_normal((4, 20)).astype(np.float32)}
    prepared = prepare(load_model(external(source, tmp_path / "external.onnx"), embedded))
    before, after = (
        run_session(open_session(one), None, feeds)[0]
        for one in (onnx.load(source), prepared.proto)
    )
    np.testing.assert_array_equal(before, after)


def matrices(path, count, width):
    """Write a chain of matrix products whose weights are `count` * `width`**2 float32 numbers."""
    nodes, source = [], "x"
    initializers = []
    with (path.parent / "w.bin").open("wb") as file:
        for number in range(count):
            made = rng(number).standard_normal((width, width), np.float32) / np.float32(width**0.5)
            tensor = TensorProto(name=f"w{number}", data_type=1, dims=made.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": "w.bin", "offset": file.tell(), "length": made.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            initializers.append(tensor)
            file.write(made)
            name = f"product{number}"
            nodes.append(helper.make_node("MatMul", [source, tensor.name], [f"a{number}"], name))
            source = f"a{number}"
    values = ([helper.make_tensor_value_info(name, 1, ["n", width])] for name in ("x", source))
    graph = helper.make_graph(nodes, "large", *values, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


COUNTED = """
import resource, sys
from trtcal.cli.main import run_command
status = run_command(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
print(f"{sys.argv[1]}: at most {peak} MiB")
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.skipif(LARGE not in os.environ, reason=f"set {LARGE}=1 to run it")
def test_a_model_of_more_than_two_gib(tmp_path):
    count, width = 9, 8192
    matrices(tmp_path / "large.onnx", count, width)
    np.savez(tmp_path / "data.npz", x=rng().standard_normal((8, width), np.float32))
    (tmp_path / "plan.json").write_text('{"default": "fp32", "layers": {"product0": "int8"}}')

    def command(*arguments):
        done = subprocess.run([sys.executable, "-c", COUNTED, *arguments], cwd=tmp_path,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        line = done.stdout.splitlines()[-1]
        print(line)
        return int(re.findall(r"(\d+) MiB", line)[0])

    weights = count * width**2 * 4 >> 20
    assert weights > 2048
    command("calibrate", "large.onnx", "--data", "data.npz", "-o", "ranges.json")
    ranges = ["--calibration", "ranges.json"]
    command("quantize", "large.onnx", *ranges, "-o", "int8.onnx")
    command("quantize", "large.onnx", *ranges, "--plan", "plan.json", "-o", "mixed/mixed.onnx")
    assert (tmp_path / "int8.onnx").stat().st_size > weights << 18
    assert len(os.listdir(tmp_path / "mixed")) == 2
    assert load_model(tmp_path / "mixed" / "mixed.onnx").opset == 17
    onnx.checker.check_model(tmp_path / "mixed" / "mixed.onnx")


@pytest.mark.slow
@pytest.mark.skipif(LARGE not in os.environ, reason=f"set {LARGE}=1 to run it")
def test_a_language_model_of_more_than_two_gib(tmp_path):
    write_data(tmp_path, LARGE_DECODER)
    lines = [measure(tmp_path, command) for command in commands()]
    print("\n".join(lines))
    assert (tmp_path / "model.bin").stat().st_size > 1 << 31
    assert all("status 0" in line or line.startswith("run") for line in lines)
