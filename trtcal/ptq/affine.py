"""A Mul and an Add by channel, put before layers that read what can't be scaled where it is made.

A GELU bends its values, and what a LayerNorm makes goes into a residual addition too: no constant
before could make up for a scale. With factors and addends of their own the layers behind can, and
TensorRT computes both in the kernel that quantizes what they read (seen on TensorRT-RTX 1.7). With
factors of 1 and addends of 0, as they are put here, a network computes the same.
Source: G. Xiao et al., "SmoothQuant" (2023), section 4, where no LayerNorm can take the factors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.errors import InputError
from trtcal.model import unique
from trtcal.model.graph import constant, export_model, import_graph, is_op, node_names, tensor_names
from trtcal.model.ops import QUANTIZES
from trtcal.ptq.channel_rules import find_channels, weight_axes
from trtcal.ptq.shifts import addend, own_bias, takers
from trtcal.quantization.placement import Placement, place
from trtcal.quantization.weighted_ops import Layer

HINT = "make them with `trtcal quantize --improve`"


def affine_places(graph: gs.Graph, placement: Placement) -> list[str]:
    """Return the tensors that layers could read by a Mul and an Add of their own, in graph order.

    Not those that can be scaled and shifted where they are made, and none that a product of two
    activations reads: a fused attention takes nothing between.
    """
    channels = find_channels(graph)
    free = channels.is_free()
    layers = {one.name: one for one in placement.layers}
    readers: dict[str, set[str]] = {}
    for layer in (*placement.layers, *placement.light):
        for name in layer.activations.values():
            readers.setdefault(name, set()).add(layer.name)
    found = []
    for name, tensor in graph.tensors().items():
        if not _is_bent(tensor) or name not in readers:
            continue
        if {node.name for node in readers_of(tensor, layers)} != readers[name]:
            continue
        _, ids = channels.of.get(name, (0, np.empty(0, np.int64)))
        movable = addend(tensor) is not None and takers(tensor, graph, layers) is not None
        if not (movable and len(ids) and free[ids].all()):
            found.append(name)
    return found


def _is_bent(tensor: gs.Tensor) -> bool:
    """Tell whether such an operator makes a tensor, and not as the bias of a product."""
    (maker,) = tensor.inputs or (None,)
    if maker is None or not is_op(maker, *QUANTIZES) or tensor.shape is None:
        return False
    sources = {one.op for given in maker.inputs for one in given.inputs}
    return sources != {"MatMul"} or not any(isinstance(one, gs.Constant) for one in maker.inputs)


def readers_of(tensor: gs.Tensor, layers: Mapping[str, Layer]) -> list[gs.Node]:
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


def with_affines(proto: onnx.ModelProto, tensors: Collection[str]) -> onnx.ModelProto:
    """Return a model in which layers read tensors by a Mul by ones, and an Add of zeros if biases can.

    `InputError` if the model has no such tensor, or no such layer.
    """
    if not tensors:
        return proto
    graph = import_graph(proto)
    layers = {one.name: one for one in place(graph).layers}
    known = graph.tensors()
    names = tensor_names(graph) | node_names(graph.nodes)
    for name in tensors:
        readers = readers_of(known[name], layers) if name in known else []
        if not readers:
            raise InputError(
                f"the model has no layers that read {name!r}, which the optimizations change",
                HINT,
            )
        channels = _channels(readers[0], known[name])
        made = _put(graph, names, "Mul", known[name], np.ones(channels, np.float32))
        if all(own_bias(node) is not None for node in readers):
            made = _put(graph, names, "Add", made, np.zeros(channels, np.float32))
        for node in readers:
            node.inputs[0] = made
    return export_model(graph, proto)


def _put(
    graph: gs.Graph, names: set[str], op: str, tensor: gs.Tensor, values: np.ndarray
) -> gs.Variable:
    """Put an operator with a constant behind a tensor, and return what it makes."""
    name = unique(f"{tensor.name}/{op.lower()}", names)
    made = gs.Variable(unique(f"{name}/output", names), tensor.dtype, tensor.shape)
    given = gs.Constant(unique(f"{name}/values", names), values)
    graph.nodes.append(gs.Node(op, name, {}, [tensor, given], [made]))
    return made
