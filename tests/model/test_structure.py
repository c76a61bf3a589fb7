"""What two networks share that differ in nothing but their weights and names."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.fixtures.kinds import KINDS
from tests.fixtures.networks import conv_net
from trtcal.model.structure import structure_of


def test_weights_and_names_have_no_part_in_it(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    first = structure_of(proto)
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(values + 1, tensor.name))
    for node in proto.graph.node:
        node.name = f"renamed {node.name}"
        for names in (node.input, node.output):
            names[:] = [name if name in ("x", "y") else f"{name}_2" for name in names]
    for tensor in proto.graph.initializer:
        tensor.name += "_2"
    assert structure_of(proto) == first


def wider(proto):
    tensor = proto.graph.initializer[0]
    values = np.repeat(numpy_helper.to_array(tensor), 2, axis=0)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def strided(proto):
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("strides", [2, 2]))


def crossed(proto):
    node = next(one for one in proto.graph.node if one.op_type == "Add")
    node.input[1] = node.input[0]


def another(proto):
    next(one for one in proto.graph.node if one.op_type == "Relu").op_type = "Tanh"


@pytest.mark.parametrize("change", [wider, strided, crossed, another])
def test_what_is_computed_has(tmp_path, change):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    first = structure_of(proto)
    change(proto)
    assert structure_of(proto) != first


def test_bodies_have_a_part_in_it(tmp_path):
    protos = [onnx.load(KINDS["If"].save(tmp_path / "net.onnx")) for _ in range(2)]
    assert structure_of(protos[0]) == structure_of(protos[1])
    (node,) = (one for one in protos[1].graph.node if one.op_type == "If")
    node.attribute[0].g.node[0].op_type = "Mul"
    assert structure_of(protos[0]) != structure_of(protos[1])
