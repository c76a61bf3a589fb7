"""The hand-off to PyTorch without PyTorch: what the file holds, and what comes back."""

import ast

import numpy as np
import onnx
import pytest

from tests.conftest import SAMPLES
from tests.fixtures.commands import shows
from trtcal.cli.main import run_command as main
from trtcal.quantization.qdq import quantization_record
from trtcal.wings.training.layout import Layout
from trtcal.wings.training.module import operators

DIGITS = SAMPLES / "digits" / "digits.onnx"
HOSTILE = 'a"""\nimport os\nevil()\n\'\\\'); evil(\N{GRINNING FACE}'


@pytest.fixture(scope="module")
def ranges(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranges") / "calibration.json"
    data = SAMPLES / "digits" / "calibration.npz"
    assert main(["calibrate", str(DIGITS), "--data", str(data), "-o", str(path), "-q"]) == 0
    return path


@pytest.fixture(scope="module")
def exported(ranges):
    path = ranges.with_name("qat.py")
    assert (
        main(["export", "torch", str(DIGITS), "--calibration", str(ranges), "-o", str(path)]) == 0
    )
    return path


@pytest.fixture
def trained(exported, tmp_path):
    """Return what `save_trained` writes of an untrained network, and what imports it with changes."""
    quantized = exported.with_name("qat.int8.onnx")
    layout = ast.literal_eval(assigned(exported, "LAYOUT"))
    with np.load(exported.with_name("qat.weights.npz")) as arrays:
        kept = {key: arrays[key] for key in arrays if not key.endswith(".float")}
    kept["model"] = np.array(layout["model"])

    def back(**changes):
        np.savez(tmp_path / "trained.npz", **{**kept, **changes})
        words = ["import", str(quantized), str(tmp_path / "trained.npz")]
        return main([*words, "-o", str(tmp_path / "trained.onnx")])

    return kept, back, tmp_path / "trained.onnx", quantized


def assigned(path, name):
    for item in ast.parse(path.read_text()).body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == name:
            return item.value
    return None


def constants(path):
    proto = onnx.load(path)
    return {one.name: onnx.numpy_helper.to_array(one) for one in proto.graph.initializer}


def test_the_file_compiles_and_has_a_line_for_each_node(exported):
    text = exported.read_text()
    compile(text, "qat.py", "exec")
    assert "# 'stem/conv'" in text
    quantized = onnx.load(exported.with_name("qat.int8.onnx")).graph
    (forward,) = (
        method
        for item in ast.parse(text).body
        if isinstance(item, ast.ClassDef) and item.name == "Network"
        for method in item.body
        if getattr(method, "name", "") == "forward"
    )
    dequantizing = sum(node.op_type == "DequantizeLinear" for node in quantized.node)
    assert len(forward.body) == len(quantized.node) - dequantizing + 1


def hostile_model(path):
    """Write the digits with names that are programs."""
    proto = onnx.load(DIGITS)
    graph = proto.graph
    proto.graph.name = HOSTILE
    for node in graph.node:
        node.name = HOSTILE + node.name
        node.input[:] = [HOSTILE + name for name in node.input]
        node.output[:] = [HOSTILE + name for name in node.output]
    for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        value.name = HOSTILE + value.name
    onnx.save(proto, path)
    return path


def test_names_of_the_model_are_never_code(tmp_path):
    model, data = hostile_model(tmp_path / "model.onnx"), tmp_path / "data.npz"
    with np.load(SAMPLES / "digits" / "calibration.npz") as arrays:
        image = arrays["image"][:8]
    np.save(tmp_path / "data.npy", image)
    ranges, output = tmp_path / "c.json", tmp_path / "qat.py"
    data = tmp_path / "data.npy"
    assert main(["calibrate", str(model), "--data", str(data), "-o", str(ranges), "-q"]) == 0
    assert (
        main(["export", "torch", str(model), "--calibration", str(ranges), "-o", str(output)]) == 0
    )
    tree = ast.parse(output.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    modules = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert "evil" not in names
    assert modules == {"math", "torch", "numpy"}
    assert ast.literal_eval(assigned(output, "INPUTS")) == [HOSTILE + "image"]


def test_operators_without_a_form_are_named_with_their_number(ranges, tmp_path, capsys):
    proto = onnx.load(DIGITS)
    for node in proto.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Softsign"
    onnx.save(proto, tmp_path / "odd.onnx")
    data, ranges = SAMPLES / "digits" / "calibration.npz", tmp_path / "c.json"
    words = [str(tmp_path / "odd.onnx"), "--calibration", str(ranges)]
    assert main(["calibrate", words[0], "--data", str(data), "-o", str(ranges), "-q"]) == 0
    assert main(["export", "torch", *words, "-o", str(tmp_path / "qat.py")]) == 2
    shows(capsys.readouterr().err, "Softsign (6 nodes)")
    assert not (tmp_path / "qat.py").exists()


def test_a_plan_in_another_format_is_one_error(ranges, tmp_path, capsys):
    (tmp_path / "plan.json").write_text('{"default": "fp16"}')
    words = ["--calibration", str(ranges), "--plan", str(tmp_path / "plan.json")]
    assert main(["export", "torch", str(DIGITS), *words, "-o", str(tmp_path / "qat.py")]) == 2
    shows(capsys.readouterr().err, "float16")


def test_what_was_not_trained_comes_back_as_it_was(trained):
    _, back, output, quantized = trained
    assert back() == 0
    before, after = constants(quantized), constants(output)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert onnx.load(output).graph.node == onnx.load(quantized).graph.node


def test_trained_weights_are_rounded_by_trained_scales(trained):
    kept, back, output, quantized = trained
    layout = Layout(onnx.load(quantized))
    key, part = next(iter(layout.weights.items()))
    activation, first = next(iter(layout.activations.items()))
    values, scale = kept[f"{key}.values"] * 2, kept[f"{key}.scale"] * 4
    changes = {f"{key}.values": values, f"{key}.scale": scale}
    assert back(**changes, **{f"{activation}.scale": np.float32(0.5)}) == 0
    after = constants(output)
    steps = values / scale.reshape(-1, *[1] * (values.ndim - 1))
    assert np.array_equal(after[part.values], np.clip(np.rint(steps), -127, 127).astype(np.int8))
    assert np.array_equal(after[part.scale], scale)
    assert after[first.scale] == 0.5
    assert quantization_record(onnx.load(output))["method"].endswith(", trained")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a * np.float32(np.nan), "positive"),
        (lambda a: -a, "positive"),
        (lambda a: a.astype(np.float64), "float32"),
        (lambda a: a[..., None], "shape"),
    ],
)
def test_scales_that_cannot_be_are_refused(change, message, trained, capsys):
    kept, back, output, _ = trained
    key = next(key for key in kept if key.endswith(".scale"))
    assert back(**{key: change(kept[key])}) == 2
    shows(capsys.readouterr().err, message, key)
    assert not output.exists()


def test_what_was_trained_from_another_export_is_refused(trained, capsys):
    _, back, _, _ = trained
    assert back(model=np.array("sha256:00")) == 2
    shows(capsys.readouterr().err, "not trained from the export")


def test_attributes_are_checked_by_value():
    assert operators()["resize"]["mode"] == ("nearest",)
    assert operators()["conv"]["pads"] is None
    assert operators()["relu"] == {}
    assert "axes" in operators()["reduce_mean"]  # an attribute before opset 18
