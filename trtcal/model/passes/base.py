"""What a preparation pass declares, what a run of it records, and what every pass keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from trtcal.model.graph import parts_of, read_in, type_of

Condition = Callable[[gs.Graph], str | None]
"""Returns None where it holds, else in a few words why it does not."""


class NotApplicable(Exception):  # noqa: N818  # a pass that does not apply is no error
    """A pass found in its work that it can't be done here, says why, and changed nothing."""


class BrokenPassError(Exception):
    """A pass did not keep what it declares: a defect of trtcal."""


@dataclass(frozen=True)
class Pass:
    """One small change of a graph that keeps what it computes, tensor names included.

    `apply` works in place and returns the number of changes. `before` must hold for it to run, and
    `after` holds once it has. One with `on_request` runs only where it is asked for by name.
    `version` changes with what it does; `script` is the file that it is of, "" for those of trtcal.
    One that `retypes` may give inputs and outputs of the graph another type.
    """

    name: str
    purpose: str
    apply: Callable[[gs.Graph], int]
    before: Condition = lambda graph: None
    after: Condition = lambda graph: None
    on_request: bool = False
    retypes: bool = False
    version: str = "1"
    script: str = ""


@dataclass(frozen=True)
class PassRecord:
    """One run of a pass: the graph's fingerprints around it, and its changes or why it was skipped."""

    name: str
    before: str
    after: str
    changes: int
    skipped: str | None = None
    version: str = "1"


def current(graph: gs.Graph) -> str | None:
    """Hold from opset 9 on: what nodes mean in older ones is not known here."""
    return None if graph.opset >= 9 else f"its opset is {graph.opset}, and the pass needs 9"


def interface(graph: gs.Graph) -> list[tuple[str, int | None]]:
    """Return what callers see: names and types of inputs and outputs, in order."""
    return [(tensor.name, type_of(tensor)) for tensor in (*graph.inputs, *graph.outputs)]


State = tuple[list[object], list[object]]


def state_of(graph: gs.Graph) -> State:
    """Return what a graph is made of, to be compared, and the objects that its numbers stand for.

    Where it stays the same, so does the graph's fingerprint, which takes several times as long.
    """
    parts = parts_of(graph)
    nodes = [node for part in parts for node in part.nodes]
    ends = [(part.inputs, part.outputs) for part in parts]
    ends += [(node.inputs, node.outputs) for node in nodes]
    tensors = list({id(t): t for pair in ends for side in pair for t in side}.values())
    values = [getattr(tensor, "_values", None) for tensor in tensors]
    state: list[object] = [graph.opset, *map(repr, graph.functions)]
    state += [[[*map(id, side)] for side in pair] for pair in ends]
    state += [(id(n), n.op, n.name, n.domain, repr(n.attrs)) for n in nodes]
    state += [(t.name, t.dtype, repr(t.shape)) for t in tensors]
    return [*state, *map(id, values)], [*nodes, *tensors, *values]


def sound(graph: gs.Graph) -> str | None:
    """Hold if whatever is read or returned is an input, a constant, or one node's output."""
    parts = parts_of(graph)
    inputs = {id(tensor) for part in parts for tensor in part.inputs}
    results = [id(tensor) for part in parts for node in part.nodes for tensor in node.outputs]
    if len(results) != len(set(results)):
        return "two nodes write the same tensor"
    known = inputs.union(results)
    for tensor in read_in(parts):
        there = isinstance(tensor, gs.Constant) or id(tensor) in known
        if not there and not tensor.is_empty():
            return f"no node writes tensor {tensor.name!r}"
    return None


NAMED = 3  # things that a note names, at most
