"""A layer's rows times its matrix are what the layer computes."""

import numpy as np
import onnx
import pytest

from tests.fixtures.networks import rng
from tests.fixtures.zoo import ZOO
from trtcal.backends.taps import Inside
from trtcal.model import load_model
from trtcal.model.graph import constant, import_graph
from trtcal.ptq.layer_inputs import matrix_form
from trtcal.quantization import find_layers, prepare
from trtcal.quantization.weighted_ops import bias_of

NAMES = (
    *("conv1d", "conv2d", "conv3d", "dilated", "padded_unevenly", "depthwise", "grouped"),
    *("depth_multiplied", "gemm", "gemm_upright", "matmul2d", "matmul3d", "residual"),
    "encoder_layer",
)


@pytest.mark.parametrize("name", NAMES)
def test_rows_times_matrix_are_the_output(name, tmp_path):
    onnx.save(ZOO[name].make().proto(), tmp_path / "net.onnx")
    model = prepare(load_model(tmp_path / "net.onnx"))
    graph = import_graph(model.proto)
    layers = {one.name: one for one in find_layers(model).layers}
    found = [
        (node, form)
        for node in graph.nodes
        if node.name in layers and (form := matrix_form(node, layers[node.name]))
    ]
    assert found
    names = {tensor.name for node, _ in found for tensor in (node.inputs[0], node.outputs[0])}
    values = Inside(model.proto, sorted(names)).read(ZOO[name].make().samples(3))
    for node, form in found:
        x, made = values[node.inputs[0].name], values[node.outputs[0].name]
        axis = 1 if node.op == "Conv" else -1
        outputs = np.moveaxis(made, axis, -1).reshape(-1, made.shape[axis])
        chosen = np.sort(rng().choice(form.row_count(x), min(20, form.row_count(x)), replace=False))
        rows = form.rows(x, chosen)
        product = (rows @ form.matrix(constant(node.inputs[1])).transpose(0, 2, 1)).transpose(
            1, 0, 2
        )
        bias = bias_of(node).values if node.op != "MatMul" else 0.0
        assert form.row_count(x) == len(outputs)
        expected = outputs[chosen]
        np.testing.assert_allclose(
            product.reshape(len(chosen), -1) + bias, expected, rtol=1e-3, atol=1e-4
        )


def test_a_matrix_gives_its_weight_back():
    graph = import_graph(ZOO["gemm_upright"].make().proto())
    (node, *_) = [one for one in graph.nodes if one.op == "Gemm"]
    from trtcal.quantization.placement import place

    layer = {one.name: one for one in place(graph).layers}[node.name]
    weight = constant(node.inputs[1])
    form = matrix_form(node, layer)
    assert np.array_equal(form.weight(form.matrix(weight)), weight)
