"""What the passes left alone in a model, and why: said, by node."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_graphsurgeon as gs

from trtcal.graph import MIN_OPSET, STANDARD, is_op
from trtcal.passes.constants import is_constant
from trtcal.passes.scales import CHANNEL_AXIS, why_kept

NAMED = 3  # things that a note names, at most


def notes_on(graph: gs.Graph, given: onnx.ModelProto) -> tuple[str, ...]:
    """Return one sentence for each kind of thing in a prepared graph that was left alone."""
    called = {(function.domain, function.name) for function in given.functions}
    nodes: dict[str, list[str]] = {}
    for node in graph.nodes:
        why = _why_kept(node, called)
        if why:
            nodes.setdefault(why, []).append(node.name)
    notes = [_sentence("node", names, why) for why, names in nodes.items()]
    initialized = {tensor.name for tensor in given.graph.initializer}
    defaults = [one.name for one in given.graph.input if one.name in initialized]
    if defaults and given.ir_version > 3:  # up to 3 every initializer had to be an input too
        notes.append(_sentence("input", defaults, "its default value is taken as a constant"))
    if graph.opset < MIN_OPSET:
        notes.append(f"opset {graph.opset}: it is not raised, and Q/DQ need {MIN_OPSET}")
    return tuple(notes)


def _why_kept(node: gs.Node, called: set[tuple[str, str]]) -> str | None:
    if next(node.subgraphs(), None) is not None:
        return "the nodes in its subgraphs are left alone"
    if (node.domain or "", node.op) in called:
        return "the nodes in the function that it calls are left alone"
    if node.domain not in STANDARD:
        return "it is of another domain than ONNX's and kept as it is"
    if is_op(node, "BatchNormalization"):
        makers = node.inputs[0].inputs
        why = why_kept(node) if any(is_op(one, *CHANNEL_AXIS) for one in makers) else None
        return why and f"it is not folded: {why}"
    return "it depends on no input and could not be computed" if is_constant(node) else None


def _sentence(what: str, names: Iterable[str], said: str) -> str:
    found = list(names)
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"{what} {', '.join(map(repr, found[:NAMED]))}{more}: {said}"
