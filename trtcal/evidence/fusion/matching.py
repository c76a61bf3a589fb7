"""Where a graph has the patterns, whole or broken: the prediction, from the graph alone.

Of two matches that share a node the one with more nodes is kept, then the one less broken, then that
of the pattern named first; so every node belongs to one match at most. Work grows with the number of
nodes: expressions are small, values are followed back a few steps only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import onnx

from trtcal.evidence.fusion.patterns import (
    Anything,
    Number,
    Operator,
    Pattern,
    Patterns,
    Term,
    Variable,
)
from trtcal.model.files import attribute_of, type_name
from trtcal.model.ops import COMMUTES
from trtcal.model.passes.redundant import FLOATS, HOLDING
from trtcal.model.tensors import View

MAX_STEPS = 16  # steps through which a value is followed back
PAIRS = "inner-pairs"
MAX_READERS = 3  # other readers that are named, at most


@dataclass(frozen=True)
class Step:
    """Nodes that pass a value on: their kind (see `patterns.BETWEEN`), the last of them first."""

    kind: str
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Edge:
    """The way from the value that one part makes, through steps, the last first, to the next part."""

    source: str
    steps: tuple[Step, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes of all steps, the last first."""
        return tuple(node for step in self.steps for node in step.nodes)


@dataclass(frozen=True)
class Breaker:
    """What breaks a pattern: its kind, the nodes that do it, and the value that is then written out.

    `fix` is the pass that takes the nodes out, None if no pass can.
    """

    kind: str
    nodes: tuple[str, ...]
    tensor: str
    why: str
    fix: str | None = None

    @property
    def subject(self) -> str:
        """What a finding about it is about: its first node, else the value."""
        return self.nodes[0] if self.nodes else self.tensor


def ways_back(view: View, tensor: str, kinds: Collection[str]) -> Iterator[Edge]:
    """Yield the ways back from a value, the shortest first, through steps of some kinds."""
    edge = Edge(tensor, ())
    yield edge
    for _ in range(MAX_STEPS):
        step_and_source = _step(view, edge.source, kinds)
        if step_and_source is None:
            return
        step, source = step_and_source
        edge = Edge(source, (*edge.steps, step))
        yield edge


def _step(view: View, tensor: str, kinds: Collection[str]) -> tuple[Step, str] | None:
    number = view.maker(tensor)
    if number is None:
        return None
    nodes: tuple[int, ...] = (number,)
    kind = view.operators[number]
    if kind == "DequantizeLinear":
        nodes, kind = _pair(view, number), "QDQ"
    elif kind == "Transpose":
        nodes = _transposes(view, number)
    if not nodes or kind not in kinds:
        return None
    return Step(kind, nodes), view.nodes[nodes[-1]].input[0]


def _pair(view: View, dequantize: int) -> tuple[int, ...]:
    quantize = view.maker(view.nodes[dequantize].input[0])
    is_pair = quantize is not None and view.operators[quantize] == "QuantizeLinear"
    return (dequantize, quantize) if is_pair and quantize is not None else ()


def _transposes(view: View, number: int) -> tuple[int, ...]:
    """Return the chain of Transposes that ends here and puts the axes back, nothing if none does."""
    chain: list[int] = []
    order: list[int] | None = None
    current: int | None = number
    while current is not None and view.operators[current] == "Transpose" and len(chain) < MAX_STEPS:
        axes = _axes(view.nodes[current])
        if axes is None or (order is not None and len(axes) != len(order)):
            return ()
        order = [axes[i] for i in (order or range(len(axes)))]
        chain.append(current)
        if order == sorted(order):
            return tuple(chain)
        current = view.maker(view.nodes[current].input[0])
    return ()


def _axes(transpose: onnx.NodeProto) -> list[int] | None:
    axes = attribute_of(transpose, "perm")
    return axes if axes and sorted(axes) == list(range(len(axes))) else None


def breakers_of(
    view: View, edge: Edge, inside: Collection[int], allows: Collection[str]
) -> Iterator[Breaker]:
    """Yield what breaks a pattern on the way of one value; `inside` are all nodes of the match."""
    for step in edge.steps:
        if step.kind not in allows and step.kind != "Cast":
            yield _judge(view, step, edge.source)
    casts = [node for step in edge.steps if step.kind == "Cast" for node in step.nodes]
    if casts and "Cast" not in allows:
        yield _judge_casts(view, casts, edge.source)
    for tensor in (edge.source, *(view.nodes[node].output[0] for node in edge.nodes)):
        yield from _other_uses(view, tensor, inside)


def _judge(view: View, step: Step, tensor: str) -> Breaker:
    names = _names(view, step.nodes)
    shown = ", ".join(map(repr, names))
    if step.kind == "Dropout" and _trains(view, view.nodes[step.nodes[0]]):
        return Breaker("dropout", names, tensor, f"Dropout {shown} is in training mode")
    if step.kind in ("Identity", "Dropout"):
        why = f"{step.kind} {shown} is in between"
        return Breaker(step.kind.lower(), names, tensor, why, "identities")
    if step.kind == "Transpose":
        why = f"Transposes {shown} are in between and undo each other"
        return Breaker("transposes", names, tensor, why, "transposes")
    if not _same_scales(view, step.nodes):
        why = f"Q/DQ pair {shown} with two different scales is in between"
        return Breaker("qdq", names, tensor, why)
    return Breaker("qdq", names, tensor, f"Q/DQ pair {shown} is in between", PAIRS)


def _names(view: View, nodes: Iterable[int]) -> tuple[str, ...]:
    return tuple(view.nodes[node].name for node in sorted(set(nodes)))


def _trains(view: View, dropout: onnx.NodeProto) -> bool:
    modes = [view.values(name) for name in dropout.input[2:3] if name]
    return any(mode is None or mode.any() for mode in modes)


def _same_scales(view: View, pair: tuple[int, ...]) -> bool:
    second, first = (view.nodes[node].input[1:] for node in pair)
    same = (a == b or _same_constant(view, a, b) for a, b in zip(first, second, strict=False))
    return len(first) == len(second) and all(same)


def _same_constant(view: View, a: str, b: str) -> bool:
    first, second = view.values(a), view.values(b)
    return first is not None and second is not None and np.array_equal(first, second)


def _judge_casts(view: View, casts: list[int], tensor: str) -> Breaker:
    names = _names(view, casts)
    kinds = [attribute_of(view.nodes[node], "to", 0) for node in casts]
    source_type = view.type_of(tensor)
    words = [type_name(kind) for kind in (source_type, *reversed(kinds))]
    why = f"Cast {', '.join(map(repr, names))} is in between: {' to '.join(words)}"
    if source_type is None or source_type != kinds[0]:
        return Breaker("cast", names, tensor, why)
    if all(kind == source_type or kind in HOLDING.get(source_type, ()) for kind in kinds):
        return Breaker("cast", names, tensor, why, "casts")
    rounding = "rounding-casts" if {source_type, *kinds} <= FLOATS else None
    return Breaker("cast", names, tensor, why, rounding)


def _other_uses(view: View, tensor: str, inside: Collection[int]) -> Iterator[Breaker]:
    readers = view.readers.get(tensor, ())
    others = list(islice((node for node in readers if node not in inside), MAX_READERS))
    if others:
        own = sum(tensor in view.nodes[node].input for node in inside)
        left = len(readers) - own - len(others)
        more = f" and {left} more" if left else ""
        names = _names(view, others)
        why = f"{tensor!r} is also read by {', '.join(map(repr, names))}{more}"
        yield Breaker("second_reader", names, tensor, why)
    maker = view.makers.get(tensor)
    named = () if maker is None else (view.nodes[maker].name,)
    value = f"{tensor!r}, the output of {named[0]!r}," if named else f"{tensor!r}"
    if tensor in view.outputs:
        yield Breaker("output", named, tensor, f"{value} is an output of the graph")
    if tensor in view.held:
        yield Breaker("subgraph", named, tensor, f"{value} is also read by a subgraph")


MOST_SOLUTIONS = 16  # arrangements of one expression at one node
CLOSE = 1e-3  # relative: numbers may have been rounded to float16
WHOLE, BROKEN = "whole", "broken"


@dataclass(frozen=True)
class Match:
    """Nodes that a person expects in one kernel, in the graph's order, so that the last is the root.

    `roles` pairs each operator or set of the pattern with its nodes. `breakers` say why they are not
    expected to fuse; `around` are the Q/DQ nodes before and after all of it.
    """

    pattern: str
    nodes: tuple[str, ...]
    roles: tuple[tuple[str, tuple[str, ...]], ...]
    breakers: tuple[Breaker, ...] = ()
    around: tuple[str, ...] = ()

    @property
    def root(self) -> str:
        """The node that computes its result."""
        return self.nodes[-1]

    @property
    def state(self) -> str:
        """`whole` or `broken`."""
        return BROKEN if self.breakers else WHOLE


@dataclass(frozen=True)
class _Solution:
    """A part of a solution: nodes by number, their roles, the ways between them, bound letters."""

    nodes: tuple[int, ...] = ()
    roles: tuple[tuple[str, tuple[int, ...]], ...] = ()
    edges: tuple[Edge, ...] = ()
    letters: Mapping[str, str] = field(default_factory=dict)

    def plus(self, role: str, nodes: tuple[int, ...], edges: tuple[Edge, ...]) -> _Solution:
        roles = (*self.roles, (role, nodes))
        return _Solution((*self.nodes, *nodes), roles, (*self.edges, *edges), self.letters)

    def through(self, edge: Edge) -> _Solution:
        return replace(self, edges=(*self.edges, edge))

    def bound(self, letter: str, tensor: str) -> _Solution:
        return replace(self, letters={**self.letters, letter: tensor})


@dataclass(frozen=True)
class _Spelled:
    """An operator that is spelled out: what it reads, its nodes, and the ways between them."""

    operator: str
    reads: str
    nodes: tuple[int, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True)
class _Candidate:
    pattern: Pattern
    order: int
    root: int
    solution: _Solution
    breakers: tuple[Breaker, ...]

    @property
    def own(self) -> frozenset[int]:
        return frozenset(self.solution.nodes)

    @property
    def rank(self) -> tuple[int, int, int, int]:
        return (-len(self.own), len(self.breakers), self.order, self.root)


def find_matches(view: View, patterns: Patterns) -> tuple[Match, ...]:
    """Return all matches in the order of their roots."""
    solver = _Solver(view, patterns)
    candidates = [
        best
        for order, pattern in enumerate(patterns.patterns)
        for root in solver.roots(pattern)
        if (best := solver.best(pattern, order, root))
    ]
    kept: list[_Candidate] = []
    taken = set[int]()
    for candidate in sorted(candidates, key=lambda candidate: candidate.rank):
        if taken.isdisjoint(candidate.own):
            taken |= candidate.own
            kept.append(candidate)
    kept.sort(key=lambda candidate: candidate.root)
    return tuple(_match(view, candidate) for candidate in kept)


class _Solver:
    def __init__(self, view: View, patterns: Patterns) -> None:
        self.view, self.patterns = view, patterns
        self.spelled: dict[int, list[_Spelled]] = {}
        self.places: dict[str, list[int]] = {}
        for number, operator in enumerate(view.operators):
            self.places.setdefault(operator, []).append(number)
        self.kinds = frozenset(("Identity",))
        self._spell_out()

    def _spell_out(self) -> None:
        """Find the forms; those further down may be made of those further up."""
        forms = self.patterns.forms
        for operator, expression in ((f.operator, each) for f in forms for each in f.expressions):
            for root in list(self._roots(expression)):
                solution = next(self._node(expression, root, _Solution()), None)
                known = {spelled.operator for spelled in self.spelled.get(root, ())}
                if solution and operator not in known:
                    nodes = tuple(dict.fromkeys(solution.nodes))
                    spelled = _Spelled(operator, solution.letters["x"], nodes, solution.edges)
                    self.spelled.setdefault(root, []).append(spelled)
                    self.places.setdefault(operator, []).append(root)

    def roots(self, pattern: Pattern) -> list[int]:
        """Return the nodes that a pattern's last operator could be."""
        return sorted({root for term in pattern.expressions for root in self._roots(term)})

    def _roots(self, expression: Operator) -> Iterator[int]:
        for operator in self.patterns.alternatives(expression.name):
            yield from self.places.get(operator, ())

    def best(self, pattern: Pattern, order: int, root: int) -> _Candidate | None:
        """Return how a pattern fits at a node with the most nodes, and least broken."""
        self.kinds = pattern.between
        candidates = [
            _Candidate(pattern, order, root, solution, self._breakers(pattern, solution))
            for expression in pattern.expressions
            for solution in islice(self._node(expression, root, _Solution()), MOST_SOLUTIONS)
        ]
        return min(candidates, key=lambda candidate: candidate.rank, default=None)

    def _breakers(self, pattern: Pattern, solution: _Solution) -> tuple[Breaker, ...]:
        inside = {*solution.nodes, *(node for edge in solution.edges for node in edge.nodes)}
        broken = (
            breaker
            for edge in dict.fromkeys(solution.edges)
            for breaker in breakers_of(self.view, edge, inside, pattern.allows)
        )
        return tuple(dict.fromkeys(broken))

    def _is_one_of(self, number: int, operators: frozenset[str]) -> bool:
        spelled = {form.operator for form in self.spelled.get(number, ())}
        return not operators.isdisjoint({self.view.operators[number], *spelled})

    def _node(self, term: Operator, number: int, solution: _Solution) -> Iterator[_Solution]:
        """Yield the ways in which a node and what it reads fit an operator of an expression."""
        operators = self.patterns.alternatives(term.name)
        if self.view.operators[number] in operators:
            tensors = tuple(self.view.nodes[number].input)
            yield from self._all(term, tensors, solution.plus(term.name, (number,), ()))
        for spelled in self.spelled.get(number, ()):
            if spelled.operator in operators and len(term.inputs) <= 1:
                own = solution.plus(term.name, spelled.nodes, spelled.edges)
                yield from self._all(term, (spelled.reads,), own)

    def _all(self, term: Operator, names: tuple[str, ...], base: _Solution) -> Iterator[_Solution]:
        if len(term.inputs) > len(names):
            return
        orders = [names[: len(term.inputs)]]
        if term.name in COMMUTES and len(names) == len(term.inputs) == 2:
            orders += [names[::-1]] if names[0] != names[1] else []
        for order in orders:
            pairs = zip(term.inputs, order, strict=True)
            first = sorted(pairs, key=lambda pair: isinstance(pair[0], Operator))  # quick to judge
            yield from self._pairs(tuple(first), base)

    def _pairs(self, pairs: tuple[tuple[Term, str], ...], base: _Solution) -> Iterator[_Solution]:
        if not pairs:
            yield base
            return
        for extended in self._value(*pairs[0], base):
            yield from self._pairs(pairs[1:], extended)

    def _value(self, term: Term, tensor: str, solution: _Solution) -> Iterator[_Solution]:
        if isinstance(term, Operator):
            operators = self.patterns.alternatives(term.name)
            for edge in ways_back(self.view, tensor, self.kinds):
                number = self.view.maker(edge.source)
                if number is not None and self._is_one_of(number, operators):
                    yield from self._node(term, number, solution.through(edge))
        elif isinstance(term, Variable):
            if solution.letters.get(term.letter, tensor) == tensor and tensor:
                yield solution.bound(term.letter, tensor)
        elif self._holds(term, tensor):
            yield solution

    def _holds(self, term: Anything | Number, tensor: str) -> bool:
        if isinstance(term, Number):
            value = self.view.number(tensor)
            return value is not None and abs(value - term.value) <= CLOSE * abs(term.value)
        constant = (term.computed or term.constant) and self.view.is_constant(tensor)
        return (constant or not term.constant) and not (term.computed and (constant or not tensor))


def _match(view: View, candidate: _Candidate) -> Match:
    roles = [(role, _names(view, nodes)) for role, nodes in reversed(candidate.solution.roles)]
    own = _names(view, candidate.own - {candidate.root})
    nodes, around = (*own, view.nodes[candidate.root].name), _names(view, _around(view, candidate))
    played = tuple(dict.fromkeys(roles))
    return Match(candidate.pattern.name, nodes, played, candidate.breakers, around)


def _around(view: View, candidate: _Candidate) -> Iterator[int]:
    """Yield the DequantizeLinears that feed a match, and the QuantizeLinears that read its result."""
    between = {node for edge in candidate.solution.edges for node in edge.nodes}
    for node in candidate.own:
        for tensor in view.nodes[node].input:
            maker = view.maker(tensor)
            if maker is not None and view.operators[maker] == "DequantizeLinear":
                yield from {maker} - between
    for reader in view.readers.get(view.nodes[candidate.root].output[0], ()):
        if view.operators[reader] == "QuantizeLinear":
            yield reader
