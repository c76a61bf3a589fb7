"""Transposes and Casts that undo each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from trtcal.graph import is_op, type_of
from trtcal.passes.rewiring import removal

HALVES: set[int] = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
WIDE: set[int] = {TensorProto.FLOAT, TensorProto.DOUBLE}
FLOATS = HALVES | WIDE
HOLDING: dict[int, set[int]] = {
    TensorProto.FLOAT16: WIDE,
    TensorProto.BFLOAT16: WIDE,
    TensorProto.FLOAT: {TensorProto.DOUBLE},
    TensorProto.INT8: {TensorProto.INT16, TensorProto.INT32, TensorProto.INT64} | FLOATS,
    TensorProto.UINT8: {TensorProto.INT16, TensorProto.INT32, TensorProto.INT64} | FLOATS,
    TensorProto.INT16: {TensorProto.INT32, TensorProto.INT64} | WIDE,
    TensorProto.UINT16: {TensorProto.INT32, TensorProto.INT64} | WIDE,
    TensorProto.INT32: {TensorProto.INT64, TensorProto.DOUBLE},
    TensorProto.UINT32: {TensorProto.INT64, TensorProto.DOUBLE},
    TensorProto.BOOL: {TensorProto.INT32, TensorProto.INT64} | FLOATS,
}
"""Type -> the types that hold each of its values exactly."""


def _chain(node: gs.Node, op: str) -> Iterator[gs.Node]:
    """Yield a node and those before it, as long as they are of one operator."""
    while is_op(node, op):
        yield node
        if len(node.inputs[0].inputs) != 1:
            return
        node = node.inputs[0].inputs[0]


def _transposed_back(node: gs.Node) -> gs.Tensor | None:
    """Return the tensor whose axes a chain of Transposes puts back in their order."""
    chain = list(_chain(node, "Transpose"))
    ranks = {len(axes) for one in chain for axes in _sized(one)}
    if len(ranks) > 1:
        return None
    rank = ranks.pop() if ranks else 2  # whatever it is: each of them turns all axes round
    order = np.arange(rank)
    for one in chain:
        axes = one.attrs.get("perm", range(rank)[::-1])
        if sorted(axes) != list(range(rank)):
            return None
        order = np.asarray(axes)[order]
        if np.array_equal(order, np.arange(rank)):
            return one.inputs[0]
    return None


def _sized(transpose: gs.Node) -> Iterator[Sequence[Any]]:
    """Yield what tells the rank of a Transpose's input."""
    for axes in (transpose.attrs.get("perm"), transpose.inputs[0].shape):
        if axes is not None:
            yield axes


def _cast_back(node: gs.Node, rounding: bool = False) -> gs.Tensor | None:
    """Return the tensor to whose type a chain of Casts goes back, with each value as it was.

    With `rounding` the Casts between may round, but only from one float type to another.
    """
    if not is_op(node, "Cast"):
        return None
    wanted = node.attrs["to"]
    for one in _chain(node, "Cast"):
        kind = type_of(one.inputs[0])
        if kind == wanted:
            return one.inputs[0]
        if kind in HOLDING.get(wanted, ()) or (rounding and {kind, wanted} <= FLOATS):
            continue
        return None
    return None


TRANSPOSES = removal(
    "transposes",
    "Take out Transposes that undo each other, and those that move no axis.",
    _transposed_back,
)
CASTS = removal(
    "casts",
    "Take out Casts to a tensor's own type, and pairs there and back that lose no value.",
    _cast_back,
)
ROUNDING_CASTS = removal(
    "rounding-casts",
    "Take out Casts to a narrower float type and back, which round: the outputs move by as much.",
    lambda node: _cast_back(node, rounding=True),
    on_request=True,
)
