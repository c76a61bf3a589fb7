"""What TensorRT 8 gets of a model: no axes as inputs, float16 at the border alone, the same outputs."""

import numpy as np
import onnx
import pytest

from tests.fixtures.zoo_net import Net
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.weakly_typed import for_tensorrt_8, kept_in_float32
from trtcal.model import load_model
from trtcal.model.graph import import_graph
from trtcal.quantization import Plan, find_layers, prepare, quantize, tensors_to_observe
from trtcal.quantization.qdq import fp16_tensors
from trtcal.ranges import Calibration, TensorRange


def averaging(half=False):
    """Return a convolution, a normalization, a mean over the places, and a matrix."""
    net = Net(half=half, x=["n", 3, 8, 8])
    a = net.relu(net.conv("conv", "x", (8, 3, 3, 3)))
    a = net.add("Softmax", a, name="soft", axis=1)
    a = net.add("ReduceMean", a, name="mean", axes=[2, 3], keepdims=0)
    return net.done(net.gemm("head", a, 4, 8))


def of_opset_18(proto):
    """Return a model in the opset that has axes as inputs."""
    proto.opset_import[0].version = 18
    for node in proto.graph.node:
        for axes in [one for one in node.attribute if one.name == "axes"]:
            node.attribute.remove(axes)
            values = onnx.numpy_helper.from_array(np.array(axes.ints), "axes")
            proto.graph.initializer.append(values)
            node.input.append("axes")
    onnx.checker.check_model(proto)
    return proto


def prepared(tmp_path, net):
    onnx.save(of_opset_18(net.proto()), tmp_path / "model.onnx")
    return prepare(load_model(tmp_path / "model.onnx"))


def quantized(model, plan):
    tensors = tensors_to_observe(find_layers(model))
    ranges = {name: TensorRange(4.0, 4.0, 0.0) for name in tensors}
    empty = Calibration("minmax", {}, model.fingerprint, "", 1, "", ranges, {})
    return quantize(model, empty, plan).proto


def outputs(proto, net):
    """Run a model; ONNX Runtime takes axes as attributes in opset 17 only."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    if any("axes" in (one.name for one in node.attribute) for node in proto.graph.node):
        copy.opset_import[0].version = 17
    return run_session(open_session(copy, as_it_is=True), None, net.samples(6))[0]


def test_axes_become_an_attribute_and_the_outputs_stay(tmp_path):
    net = averaging()
    proto = prepared(tmp_path, net).proto
    made = for_tensorrt_8(proto)
    (mean,) = (node for node in import_graph(made).nodes if node.op == "ReduceMean")
    assert (mean.attrs["axes"], len(mean.inputs)) == ([2, 3], 1)
    np.testing.assert_array_equal(outputs(made, net), outputs(proto, net))


def test_a_model_without_any_of_it_stays_as_it_is(tmp_path):
    net = Net(x=["n", 3, 8, 8])
    proto = prepared(tmp_path, net.done(net.conv("conv", "x", (8, 3, 3, 3)))).proto
    assert for_tensorrt_8(proto) is proto


@pytest.mark.parametrize("plan", [Plan("fp16"), Plan("fp16", {"conv": "int8"})])
def test_float16_is_widened_with_its_scales_and_casts(tmp_path, plan):
    net = averaging()
    proto = quantized(prepared(tmp_path, net), plan)
    assert fp16_tensors(proto.graph)
    made = for_tensorrt_8(proto)
    assert not fp16_tensors(made.graph)
    casts = [node for node in made.graph.node if node.op_type == "Cast"]
    assert all(node.output[0] in {one.name for one in made.graph.output} for node in casts)
    np.testing.assert_allclose(outputs(made, net), outputs(proto, net), rtol=0.05, atol=0.05)


def test_inputs_and_outputs_keep_their_types(tmp_path):
    net = averaging(half=True)
    proto = prepared(tmp_path, net).proto
    made = for_tensorrt_8(proto)
    for side in ("input", "output"):
        before, after = (
            {one.name: one.type.tensor_type.elem_type for one in getattr(model.graph, side)}
            for model in (proto, made)
        )
        assert before == after
    inside = fp16_tensors(made.graph) - {
        one.name for one in (*made.graph.input, *made.graph.output)
    }
    assert not inside
    np.testing.assert_allclose(outputs(made, net), outputs(proto, net), rtol=0.01, atol=0.01)


def test_what_a_plan_leaves_in_float32_is_named(tmp_path):
    model = prepared(tmp_path, averaging())
    found = kept_in_float32(quantized(model, Plan("fp16", {"head": "fp32"})))
    assert found["head"] == "fp32"
    assert "conv" not in found
    assert kept_in_float32(model.proto) == {}
