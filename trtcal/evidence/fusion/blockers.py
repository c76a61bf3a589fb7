"""What stands between two parts of a pattern and breaks it, and the passes that take it out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.errors import GateFailed, InputError
from trtcal.model import Model
from trtcal.model.graph import is_op
from trtcal.model.passes import Pass, PassRecord, prepare_with_record
from trtcal.model.passes.redundant import (
    CASTS,
    FLOATS,
    HOLDING,
    IDENTITIES,
    ROUNDING_CASTS,
    TRANSPOSES,
    removal,
)
from trtcal.model.passes.upgrade import TYPES
from trtcal.model.tensors import View

if TYPE_CHECKING:
    from trtcal.evidence.fusion.check import Fusions

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


def ways_back(view: View, tensor: str, kinds: Collection[str]) -> Iterator[Edge]:
    """Yield the ways back from a value, the shortest first, through steps of some kinds."""
    edge = Edge(tensor, ())
    yield edge
    for _ in range(MAX_STEPS):
        found = _step(view, edge.source, kinds)
        if found is None:
            return
        step, source = found
        edge = Edge(source, (*edge.steps, step))
        yield edge


def _step(view: View, tensor: str, kinds: Collection[str]) -> tuple[Step, str] | None:
    number = view.maker(tensor)
    if number is None:
        return None
    operator = view.operators[number]
    if operator == "DequantizeLinear":
        found = _pair(view, number)
        kind = "QDQ"
    elif operator == "Transpose":
        found, kind = _transposes(view, number), operator
    else:
        found, kind = (number,), operator
    if not found or kind not in kinds:
        return None
    return Step(kind, found), view.nodes[found[-1]].input[0]


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
    axes = next((list(one.ints) for one in transpose.attribute if one.name == "perm"), None)
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
    if step.kind == "Identity":
        return Breaker("identity", names, tensor, f"Identity {shown} is in between", "identities")
    if step.kind == "Dropout":
        if _trains(view, view.nodes[step.nodes[0]]):
            return Breaker("dropout", names, tensor, f"Dropout {shown} is in training mode")
        return Breaker("dropout", names, tensor, f"Dropout {shown} is in between", "identities")
    if step.kind == "Transpose":
        why = f"Transposes {shown} are in between and undo each other"
        return Breaker("transposes", names, tensor, why, "transposes")
    if not _same_scales(view, step.nodes):
        return Breaker(
            "qdq", names, tensor, f"Q/DQ pair {shown} with two different scales is in between"
        )
    return Breaker("qdq", names, tensor, f"Q/DQ pair {shown} is in between", PAIRS)


def _names(view: View, nodes: Collection[int]) -> tuple[str, ...]:
    """Return names in the order of the graph."""
    return tuple(view.nodes[node].name for node in sorted(nodes))


def _trains(view: View, dropout: onnx.NodeProto) -> bool:
    if len(dropout.input) < 3 or not dropout.input[2]:
        return False
    mode = view.values(dropout.input[2])
    return mode is None or bool(mode.any())


def _same_scales(view: View, pair: tuple[int, ...]) -> bool:
    second, first = (view.nodes[node].input[1:] for node in pair)
    return len(first) == len(second) and all(
        a == b or _same_constant(view, a, b) for a, b in zip(first, second, strict=True)
    )


def _same_constant(view: View, a: str, b: str) -> bool:
    first, second = view.values(a), view.values(b)
    return first is not None and second is not None and np.array_equal(first, second)


def _judge_casts(view: View, casts: list[int], tensor: str) -> Breaker:
    names = _names(view, casts)
    kinds = [next((a.i for a in view.nodes[node].attribute if a.name == "to"), 0) for node in casts]
    given, last = view.type_of(tensor), kinds[0]
    words = [_type_name(kind) for kind in (given, *reversed(kinds))]
    shown = ", ".join(map(repr, names))
    why = f"Cast {shown} is in between: {' to '.join(words)}"
    if given is None or given != last:
        return Breaker("cast", names, tensor, why)
    if all(kind == given or kind in HOLDING.get(given, ()) for kind in kinds):
        return Breaker("cast", names, tensor, why, "casts")
    rounding = "rounding-casts" if {given, *kinds} <= FLOATS else None
    return Breaker("cast", names, tensor, why, rounding)


def _type_name(kind: int | None) -> str:
    if kind not in onnx.TensorProto.DataType.values():
        return "unknown"
    return str(onnx.TensorProto.DataType.Name(kind)).lower()


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


PASSES = (IDENTITIES, CASTS, ROUNDING_CASTS, TRANSPOSES)
ON_REQUEST = (ROUNDING_CASTS.name, PAIRS)


@dataclass(frozen=True)
class FixedModel:
    """A fixed model and what each pass did.

    If Q/DQ pairs are gone, `step` is the largest step of a Q/DQ pair on a computed value: what a value
    may move by, being rounded no more. Else it is None.
    """

    model: Model
    records: tuple[PassRecord, ...]
    step: float | None


def fix_fusions(model: Model, fusions: Fusions, add: Collection[str] = ()) -> FixedModel:
    """Return the model without what breaks its patterns, as far as passes can take it out.

    Passes that change values (`rounding-casts`, `inner-pairs`) run only if they are in `add`.
    `InputError` if a name in it is unknown, `GateFailed` if nothing can be fixed.
    """
    for name in add:
        if name not in ON_REQUEST:
            raise InputError(
                f"{name!r} is not a pass of --add", f"choose one of: {', '.join(ON_REQUEST)}"
            )
    wanted = {breaker.fix for match in fusions.broken for breaker in match.breakers} - {None}
    wanted -= set(ON_REQUEST) - set(add)
    chosen = [one for one in PASSES if one.name in wanted]
    if CASTS in chosen or ROUNDING_CASTS in chosen:
        chosen.insert(0, TYPES)
    if PAIRS in wanted:
        chosen.append(without_pairs(_pairs(fusions)))
    names = [one.name for one in chosen if one.on_request]
    prepared = prepare_with_record(model, (), names, chosen)
    if not any(one.changes for one in prepared.records if one.name != TYPES.name):
        raise GateFailed("no pattern can be fixed, so no model was written", _hint(fusions, add))
    moves = any(record.changes for record in prepared.records if record.name == PAIRS)
    return FixedModel(prepared.model, prepared.records, _largest_step(model) if moves else None)


def _largest_step(model: Model) -> float:
    view = View(model)
    places = (view.nodes[i] for i, op in enumerate(view.operators) if op == "QuantizeLinear")
    scales = (view.number(node.input[1]) for node in places if not view.is_constant(node.input[0]))
    return max((scale for scale in scales if scale is not None), default=0.0)


def _pairs(fusions: Fusions) -> set[str]:
    breakers = (breaker for match in fusions.broken for breaker in match.breakers)
    return {name for one in breakers if one.fix == PAIRS for name in one.nodes}


def _hint(fusions: Fusions, add: Collection[str]) -> str:
    fixes = {breaker.fix for match in fusions.broken for breaker in match.breakers}
    left = [name for name in ON_REQUEST if name in fixes and name not in add]
    if left:
        return f"--add {left[0]} removes a node that breaks a pattern; it changes values"
    return (
        "no pass can remove the nodes that break the patterns"
        if fusions.broken
        else "no pattern is broken"
    )


def without_pairs(nodes: Collection[str]) -> Pass:
    """Return the pass that takes out the Q/DQ pairs of which both nodes are named.

    It changes values: they are no longer rounded to a step of the pair, nor cut at its range.
    """

    def before_the_pair(node: gs.Node) -> gs.Tensor | None:
        if node.name not in nodes or not is_op(node, "DequantizeLinear"):
            return None
        makers = node.inputs[0].inputs
        if not makers or makers[0].name not in nodes or not is_op(makers[0], "QuantizeLinear"):
            return None
        return makers[0].inputs[0]

    purpose = "Remove Q/DQ pairs that break a fusion; the values are no longer rounded there."
    return removal(PAIRS, purpose, before_the_pair, on_request=True)
