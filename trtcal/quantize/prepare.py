"""Small passes that make a float model ready for Q/DQ without changing what it computes.

Tensors keep their names, so that ranges observed on the prepared model belong to the given one too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.shape_inference
import onnx.version_converter
import onnx_graphsurgeon as gs

from trtcal.errors import InputError
from trtcal.model import Model, checked, first_line, opset_of, uniquely_named
from trtcal.quantize.graph import constant, export_model, import_graph, only_consumer

Array = npt.NDArray[Any]

MIN_OPSET = 13  # the first in which QuantizeLinear and DequantizeLinear take an axis
CHANNEL_AXIS = {"Conv": 0, "ConvTranspose": 1}  # of the weight's output channels


def prepare(model: Model) -> Model:
    """Return the model with unique node names, opset 13 or later, constants and channel scales folded.

    The fingerprint stays that of the given model: it is what calibrations are tied to.
    """
    proto = upgrade_opset(initializers_only(uniquely_named(model).proto))
    graph = import_graph(onnx.shape_inference.infer_shapes(proto))
    for apply in PASSES:
        apply(graph)
    return checked(replace(model, proto=export_model(graph, proto)))


def initializers_only(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Take initializers out of the graph's inputs (IR version 3 listed them there)."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    initialized = {tensor.name for tensor in copy.graph.initializer}
    kept = [value for value in copy.graph.input if value.name not in initialized]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    copy.ir_version = max(copy.ir_version, 4)
    return copy


def upgrade_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Convert the model to `MIN_OPSET` if it is older; `InputError` if an operator has no successor."""
    if opset_of(proto) >= MIN_OPSET:
        return proto
    try:
        return onnx.version_converter.convert_version(proto, MIN_OPSET)
    except Exception as error:  # the converter raises bare RuntimeError, and worse
        raise InputError(
            f"the model's opset {opset_of(proto)} cannot be raised to {MIN_OPSET}: "
            f"{first_line(error)}",
            f"export the model with opset {MIN_OPSET} or later",
        ) from error


def fold_constants(graph: gs.Graph) -> None:
    """Compute what does not depend on the inputs."""
    foldable = any(
        node.inputs and all(isinstance(tensor, gs.Constant) for tensor in node.inputs)
        for node in graph.nodes
    )
    if foldable or any(node.op in ("Constant", "Shape") for node in graph.nodes):
        graph.fold_constants(error_ok=True).cleanup(remove_unused_graph_inputs=False)


def remove_no_ops(graph: gs.Graph) -> None:
    """Take out Identity and Dropout, which do nothing at inference but stand between fusions."""
    for node in list(graph.nodes):
        if node.op in ("Identity", "Dropout") and not _is_needed(node, graph):
            source, result = node.inputs[0], node.outputs[0]
            for reader in list(result.outputs):
                reader.inputs = [source if tensor is result else tensor for tensor in reader.inputs]
            node.outputs.clear()
    graph.cleanup(remove_unused_graph_inputs=False)


def _is_needed(node: gs.Node, graph: gs.Graph) -> bool:
    training = len(node.inputs) > 2 and not node.inputs[2].is_empty()
    shown = any(tensor is output for tensor in node.outputs for output in graph.outputs)
    mask_read = any(tensor.outputs for tensor in node.outputs[1:])
    return training or shown or mask_read


def fold_scales(graph: gs.Graph) -> None:
    """Fold BatchNormalization, and Mul and Add by channel constants, into the convolution before.

    The convolution must have no other reader; the last output keeps its name.
    """
    for node in list(graph.nodes):
        while node.op in CHANNEL_AXIS and _fold_next(node, graph):
            pass
    graph.cleanup(remove_unused_graph_inputs=False)


def _fold_next(conv: gs.Node, graph: gs.Graph) -> bool:
    following = only_consumer(conv.outputs[0], graph)
    weight = constant(conv.inputs[1])
    bias = constant(conv.inputs[2]) if len(conv.inputs) > 2 else np.zeros(1, np.float32)
    grouped_transpose = conv.op == "ConvTranspose" and conv.attrs.get("group", 1) != 1
    if following is None or weight is None or bias is None or grouped_transpose:
        return False
    channels = weight.shape[CHANNEL_AXIS[conv.op]]
    affine = _affine(following, conv.outputs[0], (channels, weight.ndim))
    if affine is None:
        return False
    factor, offset = affine
    shape = [1] * weight.ndim
    shape[CHANNEL_AXIS[conv.op]] = -1
    scaled = (weight * factor.reshape(shape)).astype(weight.dtype)
    moved = np.broadcast_to(bias * factor + offset, channels).astype(weight.dtype)
    conv.inputs = [
        conv.inputs[0],
        gs.Constant(f"{conv.inputs[1].name}/{following.name}", scaled),
        gs.Constant(f"{following.name}/bias", moved),
    ]
    conv.outputs = [following.outputs[0]]
    following.outputs.clear()
    return True


def _affine(node: gs.Node, source: gs.Tensor, size: tuple[int, int]) -> tuple[Array, Array] | None:
    """Return factor and offset by channel if a node is `source * factor + offset`, else None."""
    if node.op == "BatchNormalization" and not node.attrs.get("training_mode", 0):
        values = [constant(tensor) for tensor in node.inputs[1:5]]
        if len(node.outputs) > 1 or any(value is None for value in values):
            return None
        gamma, beta, mean, variance = (np.asarray(value) for value in values)
        factor = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        return factor, beta - mean * factor
    if node.op not in ("Mul", "Add"):
        return None
    other = node.inputs[1] if node.inputs[0] is source else node.inputs[0]
    value = _by_channel(constant(other), *size)
    if value is None:
        return None
    return (value, np.zeros_like(value)) if node.op == "Mul" else (np.ones_like(value), value)


def _by_channel(value: Array | None, channels: int, rank: int) -> Array | None:
    """Return a constant as one value or one a channel, None if it differs within a channel."""
    if value is None or value.ndim > rank:
        return None
    shape = (1,) * (rank - value.ndim) + value.shape
    varies = [axis for axis, length in enumerate(shape) if length != 1]
    fits = varies in ([], [1]) and (not varies or shape[1] == channels)
    return value.reshape(-1) if fits else None


PASSES: tuple[Callable[[gs.Graph], None], ...] = (
    fold_constants,
    remove_no_ops,
    fold_scales,
)
