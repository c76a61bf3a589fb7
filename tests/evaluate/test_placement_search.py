"""Placement by trial, on a stand-in compiler with a known best answer and on TensorRT-RTX."""

import json
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from tests.fixtures.quantized import calibrated
from tests.fixtures.slow import SLOW
from tests.networks import conv_net, samples, save, weight
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.backends.sessions import open_session, run_session
from trtcal.cli.main import run_command
from trtcal.errors import BackendError
from trtcal.evaluate.placement_search import SECOND_QDQ, Measured, tune_placement
from trtcal.evaluate.placement_search import compiler as real_compiler
from trtcal.quantization import Plan, quantize

RTX = BACKENDS["tensorrt-rtx"].availability()
needs_rtx = pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))


def light_net(path):
    """Two poolings with strides beside a convolution, and a residual Add."""
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first"),
        helper.make_node("Conv", ["a", "w2"], ["b"], "second"),
        helper.make_node("Add", ["b", "a"], ["c"], "add"),
        helper.make_node("Conv", ["c", "w2"], ["d"], "third"),
        helper.make_node("AveragePool", ["c"], ["p"], "pool1", **pool),
        helper.make_node("AveragePool", ["d"], ["q"], "pool2", **pool),
        helper.make_node("Add", ["p", "q"], ["y"], "sum"),
    ]
    weights = {"w1": weight(4, 3, 1, 1), "w2": weight(4, 4, 1, 1)}
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 4, 4, 4]})


def compiler(costs, built):
    """Cost by the light nodes that read a DequantizeLinear; None is a build that fails."""

    def measure(quantized):
        pairs = {n.output[0] for n in quantized.proto.graph.node if n.op_type[0] == "D"}
        names = {"add", "pool1", "pool2"}
        found = [n for n in quantized.proto.graph.node if n.name in names]
        quick = frozenset(node.name for node in found if pairs & set(node.input))
        built.append(quick)
        if costs.get(quick, 100) is None:
            raise BackendError("it crashed", None)
        return Measured(0, costs.get(quick, 100), ())

    return measure


def tuned(tmp_path, costs, plan=None, seconds=60.0):
    model, calibration, _ = calibrated(light_net(tmp_path / "net.onnx"), tmp_path)
    built = []
    measure = compiler(costs, built)
    result = tune_placement(model, calibration, plan or Plan(), measure, seconds)
    return result, built, quantize(model, calibration, result.plan)


def test_the_best_of_kinds_and_nodes_is_kept(tmp_path):
    costs = {frozenset({"add"}): 50, frozenset({"add", "pool1"}): 40, frozenset(): 60}
    result, built, _ = tuned(tmp_path, costs)
    assert built[0] == {"add"}
    assert result.plan.layers == {"pool1": "int8"}
    assert [trial.nodes for trial in result.trials if trial.kept] == [("pool1",)]
    assert result.untried == 0


def test_a_residual_that_costs_more_quantized_goes_to_float(tmp_path):
    result, _, best = tuned(tmp_path, {frozenset({"add"}): 50, frozenset(): 30})
    assert result.plan.layers == {"add": "fp32"}
    assert "a" in next(node for node in best.proto.graph.node if node.name == "add").input


def test_what_the_plan_decides_is_not_tried(tmp_path):
    plan = Plan(layers={"add": "int8", "pool1": "fp32"})
    result, built, _ = tuned(tmp_path, {frozenset(): 1}, plan)
    assert result.plan == plan
    assert set(built) == {frozenset({"add"})}


def test_a_variant_that_does_not_build_is_not_kept(tmp_path):
    result, _, _ = tuned(tmp_path, {frozenset({"add"}): 50, frozenset(): None})
    failed = next(trial for trial in result.trials if trial.nodes == ("add",))
    assert (failed.kept, failed.after, failed.reason) == (False, None, "it crashed")


def test_without_time_nothing_is_tried(tmp_path):
    result, built, _ = tuned(tmp_path, {frozenset(): 1}, seconds=-1.0)
    assert len(built) == 1
    assert result.untried > 0
    assert result.plan == Plan()


def measured(bytes_moved, layers=0, waits=0, float_heavy=0):
    listed = [("layer", "kgen", "fp32", 1)] * layers + [("wait", "wait", "unknown", 0)] * waits
    return Measured(float_heavy, bytes_moved, tuple(listed))


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (measured(2000, 9), measured(1000, 1, float_heavy=1)),
        (measured(9980, 9), measured(10000, 1)),
        (measured(10009, 1, 9), measured(10000, 2)),
        (measured(10009, 2, 1), measured(10000, 2, 2)),
        (measured(10000, 2), measured(10001, 2)),
    ],
    ids=["heavy in float", "bytes", "kernels", "layers", "bytes at last"],
)
def test_what_is_better(better, worse):
    assert better.is_better(worse, worse.bytes_moved)
    assert not worse.is_better(better, min(better.bytes_moved, worse.bytes_moved))


def test_bytes_do_not_creep_up_by_little_at_a_time():
    before, after = measured(10009, 5), measured(10018, 4)
    assert not after.is_better(before, 10000)


POOL = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}
HALVED = {"kernel_shape": [1, 1], "strides": [2, 2]}


def joined():
    """A reduction of Inception: two convolutions and a MaxPool, joined for two readers."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("MaxPool", ["b"], ["p"], "pool", **POOL),
        helper.make_node("Conv", ["b", "v"], ["c"], "second", **HALVED),
        helper.make_node("Relu", ["c"], ["d"], "relu2"),
        helper.make_node("Conv", ["b", "v2"], ["e"], "third", **HALVED),
        helper.make_node("Relu", ["e"], ["f"], "relu3"),
        helper.make_node("Concat", ["d", "f", "p"], ["g"], "concat", axis=1),
        helper.make_node("Conv", ["g", "u"], ["y"], "fourth"),
        helper.make_node("Conv", ["g", "u2"], ["z"], "fifth"),
    ]
    weights = {
        "w": weight(16, 3, 1, 1),
        "u": weight(8, 48, 1, 1),
        "u2": weight(8, 48, 1, 1, seed=1),
    }
    weights |= {"v": weight(16, 16, 1, 1) / 20, "v2": weight(16, 16, 1, 1, seed=1) / 20}
    return nodes, weights, {"y": [1, 8, 8, 8], "z": [1, 8, 8, 8]}


def shuffled():
    """The head of ShuffleNet: a MaxPool for groups of six channels, and for an average in float."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first"),
        helper.make_node("MaxPool", ["a"], ["p"], "pool", **POOL),
        helper.make_node("Conv", ["p", "v"], ["b"], "grouped", group=4, **HALVED),
        helper.make_node("AveragePool", ["p"], ["q"], "average", **POOL),
        helper.make_node("Add", ["b", "q"], ["y"], "add"),
    ]
    return nodes, {"w": weight(24, 3, 1, 1), "v": weight(24, 6, 1, 1)}, {"y": [1, 24, 4, 4]}


@SLOW
@needs_rtx
@pytest.mark.parametrize(
    ("make", "node", "fewer"), [(joined, "concat", 2), (shuffled, "grouped", 1)]
)
def test_a_second_pair_spares_kernels_and_changes_no_value(
    tmp_path, monkeypatch, make, node, fewer
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    nodes, weights, outputs = make()
    path = save(tmp_path / "net.onnx", nodes, weights, {"x": [1, 3, 16, 16]}, outputs)
    model, calibration, data = calibrated(path, tmp_path, shape=(3, 16, 16))
    measure = real_compiler(BACKENDS["tensorrt-rtx"], BuildOptions("sm89"), model)
    tuned = tune_placement(model, calibration, Plan(), measure)
    assert tuned.plan.second_qdq == (node,)
    trial = next(one for one in tuned.trials if one.kept and one.precision == SECOND_QDQ)
    assert len(trial.before.layers) - len(trial.after.layers) == fewer
    assert trial.after.bytes_moved <= trial.before.bytes_moved + 16
    plans = [replace(tuned.plan, second_qdq=()), tuned.plan]
    plain, second = (quantize(model, calibration, plan).proto for plan in plans)
    pairs = [sum(one.op_type == "QuantizeLinear" for one in p.graph.node) for p in (plain, second)]
    assert pairs[1] == pairs[0] + 1
    feeds = next(data.batches(1))
    results = [
        run_session(open_session(one, as_it_is=True), None, feeds) for one in (plain, second)
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@needs_rtx
def test_the_command_tries_on_the_compiler_once_and_remembers(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    net = conv_net(tmp_path / "net.onnx")
    data = samples(tmp_path / "data.npz")
    ranges = str(tmp_path / "calibration.json")
    assert run_command(["calibrate", str(net), "--data", str(data), "-o", ranges]) == 0
    words = ["quantize", str(net), "--calibration", ranges, "--tune-placement", "sm89", "-o"]
    assert run_command([*words, str(tmp_path / "a.onnx")]) == 0
    remembered = sorted((tmp_path / "cache" / "trtcal" / "placement").iterdir())
    times = [path.stat().st_mtime_ns for path in remembered]
    assert run_command([*words, str(tmp_path / "b.onnx")]) == 0
    assert [path.stat().st_mtime_ns for path in remembered] == times
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    trials = json.loads((tmp_path / "a.placement.json").read_text())["trials"]
    assert trials
    for trial in trials:
        sizes = [size for _, _, _, size in trial["before"]["layers"]]
        assert trial["before"]["bytes_moved"] == np.sum(sizes) > 0
    capsys.readouterr()
    plan = ["--plan", str(tmp_path / "a.plan.json"), "-o", str(tmp_path / "c.onnx")]
    assert run_command([*words[:4], *plan]) == 0
    assert (tmp_path / "c.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes()
