"""Model-local functions: their bodies in the place of their calls."""

from __future__ import annotations

from collections import Counter

import onnx
import onnx.inliner
import onnx_graphsurgeon as gs

from trtcal.model.files import opset_of, with_inner
from trtcal.model.graph import STANDARD
from trtcal.model.passes.base import NotApplicable, Pass
from trtcal.model.passes.upgrade import changed

MOST_NODES = 50_000
"""Of what functions stand for: a few that call each other can stand for any number."""


def _inline(graph: gs.Graph) -> int:
    before = len(graph.functions)
    changed(graph, inlined)
    return before - len(graph.functions)


def inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the nodes of its functions; `NotApplicable` if they are too many."""
    if _size(proto) > MOST_NODES:
        raise NotApplicable(f"the functions stand for over {MOST_NODES} nodes")
    imports = (item for function in proto.functions for item in function.opset_import)
    for item in imports:
        if item.domain in STANDARD:  # the checker saw that its operators mean the same there
            item.version = opset_of(proto)
    return onnx.inliner.inline_local_functions(proto)


def _size(proto: onnx.ModelProto) -> int:
    """Return how many nodes all calls stand for, or a number above `MOST_NODES`."""
    bodies = {
        (function.domain, function.name): Counter(
            (node.domain, node.op_type) for node in with_inner(function.node)
        )
        for function in proto.functions
    }
    nodes, called = 0, Counter((node.domain, node.op_type) for node in with_inner(proto.graph.node))
    while called and nodes <= MOST_NODES:
        inner = Counter[tuple[str, str]]()
        for name, times in called.items():
            inner.update({key: times * count for key, count in bodies.get(name, {}).items()})
        nodes, called = nodes + inner.total(), inner
    return nodes


FUNCTIONS = Pass(
    "functions",
    "Put the nodes of model-local functions in the place of their calls.",
    _inline,
    lambda graph: None if graph.functions else "it has no functions",
)
