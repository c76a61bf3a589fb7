"""Which nodes run in float16: what each of them allows, and the split with the fewest casts."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from trtcal.formats import FORMATS
from trtcal.model.graph import FP16_OPSET, STANDARD, captured, constant, format_of
from trtcal.model.ops import HEAVY, QDQ, RECURRENT, SENSITIVE, SHAPE_ONLY, TYPED
from trtcal.quantization.plan import Decision
from trtcal.quantization.weights import as_scale
from trtcal.stats import scipy

FP32, FP16 = "fp32", "fp16"
FP16_MAX = 65504.0
FP16_NORMAL = 2.0**-14  # smaller values lose digits
FP16_LEAST = 2.0**-25  # half the least float16
BEYOND = f"and the largest float16 is {FP16_MAX:.0f}"
FP16_LEAST_SCALE = 2.0**-17  # a smaller scale would be wrong by more than half a step at 127
FLOAT16_TENSOR = "tensor(float16)"
LENGTHS = slice(4, 5)  # of the inputs of a recurrent operator: its `sequence_lens`
FIRST_ONLY = frozenset(("Resize", "Upsample"))  # their other inputs are regions and factors

Array = npt.NDArray[Any]
Formal = onnx.defs.OpSchema.FormalParameter


@dataclass(frozen=True)
class Places:
    """The float32 inputs and outputs of a node that become float16 with it, by place."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def fp16_places(node: gs.Node, opset: int) -> Places | None:
    """Return what a node can read and write in float16 in place of float32, None if nothing."""
    tensors = [tensor for tensor in (*node.inputs, *node.outputs) if not tensor.is_empty()]
    schema = schema_of(node.op, node.domain, opset)
    is_plain = node.op not in TYPED | SHAPE_ONLY and next(node.subgraphs(), None) is None
    if schema is None or not is_plain or any(tensor.dtype is None for tensor in tensors):
        return None
    inputs = _places(node.inputs, schema.inputs, schema)
    outputs = _places(node.outputs, schema.outputs, schema)
    inputs = inputs[:1] if node.op in FIRST_ONLY else inputs
    return Places(inputs, outputs) if inputs or outputs else None


def schema_of(op: str, domain: str | None, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of an operator, None if it is not one of ONNX's own in that opset."""
    try:
        return onnx.defs.get_schema(op, opset) if domain in STANDARD else None
    except onnx.defs.SchemaError:
        return None


def _places(tensors: Any, formal: Any, schema: onnx.defs.OpSchema) -> tuple[int, ...]:
    allowed = {rule.type_param_str: rule.allowed_type_strs for rule in schema.type_constraints}
    kinds = formal_types(formal, len(tensors))
    takes = [FLOAT16_TENSOR in allowed.get(kind, (kind,)) for kind in kinds]
    return tuple(i for i, tensor in enumerate(tensors) if is_fp32(tensor) and takes[i])


def formal_types(parameters: Sequence[Formal], count: int) -> list[str]:
    """Return the types of as many parameters; the last one may stand for several."""
    return [parameters[min(place, len(parameters) - 1)].type_str for place in range(count)]


def is_fp32(tensor: gs.Tensor) -> bool:
    """Tell whether a tensor is known to be float32."""
    return not tensor.is_empty() and tensor.dtype == np.float32


def is_cast_to(dtype: type, node: gs.Node) -> bool:
    """Tell whether a node is a Cast to this type."""
    return bool(node.op == "Cast" and node.outputs[0].dtype == dtype)


@dataclass(frozen=True)
class Values:
    """The largest magnitudes that were observed of tensors, of all of them if `is_measured`."""

    observed: Mapping[str, float]
    is_measured: bool = False

    def fit(self, tensor: gs.Tensor) -> bool:
        """Tell whether a tensor is known to stay within float16, as what a DQ node gives does."""
        is_dequantized = any(maker.op in QDQ for maker in tensor.inputs)
        return is_dequantized or self.observed.get(tensor.name, np.inf) <= FP16_MAX

    def obstacle(self, tensor: gs.Tensor) -> str | None:
        """Return why a tensor cannot be in float16, None if nothing shows it."""
        if isinstance(tensor, gs.Constant):
            return _unfit(tensor)
        largest = self.observed.get(tensor.name)
        if largest is not None and 0 < largest < FP16_LEAST:
            return f"tensor {tensor.name!r}, of {largest:.6g} at most, would be 0 in float16"
        if self.fit(tensor) or (largest is None and not self.is_measured):
            return None
        reached = "was not measured" if largest is None else f"reached {largest:.6g}"
        return f"tensor {tensor.name!r} {reached}, {BEYOND}"


def overflow(node: gs.Node, places: Places, values: Values) -> str | None:
    """Return why float16 does not fit a node, None if no constant or value shows that."""
    return next(filter(None, map(values.obstacle, at_places(node, places))), None)


def at_places(node: gs.Node, places: Places) -> Iterator[gs.Tensor]:
    """Yield the tensors at a node's places."""
    yield from (node.inputs[index] for index in places.inputs)
    yield from (node.outputs[index] for index in places.outputs)


def _unfit(tensor: gs.Constant) -> str | None:
    values = np.abs(np.asarray(constant(tensor)))
    largest = values.max(initial=0, where=np.isfinite(values))
    if largest > FP16_MAX:
        return f"its constant {tensor.name!r} has {largest:.6g}, {BEYOND}"
    if 0 < largest <= FP16_LEAST:
        return f"its constant {tensor.name!r} of {largest:.6g} would be 0 in float16"
    return None


def subnormal(values: Array) -> int:
    """Return how many values other than 0 are too small for all of float16's digits."""
    return int(np.count_nonzero((values != 0) & (np.abs(values) < FP16_NORMAL)))


def takes_fp16_scale(node: gs.Node, opset: int) -> bool:
    """Tell whether a Q or DQ node can have a float16 scale in place of its float32 one."""
    scale = constant(node.inputs[1])
    if opset < FP16_OPSET:
        return False
    if scale is None:  # a block scale, which is in FP8 itself
        return all(takes_fp16_scale(pair, opset) for pair in pairs_before(node))
    if scale.dtype != np.float32:
        return False
    is_exact = bool((scale.astype(np.float16) == scale).all())
    kind = format_of(node) or FORMATS["int8"]
    fits = bool((scale * kind.most <= FP16_MAX).all())
    return fits and (is_exact or bool((scale >= FP16_LEAST_SCALE).all()))


def fp16_scale(node: gs.Node) -> Array:
    """Return the scale of a Q or DQ node in float16.

    An activation's is rounded up, so that no value leaves the range. A weight is quantized already:
    its scales are rounded to the nearest, so that their errors have no direction.
    """
    scale = np.asarray(constant(node.inputs[1]))
    if isinstance(node.inputs[0], gs.Constant):
        return np.asarray(scale.astype(np.float16))
    return as_scale(scale, np.float16)


class Survey:
    """The precisions that each node allows, and the tensors between nodes that have a choice."""

    def __init__(
        self,
        graph: gs.Graph,
        decisions: Mapping[str, Decision],
        quantized: Collection[str],
        values: Values,
        floats: str,
    ) -> None:
        self.graph = graph
        self.quantized = quantized
        self.floats = floats
        self.values = values
        self.skipped: dict[str, str] = {}
        self.places: dict[int, Places] = {}
        self.fixed: dict[Hashable, str] = {}
        for node in graph.nodes:
            if any(map(is_fp32, (*node.inputs, *node.outputs))):
                self._enter(node, decisions.get(node.name, Decision(FP32, "default")))

    def _enter(self, node: gs.Node, decision: Decision) -> None:
        places = fp16_places(node, self.graph.opset)
        precision = self._planned(node, decision)
        if places is not None:
            self.places[id(node)] = places
        obstacle = self._obstacle(node, places, decision)
        if obstacle and precision == FP16 and node.op not in TYPED | SHAPE_ONLY:
            self.skipped[node.name] = f"the plan asks for fp16, it stays in fp32: {obstacle}"
        if obstacle or precision:
            self.fixed[id(node)] = FP32 if obstacle else str(precision)

    def _planned(self, node: gs.Node, decision: Decision) -> str | None:
        """Return the precision that a plan asks of a node, None if it follows its neighbours."""
        if node.name in self.quantized or (decision.is_default and node.op not in HEAVY):
            return None
        if decision.precision in (FP16, FP32):
            return decision.precision
        return self.floats if node.op in HEAVY else None

    def _obstacle(self, node: gs.Node, places: Places | None, decision: Decision) -> str | None:
        if places is None:
            return f"{node.op} has no float16 form in this opset, or its types are not known"
        if node.op in SENSITIVE and not (decision.precision == FP16 and decision.named):
            return f"{node.op} stays in float32 unless a plan names it or its operator"
        if node.op in RECURRENT and any(not tensor.is_empty() for tensor in node.inputs[LENGTHS]):
            return f"TensorRT's parser builds {node.op} with sequence lengths in float32 alone"
        if node.name in self.quantized and not all(map(self._takes_fp16, pairs_before(node))):
            return "its scales are too small for float16, or its opset is too low"
        return overflow(node, places, self.values)

    def _takes_fp16(self, pair: gs.Node) -> bool:
        return takes_fp16_scale(pair, self.graph.opset)

    def split(self, preferred: str) -> list[gs.Node]:
        """Return the nodes for float16, in the order of the graph."""
        chosen = split(self.fixed, self._crossings(), preferred)
        return [node for node in self.graph.nodes if id(node) in chosen]

    def _crossings(self) -> Iterator[Crossing]:
        """Yield every tensor that may have to be cast.

        All readers of a DQ node are tied: TensorRT-RTX 1.7 fails to compile some graphs in which one
        INT8 tensor is dequantized to both types.
        """
        kept = {id(tensor) for tensor in (*self.graph.outputs, *captured(self.graph))}
        tensors = (tensor for node in self.graph.nodes for tensor in node.outputs)
        for tensor in filter(is_fp32, (*self.graph.inputs, *tensors)):
            producer = tensor.inputs[0] if tensor.inputs else None
            ends = {self._reader(node, tensor): None for node in tensor.outputs}
            ends |= {FP32: None} if id(tensor) in kept else {}
            readers = [reader for reader in ends if reader is not None]
            if producer is not None and producer.op in QDQ and self._takes_fp16(producer):
                if readers:
                    yield readers[0], readers[1:], TIED
            else:
                yield id(producer) if id(producer) in self.places else FP32, readers, CAST

    def _reader(self, node: gs.Node, tensor: gs.Tensor) -> Hashable | None:
        """Return the reader of a tensor: a node with a choice, float32, or None for any type."""
        places = self.places.get(id(node))
        if places and any(node.inputs[index] is tensor for index in places.inputs):
            return id(node)
        any_type = node.op in SHAPE_ONLY or (node.op in QDQ and self._takes_fp16(node))
        return None if any_type or is_cast_to(np.float16, node) else FP32

    def unbounded(self, nodes: list[gs.Node]) -> tuple[str, ...]:
        """Return the tensors of float16 nodes that are not known to stay within float16."""
        floats = (tensor for node in nodes for tensor in at_places(node, self.places[id(node)]))
        computed = (tensor for tensor in floats if not isinstance(tensor, gs.Constant))
        return tuple(dict.fromkeys(each.name for each in computed if not self.values.fit(each)))


def pairs_before(node: gs.Node) -> Iterator[gs.Node]:
    """Yield the DQ nodes that give a node its inputs."""
    producers = (tensor.inputs[0] for tensor in node.inputs if tensor.inputs)
    return (producer for producer in producers if producer.op in QDQ)


Crossing = tuple[Hashable, Sequence[Hashable], int]
"""The producer of a tensor, its readers, and what it costs if they differ."""


def split(
    fixed: Mapping[Hashable, str], crossings: Iterable[Crossing], preferred: str = FP32
) -> set[Hashable]:
    """Return what is in float16, by the split with the fewest casts.

    `fixed` gives the precision of what has no choice. Of several such splits, the one with most nodes
    in the `preferred` precision is taken.
    """
    numbers: dict[Hashable, int] = {FP16: 0, FP32: 1}
    edges: list[tuple[int, int, int]] = []

    def edge(source: Hashable, target: Hashable, capacity: int) -> None:
        start = numbers.setdefault(source, len(numbers))
        edges.append((start, numbers.setdefault(target, len(numbers)), capacity))

    for name, precision in fixed.items():
        source, target = (FP16, name) if precision == FP16 else (name, FP32)
        edge(source, target, UNCUT)
    for number, (producer, readers, cost) in enumerate(crossings):
        down, up = ("down", number), ("up", number)
        edge(producer, down, cost)  # cut where the producer is in float16, a reader is not
        edge(up, producer, cost)  # and here the other way round
        for reader in readers:
            edge(down, reader, UNCUT)
            edge(reader, up, UNCUT)
    side = _minimum_cut(edges, len(numbers), preferred)
    return {name for name, number in numbers.items() if number in side} - {FP16}


def _minimum_cut(edges: Sequence[tuple[int, int, int]], count: int, preferred: str) -> set[int]:
    """Return the numbers on the side of float16, 0, in a minimum cut from float32, 1."""
    rows, columns, capacities = np.array(edges or [(0, 1, 0)], np.int32).T
    capacity = scipy.sparse.coo_array((capacities, (rows, columns)), (count, count)).tocsr()
    left = capacity - scipy.sparse.csgraph.maximum_flow(capacity, 0, 1).flow
    left.eliminate_zeros()
    reached = partial(scipy.sparse.csgraph.breadth_first_order, return_predecessors=False)
    if preferred == FP32:
        return set(reached(left, 0))
    return set(range(count)) - set(reached(left.T.tocsr(), 1))


CAST, TIED, UNCUT = 1, 1 << 10, 1 << 20  # a tie gives way to what is fixed only
