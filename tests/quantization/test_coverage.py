"""How much of the compute is in INT8: networks whose share is counted by hand, through the commands."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.calibration.formats.tables import calibration
from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.kinds import KINDS
from tests.fixtures.networks import conv_net, samples, save, weight
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from trtcal.backends.tensorrt import TensorRTRTX
from trtcal.cli.main import run_command
from trtcal.config import Config
from trtcal.errors import InputError
from trtcal.evidence.diagnosis.build_diagnosis import check_build
from trtcal.evidence.manifest import read_build
from trtcal.limits import BROKEN, HOLDS, UNDECIDED, parse_limits
from trtcal.model import load_model
from trtcal.model.work import NodeWork, Work
from trtcal.quantization import Plan, find_layers, prepare, quantize
from trtcal.quantization.coverage import amount, asked_coverage, cover, judge_coverage, percent

STEPS, CHANNELS, HIDDEN, CLASSES = 20, 8, 32, 5
TOKENS, WIDTH, INNER = 12, 16, 64


def recurrent_by_hand(gates):
    """Return the multiply-accumulates in INT8, and those of the cells, for one sample."""
    convolution = 16 * STEPS * CHANNELS * 3
    gemm = CLASSES * HIDDEN
    cells = 2 * STEPS * gates * HIDDEN * (16 + HIDDEN)
    return convolution + gemm, cells


def transformer_by_hand():
    """Return the multiply-accumulates in INT8, and those of the attention, for one sample."""
    projections = TOKENS * WIDTH * 3 * WIDTH
    scores, sums = TOKENS * TOKENS * WIDTH, TOKENS * TOKENS * WIDTH
    return 2 * TOKENS * WIDTH * INNER, projections + scores + sums


NETWORKS = {
    "LSTM": (KINDS["LSTM"].save, recurrent_by_hand(4), (CHANNELS, STEPS)),
    "GRU": (KINDS["GRU"].save, recurrent_by_hand(3), (CHANNELS, STEPS)),
    "transformer": (KINDS["custom operator"].save, transformer_by_hand(), (TOKENS, WIDTH)),
}
REASONS = {
    "LSTM": ("cells", "TensorRT computes it in float"),
    "GRU": ("cells", "TensorRT computes it in float"),
    "transformer": ("attention", "its products are within one operator, where no Q/DQ fit"),
}


def quantized(folder, make, shape):
    """Calibrate and quantize a network by the commands; return what `quantize --json` says."""
    path = make(folder / "net.onnx")
    data = samples(folder / "data.npz", shape=shape)
    ranges = str(folder / "calibration.json")
    assert run_command(["calibrate", str(path), "--data", str(data), "-o", ranges]) == 0
    return ["quantize", str(path), "--calibration", ranges, "-o", str(folder / "int8.onnx")]


@pytest.mark.parametrize("name", NETWORKS)
def test_quantize_names_what_stays_in_float_and_its_share(tmp_path, capsys, name):
    make, (int8, floats), shape = NETWORKS[name]
    command = quantized(tmp_path, make, shape)
    capsys.readouterr()
    assert run_command([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["coverage"]
    assert found["macs"] == int8 + floats
    assert found["share"] == pytest.approx(100 * int8 / (int8 + floats), rel=0.01)
    node, reason = REASONS[name]
    first = found["rest"][0]
    assert (first["node"], first["reason"]) == (node, reason)
    assert first["share"] == pytest.approx(100 * floats / (int8 + floats), rel=0.01)
    assert run_command(command) == 0
    shows(capsys.readouterr().out, f"{percent(found['share'])} of {amount(int8 + floats)}", node)


RTX = TensorRTRTX().availability()
needs_rtx = pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))


@needs_rtx
def test_a_build_says_how_much_of_the_compute_it_runs_in_int8(tmp_path, capsys):
    make, (int8, floats), shape = NETWORKS["LSTM"]
    assert run_command(quantized(tmp_path, make, shape)) == 0
    share = 100 * int8 / (int8 + floats)
    built, folder = str(tmp_path / "int8.onnx"), str(tmp_path / "build")
    command = ["build", built, "--target", "sm89", "-o", folder]
    assert run_command([*command, "--limit", f"int8_macs >= {share - 0.1:.3f}%"]) == 0
    shows(capsys.readouterr().out, f"{percent(share)} of {amount(int8 + floats)}", "cells")
    assert run_command(["diagnose", folder, "--limit", "int8_macs >= 80%"]) == 1
    shows(capsys.readouterr().err, "int8_macs")
    document = json.loads((tmp_path / "build" / "build.json").read_text())
    assert document["coverage"]["share"] == pytest.approx(share, rel=0.01)
    assert document["coverage"]["is_built"]
    before = replace(read_build(tmp_path / "build"), coverage=None)
    for model, known in ((None, None), (load_model(tmp_path / "int8.onnx"), share)):
        found = check_build(before, Config(), model).coverage
        assert (found and found.share) == (known and pytest.approx(known, rel=0.01))


def test_compare_and_report_hold_the_share_to_a_limit_and_warn_under_half(tmp_path, capsys):
    make, _, shape = NETWORKS["GRU"]
    assert run_command(quantized(tmp_path, make, shape)) == 0
    models = [str(tmp_path / "net.onnx"), str(tmp_path / "int8.onnx")]
    data, output = tmp_path / "data.npz", str(tmp_path / "run" / "comparison.json")
    np.savez(data, x=np.load(data)["x"])  # the labels are nobody's answers
    command = ["compare", *models, "--data", str(data), "-o", output]
    assert run_command([*command, "--limit", "int8_macs >= 80%"]) == 1
    assert "int8_macs >= 80.0%" in capsys.readouterr().out
    assert run_command([*command, "--limit", "sqnr_db >= 30"]) == 0
    report = str(tmp_path / "report.html")
    assert run_command(["report", str(tmp_path / "run"), "-o", report]) == 0
    document = json.loads((tmp_path / "report.json").read_text())
    verdict = document["measured"]["verdict"]
    assert document["comparison"]["rows"][1]["coverage"]["rest"][0]["node"] == "cells"
    assert verdict["word"] == "SHIP WITH CARE", verdict["sentence"]
    assert any("cells" in one for one in verdict["reasons"])


@SLOW
@needs_rtx
def test_a_run_holds_its_variants_to_the_share_and_not_the_reference(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz", count=64)
    (tmp_path / "trtcal.toml").write_text(
        'model = "net.onnx"\noutput = "run"\nlimits = ["sqnr_db >= 1", "int8_macs >= 90%"]\n'
        '[calibration]\ndata = "data.npz"\nmethods = ["minmax"]\n'
        '[evaluation]\ndata = "data.npz"\n[build]\ntargets = ["sm89"]\n'
    )
    run_command(["run", "trtcal.toml"])
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    judged = {
        (build["model_name"], one["state"])
        for build in report["builds"]
        for one in report["measured"]["builds"][build["digest"]]["diagnosis"]["limits"]
        if one["metric"] == "int8_macs"
    }
    assert judged == {("int8-minmax", HOLDS)}
    shares = {build["model_name"]: build["coverage"]["share"] for build in report["builds"]}
    assert shares == {"net": 0.0, "int8-minmax": 100.0, "fp16": 0.0}


def test_all_of_a_network_of_convolutions_can_run_in_int8(tmp_path, capsys):
    command = quantized(tmp_path, conv_net, (3, 8, 8))
    assert run_command(command) == 0
    by_hand = 64 * 8 * 3 * 9 + 64 * 8 * 8 * 9 + 5 * 8
    found = asked_coverage(load_model(tmp_path / "int8.onnx"))
    assert (found.macs, found.int8_macs, found.share) == (by_hand, by_hand, 100.0)
    shows(capsys.readouterr().out, "INT8")


def test_open_sizes_are_those_that_quantize_recorded_of_the_data(tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv")
    shapes = {"x": ["n", 3, "h", "w"]}, {"y": ["n", 4, "h", "w"]}
    path = save(tmp_path / "net.onnx", [node], {"w": weight(4, 3, 1, 1)}, *shapes)
    proto = onnx.load(path)
    least, median, most = [1, 3, 8, 8], [1, 3, 10, 20], [1, 3, 32, 32]
    record = json.dumps({"sizes": {"x": [least, median, most], "z": 3, "bad": [1, 2, 3]}})
    proto.metadata_props.add(key="trtcal.quantization", value=record)
    found = asked_coverage(load_model(proto))
    assert (found.macs, found.assumed) == (4 * 3 * 200, ())
    assert asked_coverage(load_model(proto), {"x": (1, 3, 5, 5)}).macs == 4 * 3 * 25


WORK = Work(
    (
        NodeWork("conv", "Conv", 600, 10, "conv"),
        NodeWork("loop/product", "MatMul", 300, 10, "loop", "Loop 'loop'", 3),
        NodeWork("lost", "Gemm", 100, 10, "lost"),
        NodeWork("odd", "plug.in::Odd", None, 40, "odd"),
        NodeWork("relu", "Relu", 0, 30, "relu"),
    ),
    {"x": (1, 3)},
)


def test_bodies_plug_ins_and_unknown_precisions_are_said():
    got = {"conv": "int8", "product": "int8", "lost": "unknown"}
    found = cover(WORK, got, {"lost": "not in the layer list"}, is_built=True)
    assert (found.share, found.moved_bytes, found.int8_bytes) == (60.0, 100, 10)
    assert found.proportion == "60 % of 1 kMAC run in INT8, of 10 % it is not known"
    assert [(one.node, one.reason) for one in found.rest] == [
        ("loop/product", "it is in Loop 'loop', and trtcal places Q/DQ in the main graph only"),
        ("lost", "not in the layer list"),
    ]
    assert [one.node for one in found.uncounted] == ["odd"]
    assert any(line.startswith("not counted: odd (plug.in::Odd") for line in found.details())


@each(
    "limit, state",
    [
        ("int8_macs >= 60%", HOLDS),
        ("int8_macs >= 65%", UNDECIDED),
        ("int8_macs >= 70%", UNDECIDED),
        ("int8_macs >= 70.1%", BROKEN),
        ("int8_macs <= 70%", HOLDS),
    ],
)
def test_the_share_is_judged_with_what_is_not_known(limit, state):
    found = cover(WORK, {"conv": "int8", "lost": "unknown"}, {})
    (judged,) = judge_coverage(parse_limits([limit]), found)
    assert judged.state == state


def test_without_a_count_no_limit_holds():
    nothing = cover(Work((), {}), {}, {})
    for found in (None, nothing):
        (judged,) = judge_coverage(parse_limits(["int8_macs >= 0%"]), found)
        assert judged.state == UNDECIDED
        assert judged.reason


@pytest.mark.parametrize(
    ("precision", "says"),
    [
        ("fp8", "can run in FP8"),
        ("int4", "have weights in INT4"),
        ("nvfp4", "have weights in NVFP4"),
    ],
)
def test_what_is_in_another_narrow_precision_is_counted_and_is_not_the_rest(
    tmp_path, precision, says
):
    nodes = as_nodes("[large] a = MatMul(x, w)  [small] y = MatMul(a, v)")
    weights = {"w": weight(128, 8), "v": weight(8, 2)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 128]}, {"y": ["n", 2]})
    model = prepare(load_model(path))
    ranges = calibration({"x": 1.0, "a": 1.0}, model=model.fingerprint)
    plan = Plan("fp32", {"large": precision})
    coverage = asked_coverage(load_model(quantize(model, ranges, plan).proto))
    assert coverage.narrow_macs == {precision: 128 * 8}
    assert coverage.proportion == f"98.5 % of 1.04 kMAC {says}"
    assert [one.node for one in coverage.rest] == ["small"]
    assert not coverage.is_low


def test_shares_of_all_formats_are_said_and_the_rest_is_named_by_them():
    got = {"conv": "fp8", "lost": "int4"}
    found = cover(WORK, got, {}, is_built=True)
    assert found.share == 0
    assert found.formats == found.narrow_macs
    assert found.narrow_share == sum(found.shares.values())
    assert found.proportion == "60 % of 1 kMAC run in FP8, 10 % have weights in INT4"
    alone = cover(WORK, {"conv": "fp8"}, {}, is_built=True)
    assert any(line.startswith("10 % not in FP8: lost (") for line in alone.details())
    none = cover(WORK, {}, {}, is_built=True)
    assert none.proportion == "0 % of 1 kMAC run in a narrow format"
    assert not any("INT8" in line for line in (none.proportion, *none.details()))


def test_a_limit_on_narrow_formats_holds_where_one_on_int8_is_broken():
    found = cover(WORK, {"conv": "fp8", "lost": "int4"}, {}, is_built=True)
    limits = parse_limits(["int8_macs >= 50%", "narrow_macs >= 50%"])
    assert [one.state for one in judge_coverage(limits, found)] == ["broken", "holds"]
    assert [one.figure.value for one in judge_coverage(limits, found)] == [0.0, 70.0]
    assert {one.state for one in judge_coverage(limits, None)} == {"undecided"}


def test_a_network_whose_products_are_in_a_body_has_nothing_to_quantize_and_says_so(tmp_path):
    graph = onnx.parser.parse_graph(
        "g (float[n,8] x) => (float[n,8] y) { y = Loop(trip, on, x) <body = b (int64 i, bool c, "
        "float[n,8] s) => (bool d, float[n,8] t) { d = Identity(c) t = MatMul(s, w) }> }"
    )
    graph.node[0].name = "recurrence"
    values = {"trip": np.array(3), "on": np.array(True), "w": np.eye(8, dtype=np.float32)}
    graph.initializer.extend(onnx.numpy_helper.from_array(v, name) for name, v in values.items())
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "n.onnx")
    with fails(InputError, "Loop", "recurrence", hint="trtcal build MODEL.onnx"):
        find_layers(prepare(load_model(tmp_path / "n.onnx")))
