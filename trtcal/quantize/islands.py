"""Float16 islands in a float32 graph: which nodes are in them, and the casts at their shores.

Tensors keep their names and types; what an island computes is called `<tensor>/half`. A cast is
written where a tensor crosses, once, and none where a DequantizeLinear can give either type.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.model import unique
from trtcal.quantize.bounds import bounds
from trtcal.quantize.cut import HALF, SINGLE, split
from trtcal.quantize.graph import constant, tensor_names
from trtcal.quantize.half import (
    HEAVY,
    MOST,
    SENSITIVE,
    TYPED_BY_ATTRIBUTE,
    Places,
    at_places,
    half_places,
    half_scale,
    is_single,
    overflow,
    subnormal,
    takes_half_scale,
)
from trtcal.quantize.plan import Decision

UNTYPED = ("Shape", "Size")  # they read whatever type there is
PAIR = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Islands:
    """What was made float16: the nodes, the casts written, and what a user should know of it.

    `skipped` says why a node that was asked in float16 is not, `subnormal` how many values of a
    constant lose digits, `unknown` are float16 tensors that nothing known keeps below 65504.
    """

    nodes: tuple[str, ...] = ()
    casts: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    subnormal: dict[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def make_islands(
    graph: gs.Graph,
    decisions: Mapping[str, Decision],
    quantized: Collection[str],
    observed: Mapping[str, float],
) -> Islands:
    """Turn what `decisions` ask in fp16, by node name, into float16, in place.

    `quantized` are the nodes in INT8, `observed` the largest magnitudes seen of tensors. Other nodes
    join an island where that saves casts.
    """
    survey = _Survey(graph.toposort(), decisions, quantized, observed)
    defaults = [one.precision for one in decisions.values() if one.is_default]
    side = split(survey.fixed, survey.tensors(), HALF if HALF in defaults else SINGLE)
    nodes = [node for node in graph.nodes if id(node) in side]
    unknown = survey.unbounded(nodes, bounds(graph, observed))
    writer = _Writer(graph)
    for node in nodes:
        writer.convert(node, survey.places[id(node)])
    writer.meet_casts()
    graph.cleanup(remove_unused_graph_inputs=False).toposort()
    casts = sum(node.name in writer.casts for node in graph.nodes)
    names = tuple(node.name for node in nodes)
    return Islands(names, casts, survey.skipped, writer.subnormal, unknown)


class _Survey:
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
        if obstacle and wanted == HALF and node.op not in TYPED_BY_ATTRIBUTE:
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
        if node.name in self.quantized and not all(map(self._takes_half, _pairs_before(node))):
            return "its scales are too small for float16, or the opset is"
        return overflow(node, places, self.observed)

    def _takes_half(self, pair: gs.Node) -> bool:
        return takes_half_scale(pair, self.graph.opset)

    def tensors(self) -> Iterator[tuple[Hashable, list[Hashable]]]:
        """Yield the producer and the readers of every tensor that may have to be cast."""
        shown = {id(tensor) for tensor in (*self.graph.outputs, *_captured(self.graph))}
        made = (tensor for node in self.graph.nodes for tensor in node.outputs)
        for tensor in filter(is_single, (*self.graph.inputs, *made)):
            producer = tensor.inputs[0] if tensor.inputs else None
            if producer is not None and producer.op in PAIR and self._takes_half(producer):
                continue
            readers = {self._reader(node, tensor): None for node in tensor.outputs}
            readers |= {SINGLE: None} if id(tensor) in shown else {}
            side = id(producer) if id(producer) in self.places else SINGLE
            yield side, [reader for reader in readers if reader is not None]

    def _reader(self, node: gs.Node, tensor: gs.Tensor) -> Hashable | None:
        """Return who reads a tensor: a node with a choice, float32, or None if any type will do."""
        places = self.places.get(id(node))
        if places and any(node.inputs[index] is tensor for index in places.inputs):
            return id(node)
        any_type = node.op in UNTYPED or (node.op in PAIR and self._takes_half(node))
        return None if any_type or _is_cast_to(np.float16, node) else SINGLE

    def unbounded(self, nodes: list[gs.Node], known: Mapping[str, float]) -> tuple[str, ...]:
        """Return the tensors of float16 nodes that nothing known keeps within float16."""
        floats = (one for node in nodes for one in at_places(node, self.places[id(node)]))
        names = (one.name for one in floats if not isinstance(one, gs.Constant))
        return tuple(dict.fromkeys(name for name in names if known.get(name, np.inf) > MOST))


def _pairs_before(node: gs.Node) -> Iterator[gs.Node]:
    producers = (tensor.inputs[0] for tensor in node.inputs if tensor.inputs)
    return (producer for producer in producers if producer.op in PAIR)


def _captured(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield what subgraphs name, tensors of the graph around them among it."""
    for inner in graph.subgraphs(recursive=True):
        yield from (*inner.outputs, *inner.tensors().values())


def _is_cast_to(dtype: type, node: gs.Node) -> bool:
    return node.op == "Cast" and node.outputs[0].dtype == dtype


class _Writer:
    """Converts nodes in the order of the graph, and remembers the float16 form of every tensor."""

    def __init__(self, graph: gs.Graph) -> None:
        self.graph = graph
        self.names = {node.name for node in graph.nodes} | tensor_names(graph)
        self.halves: dict[str, gs.Tensor] = {}
        self.casts: set[str] = set()
        self.subnormal: dict[str, int] = {}

    def convert(self, node: gs.Node, places: Places) -> None:
        """Make a node read and write float16; what it wrote comes from a cast, if anyone reads it."""
        for index in places.inputs:
            node.inputs[index] = self._half(node.inputs[index])
        for index in places.outputs:
            tensor = node.outputs[index]
            node.outputs[index] = self.halves[tensor.name] = self._variable(tensor)
            self._cast(self.halves[tensor.name], tensor)

    def meet_casts(self) -> None:
        """Let Q nodes, and the model's own casts to float16, read what islands compute."""
        for node in self.graph.nodes:
            if not (node.inputs and self._is_ours(node.inputs[0])):
                continue
            if node.op == "QuantizeLinear" and takes_half_scale(node, self.graph.opset):
                node.inputs[0] = self.halves[node.inputs[0].name]
                node.inputs[1] = self._scale(node)
            elif _is_cast_to(np.float16, node):
                self._replace(node.outputs[0], self.halves[node.inputs[0].name])
            elif node.op in UNTYPED:
                node.inputs[0] = self.halves[node.inputs[0].name]

    def _is_ours(self, tensor: gs.Tensor) -> bool:
        return any(producer.name in self.casts for producer in tensor.inputs) and (
            tensor.dtype == np.float32
        )

    def _replace(self, tensor: gs.Tensor, other: gs.Tensor) -> None:
        for reader in list(tensor.outputs):
            reader.inputs = [other if one is tensor else one for one in reader.inputs]

    def _half(self, tensor: gs.Tensor) -> gs.Tensor:
        if tensor.name not in self.halves:
            self.halves[tensor.name] = self._made(tensor)
        return self.halves[tensor.name]

    def _made(self, tensor: gs.Tensor) -> gs.Tensor:
        if isinstance(tensor, gs.Constant):
            return self._constant(tensor)
        producer = tensor.inputs[0] if tensor.inputs else None
        if producer is not None and producer.op == "DequantizeLinear":
            if takes_half_scale(producer, self.graph.opset):
                return self._dequantized(producer)
        if (
            producer is not None
            and producer.op == "Cast"
            and producer.inputs[0].dtype == np.float16
        ):
            return producer.inputs[0]
        casts = (node for node in tensor.outputs if _is_cast_to(np.float16, node))
        known = next(casts, None)
        return known.outputs[0] if known else self._cast(tensor, self._variable(tensor))

    def _constant(self, tensor: gs.Constant) -> gs.Constant:
        values = np.asarray(constant(tensor))
        lost = subnormal(values)
        if lost:
            self.subnormal[tensor.name] = lost
        return gs.Constant(self._name(tensor), values.astype(np.float16))

    def _dequantized(self, node: gs.Node) -> gs.Variable:
        """Return what a DQ node gives in float16; the other DQ goes if nobody reads it."""
        result = self._variable(node.outputs[0])
        inputs = [node.inputs[0], self._scale(node), *node.inputs[2:]]
        name = unique(f"{node.name}/half", self.names)
        self.graph.nodes.append(gs.Node(node.op, name, dict(node.attrs), inputs, [result]))
        return result

    def _scale(self, node: gs.Node) -> gs.Constant:
        """Return a scale in float16; the float32 one takes its value, so that Q and DQ agree."""
        scale = node.inputs[1]
        if scale.dtype == np.float16:
            return scale
        if scale.name not in self.halves:
            rounded = half_scale(node)
            self.halves[scale.name] = gs.Constant(self._name(scale), rounded)
            scale.values = rounded.astype(np.float32)
        return self.halves[scale.name]

    def _cast(self, source: gs.Tensor, result: gs.Tensor) -> gs.Tensor:
        name = unique(f"{result.name}/cast", self.names)
        to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(result.dtype))
        self.graph.nodes.append(gs.Node("Cast", name, {"to": to}, [source], [result]))
        self.casts.add(name)
        return result

    def _variable(self, like: gs.Tensor) -> gs.Variable:
        return gs.Variable(self._name(like), np.float16, like.shape)

    def _name(self, tensor: gs.Tensor) -> str:
        return unique(f"{tensor.name}/half", self.names)
