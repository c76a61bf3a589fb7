"""Float16 subgraphs: valid, few casts, no overflow, obeyed by a strongly typed compiler."""

import itertools
import random
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import conv_net, rng, samples, save, weight
from tests.fixtures.tables import each
from tests.quantization.towers import feeds_for, towers
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.tensorrt import TensorRTRTX
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.quantization import (
    Plan,
    Rule,
    find_layers,
    plan_of,
    prepare,
    quantize,
    read_plan,
    tensors_to_observe,
    write_plan,
    write_quantized,
)
from trtcal.quantization.fp16 import CAST, split
from trtcal.quantization.qdq import asked_precisions, quantization_record

RTX = TensorRTRTX().availability()
FP16, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def calibrated(path, feeds=None, skip=()):
    model = load_model(path)
    feeds = feeds_for(model) if feeds is None else feeds
    np.savez(path.with_suffix(".npz"), **feeds)
    data = open_dataset(path.with_suffix(".npz"), model)
    prepared = prepare(model, skip)
    tensors = tensors_to_observe(find_layers(prepared))
    return (
        prepared,
        calibrate(observe(prepared, data, tensors, ObserveOptions(batch=2)), "minmax"),
        feeds,
    )


def small(tmp_path, nodes, weights, shape=(4, 8), outputs=None, **options):
    outputs = outputs or {"y": ["n", *shape]}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", *shape]}, outputs, **options)
    return calibrated(path, {"x": rng(1).standard_normal((8, *shape)).astype(np.float32)})


def check_casts(proto):
    """Valid under strict inference; no tensor cast twice to a type, and no cast of a cast of ours."""
    onnx.checker.check_model(proto, full_check=True)
    onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    casts = [node for node in proto.graph.node if node.op_type == "Cast"]
    kinds = [(node.input[0], node.attribute[0].i) for node in casts]
    assert len(set(kinds)) == len(kinds)
    written = {name for node in casts for name in node.output}
    assert written.isdisjoint(name for node in casts for name in node.input)
    return len(casts)


def outputs_of(proto, feeds):
    return run_session(open_session(proto), None, feeds)


def noise(reference, result):
    return max(
        float(np.square(a - b).sum() / np.square(a).sum())
        for a, b in zip(reference, result, strict=True)
    )


def random_plan(model, seed):
    draw = random.Random(seed)  # noqa: S311
    precisions = ("int8", "fp16", "fp32")
    names = [layer.name for layer in find_layers(model).layers]
    named = {name: draw.choice(precisions) for name in names if draw.random() < 0.6}
    return Plan(draw.choice(precisions), named)


def casts_of(side, crossings):
    return sum(
        any((reader in side) != (producer in side) for reader in readers)
        for producer, readers, _ in crossings
    )


@each("seed", range(20))
def test_no_other_split_has_fewer_casts(seed):
    draw = random.Random(seed)  # noqa: S311
    names = [f"n{number}" for number in range(9)]
    fixed = {name: draw.choice(["fp16", "fp32"]) for name in names if draw.random() < 0.4}
    crossings = [
        (name, draw.sample(names[number + 1 :], draw.randint(0, min(3, 8 - number))), CAST)
        for number, name in enumerate(names)
    ]
    free = [name for name in names if name not in fixed]
    pinned = {name for name, precision in fixed.items() if precision == "fp16"}
    fewest = min(
        casts_of(pinned | set(chosen), crossings)
        for count in range(len(free) + 1)
        for chosen in itertools.combinations(free, count)
    )
    sides = [split(fixed, crossings, preferred) & set(names) for preferred in ("fp16", "fp32")]
    assert [casts_of(side, crossings) for side in sides] == [fewest, fewest]
    assert sides[1] <= sides[0]
    assert all(pinned <= side and not side & (set(fixed) - pinned) for side in sides)


@pytest.mark.parametrize("seed", range(0, 24, 6))
def test_mixed_plans_are_valid_and_as_exact_as_their_int8_part(tmp_path, seed):
    model, calibration, feeds = calibrated(towers(tmp_path / "t.onnx", range(seed, seed + 6)))
    quantized = quantize(model, calibration, random_plan(model, seed))
    assert check_casts(quantized.proto) == quantized.fp16_subgraphs.casts
    assert not quantized.skipped
    layers = {name: "int8" for name, got in quantized.asked.items() if got == "int8"}
    alone = quantize(model, calibration, Plan("fp32", layers)).proto
    one = {name: values[:2] for name, values in feeds.items()}
    reference, mixed, int8 = (
        outputs_of(proto, one) for proto in (model.proto, quantized.proto, alone)
    )
    assert noise(reference, mixed) < 1.5 * noise(reference, int8) + 1e-5


def test_an_all_fp16_model_has_a_cast_at_each_end(tmp_path):
    model, calibration, feeds = calibrated(conv_net(tmp_path / "net.onnx"), samples_of(tmp_path))
    quantized = quantize(model, calibration, Plan("fp16"))
    assert set(quantized.asked.values()) == {"fp16"}
    assert check_casts(quantized.proto) == 2
    assert [value.type.tensor_type.elem_type for value in quantized.proto.graph.output] == [FLOAT]
    assert len(quantized.fp16_subgraphs.nodes) == len(model.proto.graph.node)
    assert noise(outputs_of(model.proto, feeds), outputs_of(quantized.proto, feeds)) < 1e-5
    assert quantized.digest == quantize(model, calibration, Plan("fp16")).digest
    write_quantized(tmp_path / "fp16.onnx", quantized)
    assert asked_precisions(onnx.load(tmp_path / "fp16.onnx")) == quantized.asked


def samples_of(tmp_path):
    return {"x": np.load(samples(tmp_path / "data.npz"))["x"]}


def test_int8_layers_of_an_fp16_subgraph_need_no_casts(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), samples_of(tmp_path))
    assert model.opset == 17
    quantized = quantize(model, calibration, Plan("fp16", {"second": "int8", "add": "int8"}))
    assert quantized.asked == {"first": "fp16", "second": "int8", "gemm": "fp16"}
    assert check_casts(quantized.proto) == 2
    values = {one.name: numpy_helper.to_array(one) for one in quantized.proto.graph.initializer}
    pairs = [node for node in quantized.proto.graph.node if "Linear" in node.op_type]
    assert len(pairs) == 3
    assert all(values[node.input[1]].dtype == np.float16 for node in pairs)


def test_an_opset_that_cannot_be_raised_gets_casts_around_its_pairs(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    body = [helper.make_node("Identity", ["a"], ["b"], "same")]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("own", "Same", ["a"], ["b"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.graph.node[-1].output[0] = "y/inner"
    proto.graph.node.append(helper.make_node("Same", ["y/inner"], ["y"], "call", domain="own"))
    onnx.save(proto, tmp_path / "own.onnx")
    model, calibration, feeds = calibrated(
        tmp_path / "own.onnx", samples_of(tmp_path), skip=["functions"]
    )
    quantized = quantize(model, calibration, Plan("fp16", {"second": "int8"}))
    assert quantized.asked == {"first": "fp16", "second": "int8", "gemm": "fp16"}
    assert 2 < check_casts(quantized.proto) <= 5
    assert noise(outputs_of(model.proto, feeds), outputs_of(quantized.proto, feeds)) < 1e-2


def test_what_overflows_stays_in_float32_and_is_named(tmp_path):
    nodes = as_nodes(
        "[up] a = MatMul(x, large)  [relu] b = Relu(a)  [down] c = MatMul(b, tiny)  "
        "[last] y = MatMul(c, w)"
    )
    weights = {"large": weight(8, 8) * 1e5, "tiny": weight(8, 8) * 1e-5, "w": weight(8, 8)}
    weights = {name: values.astype(np.float32) for name, values in weights.items()}
    model, calibration, feeds = small(tmp_path, nodes, weights)
    quantized = quantize(model, calibration, Plan("fp16"))
    assert quantized.asked == {"up": "fp32", "down": "fp32", "last": "fp16"}
    assert "'large' has" in quantized.skipped["up"]
    assert "'b' reached" in quantized.skipped["down"]
    assert "65504" in quantized.skipped["down"]
    assert quantized.fp16_subgraphs.nodes == ("last",)
    assert noise(outputs_of(model.proto, feeds), outputs_of(quantized.proto, feeds)) < 1e-5


def test_a_constant_that_float16_would_make_zero_keeps_its_node_in_float32(tmp_path):
    nodes = as_nodes("[first] a = MatMul(x, w)  [add] b = Add(a, eps)  [second] y = MatMul(b, w)")
    weights = {"w": weight(8, 8), "eps": np.array(1e-12, np.float32)}
    model, calibration, _ = small(tmp_path, nodes, weights)
    quantized = quantize(model, calibration, Plan("fp16", {"add": "fp16"}))
    assert "would be 0" in quantized.skipped["add"]
    assert quantized.asked == {"first": "fp16", "second": "fp16"}


@pytest.mark.parametrize("inside", ["fp16", "fp32"])
def test_a_normalization_that_is_written_out_runs_over_casts(tmp_path, inside):
    """ONNX Runtime 1.32 fuses it to one of two types, and refuses what it made."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
             helper.make_node("ReduceMean", ["a"], ["mean"], "mean", axes=[-1]),
             helper.make_node("Sub", ["a", "mean"], ["b"], "sub"),
             helper.make_node("Pow", ["b", "two"], ["c"], "pow"),
             helper.make_node("ReduceMean", ["c"], ["d"], "variance", axes=[-1]),
             helper.make_node("Add", ["d", "epsilon"], ["e"], "add"),
             helper.make_node("Sqrt", ["e"], ["f"], "sqrt"),
             helper.make_node("Div", ["b", "f"], ["g"], "div"),
             helper.make_node("Mul", ["g", "scale"], ["h"], "mul"),
             helper.make_node("Add", ["h", "bias"], ["i"], "shift"),
             helper.make_node("MatMul", ["i", "w"], ["y"], "last")]  # fmt: skip
    weights = {"w": weight(8, 8), "two": np.array(2, np.float32), "epsilon": np.array(1e-5, np.float32),
               "scale": weight(8), "bias": weight(8, seed=3)}  # fmt: skip
    model, calibration, feeds = small(tmp_path, nodes, weights)
    plan = Plan("fp16", {"first": "fp32"} if inside == "fp16" else {"mul": "fp32", "shift": "fp32"})
    quantized = quantize(model, calibration, plan)
    assert ("mul" in quantized.fp16_subgraphs.nodes) == (inside == "fp16")
    assert noise(outputs_of(model.proto, feeds), outputs_of(quantized.proto, feeds)) < 1e-4


@pytest.mark.parametrize("lengths", [True, False])
def test_a_recurrent_layer_with_lengths_stays_in_float32(tmp_path, lengths):
    """The parser of TensorRT masks its steps with numbers of float32."""
    given = ["n"] if lengths else []
    nodes = [helper.make_node("GRU", ["x", "w", "r", "", *given], ["a"], "cell", hidden_size=8),
             helper.make_node("MatMul", ["a", "v"], ["y"], "last")]  # fmt: skip
    weights = {"w": weight(1, 24, 8), "r": weight(1, 24, 8), "v": weight(8, 8)}
    weights |= {"n": np.full(4, 2, np.int32)} if lengths else {}
    made = small(tmp_path, nodes, weights, (4, 8), {"y": ["n", 1, 4, 8]})
    quantized = quantize(*made[:2], Plan("fp16"))
    assert set(quantized.fp16_subgraphs.nodes) == {"last"} | ({"cell"} if not lengths else set())
    assert ("sequence lengths" in quantized.skipped.get("cell", "")) == lengths
    if RTX.works:
        write_quantized(tmp_path / "q.onnx", quantized)
        build(load_model(tmp_path / "q.onnx"), TensorRTRTX(), BuildOptions("sm89"), tmp_path)


def test_a_cast_after_a_float32_layer_saturates(tmp_path):
    """Without the Clip, TensorRT-RTX 1.7 computes a float32 layer between casts in float16."""
    path = conv_net(tmp_path / "net.onnx")
    model, calibration, _ = calibrated(path, samples_of(tmp_path))
    quantized = quantize(model, calibration, Plan("fp16", {"second": "fp32"}))
    proto = quantized.proto
    readers = {name: node for node in proto.graph.node for name in node.input}
    second = next(node for node in proto.graph.node if node.name == "second")
    assert quantized.asked == {"first": "fp16", "second": "fp32", "gemm": "fp16"}
    assert readers[second.output[0]].op_type == "Clip"
    assert readers[readers[second.output[0]].output[0]].op_type == "Cast"
    values = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    assert [values[name] for name in readers[second.output[0]].input[1:]] == [-65504, 65504]
    if RTX.works:
        write_quantized(tmp_path / "q.onnx", quantized)
        made = build(load_model(tmp_path / "q.onnx"), TensorRTRTX(), BuildOptions("sm89"), tmp_path)
        assert {one.node: one.got for one in made.outcomes} == quantized.asked


def attention(tmp_path):
    nodes = as_nodes(
        "[first] a = MatMul(x, w)  [softmax] b = Softmax(a)  [second] y = MatMul(b, w)"
    )
    return small(tmp_path, nodes, {"w": weight(8, 8)})


@pytest.mark.parametrize(
    ("plan", "fp16"),
    [
        (Plan("fp16"), False),
        (Plan("fp16", {}, (Rule("fp16", "*"),)), False),
        (Plan("fp16", {"softmax": "fp16"}), True),
        (Plan("fp16", {}, (Rule("fp16", op="Softmax"),)), True),
    ],
)
def test_softmax_is_float32_unless_it_is_named(tmp_path, plan, fp16):
    model, calibration, _ = attention(tmp_path)
    quantized = quantize(model, calibration, plan)
    assert ("softmax" in quantized.fp16_subgraphs.nodes) == fp16
    assert check_casts(quantized.proto) == (2 if fp16 else 4)
    assert ("softmax" in quantized.skipped) == (bool(plan.rules) and not fp16)


def test_a_weight_of_both_types_is_stored_in_both_and_small_values_are_counted(tmp_path):
    shared = weight(8, 8)
    shared[0, :3] = [1e-5, -1e-7, 0]
    nodes = as_nodes("[first] a = MatMul(x, w)  [second] y = MatMul(a, w)")
    model, calibration, _ = small(tmp_path, nodes, {"w": shared})
    quantized = quantize(model, calibration, Plan("fp32", {"first": "fp16"}))
    kinds = {one.name: one.data_type for one in quantized.proto.graph.initializer}
    assert kinds == {"w": FLOAT, "w/fp16": FP16}
    assert quantized.fp16_subgraphs.subnormal == {"w": 2}


def test_unknown_ranges_are_said(tmp_path):
    nodes = as_nodes("[first] a = MatMul(x, w)  [div] b = Div(k, a)  [relu] y = Relu(b)")
    weights = {"w": weight(8, 8), "k": np.array(1, np.float32)}
    model, calibration, _ = small(tmp_path, nodes, weights)
    assert quantize(model, calibration, Plan("fp16")).fp16_subgraphs.unknown == ("a", "b", "y")


def test_tensors_that_subgraphs_and_users_read_stay_float32(tmp_path):
    def branch(name, op, tensor):
        value = helper.make_tensor_value_info(f"{name}/out", FLOAT, None)
        return helper.make_graph([helper.make_node(op, [tensor], [value.name])], name, [], [value])

    inner = branch("then", "Neg", "b"), branch("else", "Abs", "b")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("If", ["c"], ["i"], "if", then_branch=inner[0], else_branch=inner[1]),
        helper.make_node("MatMul", ["b", "w"], ["y"], "second"),
    ]
    shapes = {"y": ["n", 4, 8], "i": ["n", 4, 8], "a": ["n", 4, 8]}
    weights = {"w": weight(8, 8), "c": np.array(True)}
    model, calibration, feeds = small(tmp_path, nodes, weights, outputs=shapes)
    quantized = quantize(model, calibration, Plan("fp16"))
    assert quantized.asked == {"first": "fp16", "second": "fp16"}
    check_casts(quantized.proto)
    assert noise(outputs_of(model.proto, feeds), outputs_of(quantized.proto, feeds)) < 1e-5


def test_numbers_computed_from_shapes_stay_exact(tmp_path):
    nodes = as_nodes(
        "[first] a = MatMul(x, w)  [shape] s = Shape(a)  [to_float] f = Cast<to=1>(s)  "
        "[mul] g = Mul(f, one)  [to_int] t = Cast<to=7>(g)  [reshape] y = Reshape(a, t)"
    )
    weights = {"w": weight(8, 8), "one": np.array(1, np.float32)}
    model, calibration, feeds = small(tmp_path, nodes, weights, (2051, 8))
    quantized = quantize(model, calibration, Plan("fp16"))
    assert set(quantized.fp16_subgraphs.nodes) == {"first", "reshape"}
    assert outputs_of(quantized.proto, feeds)[0].shape == (8, 2051, 8)


def test_what_the_plan_keeps_out_of_int8_is_in_the_result_and_in_the_file(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), samples_of(tmp_path))
    plan = Plan("int8", {"first": "fp32"}, (Rule("fp16", op="Gemm", reason="the head"),))
    quantized = quantize(model, calibration, plan)
    assert quantized.excluded == {"first": "name", "gemm": "rule 1 (op 'Gemm'): the head"}
    write_quantized(tmp_path / "mixed.onnx", quantized)
    record = quantization_record(onnx.load(tmp_path / "mixed.onnx"))
    assert record["excluded"] == quantized.excluded


@pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))
@pytest.mark.parametrize("seed", range(0, 60, 12))
def test_mixed_plans_build_strongly_typed_and_are_obeyed(tmp_path, seed):
    model, calibration, _ = calibrated(towers(tmp_path / "t.onnx", range(seed, seed + 12)))
    plan = random_plan(model, seed)
    write_quantized(tmp_path / "mixed.onnx", quantize(model, calibration, plan))
    made = build(load_model(tmp_path / "mixed.onnx"), TensorRTRTX(), BuildOptions("sm89"), tmp_path)
    lost = [one for one in made.outcomes if one.is_lost and "ConvTranspose" not in one.node]
    assert {"int8", "fp16", "fp32"} == {one.asked for one in made.outcomes}
    assert not lost


def test_what_is_not_int8_runs_in_the_plans_rest(tmp_path):
    model, calibration, feeds = calibrated(conv_net(tmp_path / "net.onnx"), samples_of(tmp_path))
    plan = plan_of({"layers": {"gemm": "fp32"}, "rest": "fp16"}, "plan")
    quantized = quantize(model, calibration, plan)
    assert quantized.asked == {"first": "int8", "second": "int8", "gemm": "fp32"}
    ops = {node.name: node.op_type for node in quantized.proto.graph.node}
    halves = {ops[name] for name in quantized.fp16_subgraphs.nodes if name in ops}
    assert {"Conv", "Relu"} <= halves
    assert "Gemm" not in halves
    plain = quantize(model, calibration, replace(plan, rest="fp32"))
    assert not plain.fp16_subgraphs.nodes
    error = noise(outputs_of(plain.proto, feeds), outputs_of(quantized.proto, feeds))
    assert error < 1e-3
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("rest", ["int8", "half"])
def test_another_rest_is_refused(rest):
    with fails(InputError, "rest"):
        Plan(rest=rest)
