"""Where Q/DQ may stand: which inputs of which nodes TensorRT can take in INT8.

Rules and their source: NVIDIA, "Working with Quantized Types", Q/DQ layer-placement recommendations:
quantize all inputs of weighted operations, per tensor for activations and per output channel for
weights; leave their outputs; quantize the residual input of a skip connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.errors import InputError
from trtcal.model import Model
from trtcal.quantize.graph import HALF_OPSET, constant, import_graph, is_half, only_consumer


@dataclass(frozen=True)
class Weight:
    """A constant input: its place among the node's inputs and the axis of its scales, if any."""

    index: int
    axis: int | None


@dataclass(frozen=True)
class Layer:
    """A node that a plan can put into INT8: the inputs to quantize by place, and its weight."""

    name: str
    op: str
    activations: dict[int, str]
    weight: Weight | None = None


@dataclass(frozen=True)
class Placement:
    """All layers of a model, and why other nodes of the same kinds are none."""

    layers: tuple[Layer, ...]
    refused: dict[str, str]


def find_layers(model: Model) -> Placement:
    """Return every place for Q/DQ in a prepared model; `InputError` if there is none."""
    placement = place(import_graph(model.proto))
    if not any(layer.op in RULES for layer in placement.layers):
        reasons = [f"{name}: {why}" for name, why in placement.refused.items()]
        said = f" ({'; '.join(reasons[:3])})" if reasons else ""
        raise InputError(
            f"model {model.path} has nothing to quantize{said}",
            f"INT8 pays in {', '.join(sorted(RULES))} nodes with constant float weights",
        )
    return placement


def tensors_to_observe(placement: Placement) -> list[str]:
    """Return the activations that some plan gives a range to, each once, in graph order."""
    names = (name for layer in placement.layers for name in layer.activations.values())
    return list(dict.fromkeys(names))


def place(graph: gs.Graph) -> Placement:
    """Apply the rules to every node of a sorted graph."""
    order = {node.name: number for number, node in enumerate(graph.nodes)}
    layers: list[Layer] = []
    refused: dict[str, str] = {}
    found: Layer | str | None
    for node in graph.nodes:
        if is_half(node) and graph.opset < HALF_OPSET:
            found = _too_old(graph.opset) if node.op in RULES else None
        else:
            found = RULES[node.op](node) if node.op in RULES else _residual_add(node, graph, order)
        if isinstance(found, Layer):
            layers.append(found)
        elif found is not None:
            refused[node.name] = found
    return Placement(tuple(layers), refused)


def _too_old(opset: int) -> str:
    return f"its values are float16, for which Q/DQ need opset {HALF_OPSET}, and this is {opset}"


def _weighted(node: gs.Node, axis: int | None) -> Layer | str:
    if not _is_activation(node.inputs[0]):
        return "its first input is constant or not a float tensor"
    weight = constant(node.inputs[1])
    if weight is None:
        return "its weights are computed, not constant"
    if weight.dtype not in (np.float32, np.float16):
        return f"its weights are {weight.dtype}"
    if not np.isfinite(weight).all():
        return "its weights have NaN or infinite values"
    return Layer(node.name, node.op, {0: node.inputs[0].name}, Weight(1, axis))


def _conv(node: gs.Node) -> Layer | str:
    return _weighted(node, 0)


def _conv_transpose(node: gs.Node) -> Layer | str:
    # With groups, axis 1 holds one group's channels only, which a scale an output channel can't name.
    return _weighted(node, 1 if node.attrs.get("group", 1) == 1 else None)


def _gemm(node: gs.Node) -> Layer | str:
    if node.attrs.get("transA", 0):
        return "its first input is transposed"
    return _weighted(node, 0 if node.attrs.get("transB", 0) else 1)


def _matmul(node: gs.Node) -> Layer | str:
    left, right = node.inputs
    if _is_activation(left) and _is_activation(right):
        return Layer(node.name, node.op, {0: left.name, 1: right.name})
    weight = constant(right)
    if weight is None:
        return "its first input is constant"
    return _weighted(node, 1 if weight.ndim == 2 else None)


RULES: dict[str, Callable[[gs.Node], Layer | str]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
}


def _residual_add(node: gs.Node, graph: gs.Graph, order: dict[str, int]) -> Layer | None:
    """Quantize the skip input of an Add (or two-input Sum) that follows a convolution.

    The other input stays float, so that the compiler can do the addition in the convolution's
    epilogue. Where both inputs are convolutions, the one computed first is the skip.
    """
    if node.op not in ("Add", "Sum") or len(node.inputs) != 2:
        return None
    if not all(_is_activation(tensor) and _same_rank(tensor, node) for tensor in node.inputs):
        return None
    heads = [i for i, tensor in enumerate(node.inputs) if _is_conv_output(tensor, graph)]
    if not heads or node.inputs[0] is node.inputs[1]:
        return None
    head = max(heads, key=lambda i: order[node.inputs[i].inputs[0].name])
    skip = 1 - head
    return Layer(node.name, node.op, {skip: node.inputs[skip].name})


def _is_conv_output(tensor: gs.Tensor, graph: gs.Graph) -> bool:
    producer = tensor.inputs[0] if tensor.inputs else None
    weighted = producer is not None and producer.op in ("Conv", "ConvTranspose")
    return weighted and only_consumer(tensor, graph) is not None


def _same_rank(tensor: gs.Tensor, node: gs.Node) -> bool:
    """Tell whether a tensor is added whole, as far as the shapes that the model states can say."""
    shapes = [other.shape for other in node.inputs if other.shape is not None]
    return all(tensor.shape is None or len(tensor.shape) == len(shape) for shape in shapes)


def _is_activation(tensor: gs.Tensor) -> bool:
    if not isinstance(tensor, gs.Variable) or tensor.is_empty():
        return False
    return tensor.dtype is None or tensor.dtype in (np.float32, np.float16)
