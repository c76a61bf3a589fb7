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
from trtcal.model import Model, checked, first_line, name_nodes, opset_of
from trtcal.onnxfile import stand_in, weights_of
from trtcal.quantize.graph import (
    HALF_OPSET,
    constant,
    export_model,
    is_weight,
    load_weights,
    only_consumer,
    restored,
)

Array = npt.NDArray[Any]

HALF_IR_VERSION = 9  # the one that came with `HALF_OPSET`
MIN_OPSET = 13  # the first in which QuantizeLinear and DequantizeLinear take an axis
CHANNEL_AXIS = {"Conv": 0, "ConvTranspose": 1}  # of the weight's output channels


def prepare(model: Model) -> Model:
    """Return the model with unique node names, opset 13 or later, constants and channel scales folded.

    The fingerprint stays that of the given model: it is what calibrations are tied to.
    """
    small = initializers_only(stand_in(model.proto))
    name_nodes(small)
    proto = fit_for_half(onnx.shape_inference.infer_shapes(upgrade_opset(small)))
    graph = restored(proto, weights_of(model.proto))
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


def upgrade_opset(proto: onnx.ModelProto, opset: int = MIN_OPSET) -> onnx.ModelProto:
    """Convert the model to `opset` if it is older; `InputError` if an operator has no successor."""
    if opset_of(proto) >= opset:
        return proto
    try:
        return onnx.version_converter.convert_version(proto, opset)
    except Exception as error:  # the converter raises bare RuntimeError, and worse
        raise InputError(
            f"the model's opset {opset_of(proto)} cannot be raised to {opset}: {first_line(error)}",
            f"export the model with opset {opset} or later",
        ) from error


def fit_for_half(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Raise the opset of a model with inferred types as far as Q/DQ on its float16 values want it.

    Where that can't be done the model stays as it is: those layers are then left in float.
    """
    values = (*proto.graph.value_info, *proto.graph.input, *proto.graph.output)
    half = any(one.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for one in values)
    return _raised(proto) if half else proto


def raised_for_half(model: Model) -> Model:
    """Return a prepared model in the opset that Q/DQ on float16 values want, if it can be raised."""
    if model.opset >= HALF_OPSET:
        return model
    proto = _raised(stand_in(model.proto))
    graph = restored(proto, weights_of(model.proto))
    fold_constants(graph)
    return checked(replace(model, proto=export_model(graph, proto)))


def _raised(proto: onnx.ModelProto) -> onnx.ModelProto:
    drops = bool(proto.functions)  # the converter does, without a word
    if drops or opset_of(proto) >= HALF_OPSET:
        return proto
    try:
        raised = upgrade_opset(proto, HALF_OPSET)
    except InputError:
        return proto
    raised.ir_version = max(raised.ir_version, HALF_IR_VERSION)
    name_nodes(raised)
    return onnx.shape_inference.infer_shapes(raised)


def fold_constants(graph: gs.Graph) -> None:
    """Compute what does not depend on the inputs."""
    foldable = any(
        node.inputs and all(isinstance(tensor, gs.Constant) for tensor in node.inputs)
        for node in graph.nodes
    )
    if foldable or any(node.op in ("Constant", "Shape") for node in graph.nodes):
        _transpose_weights(graph)
        load_weights(graph)
        graph.fold_constants(error_ok=True).cleanup(remove_unused_graph_inputs=False)


def _transpose_weights(graph: gs.Graph) -> None:
    """Transpose weights one by one: together they may be more than what a session can be given."""
    for node in graph.nodes:
        if node.op == "Transpose" and is_weight(node.inputs[0]):
            values = np.asarray(constant(node.inputs[0])).transpose(node.attrs.get("perm"))
            node.outputs[0].to_constant(np.ascontiguousarray(values))
            node.outputs[0].inputs.clear()


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
    with np.errstate(over="ignore"):
        scaled = (_wide(weight) * factor.reshape(shape)).astype(weight.dtype)
        moved = np.broadcast_to(_wide(bias) * factor + offset, channels).astype(weight.dtype)
    if weight.dtype == np.float16 and not (np.isfinite(scaled).all() and np.isfinite(moved).all()):
        return False
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
        gamma, beta, mean, variance = (_wide(np.asarray(value)) for value in values)
        factor = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        return factor, beta - mean * factor
    if node.op not in ("Mul", "Add"):
        return None
    other = node.inputs[1] if node.inputs[0] is source else node.inputs[0]
    value = _by_channel(constant(other), *size)
    if value is None:
        return None
    value = _wide(value)
    return (value, np.zeros_like(value)) if node.op == "Mul" else (np.ones_like(value), value)


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


PASSES: tuple[Callable[[gs.Graph], None], ...] = (
    fold_constants,
    remove_no_ops,
    fold_scales,
)
