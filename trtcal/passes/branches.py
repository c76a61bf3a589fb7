"""An If whose condition is constant is one of its branches."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from trtcal.graph import clean, constant, is_op, node_names, tensor_names
from trtcal.model import unique
from trtcal.passes.base import Pass, current
from trtcal.passes.constants import fold_constants


def take_branches(graph: gs.Graph) -> int:
    """Put the branches that are always taken in the place of their Ifs; return the number of Ifs."""
    count = 0
    while (node := next(_decided(graph), None)) is not None:
        _unfold(node, graph)
        count += 1
    if count:
        fold_constants(clean(graph).toposort())
    return count


def _decided(graph: gs.Graph) -> Iterator[gs.Node]:
    return (node for node in graph.nodes if is_op(node, "If") and _fits(node, graph))


def _taken(node: gs.Node) -> gs.Graph | None:
    condition = constant(node.inputs[0])
    if condition is None:
        return None
    branch: gs.Graph = node.attrs["then_branch" if condition.all() else "else_branch"]
    return branch


def _fits(node: gs.Node, graph: gs.Graph) -> bool:
    """Tell whether a branch is known, makes all that it returns, and has no name used outside."""
    branch = _taken(node)
    if branch is None or any(tensor.is_empty() for tensor in node.outputs):
        return False
    outer = graph.tensors()
    own = {name: one for name, one in branch.tensors().items() if outer.get(name) is not one}
    made = {id(tensor) for inner in branch.nodes for tensor in inner.outputs}
    returned = {id(tensor) for tensor in branch.outputs}
    others = (part for one in graph.nodes if one is not node for part in one.subgraphs())
    used = set(outer).union(*map(tensor_names, others))
    return len(returned) == len(node.outputs) and returned <= made and used.isdisjoint(own)


def _unfold(node: gs.Node, graph: gs.Graph) -> None:
    branch = _taken(node)
    assert branch is not None  # noqa: S101  # `_fits` saw to it
    for result, inner in zip(list(node.outputs), branch.outputs, strict=True):
        result.inputs.clear()
        for maker in list(inner.inputs):
            maker.outputs = [result if one is inner else one for one in maker.outputs]
        for reader in list(inner.outputs):
            reader.inputs = [result if one is inner else one for one in reader.inputs]
    node.inputs.clear()
    taken = node_names(graph.nodes)
    for one in branch.nodes:
        one.name = unique(one.name or one.op, taken)
    place = next(index for index, one in enumerate(graph.nodes) if one is node)
    graph.nodes[place : place + 1] = list(branch.nodes)


def _none_decided(graph: gs.Graph) -> str | None:
    left = next(_decided(graph), None)
    return left and f"the branch of node {left.name!r} is known"


BRANCHES = Pass(
    "branches",
    "Put the branch that is always taken in the place of an If whose condition is constant.",
    take_branches,
    current,
    _none_decided,
)
