"""Small passes that make a float model ready for Q/DQ without changing what it computes.

Tensors keep their names, so that ranges observed on the prepared model belong to the given one too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx.version_converter
import onnx_graphsurgeon as gs

from trtcal.errors import InputError
from trtcal.model import Model, checked, first_line, opset_of
from trtcal.quantize.graph import constant, export_model, import_graph, only_consumer, unique

MIN_OPSET = 13  # the first in which QuantizeLinear and DequantizeLinear take an axis
CHANNEL_AXIS = {"Conv": 0, "ConvTranspose": 1}  # of the weight's output channels


def prepare(model: Model) -> Model:
    """Return the model with unique node names, opset 13 or later, constants and BatchNorm folded.

    The fingerprint stays that of the given model: it is what calibrations are tied to.
    """
    proto = upgrade_opset(initializers_only(model.proto))
    graph = import_graph(proto)
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


def name_nodes(graph: gs.Graph) -> None:
    """Give every node a name of its own: empty ones by operator and place, repeated ones a number."""
    taken: set[str] = set()
    for number, node in enumerate(graph.nodes):
        node.name = unique(node.name or f"{node.op}_{number}", taken)


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
        if node.op not in ("Identity", "Dropout") or (
            len(node.outputs[1:]) and node.outputs[1].outputs
        ):
            continue
        source, result = node.inputs[0], node.outputs[0]
        training = len(node.inputs) > 2 and not node.inputs[2].is_empty()
        if training or any(result is output for output in graph.outputs):
            continue
        for reader in list(result.outputs):
            reader.inputs = [source if tensor is result else tensor for tensor in reader.inputs]
        node.outputs.clear()
    graph.cleanup(remove_unused_graph_inputs=False)


def fold_batch_norm(graph: gs.Graph) -> None:
    """Fold BatchNormalization into the convolution that alone feeds it; the output keeps its name."""
    for node in list(graph.nodes):
        if node.op in CHANNEL_AXIS:
            following = only_consumer(node.outputs[0], graph)
            if following is not None and following.op == "BatchNormalization":
                _fold_pair(node, following)
    graph.cleanup(remove_unused_graph_inputs=False)


def _fold_pair(conv: gs.Node, norm: gs.Node) -> None:
    weight = constant(conv.inputs[1])
    bias = constant(conv.inputs[2]) if len(conv.inputs) > 2 else np.zeros(1, np.float32)
    parameters = [constant(tensor) for tensor in norm.inputs[1:5]]
    if weight is None or bias is None or not _can_fold(conv, norm):
        return
    gamma, beta, mean, variance = (np.asarray(value) for value in parameters)
    factor = gamma / np.sqrt(variance + norm.attrs.get("epsilon", 1e-5))
    shape = [1] * weight.ndim
    shape[CHANNEL_AXIS[conv.op]] = -1
    scaled = (weight * factor.reshape(shape)).astype(weight.dtype)
    moved = (beta + (bias - mean) * factor).astype(weight.dtype)
    conv.inputs = [
        conv.inputs[0],
        gs.Constant(f"{conv.inputs[1].name}/{norm.name}", scaled),
        gs.Constant(f"{norm.name}/bias", moved),
    ]
    conv.outputs = [norm.outputs[0]]
    norm.outputs.clear()


def _can_fold(conv: gs.Node, norm: gs.Node) -> bool:
    grouped_transpose = conv.op == "ConvTranspose" and conv.attrs.get("group", 1) != 1
    training = norm.attrs.get("training_mode", 0) or len(norm.outputs) > 1
    known = all(isinstance(tensor, gs.Constant) for tensor in norm.inputs[1:5])
    return known and not grouped_transpose and not training


PASSES: tuple[Callable[[gs.Graph], None], ...] = (
    name_nodes,
    fold_constants,
    remove_no_ops,
    fold_batch_norm,
)
