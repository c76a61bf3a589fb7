"""Nodes that compute nothing: Identity, Dropout at inference, products by 1 and sums with 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.graph import constant, is_op
from trtcal.passes.rewiring import removal

NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}  # as the second operand
COMMUTATIVE = ("Add", "Mul")


def _same(node: gs.Node) -> gs.Tensor | None:
    if is_op(node, "Identity") or (is_op(node, "Dropout") and not _trains(node)):
        return node.inputs[0]
    return None


def _trains(dropout: gs.Node) -> bool:
    if len(dropout.inputs) < 3 or dropout.inputs[2].is_empty():
        return False
    training = constant(dropout.inputs[2])
    return training is None or bool(training.any())


def _unchanged(node: gs.Node) -> gs.Tensor | None:
    """Return the operand that a node with the neutral constant of its operator passes on."""
    if not is_op(node, *NEUTRAL):
        return None
    orders = [node.inputs] if node.op not in COMMUTATIVE else [node.inputs, node.inputs[::-1]]
    for source, other in orders:
        value = constant(other)
        if value is None or isinstance(source, gs.Constant):
            continue
        if _keeps_shape(value.shape, source.shape) and np.all(value == NEUTRAL[node.op]):
            return source
    return None


def _keeps_shape(added: tuple[int, ...], shape: Sequence[int | str | None] | None) -> bool:
    """Tell whether broadcasting `added` to `shape`, None if unknown, certainly gives `shape`."""
    if not added:
        return True
    if shape is None or len(added) > len(shape):
        return False
    return all(one in (1, other) for one, other in zip(added[::-1], shape[::-1], strict=False))


IDENTITIES = removal(
    "identities",
    "Take out Identity and Dropout, which stand between nodes that would be fused.",
    _same,
)
NEUTRALS = removal(
    "neutral",
    "Take out Mul and Div by 1, Add and Sub of 0, where the shape stays the same.",
    _unchanged,
)
