"""BatchNormalization, and products and sums by channel, go into the convolution before them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
from onnx import TensorProto

from trtcal.model.graph import (
    clean,
    constant,
    input_at,
    is_op,
    only_consumer,
    tensor_names,
    type_of,
)
from trtcal.model.model import along, unique
from trtcal.model.ops import CONVOLUTIONS, output_axis
from trtcal.model.passes.base import Pass, current
from trtcal.model.passes.redundant import KeptTensors

Array = npt.NDArray[Any]

FOLDED = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)


class Fold(NamedTuple):
    """A convolution, the node after it, and the weight and bias that do the work of both."""

    conv: gs.Node
    following: gs.Node
    weight: Array
    bias: Array


def fold_scales(graph: gs.Graph) -> int:
    """Fold what follows convolutions; return the number of nodes that are gone.

    The convolution must have no other reader; the last output keeps its name.
    """
    names, count = tensor_names(graph), 0
    kept = KeptTensors(graph)
    for conv in list(graph.nodes):
        while (fold := _next(conv, graph, kept)) is not None:
            _write(fold, names)
            count += 1
    clean(graph)
    return count


def _next(conv: gs.Node, graph: gs.Graph, kept: KeptTensors) -> Fold | None:
    if not is_op(conv, *CONVOLUTIONS) or not conv.outputs or not kept.is_free(conv.outputs[0]):
        return None
    following = only_consumer(conv.outputs[0], graph)
    weight = constant(conv.inputs[1])
    grouped_transpose = conv.op == "ConvTranspose" and conv.attrs.get("group", 1) != 1
    if following is None or weight is None or weight.ndim < 3 or grouped_transpose:
        return None
    axis = output_axis(conv.op)
    channels = weight.shape[axis]
    bias = constant(conv.inputs[2]) if input_at(conv, 2) else np.zeros(1, np.float32)
    if type_of(conv.inputs[1]) not in FOLDED or bias is None or bias.size not in (1, channels):
        return None
    affine = _affine(following, conv.outputs[0], channels, weight.ndim)
    if affine is None:
        return None
    factor, offset = affine
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (_wide(weight) * along(factor, weight.ndim, axis)).astype(weight.dtype)
        moved = np.broadcast_to(_wide(bias) * factor + offset, channels).astype(weight.dtype)
    finite = np.isfinite(scaled).all() and np.isfinite(moved).all()
    return Fold(conv, following, scaled, moved) if finite else None


def _write(fold: Fold, names: set[str]) -> None:
    conv, following = fold.conv, fold.following
    weight = unique(f"{conv.inputs[1].name}/{following.name}", names)
    bias = unique(f"{following.name}/bias", names)
    conv.inputs = [conv.inputs[0], gs.Constant(weight, fold.weight), gs.Constant(bias, fold.bias)]
    conv.outputs = [following.outputs[0]]
    following.inputs.clear()
    following.outputs.clear()


def _affine(node: gs.Node, read: gs.Tensor, channels: int, rank: int) -> tuple[Array, Array] | None:
    """Return factor and offset by channel if a node is `read * factor + offset`, else None."""
    if is_op(node, "BatchNormalization"):
        return _normalizing(node, channels) if node.inputs[0] is read else None
    if not is_op(node, "Mul", "Add"):
        return None
    other = node.inputs[1] if node.inputs[0] is read else node.inputs[0]
    if (value := _by_channel(constant(other), channels, rank)) is None:
        return None
    value = _wide(value)
    return (value, np.zeros_like(value)) if node.op == "Mul" else (np.ones_like(value), value)


def _normalizing(node: gs.Node, channels: int) -> tuple[Array, Array] | None:
    if why_kept(node) is not None:
        return None
    gamma, beta, mean, variance = (_wide(np.asarray(constant(t))) for t in node.inputs[1:5])
    if any(values.shape != (channels,) for values in (gamma, beta, mean, variance)):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        return factor, beta - mean * factor


def why_kept(norm: gs.Node) -> str | None:
    """Return why a BatchNormalization can be folded into no convolution, None if it can."""
    used = [tensor for tensor in norm.outputs[1:] if not tensor.is_empty()]
    if norm.attrs.get("training_mode", 0) or used:
        return "it is in training mode"
    if any(constant(tensor) is None for tensor in norm.inputs[1:5]):
        return "its parameters are computed, not constant"
    return None


def _wide(values: Array) -> Array:
    """Return float16 values as float32, in which products neither overflow nor lose digits."""
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _by_channel(value: Array | None, channels: int, rank: int) -> Array | None:
    """Return a constant as one value or one a channel, None if it differs within a channel."""
    if value is None or value.ndim > rank:
        return None
    shape = (1,) * (rank - value.ndim) + value.shape
    varies = [axis for axis, length in enumerate(shape) if length != 1]
    fits = varies in ([], [1]) and (not varies or shape[1] == channels)
    return value.reshape(-1) if fits else None


def _none_left(graph: gs.Graph) -> str | None:
    kept = KeptTensors(graph)
    fold = next(filter(None, (_next(conv, graph, kept) for conv in graph.nodes)), None)
    return fold and f"node {fold.following.name!r} could still be folded into {fold.conv.name!r}"


SCALES = Pass(
    "scales",
    "Fold BatchNormalization, and Mul and Add by channel, into the preceding convolution.",
    fold_scales,
    current,
    _none_left,
)
