"""Take nodes out of a graph without renaming what is seen from outside, or from subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_graphsurgeon as gs

from trtcal.graph import clean
from trtcal.passes.base import Pass, current

Source = Callable[[gs.Node], gs.Tensor | None]
"""Returns the tensor that a node's first output always equals, None if there is none."""


class View:
    """Which tensors of a graph have to stay: its outputs, and what subgraphs read or return."""

    def __init__(self, graph: gs.Graph) -> None:
        self.nodes = {id(node) for node in graph.nodes}
        self.outputs = {id(tensor) for tensor in graph.outputs}
        self.held = {id(tensor) for part in graph.subgraphs(recursive=True) for tensor in _of(part)}

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
        for reader in list(gone.outputs):
            reader.inputs = [kept if tensor is gone else tensor for tensor in reader.inputs]
        for maker in list(gone.inputs):
            maker.outputs = [kept if tensor is gone else tensor for tensor in maker.outputs]
        if isinstance(kept, gs.Variable) and kept.shape is None:
            kept.shape = gone.shape


def _of(part: gs.Graph) -> Iterator[gs.Tensor]:
    for node in part.nodes:
        yield from node.inputs
    yield from part.outputs


def removal(name: str, purpose: str, source: Source, on_request: bool = False) -> Pass:
    """Return the pass that takes out every node whose output equals what `source` says."""

    def found(graph: gs.Graph) -> Iterator[tuple[View, gs.Node, gs.Tensor]]:
        view = View(graph)
        for node in graph.nodes:
            equal = source(node) if node.outputs else None
            if equal is not None and view.allows(node, equal):
                yield view, node, equal

    def apply(graph: gs.Graph) -> int:
        count = 0
        for view, node, equal in found(graph):
            view.take_out(node, equal)
            count += 1
        clean(graph)
        return count + apply(graph) if count else 0

    def after(graph: gs.Graph) -> str | None:
        left = next(found(graph), None)
        return left and f"node {left[1].name!r} could still be taken out"

    return Pass(name, purpose, apply, current, after, on_request)
