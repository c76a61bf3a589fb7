"""Queries, keys and values that one product computes together and that are cut apart afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_graphsurgeon as gs

from trtcal.model.ops import CUTS, MOVES, MULTIPLIES
from trtcal.quantization.weighted_ops import (
    Layer,
    is_activation,
    readers,
)


def cut_layers(graph: gs.Graph, layers: Iterable[Layer]) -> list[Layer]:
    """Return the nodes that cut what products of two activations read; they read it quantized."""
    found: dict[str, Layer] = {}
    for _, whole in _cuts(graph, layers):
        for node, index in readers(whole):
            if node.op in CUTS:
                found[node.name] = Layer(node.name, node.op, {index: whole.name})
    return list(found.values())


def cut_sources(graph: gs.Graph, layers: Iterable[Layer]) -> dict[str, str]:
    """Return for the parts that are read quantized what they were cut from: it gives the range."""
    return {part: whole.name for part, whole in _cuts(graph, layers)}


def _cuts(graph: gs.Graph, layers: Iterable[Layer]) -> Iterator[tuple[str, gs.Tensor]]:
    tensors = graph.tensors()
    every = list(layers)
    names = {layer.name for layer in every}
    for layer in every:
        if len(layer.activations) == 2:
            for name in layer.activations.values():
                whole = _cut_from(tensors[name])
                if whole is not None and _products_of_parts(whole) <= names:
                    yield name, whole


def _products_of_parts(whole: gs.Tensor) -> set[str]:
    """Return the heavy nodes that multiply parts of a tensor, straight or moved."""
    found: set[str] = set()
    parts = [one for node, _ in readers(whole) if node.op in CUTS for one in node.outputs]
    while parts:
        for node, _ in readers(parts.pop()):
            if node.op in MULTIPLIES:
                found.add(node.name)
            elif node.op in MOVES:
                parts.extend(node.outputs)
    return found


def _cut_from(tensor: gs.Tensor) -> gs.Tensor | None:
    """Return what a tensor is a part of, if other parts are cut off it too."""
    while tensor.inputs and tensor.inputs[0].op in MOVES:
        tensor = tensor.inputs[0].inputs[0]
    cut = tensor.inputs[0] if tensor.inputs else None
    if cut is None or cut.op not in CUTS or not is_activation(cut.inputs[0]):
        return None
    parts = [node for node, index in readers(cut.inputs[0]) if node.op in CUTS and index == 0]
    return cut.inputs[0] if cut.op == "Split" or len(parts) > 1 else None
