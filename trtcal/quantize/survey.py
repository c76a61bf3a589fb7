"""Which nodes are in float16: what each of them may be, and the split with the fewest casts."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.quantize.cut import CAST, HALF, SINGLE, TIED, Crossing, split
from trtcal.quantize.half import (
    HEAVY,
    MOST,
    PAIR,
    SENSITIVE,
    TYPED_BY_ATTRIBUTE,
    UNTYPED,
    Places,
    at_places,
    half_places,
    is_cast_to,
    is_single,
    overflow,
    takes_half_scale,
)
from trtcal.quantize.plan import Decision


class Survey:
    """What each node may be, and which tensors lie between nodes that have a choice."""

    def __init__(
        self,
        graph: gs.Graph,
        decisions: Mapping[str, Decision],
        quantized: Collection[str],
        observed: Mapping[str, float],
    ) -> None:
        self.graph = graph
        self.quantized = quantized
        self.observed = observed
        self.skipped: dict[str, str] = {}
        self.places: dict[int, Places] = {}
        self.fixed: dict[Hashable, str] = {}
        for node in graph.nodes:
            if any(map(is_single, (*node.inputs, *node.outputs))):
                self._enter(node, decisions.get(node.name, Decision(SINGLE, "default")))

    def _enter(self, node: gs.Node, decision: Decision) -> None:
        places = half_places(node, self.graph.opset)
        wanted = self._wanted(node, decision)
        if places is not None:
            self.places[id(node)] = places
        obstacle = self._obstacle(node, places, decision)
        if obstacle and wanted == HALF and node.op not in (*TYPED_BY_ATTRIBUTE, *UNTYPED):
            self.skipped[node.name] = f"asked in fp16, stays in fp32: {obstacle}"
        if obstacle or wanted:
            self.fixed[id(node)] = SINGLE if obstacle else str(wanted)

    def _wanted(self, node: gs.Node, decision: Decision) -> str | None:
        """Return what a node has to be, None if it goes with its neighbours."""
        if node.name in self.quantized or (decision.is_default and node.op not in HEAVY):
            return None
        if decision.precision == HALF:
            return HALF
        return SINGLE if decision.precision == SINGLE or node.op in HEAVY else None

    def _obstacle(self, node: gs.Node, places: Places | None, decision: Decision) -> str | None:
        if places is None:
            return f"{node.op} has no float16 form here, or its types are not known"
        if node.op in SENSITIVE and not (decision.precision == HALF and decision.named):
            return f"{node.op} does so unless a plan names it or its operator"
        if node.name in self.quantized and not all(map(self._takes_half, pairs_before(node))):
            return "its scales are too small for float16, or the opset is"
        return overflow(node, places, self.observed)

    def _takes_half(self, pair: gs.Node) -> bool:
        return takes_half_scale(pair, self.graph.opset)

    def split(self, preferred: str) -> list[gs.Node]:
        """Return the nodes for float16, in the order of the graph."""
        half = split(self.fixed, self._crossings(), preferred)
        return [node for node in self.graph.nodes if id(node) in half]

    def _crossings(self) -> Iterator[Crossing]:
        """Yield every tensor that may have to be cast.

        All readers of a DQ node are tied: TensorRT-RTX 1.7 fails to compile some graphs in which one
        INT8 tensor is dequantized to both types.
        """
        shown = {id(tensor) for tensor in (*self.graph.outputs, *_captured(self.graph))}
        made = (tensor for node in self.graph.nodes for tensor in node.outputs)
        for tensor in filter(is_single, (*self.graph.inputs, *made)):
            producer = tensor.inputs[0] if tensor.inputs else None
            found = {self._reader(node, tensor): None for node in tensor.outputs}
            found |= {SINGLE: None} if id(tensor) in shown else {}
            readers = [reader for reader in found if reader is not None]
            if producer is not None and producer.op in PAIR and self._takes_half(producer):
                if readers:
                    yield readers[0], readers[1:], TIED
            else:
                yield id(producer) if id(producer) in self.places else SINGLE, readers, CAST

    def _reader(self, node: gs.Node, tensor: gs.Tensor) -> Hashable | None:
        """Return who reads a tensor: a node with a choice, float32, or None if any type will do."""
        places = self.places.get(id(node))
        if places and any(node.inputs[index] is tensor for index in places.inputs):
            return id(node)
        any_type = node.op in UNTYPED or (node.op in PAIR and self._takes_half(node))
        return None if any_type or is_cast_to(np.float16, node) else SINGLE

    def unbounded(self, nodes: list[gs.Node], known: Mapping[str, float]) -> tuple[str, ...]:
        """Return the tensors of float16 nodes that nothing known keeps within float16."""
        floats = (one for node in nodes for one in at_places(node, self.places[id(node)]))
        names = (one.name for one in floats if not isinstance(one, gs.Constant))
        return tuple(dict.fromkeys(name for name in names if known.get(name, np.inf) > MOST))


def pairs_before(node: gs.Node) -> Iterator[gs.Node]:
    """Yield the DQ nodes that give a node its inputs."""
    producers = (tensor.inputs[0] for tensor in node.inputs if tensor.inputs)
    return (producer for producer in producers if producer.op in PAIR)


def _captured(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield what subgraphs name, tensors of the graph around them among it."""
    for inner in graph.subgraphs(recursive=True):
        yield from (*inner.outputs, *inner.tensors().values())
