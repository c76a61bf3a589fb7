"""Models in float16, whole or inside: Q/DQ take their values with float16 scales, from opset 19 on."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import conv_net, rng, samples, save, weight
from tests.fixtures.tables import each
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.tensorrt import TensorRTRTX
from trtcal.calibration import calibrate, observe
from trtcal.cli.main import run_command
from trtcal.data import open_dataset
from trtcal.model import load_model
from trtcal.quantization import (
    Plan,
    find_layers,
    prepare,
    quantize,
    tensors_to_observe,
    write_quantized,
)
from trtcal.quantization.qdq import asked_precisions
from trtcal.quantization.weights import as_scale, quantize_weight

FP16, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
RTX = TensorRTRTX().availability()
KINDS = ["whole", "inside"]


def halved(proto, kind):
    """Return a float32 model with float16 weights: with float16 inputs too, or Casts around it."""
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    if kind == "whole":
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.elem_type = FP16
        return proto
    for node in proto.graph.node:
        node.input[:] = ["x/fp16" if name == "x" else name for name in node.input]
        node.output[:] = ["y/fp16" if name == "y" else name for name in node.output]
    proto.graph.node.insert(0, helper.make_node("Cast", ["x"], ["x/fp16"], "down", to=FP16))
    proto.graph.node.append(helper.make_node("Cast", ["y/fp16"], ["y"], "up", to=FLOAT))
    return proto


def fp16_net(tmp_path, kind):
    path = tmp_path / f"{kind}.onnx"
    onnx.save(halved(onnx.load(conv_net(tmp_path / "net.onnx")), kind), path)
    return path


def data_for(tmp_path, kind):
    path = samples(tmp_path / "data.npz")
    if kind == "whole":
        np.savez(path, x=np.load(path)["x"].astype(np.float16))
    return path


def calibrated(tmp_path, kind):
    model = load_model(fp16_net(tmp_path, kind))
    data = open_dataset(data_for(tmp_path, kind), model)
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    return prepared, calibrate(observe(prepared, data, tensors), "minmax"), data


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_have_scales_of_their_tensors_type(tmp_path, kind):
    model, calibration, _ = calibrated(tmp_path, kind)
    assert (model.opset, model.proto.ir_version) == (19, 9)
    quantized = quantize(model, calibration)
    assert quantized.asked == {"first": "int8", "second": "int8", "gemm": "int8"}
    assert quantized.skipped == {}
    onnx.checker.check_model(quantized.proto, full_check=True)
    values = {one.name: numpy_helper.to_array(one) for one in quantized.proto.graph.initializer}
    pairs = [node for node in quantized.proto.graph.node if "Linear" in node.op_type]
    assert len(pairs) == 9
    for node in pairs:
        assert values[node.input[1]].dtype == np.float16
        assert (values[node.input[1]] > 0).all()
        assert values[node.input[2]].dtype == np.int8


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_close_to_those_of_the_fp16_model(tmp_path, kind):
    model, calibration, data = calibrated(tmp_path, kind)
    feeds = next(data.batches(24))
    given = onnx.load(tmp_path / f"{kind}.onnx")
    ours = quantize(model, calibration).proto
    reference, prepared, result = (
        run_session(open_session(proto), None, feeds)[0].astype(np.float64)
        for proto in (given, model.proto, ours)
    )
    np.testing.assert_allclose(prepared, reference, rtol=2e-3, atol=2e-3)
    assert np.square(result - reference).sum() / np.square(reference).sum() < 10 ** (-25 / 10)


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_are_those_of_the_float32_model_but_for_rounding(tmp_path, kind):
    _, calibration, _ = calibrated(tmp_path, kind)
    single = load_model(conv_net(tmp_path / "net.onnx"))
    data = open_dataset(samples(tmp_path / "data.npz"), single)
    prepared = prepare(single)
    tensors = tensors_to_observe(find_layers(prepared))
    exact = calibrate(observe(prepared, data, tensors), "minmax")
    renamed = {"x": "x/fp16" if kind == "inside" else "x"}
    for name, item in exact.ranges.items():
        found = calibration.ranges[renamed.get(name, name)]
        assert found.amax == pytest.approx(item.amax, rel=5e-3)


def test_fp16_weights_may_stay_in_their_file(tmp_path):
    path = fp16_net(tmp_path, "whole")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin")
    data = open_dataset(data_for(tmp_path, "whole"), load_model(path))
    made = []
    for embedded in (0, 1 << 20):
        prepared = prepare(load_model(path, embedded))
        outside = [one.name for one in prepared.proto.graph.initializer if one.external_data]
        assert outside == ([] if embedded else ["w2"])
        tensors = tensors_to_observe(find_layers(prepared))
        calibration = calibrate(observe(prepared, data, tensors), "minmax")
        made.append(quantize(prepared, calibration).digest)
    assert made[0] == made[1]


def test_what_a_plan_leaves_is_asked_in_fp16(tmp_path):
    model, calibration, _ = calibrated(tmp_path, "whole")
    quantized = quantize(model, calibration, Plan(layers={"second": "fp32", "add": "fp32"}))
    assert quantized.asked == {"first": "int8", "second": "fp16", "gemm": "int8"}
    write_quantized(tmp_path / "mixed.onnx", quantized)
    assert asked_precisions(onnx.load(tmp_path / "mixed.onnx")) == quantized.asked


def test_float32_and_float16_layers_live_in_one_model(tmp_path):
    nodes = as_nodes(
        "[fp16] h = Cast<to=10>(x)  [product] m = MatMul(h, h)  [back] y = Cast<to=1>(m)  "
        "[single] z = MatMul(x, w)"
    )
    shapes = {"x": ["n", 4, 4]}, {"y": ["n", 4, 4], "z": ["n", 4, 4]}
    model = load_model(save(tmp_path / "n.onnx", nodes, {"w": weight(4, 4)}, *shapes))
    data = open_dataset(samples(tmp_path / "data.npz", shape=(4, 4)), model)
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    quantized = quantize(prepared, calibrate(observe(prepared, data, tensors), "minmax"))
    assert quantized.asked == {"product": "int8", "single": "int8"}
    values = {one.name: numpy_helper.to_array(one) for one in quantized.proto.graph.initializer}
    assert values["h/scale"].dtype == np.float16
    assert values["x/scale"].dtype == values["w/scale"].dtype == np.float32
    run_session(open_session(quantized.proto), None, next(data.batches(2)))


def test_layers_of_an_opset_that_cannot_be_raised_are_left_alone(tmp_path):
    proto = halved(onnx.load(conv_net(tmp_path / "net.onnx")), "whole")
    call = helper.make_node("Same", ["y/inner"], ["y"], "call", domain="own")
    body = [helper.make_node("Identity", ["a"], ["b"], "same")]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("own", "Same", ["a"], ["b"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.graph.node[-1].output[0] = "y/inner"
    proto.graph.node.append(call)
    proto.graph.node.append(helper.make_node("Cast", ["x"], ["f32"], "single", to=FLOAT))
    proto.graph.node.append(helper.make_node("Conv", ["f32", "v"], ["z"], "float"))
    proto.graph.initializer.append(numpy_helper.from_array(weight(2, 3, 3, 3), "v"))
    proto.graph.output.append(helper.make_tensor_value_info("z", FLOAT, ["n", 2, 6, 6]))
    onnx.save(proto, tmp_path / "own.onnx")
    prepared = prepare(load_model(tmp_path / "own.onnx"), skip=["functions"])
    assert prepared.opset == 17
    placement = find_layers(prepared)
    assert [layer.name for layer in placement.layers] == ["float"]
    assert set(placement.refused) == {"first", "second", "gemm"}
    assert "opset 19" in placement.refused["first"]


def test_batch_norm_is_folded_in_float32(tmp_path):
    draw = rng(3)
    parameters = {
        "gamma": draw.uniform(0.5, 2, 6),
        "beta": draw.standard_normal(6),
        "mean": draw.uniform(100, 200, 6),
        "var": draw.uniform(300, 3000, 6),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("BatchNormalization", ["a", *parameters], ["y"], "bn"),
    ]
    weights = {"w": weight(6, 3, 3, 3) * np.float32(30)}
    weights |= {name: array.astype(np.float32) for name, array in parameters.items()}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 6, 6]})
    onnx.save(halved(onnx.load(path), "whole"), path)
    proto = prepare(load_model(path)).proto
    assert [node.op_type for node in proto.graph.node] == ["Conv"]
    gamma, beta, mean, var = (
        weights[name].astype(np.float16).astype(np.float32) for name in parameters
    )
    bias = next(one for one in proto.graph.initializer if one.name == "bn/bias")
    exact = (beta - mean * (gamma / np.sqrt(var + 1e-5))).astype(np.float16)
    np.testing.assert_array_equal(numpy_helper.to_array(bias), exact)
    images = {"x": rng(8).standard_normal((4, 3, 8, 8)).astype(np.float16)}
    before, after = (
        run_session(open_session(one), None, images)[0] for one in (onnx.load(path), proto)
    )
    np.testing.assert_allclose(after, before, rtol=5e-3, atol=5e-3)


def test_a_fold_that_would_overflow_is_not_made(tmp_path):
    nodes = as_nodes("[conv] a = Conv(x, w)  [mul] y = Mul(a, k)")
    weights = {"w": weight(6, 3, 3, 3) + 200, "k": np.full(1, 1000, np.float32)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 6, 6]})
    onnx.save(halved(onnx.load(path), "whole"), path)
    prepared = prepare(load_model(path))
    assert [node.op_type for node in prepared.proto.graph.node] == ["Conv", "Mul"]


@each("exact", [1e-9, 2.0**-24, 3.3e-8, 1.7e-5, 0.1, 1.0, 512.3, 65504.0])
def test_fp16_scales_are_the_next_that_are_not_smaller(exact):
    scale = as_scale(exact, np.float16)
    assert scale.dtype == np.float16
    assert float(scale) >= exact
    below = np.nextafter(scale, np.float16(0))
    assert below == 0 or float(below) < exact
    assert as_scale(1e9, np.float16) == np.float16(65504)
    assert as_scale(exact, np.float32) == np.float32(exact)


@each("factor", [1.0, 1e-2, 1e-4, 1e-6])
def test_fp16_weights_round_trip_within_a_step(factor):
    values = (weight(5, 4, 3, 3) * factor).astype(np.float16)
    values[2] = 0
    steps, scale = quantize_weight(values, 0)
    assert scale.dtype == np.float16
    assert (scale > 0).all()
    wide = scale.astype(np.float64).reshape(-1, 1, 1, 1)
    assert (np.abs(steps * wide - values) < wide).all()
    assert not steps[2].any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_takes_fp16_models(tmp_path, capsys, kind):
    path, data = fp16_net(tmp_path, kind), data_for(tmp_path, kind)
    ranges, output = str(tmp_path / "ranges.json"), str(tmp_path / "int8.onnx")
    assert run_command(["calibrate", str(path), "--data", str(data), "-o", ranges]) == 0
    assert run_command(["quantize", str(path), "--calibration", ranges, "-o", output]) == 0
    assert "100 %" in capsys.readouterr().out


@pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))
@pytest.mark.parametrize("kind", KINDS)
def test_tensorrt_rtx_computes_them_in_int8(tmp_path, kind):
    model, calibration, _ = calibrated(tmp_path, kind)
    write_quantized(
        tmp_path / "int8.onnx", quantize(model, calibration, Plan("int8", {"gemm": "fp32"}))
    )
    made = build(load_model(tmp_path / "int8.onnx"), TensorRTRTX(), BuildOptions("sm89"), tmp_path)
    got = {outcome.node: (outcome.asked, outcome.got) for outcome in made.outcomes}
    assert got == {"first": ("int8", "int8"), "second": ("int8", "int8"), "gemm": ("fp16", "fp16")}
