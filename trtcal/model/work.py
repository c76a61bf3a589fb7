"""Multiply-accumulates and bytes of every node of a model, bodies and functions included.

All that asks for a network's work asks here: plans, the search, builds, reports.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import NodeProto

from trtcal.model.files import attribute_of, subgraphs_of, with_attributes
from trtcal.model.graph import STANDARD
from trtcal.model.macs import count_macs
from trtcal.model.model import Model, uniquely_named
from trtcal.model.ops import FREE, SHAPE_ONLY
from trtcal.model.shapes import (
    Array,
    Inference,
    Scope,
    Shape,
    Tensor,
    bound_inputs,
    constant_of,
    known_in,
    named_sizes,
    operator,
    stated_types,
)

DEEPEST = 16  # bodies and functions in one another
MOST_TRIPS = 1 << 20  # of a loop whose end is searched
TRUE = Tensor.of(np.array(True))
MOST_NODES = 50_000  # counted: functions that call others may stand for any number
UNMOVED = FREE | SHAPE_ONLY | {"Constant"}


@dataclass(frozen=True)
class NodeWork:
    """What a node does: multiply-accumulates (None: not known) and bytes read and written.

    `node` is its name, in a body behind that of the node that holds it; `root` is the node of the main
    graph that it is or lies in, `body` says in what body or function. Both counts are those of all
    `times` that it runs.
    """

    node: str
    op: str
    macs: int | None
    moved_bytes: int
    root: str
    body: str | None = None
    times: int = 1


@dataclass(frozen=True)
class Work:
    """The work of all nodes for inputs of these shapes, and what had to be assumed to count it.

    `tensors` is what is known of those of the main graph.
    """

    nodes: tuple[NodeWork, ...]
    inputs: Mapping[str, Shape]
    assumed: tuple[str, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)

    @property
    def macs(self) -> int:
        """All multiply-accumulates that are known."""
        return sum(node.macs or 0 for node in self.nodes)

    @property
    def by_root(self) -> dict[str, int | None]:
        """Multiply-accumulates by node of the main graph, None where some are not known."""
        macs: dict[str, int | None] = {}
        for node in self.nodes:
            sofar = macs.get(node.root, 0)
            macs[node.root] = None if sofar is None or node.macs is None else sofar + node.macs
        return macs


def count_work(model: Model, sizes: Mapping[str, Shape] | None = None) -> Work:
    """Count the work of a model whose tensors have the shapes `sizes`, as far as they are given.

    Those are shapes of inputs, or of all tensors where a run measured them. Open sizes that nothing
    decides count 1 for the batch and 64 else. A loop counts as often as it runs where that is known,
    else once; of an If's branches the one counts that does more.
    """
    proto = uniquely_named(model).proto
    scope, assumed = bound_inputs(proto.graph, sizes or {})
    shapes = {name: tensor.shape for name, tensor in scope.items() if tensor.shape is not None}
    named = named_sizes(proto.graph, scope)
    known = {name: shape for name, shape in (sizes or {}).items() if name not in shapes}
    inference = Inference(_opsets(proto.opset_import), proto.ir_version, {}, named, assumed, known)
    functions = {(function.domain, function.name): function for function in proto.functions}
    nodes = _Counter(functions, inference).graph(proto.graph, scope)
    return Work(tuple(nodes), shapes, tuple(dict.fromkeys(assumed)), scope)


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {"" if opset.domain in STANDARD else opset.domain: opset.version for opset in imports}


Counted = tuple[list[Tensor], list[NodeWork]]
"""What is known of a node's outputs, and the work of it or of the nodes that it holds."""
State = dict[int, Array]
"""What a loop carries, by the number of the body's input."""
Holder = Callable[[NodeProto, str, Sequence[Tensor], Scope], Counted]


@dataclass
class _Counter:
    """Counts graphs within graphs: `prefix` and `body` say where, `times` how often each runs."""

    functions: Mapping[tuple[str, str], onnx.FunctionProto]
    inference: Inference
    prefix: str = ""
    root: str | None = None
    body: str | None = None
    times: int = 1
    depth: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def graph(self, graph: onnx.GraphProto, scope: Scope) -> list[NodeWork]:
        """Return the work of a graph's nodes; `scope` gets what is known of its tensors."""
        scope.update((tensor.name, constant_of(tensor)) for tensor in graph.initializer)
        inference = replace(self.inference, stated=stated_types(graph))
        return replace(self, inference=inference).nodes(graph.node, scope)

    def nodes(self, nodes: Iterable[NodeProto], scope: Scope) -> list[NodeWork]:
        return [counted for i, node in enumerate(nodes) for counted in self._node(node, i, scope)]

    def _node(self, node: NodeProto, number: int, scope: Scope) -> list[NodeWork]:
        name = f"{self.prefix}{node.name or f'{node.op_type}_{number}'}"
        inputs = known_in(scope, node.input)
        holder = self._holder(node) or self._plain
        try:
            outputs, counted = holder(node, name, inputs, scope)
        except (LookupError, TypeError, ValueError):  # the checker sees not all
            outputs, counted = self._plain(node, name, inputs, scope)
        scope.update(zip(node.output, outputs, strict=False))
        return counted

    def _holder(self, node: NodeProto) -> Holder | None:
        """Return what counts a node that holds other nodes."""
        if self.depth == DEEPEST or next(self.numbers) > MOST_NODES:
            return None
        if (node.domain, node.op_type) in self.functions:
            return self._function
        known: dict[str, Holder] = {"If": self._if, "Loop": self._loop, "Scan": self._scan}
        return known.get(node.op_type) if node.domain in STANDARD else None

    def _plain(self, node: NodeProto, name: str, inputs: Sequence[Tensor], _: Scope) -> Counted:
        outputs = self.inference.outputs(node, inputs)
        is_open = any(subgraphs_of(node))  # what it holds was not counted
        macs = None if is_open else count_macs(node, inputs, outputs)
        every = None if macs is None else macs * self.times
        moved = sum(tensor.size_bytes or 0 for tensor in (*inputs, *outputs))
        moved *= self.times if operator(node) not in UNMOVED else 0
        where = (self.root or name, self.body, self.times)
        return outputs, [NodeWork(name, operator(node), every, moved, *where)]

    def _inside(self, name: str, what: str, times: int = 1) -> _Counter:
        inner = replace(self, prefix=f"{name}/", root=self.root or name, body=f"{what} {name!r}")
        return replace(inner, times=self.times * times, depth=self.depth + 1)

    def _within(
        self, graph: onnx.GraphProto, name: str, what: str, scope: Scope, times: int = 1
    ) -> Counted:
        results = self._inside(name, what, times).graph(graph, scope)
        return known_in(scope, (value.name for value in graph.output)), results

    def _function(self, node: NodeProto, name: str, inputs: Sequence[Tensor], _: Scope) -> Counted:
        function = self.functions[node.domain, node.op_type]
        own = dict(zip(function.input, inputs, strict=False))
        inner = replace(self.inference, opsets=_opsets(function.opset_import), stated={})
        counter = replace(self._inside(name, "function"), inference=inner)
        counted = counter.nodes(with_attributes(function, node), own)
        return known_in(own, function.output), counted

    def _if(self, node: NodeProto, name: str, inputs: Sequence[Tensor], scope: Scope) -> Counted:
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        if (chosen := inputs[0].value) is not None:
            branches.pop("else_branch" if chosen.all() else "then_branch")
        options = [self._within(branch, name, "If", dict(scope)) for branch in branches.values()]
        return max(options, key=lambda option: sum(each.macs or 0 for each in option[1]))

    def _loop(self, node: NodeProto, name: str, inputs: Sequence[Tensor], scope: Scope) -> Counted:
        body = attribute_of(node, "body", onnx.GraphProto())
        carried = [replace(tensor, value=None) for tensor in inputs[2:]]
        goes_on = inputs[1] if len(node.input) > 1 and node.input[1] else TRUE
        start = [Tensor.of(np.array(0)), goes_on, *inputs[2:]]
        trips = _trips(_Condition(body, scope, self.inference), start, inputs[0])
        if trips is None:
            self._assume_once(name)
        passed = [replace(start[0], value=None), goes_on, *carried]
        times = 1 if trips is None else trips
        outputs, counted = self._within(body, name, "Loop", scope | _bound(body, passed), times)
        kept = len(carried) + 1
        return [*outputs[1:kept], *(_stacked(tensor, times) for tensor in outputs[kept:])], counted

    def _scan(self, node: NodeProto, name: str, inputs: Sequence[Tensor], scope: Scope) -> Counted:
        body = attribute_of(node, "body", onnx.GraphProto())
        states = len(inputs) - attribute_of(node, "num_scan_inputs", 1)
        axes = attribute_of(node, "scan_input_axes", [0] * len(inputs))
        scanned = list(zip(inputs[states:], axes, strict=False))
        lengths = [tensor.shape[axis] for tensor, axis in scanned if tensor.shape]
        passed = [replace(tensor, value=None) for tensor in inputs[:states]]
        passed += [_slice_of(tensor, axis) for tensor, axis in scanned]
        if not lengths:
            self._assume_once(name)
        trips = lengths[0] if lengths else 1
        outputs, counted = self._within(body, name, "Scan", scope | _bound(body, passed), trips)
        axes = attribute_of(node, "scan_output_axes", [0] * len(outputs))
        stacks = zip(outputs[states:], axes, strict=False)
        stacked = (_stacked(tensor, trips, axis) for tensor, axis in stacks)
        return [*outputs[:states], *stacked], counted

    def _assume_once(self, name: str) -> None:
        self.inference.assumed.append(
            f"the number of runs of {name!r} depends on values, and it is counted once"
        )


class _Condition:
    """What of a loop's body decides whether it goes on, evaluated for any iteration.

    `places` are the body's inputs that carry what it needs from one iteration to the next.
    """

    def __init__(self, body: onnx.GraphProto, scope: Scope, inference: Inference) -> None:
        self.inference = replace(inference, stated={}, assumed=[])
        self.scope = scope | {tensor.name: constant_of(tensor) for tensor in body.initializer}
        self.inputs = [value.name for value in body.input]
        self.outputs = [value.name for value in body.output]
        self.places = set[int]()
        makers = {name: node for node in body.node for name in node.output}
        used, pending, seen = set[int](), [self.outputs[0]], set[str]()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in makers:
                used.add(id(makers[name]))
                pending.extend(makers[name].input)
            elif name in self.inputs[2:]:
                self.places.add(self.inputs.index(name))
                pending.append(self.outputs[self.inputs.index(name) - 1])
        self.nodes = [node for node in body.node if id(node) in used]

    def after(self, number: int, state: State) -> tuple[bool, State]:
        """Return whether it goes on after an iteration, and the next state; `ValueError` if unknown."""
        own = {self.inputs[i]: Tensor.of(value) for i, value in state.items()}
        own |= {self.inputs[0]: Tensor.of(np.array(number)), self.inputs[1]: TRUE}
        scope = ChainMap(own, self.scope)
        for node in self.nodes:
            outputs = self.inference.outputs(node, known_in(scope, node.input))
            own.update(zip(node.output, outputs, strict=False))
        values = known_in(scope, [self.outputs[0], *(self.outputs[i - 1] for i in state)])
        goes_on, *following = [value.value for value in values]
        if goes_on is None or any(value is None for value in following):
            raise ValueError("it depends on values")
        return bool(goes_on.all()), dict(zip(state, following, strict=True))  # type: ignore[arg-type]


def _trips(condition: _Condition, start: Sequence[Tensor], limit: Tensor) -> int | None:
    """Return how often a loop runs, None if values decide; what it counts with has to be linear."""
    most = None if limit.value is None else max(int(limit.value), 0)
    begins, state = start[1].value, {i: start[i].value for i in sorted(condition.places)}
    if begins is None or any(value is None for value in state.values()):
        return None
    if not begins.all() or most == 0:
        return 0
    try:
        return _last(condition, state, most)  # type: ignore[arg-type]
    except (LookupError, TypeError, ValueError):
        return None


def _last(condition: _Condition, first: State, limit: int | None) -> int | None:
    """Return the number of iterations up to the one after which the condition fails, or the limit."""
    goes_on, second = condition.after(0, first)
    if not goes_on or limit == 1:
        return 1
    steps = {i: second[i] - first[i] for i in first}

    def at(number: int) -> State:
        return {i: first[i] + number * steps[i] for i in first}

    low, high = 0, min(limit or MOST_TRIPS, MOST_TRIPS) - 1
    if condition.after(high, at(high))[0]:
        return limit if limit is not None and limit <= MOST_TRIPS else None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if condition.after(middle, at(middle))[0] else (low, middle)
    reached = condition.after(low, at(low))[1]
    is_linear = all(np.array_equal(reached[i], at(high)[i]) for i in first)
    return high + 1 if is_linear else None


def _bound(body: onnx.GraphProto, tensors: Sequence[Tensor]) -> Scope:
    return {value.name: tensor for value, tensor in zip(body.input, tensors, strict=False)}


def _stacked(tensor: Tensor, trips: int, axis: int = 0) -> Tensor:
    """Return what a loop collects of a tensor in all iterations."""
    if tensor.shape is None:
        return Tensor(tensor.kind)
    sizes = list(tensor.shape)
    sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, trips)
    return Tensor(tensor.kind, tuple(sizes))


def _slice_of(tensor: Tensor, axis: int) -> Tensor:
    sizes = list(tensor.shape or ())
    del sizes[axis : axis + 1 or None]
    return Tensor(tensor.kind, None if tensor.shape is None else tuple(sizes))
