"""Changes that optimizations make in a model in float, and the model with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import numpy_helper

from trtcal.errors import InputError
from trtcal.model.graph import GraphWriter, constant, export_model, import_graph, is_op
from trtcal.model.model import Floats
from trtcal.ptq.channels import weight_axes
from trtcal.ptq.compensation import own_bias
from trtcal.quantization.placement import place
from trtcal.quantization.weighted_ops import Layer

HOW_TO_MAKE = "make them with `trtcal quantize --improve`"

Bounds = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Changes:
    """What is changed in a model in float: `constants` are initializers that have other values.

    `bounds` are by name the Relus and Clips that limit to other values, as (least, largest); `affines`
    the tensors that layers read through a Mul and an Add of their own; `moved` the tensors whose values
    differ because of all this, outputs of layers with other weights included. Each is equal to itself
    only.
    """

    constants: Mapping[str, Floats] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    affines: tuple[str, ...] = ()
    moved: frozenset[str] = frozenset()

    def of(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return a model with the changes; `InputError` if they do not fit."""
        proto = with_constants(with_affines(proto, self.affines), self.constants)
        return with_bounds(proto, self.bounds)

    def then(self, others: Changes) -> Changes:
        """Return these changes with others after them."""
        return Changes(
            {**self.constants, **others.constants},
            {**self.bounds, **others.bounds},
            (*self.affines, *others.affines),
            self.moved | others.moved,
        )


def with_constants(proto: onnx.ModelProto, constants: Mapping[str, Floats]) -> onnx.ModelProto:
    """Return a model with other values for some initializers; `InputError` if they do not fit."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    left = dict(constants)
    for initializer in changed.graph.initializer:
        if (array := left.pop(initializer.name, None)) is None:
            continue
        form = tuple(initializer.dims), initializer.data_type
        if form != (array.shape, onnx.TensorProto.FLOAT):
            raise InputError(
                f"the optimizations do not fit the constant {initializer.name!r}", HOW_TO_MAKE
            )
        initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))
    if left:
        raise missing(f"constant {min(left)!r}")
    return changed


def with_bounds(proto: onnx.ModelProto, bounds: Mapping[str, Bounds]) -> onnx.ModelProto:
    """Return a model in which some Relus and Clips, by name, are Clips with other bounds.

    `InputError` if one of them is something else.
    """
    if not bounds:
        return proto
    graph = import_graph(proto)
    writer, left = GraphWriter(graph), dict(bounds)
    for node in graph.nodes:
        if node.name not in left:
            continue
        if not is_op(node, "Relu", "Clip"):
            raise InputError(
                f"the optimizations do not fit {node.name!r}, a {node.op}", HOW_TO_MAKE
            )
        least, largest = left.pop(node.name)
        ends = {"least": least, "largest": largest} if largest < np.inf else {"least": least}
        inputs = [
            writer.new_constant(f"{node.name}/{end}", np.array(value, np.float32))
            for end, value in ends.items()
        ]
        node.op, node.inputs = "Clip", [node.inputs[0], *inputs]
    if left:
        raise missing(f"node {min(left)!r}")
    return export_model(graph, proto)


def with_affines(proto: onnx.ModelProto, tensors: Collection[str]) -> onnx.ModelProto:
    """Return a model in which layers read tensors through a Mul by ones, and an Add of zeros.

    The Add is there if all these layers have biases, which can compensate it. `InputError` if the
    model has no such tensor, or no such layer.
    """
    if not tensors:
        return proto
    graph = import_graph(proto)
    layers = {layer.name: layer for layer in place(graph).layers}
    known = graph.tensors()
    writer = GraphWriter(graph)
    for name in tensors:
        readers = affine_readers(known[name], layers) if name in known else []
        if not readers:
            raise missing(f"layers that read {name!r}")
        channels = _channels(readers[0], known[name])
        affine = _put(writer, "Mul", known[name], np.ones(channels, np.float32))
        if all(own_bias(node) is not None for node in readers):
            affine = _put(writer, "Add", affine, np.zeros(channels, np.float32))
        for node in readers:
            node.inputs[0] = affine
    return export_model(graph, proto)


def affine_readers(tensor: gs.Tensor, layers: Mapping[str, Layer]) -> list[gs.Node]:
    """Return the MatMuls and Gemms that multiply a tensor with weights of their own, as INT8 would."""
    return [node for node in tensor.outputs if node.name in layers and _channels(node, tensor)]


def _channels(node: gs.Node, tensor: gs.Tensor) -> int:
    """Return how many channels of a tensor a node multiplies with weights of its own, 0 if not so."""
    if not is_op(node, "MatMul", "Gemm") or node.inputs[0] is not tensor:
        return 0
    weight, axes = constant(node.inputs[1]), weight_axes(node)
    if weight is None or weight.dtype != np.float32 or axes is None:
        return 0
    return int(weight.shape[axes[1]]) if len(node.inputs[1].outputs) == 1 else 0


def _put(writer: GraphWriter, op: str, tensor: gs.Tensor, values: Floats) -> gs.Variable:
    """Put an operator with a constant behind a tensor, and return its output."""
    name = f"{tensor.name}/{op.lower()}"
    output = writer.new_variable(f"{name}/output", tensor.dtype, tensor)
    inputs = [tensor, writer.new_constant(f"{name}/values", values)]
    return writer.new_node(op, name, inputs, output)


def missing(what: str) -> InputError:
    """Return the error that a model lacks what optimizations change."""
    return InputError(f"the model has no {what}, which the optimizations change", HOW_TO_MAKE)
