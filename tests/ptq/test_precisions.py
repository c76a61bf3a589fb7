"""`--improve` for plans of other precisions than INT8: FP8, INT4 and NVFP4."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.commands import run, shows, succeed
from tests.fixtures.fails import fails
from tests.fixtures.networks import rng, samples
from tests.fixtures.tables import each
from tests.ptq.nets import wide_net
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.evaluate.judging import Judge
from trtcal.evaluate.replay import silent
from trtcal.formats import FORMATS, NARROW
from trtcal.model.graph import constant, import_graph
from trtcal.model.model import Grid, Overrides
from trtcal.ptq.adaptive_rounding import nearest_steps, rounded_steps
from trtcal.ptq.artifact import Optimizations, read_optimizations, write_optimizations
from trtcal.ptq.changes import Changes
from trtcal.ptq.improver import improve
from trtcal.ptq.optimizations import ImproveOptions
from trtcal.quantization import Plan, quantize
from trtcal.quantization.weights import nearest

MIXED = Plan("int4", {"product": "fp8"})


@pytest.fixture
def net(subject):
    return subject(wide_net, count=96)


def improved(net, plan):
    return improve(net.prepared, net.dataset, ImproveOptions("best", plan=plan), silent)


def lost(net, quantized, folder):
    """Return the noise on samples that nothing was fitted to, in dB."""
    images = rng(10).standard_normal((64, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "others.npz", x=images)
    with Judge(net.prepared, open_dataset(folder / "others.npz", net.given)) as judge:
        return judge.measure(quantized.proto).value


@pytest.mark.parametrize(
    ("plan", "gain"),
    [(Plan("int4", block_size=64), 4.0), (Plan("nvfp4"), 4.0), (Plan("fp8"), 0.5), (MIXED, 0.5)],
)
def test_rounding_by_the_outputs_loses_less_on_other_samples_and_can_be_read_back(
    net, plan, gain, tmp_path
):
    found = improved(net, plan)
    assert found.tries[0].name == ("ranges: auto" if plan.ranged else "nearest weights")
    assert "adaptive rounding" in {one.name for one in found.tries if one.kept}
    plain = quantize(net.prepared, net.calibrated() if plan.ranged else None, plan)
    assert found.quantized.asked == plain.asked
    assert lost(net, found.quantized, tmp_path) < lost(net, plain, tmp_path) - gain
    write_optimizations(tmp_path / "optimizations.npz", found.optimizations)
    model = read_optimizations(tmp_path / "optimizations.npz").apply(net.prepared)
    again = quantize(model, found.calibration if plan.ranged else None, plan)
    assert not again.unused
    assert again.proto.graph == found.quantized.proto.graph


def test_optimizations_for_another_precision_or_block_size_are_not_used_and_named(net):
    found = improved(net, Plan("int4"))
    model = found.optimizations.apply(net.prepared)
    for plan, reason in [
        (Plan("nvfp4"), "its optimizations are for int4, not nvfp4"),
        (Plan("int4", {"product": "fp32"}, block_size=64), "are not in blocks of 64"),
    ]:
        quantized = quantize(model, None, plan)
        assert "gemm" in quantized.unused
        assert all(reason in why for why in quantized.unused.values())
        plain = quantize(replace(model, overrides=Overrides()), None, plan)
        assert quantized.proto.graph == plain.proto.graph


def test_fp16_of_a_plan_changes_nothing_of_what_is_found(net):
    floats = improved(net, Plan("int4", {"gemm": "fp32"}))
    halves = improved(net, Plan("int4", {"gemm": "fp16"}, rest="fp16"))
    assert floats.optimizations.overrides.weights.keys() == {"product"}
    assert [one.value for one in floats.tries] == [one.value for one in halves.tries]


def test_a_plan_that_quantizes_nothing_is_refused(net):
    with fails(InputError, "plan"):
        improved(net, Plan("fp16"))


@each("name", NARROW)
def test_rounded_weights_are_on_the_grid_and_weigh_errors_by_the_inputs(name):
    kind, draw = FORMATS[name], rng(3)
    x = draw.standard_normal((2000, 5)) @ draw.standard_normal((5, 32))
    gram = (x.T @ x / len(x)).astype(np.float32)[None]
    weights = draw.standard_normal((1, 8, 32)).astype(np.float32)
    scales = np.full((1, 8, 32), 3.0 / kind.top, np.float32)
    scales[..., 16:] *= 0.5  # as of another block
    steps = rounded_steps(weights, scales, gram, kind)
    assert np.array_equal(nearest_steps(steps, kind), steps)
    errors = [
        float(np.square((found * scales - weights)[0] @ x.T).mean())
        for found in (steps, nearest_steps(weights / scales, kind))
    ]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize(("precision", "byte", "name"), [("int5", 0, "int5"), ("fp8", 0x7F, "fp8")])
def test_files_with_unknown_precisions_or_nan_are_refused(net, tmp_path, precision, byte, name):
    path = tmp_path / "optimizations.npz"
    write_optimizations(path, improved(net, Plan("nvfp4")).optimizations)
    arrays = dict(np.load(path))
    header = json.loads(str(arrays["header"]))
    header["precisions"] = dict.fromkeys(header["precisions"], precision)
    arrays["header"] = np.array(json.dumps(header))
    arrays["weights/0"] = np.full_like(arrays["weights/0"], byte)
    np.savez(path, **arrays)
    with fails(InputError, name):
        read_optimizations(path)


def blocked(size):
    def change(grid):
        rows, columns = grid.values.shape
        return Grid(grid.values, np.ones((rows // size, columns), np.float32))

    return change


def scaled(make):
    return lambda grid: Grid(grid.values, np.asarray(make(grid.scale), np.float32))


BROKEN = {
    "scales along the other axis": scaled(np.transpose),
    "scales that do not divide the weights": scaled(lambda one: np.ones((5, one.shape[1]))),
    "one scale": scaled(lambda one: 1.0),
    "no scales": scaled(lambda one: one[:0]),
    "negative scales": scaled(np.negative),
    "scales of zero": scaled(np.zeros_like),
    "other weights": lambda grid: Grid(grid.values[:64], grid.scale[:1]),
    "no weights": lambda grid: Grid(grid.values[:0], grid.scale[:0]),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_weights_that_are_not_those_of_a_layer_are_refused(net, tmp_path, broken):
    path, whole = tmp_path / "optimizations.npz", weights_in_blocks(net)
    made = replace(
        whole, overrides=replace(whole.overrides, weights=changed(whole, BROKEN[broken]))
    )
    write_optimizations(path, made)
    with fails(InputError, "product"):
        read_optimizations(path).apply(net.prepared)


def test_blocks_of_any_size_that_divides_the_weights_are_taken(net):
    whole = weights_in_blocks(net)
    for size in (16, 32, 64):
        overrides = replace(whole.overrides, weights=changed(whole, blocked(size)))
        assert replace(whole, overrides=overrides).apply(net.prepared)


@pytest.mark.parametrize("kind", ["weights", "biases", "precisions"])
def test_optimizations_of_a_layer_that_the_model_lacks_are_refused(net, kind):
    whole = weights_in_blocks(net)
    grid = whole.overrides.weights["product"]
    values = {"weights": grid, "biases": np.ones(8, np.float32), "precisions": "int4"}
    more = {**getattr(whole.overrides, kind), "nowhere": values[kind]}
    made = replace(whole, overrides=replace(whole.overrides, **{kind: more}))
    with fails(InputError, "nowhere"):
        made.apply(net.prepared)


def weights_in_blocks(net):
    """Return optimizations that give the product of a network its nearest INT4 weights."""
    graph = import_graph(net.prepared.proto)
    (node,) = [one for one in graph.nodes if one.name == "product"]
    grid = nearest(constant(node.inputs[1]), "int4", 0, 64)
    overrides = Overrides({"product": grid}, {}, frozenset(), {"product": "int4"})
    return Optimizations(net.prepared.fingerprint, Changes({}, {}, (), frozenset()), overrides, {})


def changed(whole, change):
    return {"product": change(whole.overrides.weights["product"])}


def test_the_command_needs_no_ranges_for_weights_and_writes_none(tmp_path, capsys):
    model, data = wide_net(tmp_path / "net.onnx"), samples(tmp_path / "data.npz", count=48)
    output, again = tmp_path / "int4.onnx", tmp_path / "again.onnx"
    chosen = ("quantize", model, "--precision", "int4", "-o")
    out = succeed(capsys, *chosen, output, "--improve", "best", "--data", data)
    shows(out, "adaptive rounding")
    assert not (tmp_path / "int4.calibration.json").exists()
    given = ("--optimizations", tmp_path / "int4.optimizations.npz")
    succeed(capsys, *chosen, again, *given)
    assert again.read_bytes() == output.read_bytes()
    status, _, err = run(capsys, "quantize", model, *given, "--precision", "nvfp4", "-o", again)
    assert status == 0
    shows(err, "gemm", "int4")
    floats = ("--improve", "fast", "--data", data, "--float-output", tmp_path / "float.onnx")
    status, _, err = run(capsys, *chosen, again, *floats)
    assert status == 2
    shows(err, "--float-output")
