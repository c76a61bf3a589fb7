"""Transposes and Casts that undo each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from trtcal.model.graph import captured, clean, constant, input_at, is_op, replace_tensor, type_of
from trtcal.model.ops import COMMUTES
from trtcal.model.passes.base import Pass, current

Source = Callable[[gs.Node], gs.Tensor | None]
"""Returns the tensor that a node's first output always equals, None if there is none."""


class KeptTensors:
    """Which tensors of a graph have to stay: its outputs, and what subgraphs read or return."""

    def __init__(self, graph: gs.Graph) -> None:
        self.nodes = {id(node) for node in graph.nodes}
        self.outputs = {id(tensor) for tensor in graph.outputs}
        self.held = {id(tensor) for tensor in captured(graph)}

    def is_free(self, tensor: gs.Tensor) -> bool:
        """Tell whether a tensor may go if its readers read something else."""
        return id(tensor) not in self.outputs and id(tensor) not in self.held

    def allows(self, node: gs.Node, source: gs.Tensor) -> bool:
        """Tell whether a node whose first output equals `source` can be taken out.

        If it gives an output of the graph, the node that makes `source` must be able to give it.
        """
        result = node.outputs[0]
        if any(tensor.outputs or not self.is_free(tensor) for tensor in node.outputs[1:]):
            return False
        if id(result) not in self.outputs:
            return id(result) not in self.held
        makers = source.inputs
        return len(makers) == 1 and id(makers[0]) in self.nodes and self.is_free(source)

    def take_out(self, node: gs.Node, source: gs.Tensor) -> None:
        """Make the readers of a node's first output read `source`; a graph's output keeps its name."""
        result = node.outputs[0]
        kept, gone = (result, source) if id(result) in self.outputs else (source, result)
        node.inputs.clear()
        node.outputs.clear()
        replace_tensor(gone, kept)
        if isinstance(kept, gs.Variable) and kept.shape is None:
            kept.shape = gone.shape


def removal(name: str, purpose: str, source: Source, on_request: bool = False) -> Pass:
    """Return the pass that takes out every node whose output equals what `source` says."""

    def removable(graph: gs.Graph) -> Iterator[tuple[KeptTensors, gs.Node, gs.Tensor]]:
        view = KeptTensors(graph)
        for node in graph.nodes:
            equal = source(node) if node.outputs else None
            if equal is not None and view.allows(node, equal):
                yield view, node, equal

    def apply(graph: gs.Graph) -> int:
        count = 0
        for view, node, equal in removable(graph):
            view.take_out(node, equal)
            count += 1
        return count + apply(clean(graph)) if count else 0

    def after(graph: gs.Graph) -> str | None:
        left = next(removable(graph), None)
        return left and f"node {left[1].name!r} is still redundant"

    return Pass(name, purpose, apply, current, after, on_request)


NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}  # as the second operand


def _same(node: gs.Node) -> gs.Tensor | None:
    if is_op(node, "Identity") or (is_op(node, "Dropout") and not _trains(node)):
        return node.inputs[0]
    return None


def _trains(dropout: gs.Node) -> bool:
    if (training := input_at(dropout, 2)) is None:
        return False
    values = constant(training)
    return values is None or bool(values.any())


def _unchanged(node: gs.Node) -> gs.Tensor | None:
    """Return the operand that a node with the neutral constant of its operator passes on."""
    if not is_op(node, *NEUTRAL):
        return None
    orders = [node.inputs] if node.op not in COMMUTES else [node.inputs, node.inputs[::-1]]
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
    return all(size in (1, other) for size, other in zip(added[::-1], shape[::-1], strict=False))


IDENTITIES = removal(
    "identities", "Remove Identity and Dropout, which keep TensorRT from fusing nodes.", _same
)
NEUTRALS = removal(
    "neutral", "Remove Mul and Div by 1, Add and Sub of 0, where the shape stays.", _unchanged
)

NARROW: set[int] = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
WIDE: set[int] = {TensorProto.FLOAT, TensorProto.DOUBLE}
WHOLE: set[int] = {TensorProto.INT32, TensorProto.INT64}
FLOATS = NARROW | WIDE
HOLDING: dict[int, set[int]] = {
    **dict.fromkeys(NARROW, WIDE),
    TensorProto.FLOAT: {TensorProto.DOUBLE},
    **dict.fromkeys((TensorProto.INT8, TensorProto.UINT8), {TensorProto.INT16} | WHOLE | FLOATS),
    **dict.fromkeys((TensorProto.INT16, TensorProto.UINT16), WHOLE | WIDE),
    TensorProto.INT32: {TensorProto.INT64, TensorProto.DOUBLE},
    TensorProto.UINT32: {TensorProto.INT64, TensorProto.DOUBLE},
    TensorProto.BOOL: WHOLE | FLOATS,
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
    ranks = {len(axes) for transpose in chain for axes in _sized(transpose)}
    if len(ranks) > 1:
        return None
    rank = ranks.pop() if ranks else 2  # whatever it is: each of them turns all axes round
    order = np.arange(rank)
    for transpose in chain:
        axes = transpose.attrs.get("perm", range(rank)[::-1])
        if sorted(axes) != list(range(rank)):
            return None
        order = np.asarray(axes)[order]
        if np.array_equal(order, np.arange(rank)):
            return transpose.inputs[0]
    return None


def _sized(transpose: gs.Node) -> Iterator[Sequence[Any]]:
    """Yield what shows the rank of a Transpose's input: its axes, its shape."""
    for axes in (transpose.attrs.get("perm"), transpose.inputs[0].shape):
        if axes is not None:
            yield axes


def _cast_back(node: gs.Node, rounding: bool = False) -> gs.Tensor | None:
    """Return the tensor to whose type a chain of Casts goes back, with each value as it was.

    With `rounding` the Casts between may round, but only from one float type to another.
    """
    if not is_op(node, "Cast"):
        return None
    target = node.attrs["to"]
    for cast in _chain(node, "Cast"):
        kind = type_of(cast.inputs[0])
        if kind == target:
            return cast.inputs[0]
        if kind in HOLDING.get(target, ()) or (rounding and {kind, target} <= FLOATS):
            continue
        return None
    return None


TRANSPOSES = removal(
    "transposes", "Remove Transposes that undo each other or move no axis.", _transposed_back
)
CASTS = removal(
    "casts", "Remove Casts to the type of their input, and pairs that lose no value.", _cast_back
)
ROUNDING_CASTS = removal(
    "rounding-casts",
    "Remove Casts to a narrower float type and back; the outputs change by their rounding.",
    lambda node: _cast_back(node, rounding=True),
    on_request=True,
)
