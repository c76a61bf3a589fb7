"""Where a layer's bias stands: at the node itself, or in the Add that follows a MatMul."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.errors import InputError
from trtcal.graph import constant, is_op
from trtcal.overlay import Floats


@dataclass(frozen=True)
class Bias:
    """A place among a node's inputs, and the values that stand there, (channels,), zeros if none."""

    node: gs.Node
    index: int
    values: Floats


def bias_of(node: gs.Node) -> Bias | None:
    """Return where the bias of a layer stands or can be put, None if there is no such place."""
    if is_op(node, "MatMul"):
        return _of_add(node)
    if not is_op(node, "Conv", "ConvTranspose", "Gemm") or node.attrs.get("beta", 1.0) != 1.0:
        return None
    channels = _channels(node)
    if channels is None:
        return None
    given = node.inputs[2] if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
    values = np.zeros(channels, np.float32) if given is None else constant(given)
    return _bias(node, 2, values, channels)


def set_bias(node: gs.Node, value: gs.Constant) -> None:
    """Give a layer another bias; `InputError` if it has no place for one of that length."""
    place = bias_of(node)
    if place is None or place.values.shape != value.values.shape:
        raise InputError(
            f"layer {node.name!r} has no bias like the one that repairs found for it",
            "make the repairs again, for this model",
        )
    if place.index < len(place.node.inputs):
        place.node.inputs[place.index] = value
    else:
        place.node.inputs.append(value)


def _of_add(node: gs.Node) -> Bias | None:
    weight = constant(node.inputs[1])
    readers = node.outputs[0].outputs
    if weight is None or weight.ndim != 2 or len(readers) != 1 or not is_op(readers[0], "Add"):
        return None
    (add,) = readers
    index = 1 if add.inputs[0] is node.outputs[0] else 0
    return _bias(add, index, constant(add.inputs[index]), weight.shape[1])


def _bias(node: gs.Node, index: int, values: object, channels: int) -> Bias | None:
    found = np.asarray(values) if values is not None else None
    if found is None or found.dtype != np.float32 or found.size not in (1, channels):
        return None
    if found.ndim and found.shape[-1] != found.size:
        return None
    return Bias(node, index, np.broadcast_to(found.reshape(-1), (channels,)))


def _channels(node: gs.Node) -> int | None:
    weight = constant(node.inputs[1])
    if weight is None or weight.dtype != np.float32:
        return None
    if node.op == "Gemm":
        return int(weight.shape[0 if node.attrs.get("transB", 0) else 1])
    if node.op == "ConvTranspose":
        return int(weight.shape[1]) * int(node.attrs.get("group", 1))
    return int(weight.shape[0])
