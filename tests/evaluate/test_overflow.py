"""What float16 is too small for: measured, named with its cure, and never shipped."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.commands import refused, run, shows, succeed
from tests.fixtures.graphs import as_nodes
from tests.fixtures.kinds import KINDS
from tests.fixtures.networks import save
from tests.fixtures.overflow import CASES, HARMLESS, in_float16, overflow_net, rows
from tests.fixtures.slow import SLOW, slow_but
from trtcal.backends.sessions import run_session
from trtcal.data import open_dataset
from trtcal.evaluate import overflow
from trtcal.evaluate.comparison import Comparison
from trtcal.evaluate.overflow import find_overflow, tensor_peaks
from trtcal.evaluate.variant_limits import judge_variants
from trtcal.limits import BROKEN, overall
from trtcal.model import load_model
from trtcal.quantization import Plan, Rule, prepare, quantize
from trtcal.quantization.qdq import without_ranges
from trtcal.reporting.verdict import judge

RMS = '"layers": {"square": "fp32", "mean": "fp32", "root": "fp32"}'


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    rows(tmp_path / "test.npz")
    return tmp_path


def found(path, source):
    model = load_model(path)
    return find_overflow(model, open_dataset("test.npz", load_model(source)))


def everything(proto):
    return Plan("fp16", {node.name: "fp16" for node in proto.graph.node})


@pytest.mark.parametrize("name", CASES)
def test_the_first_node_that_overflows_is_named_and_the_cure_cures(name, place):
    source = overflow_net(place / "net.onnx", name)
    (finding,) = found(in_float16(place / "half.onnx", source), source)
    first, reader = CASES[name][1]
    assert (finding.kind, finding.subject, finding.cost.risk) == ("fp16_overflow", first, "high")
    cure = json.loads(finding.fix[finding.fix.index("[") :])
    assert {first, reader} <= {*cure} < {node.name for node in onnx.load(source).graph.node}
    assert found(in_float16(place / "cured.onnx", source, cure), source) == ()


def test_only_the_batch_that_overflows_is_run_again(place, monkeypatch):
    source = overflow_net(place / "net.onnx", "weights")
    x = 1e-3 * np.load("test.npz")["x"]
    x[40] *= 1e4
    np.savez("test.npz", x=x)
    half, runs = in_float16(place / "half.onnx", source), []

    def counted(session, outputs, feeds):
        runs.append("outputs" if outputs == ["y"] else "peaks")
        return run_session(session, outputs, feeds)

    monkeypatch.setattr(overflow, "run_session", counted)
    (finding,) = found(half, source)
    assert "the outputs change on 1.562 % of the samples" in finding.what
    without, together, alone = 1, 1, len(finding.evidence)  # of one batch
    assert runs == ["peaks"] * 4 + ["outputs"] * (without + together + alone)


@pytest.mark.parametrize("name", CASES)
def test_what_is_measured_to_overflow_stays_in_float32(name, place):
    source = overflow_net(place / "net.onnx", name)
    model = prepare(load_model(source))
    peaks = tensor_peaks(model, open_dataset("test.npz", model))
    known = replace(without_ranges(model), peaks=peaks)
    quantized = quantize(model, known, everything(model.proto))
    assert {*CASES[name][1]} <= {*quantized.skipped}
    assert quantized.fp16_subgraphs.unknown == ()
    onnx.save(quantized.proto, "kept.onnx")
    assert found("kept.onnx", source) == ()
    del peaks[
        next(node.output[0] for node in model.proto.graph.node if node.name == CASES[name][1][0])
    ]
    known = replace(known, peaks=peaks)  # what was not measured is not taken for small
    assert (
        "not measured" in quantize(model, known, everything(model.proto)).skipped[CASES[name][1][0]]
    )


@pytest.mark.parametrize("name", HARMLESS)
def test_an_overflow_that_no_output_shows_is_none(name, place):
    source = overflow_net(place / "net.onnx", name)
    model = load_model(source)
    peaks = tensor_peaks(model, open_dataset("test.npz", model))
    assert name == "plain" or max(peaks.values()) > 65504
    assert found(in_float16(place / "half.onnx", source), source) == ()


def test_the_peak_of_a_tensor_with_infinite_values_is_that_of_the_finite_ones(place):
    nodes = """[in] a = Gemm<transB = 1>(x, big) [square] b = Mul(a, a) [act] r = Relu(a)
        [log] i = Log(r) [mask] m = Add(b, i) [p] y = Softmax(m)"""
    model = load_model(overflow_net(place / "net.onnx", nodes))
    peaks = tensor_peaks(model, open_dataset("test.npz", model))
    assert 65504 < peaks["m"] <= peaks["b"] + 20


def test_the_peaks_of_a_model_without_an_axis_for_samples_are_those_of_all_samples(place):
    nodes = as_nodes("a = Mul(x, x)  y = Sigmoid(a)")
    model = load_model(save(place / "net.onnx", nodes, {}, {"x": [16]}, {"y": [16]}))
    highest = np.abs(np.load("test.npz")["x"]).max()
    peaks = tensor_peaks(model, open_dataset("test.npz", model))
    assert (peaks["x"], peaks["a"]) == (highest, highest * highest)


def test_the_squares_under_a_root_overflow_too(place):
    nodes = (
        "[in] a = Gemm<transB = 1>(x, big) [norm] b = ReduceL2<axes = [1]>(a) [scale] y = Div(a, b)"
    )
    source = overflow_net(place / "net.onnx", nodes)
    (finding,) = found(in_float16(place / "half.onnx", source), source)
    assert finding.subject == "norm"
    assert found(in_float16(place / "cured.onnx", source, ["norm", "scale"]), source) == ()


RUNNABLE = [name for name in KINDS if name not in ("unknown operator", "states")]


@pytest.mark.parametrize("name", slow_but(RUNNABLE, "BERT", "detector with NMS"))
def test_networks_of_all_kinds_give_no_false_alarm(name, place):
    kind = KINDS[name]
    model = load_model(kind.save(place / "net.onnx"))
    np.savez("data.npz", **kind.make(np.random.default_rng(0), 8))
    data, prepared = open_dataset("data.npz", model), prepare(model)
    ops = sorted({node.op_type for node in prepared.proto.graph.node})
    plan = Plan("fp16", rules=tuple(Rule("fp16", op=op, optional=True) for op in ops))
    assert find_overflow(load_model(quantize(prepared, None, plan).proto), data) == ()


def test_no_command_ships_an_overflow_and_each_names_node_and_cure(place, capsys):
    source = overflow_net(place / "net.onnx", "rms")
    in_float16(place / "half.onnx", source)
    data = ("--data", "test.npz", "--limit", "sqnr_db >= -1000")
    cure = '["square", "mean", "root"]'
    for words in (("compare", "--rounds", 2), ("ab",)):
        command, *options = words
        status, out, err = run(capsys, command, source, "half.onnx", *data, *options)
        assert status == 1
        assert cure in out
        assert "square" in out + err
    verdict = judge(Comparison.read("comparison.json"))
    assert (verdict.word, cure in verdict.sentence) == ("DO NOT SHIP", True)
    test = json.loads((place / "ab.json").read_text())["measured"]["verdict"]
    assert (test["word"], cure in test["sentence"]) == ("DO NOT SHIP", True)
    succeed(capsys, "build", "half.onnx", "--target", "cpu", "-o", "built")
    status, out, _ = run(capsys, "compare", source, "built", *data, "--rounds", 2)
    assert (status, cure in out) == (1, True)
    (place / "b.log").write_text("[W] [TRT] Detected layernorm nodes in FP16: /ln/ReduceMean\n")
    out = succeed(
        capsys, "diagnose", "--model", "half.onnx", "--data", "test.npz", "--log", "b.log"
    )
    assert cure in out
    assert out.count("fp16_overflow") == 1  # the line of the log joins it
    alone = succeed(capsys, "diagnose", "--log", "b.log")
    assert "fp16_overflow: Detected layernorm nodes" in alone


def test_the_plan_line_that_is_printed_cures(place, capsys):
    source = overflow_net(place / "net.onnx", "rms")
    plan = everything(onnx.load(source))
    (place / "plan.json").write_text(json.dumps({"default": "fp16", "layers": plan.layers}))
    blind = run(capsys, "quantize", source, "--plan", "plan.json", "-o", "blind.onnx")
    assert "fp16_overflow" in blind[2]  # nothing is measured, and that is said
    shown = run(capsys, "compare", source, "blind.onnx", "--data", "test.npz", "--rounds", 2)
    assert (shown[0], RMS in shown[1]) == (1, True)
    pasted = json.loads(f"{{{RMS}}}")["layers"]
    cured = {"default": "fp16", "layers": plan.layers | pasted}
    (place / "plan.json").write_text(json.dumps(cured))
    succeed(capsys, "quantize", source, "--plan", "plan.json", "-o", "cured.onnx")
    succeed(capsys, "ab", source, "cured.onnx", "--data", "test.npz", "--limit", "sqnr_db >= 20")
    (place / "plan.json").write_text(json.dumps({"default": "fp16", "layers": plan.layers}))
    out = succeed(
        capsys, "quantize", source, "--plan", "plan.json", "--data", "test.npz", "-o", "seen.onnx"
    )
    assert "square: the plan asks for fp16, it stays in fp32: tensor 'b' reached" in out
    succeed(capsys, "ab", source, "seen.onnx", "--data", "test.npz", "--limit", "sqnr_db >= 20")


def test_values_near_the_end_of_float16_are_a_warning(place, capsys):
    source = overflow_net(place / "net.onnx", "weights")
    rows(place / "test.npz", scale=0.4)
    in_float16(place / "half.onnx", source)
    data = ("--data", "test.npz", "--limit", "sqnr_db >= 20")
    out = succeed(capsys, "ab", source, "half.onnx", *data)
    assert "SHIP WITH CARE" in out
    assert "'in' (Gemm) comes near the end of float16" in out


def mostly_small(path, seed, largest):
    """Save samples of x of which a quarter has values that are larger by a factor."""
    rows(path, seed, scale=0.1)
    x = np.load(path)["x"]
    x[::4] *= largest
    np.savez(path, x=x)


@SLOW
def test_a_run_whose_evaluation_data_reach_farther_does_not_ship(place, capsys):
    source = overflow_net(place / "net.onnx", "rms")
    mostly_small(place / "test.npz", 7, largest=10)
    rows(place / "small.npz", scale=0.1)
    layers = json.dumps(everything(onnx.load(source)).layers).replace(":", " =")
    (place / "trtcal.toml").write_text(f"""\
model = "net.onnx"
output = "run"
limits = ["sqnr_db >= 30"]
[calibration]
data = "small.npz"
methods = ["minmax"]
improve = "off"
[evaluation]
data = "test.npz"
[build]
targets = ["cpu"]
[plans.narrow]
default = "fp16"
layers = {layers}
""")
    printed = refused(capsys, "run", "trtcal.toml", status=1)
    assert "DO NOT SHIP" in printed
    page = (place / "run" / "report.html").read_text(encoding="utf-8")
    assert "square" in page
    assert "fp16_overflow" in page
    mostly_small(place / "small.npz", 8, largest=12)
    assert run(capsys, "run", "trtcal.toml")[0] == 0


def test_samples_whose_outputs_are_not_finite_are_counted(place, capsys):
    source = overflow_net(place / "net.onnx", "plain")
    proto = onnx.load(source)
    (head,) = (node for node in proto.graph.node if node.name == "head")
    head.output[0] = "scores"
    huge = numpy_helper.from_array(np.array([0.0] * 15 + [np.inf], np.float32), "huge")
    proto.graph.initializer.append(huge)
    proto.graph.node.append(helper.make_node("Relu", ["x"], ["kept"], "kept"))
    proto.graph.node.append(helper.make_node("Mul", ["kept", "huge"], ["none"], "none"))
    proto.graph.node.append(helper.make_node("Add", ["scores", "none"], ["y"], "last"))
    onnx.save(proto, "nan.onnx")
    (place / "same.onnx").write_bytes(source.read_bytes())
    data = ("--data", "test.npz", "--limit", "sqnr_db >= -1000")
    refused(capsys, "compare", source, "nan.onnx", "same.onnx", *data, "--rounds", 2, status=1)
    comparison = Comparison.read("comparison.json")
    states = {name: overall(limits) for name, limits in judge_variants(comparison).items()}
    assert states["nan"] == BROKEN != states["same"]
    assert [row.findings for row in comparison.rows if row.name != "nan"] == [(), ()]
    assert "on 64 of 64 samples" in comparison.rows[1].findings[0].what
    refused(capsys, "ab", source, "nan.onnx", *data, status=1)
    assert "infinite_output" in (place / "ab.json").read_text()
    err = refused(capsys, "ab", "nan.onnx", "same.onnx", "--reference", source, *data)
    shows(err, "A nan")


def rounding_casts(path, source, tensors):
    """Put a Cast to float16 and one back behind some tensors of a float32 model."""
    proto = onnx.load(source)
    nodes = [*proto.graph.node]
    del proto.graph.node[:]
    for node in nodes:
        node.input[:] = [f"{name} wide" if name in tensors else name for name in node.input]
        proto.graph.node.append(node)
        for name in tensors & {*node.output}:
            pair = (name, f"{name} half", TensorProto.FLOAT16), (f"{name} half", f"{name} wide", 1)
            casts = (helper.make_node("Cast", [a], [b], b, to=kind) for a, b, kind in pair)
            proto.graph.node.extend(casts)
    onnx.save(proto, path)
    return path


def test_casts_between_float32_nodes_are_named_and_can_be_removed(place, capsys):
    source = overflow_net(place / "net.onnx", "rms")
    (finding,) = found(rounding_casts(place / "casts.onnx", source, {"a", "b"}), source)
    assert 'Cast nodes, which round to float16 between float32 nodes: ["b half", "b wide"]' in (
        finding.fix
    )
    assert found(rounding_casts(place / "cured.onnx", source, {"a"}), source) == ()
    refused(
        capsys,
        "ab",
        source,
        "casts.onnx",
        "--data",
        "test.npz",
        "--limit",
        "sqnr_db >= 20",
        status=1,
    )


def test_a_node_that_is_float16_in_the_model_is_no_matter_of_a_plan(place, capsys):
    source = overflow_net(place / "net.onnx", "rms")
    in_float16(place / "half.onnx", source)
    proto = onnx.load("half.onnx")
    for node in proto.graph.node:  # another converter's names
        for names in (node.input, node.output):
            names[:] = [name.replace("/fp16", ".half") for name in names]
    for constant in proto.graph.initializer:
        constant.name = constant.name.replace("/fp16", ".half")
    del proto.graph.value_info[:]
    onnx.save(proto, "half.onnx")
    (place / "plan.json").write_text(json.dumps({"layers": {"square": "fp32"}, "default": "fp16"}))
    words = ("quantize", "half.onnx", "--plan", "plan.json", "--data", "test.npz", "-o", "q.onnx")
    status, _, err = run(capsys, *words)
    assert (status, "stays so: square" in err) == (0, True)
    (finding,) = found("q.onnx", source)
    assert finding.fix.startswith("Convert the model again from float32")


def test_a_reference_that_overflows_is_named(place, capsys):
    source = overflow_net(
        place / "net.onnx",
        "[in] a = Gemm<transB = 1>(x, big) [square] b = Mul(a, a) [p] y = Neg(b)",
    )
    in_float16(place / "half.onnx", source)
    data = ("--data", "test.npz", "--limit", "sqnr_db >= 20")
    for words in (("ab",), ("compare", "--rounds", 2)):
        err = refused(capsys, words[0], "half.onnx", source, *data, *words[1:])
        assert "half: output 'y' has NaN" in err
        assert "`trtcal diagnose --model half.onnx --data test.npz`" in err


def test_the_cure_is_the_hint_and_nothing_else_is_looked_for(place, capsys):
    source = overflow_net(
        place / "net.onnx",
        "[in] a = Gemm<transB = 1>(x, big) [square] b = Mul(a, a) [p] y = Neg(b)",
    )
    in_float16(place / "half.onnx", source)
    data = ("--data", "test.npz", "--limit", "sqnr_db >= -1000")
    for words in (("ab",), ("compare", "--rounds", 2)):
        status, out, err = run(capsys, words[0], source, "half.onnx", *data, *words[1:])
        assert (status, "hint: Convert the model again" in err) == (1, True)
        assert "infinite_output" in out
        assert "find what overflows" not in out + err
