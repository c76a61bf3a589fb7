"""What does not depend on the inputs is computed once, here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from trtcal.model.graph import (
    NUMBERS,
    clean,
    constant,
    in_order,
    is_op,
    is_weight,
    load_weights,
    replace_tensor,
    tensor_names,
    type_of,
)
from trtcal.model.model import unique
from trtcal.model.ops import QDQ, RANDOM
from trtcal.model.passes.base import Pass, current

LARGEST_CONSTANT = 1 << 30
"""Bytes of one computed constant, at 8 a value: larger ones are left to the runtime."""
NO_TENSORS = ("Optional", "Sequence", "String")  # in the names of operators on other values


def fold_constants(graph: gs.Graph, but: Collection[str] = ()) -> int:
    """Turn constant nodes but some operators into constants; return how many nodes are gone."""
    before = len(graph.nodes)
    for node in graph.nodes:
        state(node)
        _know_shape(node)
    clean(graph)
    if any(map(is_constant, graph.nodes)):
        _transpose_weights(graph)
        load_weights(graph)
        _compute(graph, but)
        clean(graph)
    return before - len(graph.nodes)


def _compute(graph: gs.Graph, but: Collection[str]) -> None:
    options = {
        "fold_shapes": False,  # its own way also changes casts of shapes, and rounds
        "recurse_subgraphs": False,
        "recurse_functions": False,
        "flatten_subgraphs": False,
        "should_exclude_node": lambda node: node.op in but or _stays(node) or _is_too_large(node),
    }
    try:
        graph.fold_constants(error_ok=False, **options)
    except Exception:  # ONNX Runtime can't run some node: the others, part by part
        with suppress(Exception):  # what is left stays and is noted
            graph.fold_constants(partitioning="recursive", **options)


def _stays(node: gs.Node) -> bool:
    """Tell whether a node is not to be computed: its operator, or a type that numpy lacks."""
    if not is_op(node, node.op) or node.op in RANDOM | QDQ:
        return True
    kinds = {*map(type_of, node.inputs), *map(type_of, node.outputs)}
    other = TensorProto.STRING in kinds or TensorProto.BFLOAT16 in map(type_of, node.outputs)
    return other or any(word in node.op for word in NO_TENSORS)


def _is_too_large(node: gs.Node) -> bool:
    """Tell whether a node makes a tensor that is known to be larger than `LARGEST_CONSTANT`."""
    known = (tensor.shape for tensor in node.outputs if tensor.shape is not None)
    sizes = ([size for size in shape if isinstance(size, int)] for shape in known)
    return any(math.prod(shape) > LARGEST_CONSTANT // 8 for shape in sizes)


def is_constant(node: gs.Node) -> bool:
    """Tell whether a node depends on constants alone and could be computed here."""
    inputs = [tensor for tensor in node.inputs if not tensor.is_empty()]
    are_constant = bool(inputs) and all(isinstance(tensor, gs.Constant) for tensor in inputs)
    return are_constant and not _stays(node)


def state(node: gs.Node) -> None:
    """Make a constant of what a Constant node holds."""
    if not is_op(node, "Constant"):
        return
    if isinstance(node.attrs.get("value"), gs.Constant):
        _settle(node, node.attrs["value"]._values)
    for name in NUMBERS.keys() & node.attrs.keys():
        _settle(node, np.array(node.attrs[name], NUMBERS[name][0]))


def _transpose_weights(graph: gs.Graph) -> None:
    """Transpose weights one by one: together they may be more than what a session can be given."""
    for node in graph.nodes:
        if is_op(node, "Transpose") and is_weight(node.inputs[0]) and not _stays(node):
            values = np.asarray(constant(node.inputs[0]))
            axes = node.attrs.get("perm", range(values.ndim)[::-1])
            if sorted(axes) == list(range(values.ndim)):
                _settle(node, np.ascontiguousarray(values.transpose(axes)))


def _settle(node: gs.Node, values: Any) -> None:
    node.outputs[0].to_constant(values)
    node.outputs[0].inputs.clear()


def _know_shape(node: gs.Node) -> None:
    """Make a constant of a Shape whose input has a fixed one, or of a fixed part of a Shape."""
    if is_op(node, "Shape") and node.inputs[0].shape is not None:
        sizes = list(node.inputs[0].shape)
        sizes = sizes[node.attrs.get("start", 0) : node.attrs.get("end", len(sizes))]
        if all(isinstance(size, int) for size in sizes):
            _settle(node, np.array(sizes, np.int64))
        for reader in list(node.outputs[0].outputs) if node.outputs else ():
            _know_sizes(reader, node.outputs[0], sizes)


def _know_sizes(gather: gs.Node, shape: gs.Tensor, sizes: list[int | str | None]) -> None:
    """Make a constant of a Gather of fixed sizes out of a shape."""
    if not is_op(gather, "Gather") or gather.inputs[0] is not shape:
        return
    places = constant(gather.inputs[1])
    if places is None or not all(-len(sizes) <= place < len(sizes) for place in places.flat):
        return
    picked = [sizes[int(place)] for place in places.flat]
    if all(isinstance(size, int) for size in picked):
        _settle(gather, np.array(picked, np.int64).reshape(places.shape))


def _none_stated(graph: gs.Graph) -> str | None:
    left = (node.name for node in graph.nodes if is_op(node, "Constant") and "value" in node.attrs)
    name = next(left, None)
    return None if name is None else f"node {name!r} is still a Constant"


CONSTANTS = Pass(
    "constants",
    "Compute all nodes that do not depend on the inputs, so that weights and shapes are constants.",
    fold_constants,
    current,
    _none_stated,
)


def take_branches(graph: gs.Graph) -> int:
    """Put the branches that are always taken in the place of their Ifs; return the number of Ifs."""
    count = 0
    while (node := next(_decided(graph), None)) is not None:
        _unfold(node, graph)
        count += 1
    if count:
        fold_constants(in_order(clean(graph)))
    return count


def _decided(graph: gs.Graph) -> Iterator[gs.Node]:
    return (node for node in graph.nodes if is_op(node, "If") and _fits(node, graph))


def _taken(node: gs.Node) -> gs.Graph | None:
    if (condition := constant(node.inputs[0])) is None:
        return None
    branch: gs.Graph = node.attrs["then_branch" if condition.all() else "else_branch"]
    return branch


def _fits(node: gs.Node, graph: gs.Graph) -> bool:
    """Tell whether a branch is known, makes all that it returns, and has no name used outside."""
    branch = _taken(node)
    if branch is None or any(tensor.is_empty() for tensor in node.outputs):
        return False
    outer = graph.tensors()
    own = {name: t for name, t in branch.tensors().items() if outer.get(name) is not t}
    inner_results = {id(tensor) for inner in branch.nodes for tensor in inner.outputs}
    returned = {id(tensor) for tensor in branch.outputs}
    others = (part for holder in graph.nodes if holder is not node for part in holder.subgraphs())
    used = set(outer).union(*map(tensor_names, others))
    return len(returned) == len(node.outputs) and returned <= inner_results and used.isdisjoint(own)


def _unfold(node: gs.Node, graph: gs.Graph) -> None:
    branch = _taken(node)
    assert branch is not None  # noqa: S101  # `_fits` saw to it
    for result, inner in zip(list(node.outputs), branch.outputs, strict=True):
        result.inputs.clear()
        replace_tensor(inner, result)
    node.inputs.clear()
    taken = {other.name for other in graph.nodes}
    for inner in branch.nodes:
        inner.name = unique(inner.name or inner.op, taken)
    place = next(index for index, other in enumerate(graph.nodes) if other is node)
    graph.nodes[place : place + 1] = list(branch.nodes)


def _none_decided(graph: gs.Graph) -> str | None:
    left = next(_decided(graph), None)
    return left and f"the branch of node {left.name!r} is known"


BRANCHES = Pass(
    "branches",
    "Replace an If whose condition is constant by the branch that is taken.",
    take_branches,
    current,
    _none_decided,
)
