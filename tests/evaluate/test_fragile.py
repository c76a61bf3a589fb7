"""Layers that must not be quantized: what leads to a logarithm or a division is found."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtcal
from tests.fixtures.commands import succeed
from trtcal import improve
from trtcal.calibration import calibrate, observe
from trtcal.data import open_dataset
from trtcal.evaluate.fragile import find_fragile
from trtcal.evaluate.judging import Judge
from trtcal.model import load_model
from trtcal.model.passes import prepare
from trtcal.ptq.improver import read_improved, write_improved
from trtcal.quantization import Plan, find_layers, quantize, read_plan, tensors_to_observe

SAMPLES, LENGTH = 48, 128


class Net:
    """A network that grows node by node; `weight` gives normal weights scaled by their inputs."""

    def __init__(self, shape):
        self.random, self.nodes, self.constants = np.random.default_rng(1), [], []
        self.shape, self.last = shape, "x"

    def constant(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def weight(self, *shape, inputs):
        return self.random.normal(size=shape) * (2 / inputs) ** 0.5

    def add(self, op, *inputs, **attributes):
        self.last = f"{op}_{len(self.nodes)}"
        node = helper.make_node(op, inputs, [self.last], name=self.last, **attributes)
        self.nodes.append(node)
        return self.last

    def product(self, source, matrix):
        return self.add("MatMul", source, self.constant(matrix))

    def body(self, width, layers=6):
        """Add a network of products and Relus, as it stands behind such fronts."""
        for _ in range(layers):
            self.product(self.last, self.weight(width, 24, inputs=width))
            self.add("Relu", self.last)
            width = 24
        return self.product(self.last, self.weight(24, 8, inputs=24))

    def model(self):
        values = [("x", self.shape), (self.last, None)]
        first, last = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in values)
        graph = helper.make_graph(self.nodes, "net", [first], [last], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mel():
    """A DFT as two products, powers, a filter bank, and its logarithm."""
    net = Net(["n", LENGTH])
    angles = 2 * np.pi * np.outer(np.arange(LENGTH), np.arange(LENGTH // 2)) / LENGTH
    window = np.hanning(LENGTH)[:, None]
    parts = [net.product("x", window * wave(angles)) for wave in (np.cos, np.sin)]
    power = net.add("Add", *(net.add("Mul", part, part) for part in parts))
    bands = np.abs(np.arange(LENGTH // 2)[:, None] / 4 - np.arange(16)) < 1
    energy = net.product(power, bands)
    net.add("Log", net.add("Add", energy, net.constant(1e-6)))
    net.body(16)
    return net.model()


def filters():
    """A bank of band-pass filters, the power of each band, smoothed, and its logarithm."""
    net = Net(["n", 1, LENGTH])
    time, bands = np.arange(31) - 15, np.linspace(0.05, 0.95, 16)[:, None]
    bank = np.cos(np.pi * bands * time) * np.hanning(31) / 8
    band = net.add("Conv", "x", net.constant(bank[:, None]), pads=[15, 15])
    power, smooth = net.add("Mul", band, band), np.tile(np.hanning(33) / 16, (16, 1, 1))
    energy = net.add("Conv", power, net.constant(smooth), group=16, strides=[32])
    net.add("Log", net.add("Add", energy, net.constant(1e-6)))
    net.add("Flatten", net.last)
    net.body(48)
    return net.model()


def division():
    """Small differences of large values over their norm."""
    net = Net(["n", LENGTH])
    alike = net.weight(LENGTH, 1, inputs=LENGTH) + 0.01 * net.weight(LENGTH, 16, inputs=LENGTH)
    values = net.product("x", alike)
    small = net.add("Sub", values, net.add("ReduceMean", values, axes=[1]))
    norm = net.add("ReduceL2", small, axes=[1])
    net.add("Div", small, net.add("Add", norm, net.constant(1e-6)))
    net.body(16)
    return net.model()


def sounds():
    """Tones that are loud and quiet, as recordings are: over 60 dB."""
    random = np.random.default_rng(0)
    time, shape = np.arange(LENGTH), (SAMPLES, 3, 1)
    tones = np.sin(random.uniform(0.1, 3, shape) * time + random.uniform(0, 6, shape))
    return (tones * 10 ** random.uniform(-2.5, 0.5, shape)).sum(1).astype(np.float32)


def like(make, values):
    return values[:, None] if make is filters else values


def ready(proto, values):
    """Return the prepared network and its ranges."""
    loaded = load_model(proto)
    prepared, data = prepare(loaded), open_dataset(values, loaded)
    seen = observe(prepared, data, tensors_to_observe(find_layers(prepared)))
    return prepared, calibrate(seen, "percentile")


@pytest.mark.parametrize(
    ("make", "form", "front"),
    [
        (mel, "int8", {"MatMul_0", "MatMul_1", "MatMul_5"}),
        (mel, "fp8", {"MatMul_0", "MatMul_1"}),
        (filters, "int8", {"Conv_0", "Conv_2"}),
        (division, "int8", {"MatMul_0"}),
    ],
)
def test_the_front_of_a_log_or_division_is_left_in_float(make, form, front):
    values = like(make, sounds())
    prepared, ranges = ready(make(), values[:32])
    fragile = find_fragile(prepared, ranges, open_dataset(values[32:40], prepared), Plan(form))
    assert front <= fragile.plan.layers.keys()
    assert set(fragile.plan.layers.values()) == {"fp32"}
    assert len(fragile.plan.layers) <= len(front) + 3  # of nine layers in all
    assert fragile.plan.default == form
    assert "in float raise" in fragile.sentence
    with Judge(prepared, open_dataset(values[40:], prepared)) as judge:  # seen by nothing
        plain, mixed = (
            judge.measure(quantize(prepared, ranges, plan).proto).value
            for plan in (Plan(form), fragile.plan)
        )
    assert plain - mixed > (18 if form == "int8" else 6)


def test_no_layer_is_left_in_float_where_none_loses_more_than_others():
    net = Net(["n", LENGTH])
    net.product("x", net.weight(LENGTH, 24, inputs=LENGTH))
    net.body(24)
    values = np.random.default_rng(2).normal(size=(SAMPLES, LENGTH)).astype(np.float32)
    prepared, ranges = ready(net.model(), values[:32])
    fragile = find_fragile(prepared, ranges, open_dataset(values[32:], prepared))
    assert (fragile.groups, fragile.plan) == ((), Plan())
    assert fragile.sentence.startswith("no layer has to stay in float: INT8 has 2")


def test_what_a_plan_names_is_not_changed():
    values, plan = sounds(), Plan("int8", {"MatMul_5": "int8"})
    prepared, ranges = ready(mel(), values[:32])
    fragile = find_fragile(prepared, ranges, open_dataset(values[32:], prepared), plan)
    assert fragile.plan.layers["MatMul_5"] == "int8"


def test_improve_leaves_in_float_what_no_optimization_saves(tmp_path):
    improved = improve(mel(), sounds())
    assert improved.plan.layers["MatMul_5"] == "fp32"
    assert improved.quantized.asked["MatMul_5"] == "fp32"
    assert improved.tries[-1].name == "layers in float"
    for name in ("optimizations", "calibrations"):
        (tmp_path / name).mkdir()
    file, prepared = "optimizations/int8.npz", prepare(load_model(mel()))
    write_improved(tmp_path, file, improved)
    assert read_improved(tmp_path, file, prepared, Plan()).plan == improved.plan


def test_the_command_writes_the_plan(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    values = sounds()
    onnx.save(mel(), "net.onnx")
    np.savez("data.npz", x=values[:32])
    np.savez("test.npz", x=values[32:])
    succeed(capsys, "calibrate", "net.onnx", "--data", "data.npz")
    words = ("plan", "suggest", "net.onnx", "--calibration", "calibration.json", "--data")
    out = succeed(capsys, *words, "test.npz", "-o", "mixed.json")
    assert "layers in float raise INT8 from" in out
    assert read_plan(tmp_path / "mixed.json").layers["MatMul_5"] == "fp32"


@pytest.mark.slow
def test_a_run_compares_the_mixed_plan_unless_that_is_off(tmp_path):
    values = sounds()
    onnx.save(mel(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=values)
    for mixed, variants in (("auto", ["int8-minmax", "int8-mixed"]), ("off", ["int8-minmax"])):
        text = f'model = "net.onnx"\noutput = "{mixed}"\n[calibration]\ndata = "data.npz"\n'
        text += f'methods = ["minmax"]\nimprove = "off"\nmixed = "{mixed}"\n'
        text += '[build]\ntargets = ["cpu"]\n'
        (tmp_path / "trtcal.toml").write_text(text)
        lines = []
        result = trtcal.run(tmp_path / "trtcal.toml", say=lines.append)
        rows = [row["name"] for row in result.report["comparison"]["rows"]]
        assert rows[1:] == variants
        assert any("in float raise INT8" in line for line in lines) == (mixed == "auto")
    assert "MatMul_5" in read_plan(tmp_path / "auto/plans/int8-mixed.json").layers
