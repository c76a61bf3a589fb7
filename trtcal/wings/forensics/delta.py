"""What kind of change lies between two graphs, and the first node that has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from trtcal.wings.forensics.merkle import GraphTable, table_of

STRUCTURE, ATTRIBUTES, CONSTANTS = "structure", "attributes", "constants"
SIGNATURE, TYPES, REORDERED, RENAMED = "signature", "types", "reordered", "renamed"
"""The kinds of changes. Where there are several, the gravest is reported: see `difference`."""


@dataclass(frozen=True)
class GraphDelta:
    """A change of a graph: its kind, the first node with it in topological order, and how many have it.

    `node` and `operator` are of the graph after the change, or of the one before where nodes are gone
    (`is_gone`); both are "" for what is not in a node. `count` includes the nodes that depend on the
    first one. `detail` says the rest in words.
    """

    change: str
    node: str = ""
    operator: str = ""
    count: int = 0
    is_gone: bool = False
    detail: str = ""

    def __str__(self) -> str:
        where = f" at node {self.node!r} ({self.operator})" if self.operator else ""
        gone = ", which is gone" if self.is_gone else ""
        return f"{self.change}{where}{gone}{': ' if self.detail else ''}{self.detail}"


def difference(
    before: onnx.ModelProto | GraphTable, after: onnx.ModelProto | GraphTable
) -> GraphDelta | None:
    """Return the gravest change between two graphs, None if they are the same, names included.

    Order of initializers, attributes and value infos, and texts of documentation, make no difference.
    """
    first, second = (
        side if isinstance(side, GraphTable) else table_of(side) for side in (before, after)
    )
    if first == second:
        return None
    kinds: Sequence[Callable[[GraphTable, GraphTable], GraphDelta | None]] = (
        _of_nodes,
        _of_signature,
        partial(_beside_content, "uses", STRUCTURE),
        partial(_beside_content, "types", TYPES),
        partial(_first, "content", REORDERED),
        partial(_first, "labels", RENAMED),
    )
    deltas = (kind(first, second) for kind in kinds)
    return next((delta for delta in deltas if delta is not None), GraphDelta(TYPES))


def _of_nodes(before: GraphTable, after: GraphTable) -> GraphDelta | None:
    for change, column in ((STRUCTURE,) * 2, (ATTRIBUTES,) * 2, (CONSTANTS, "content")):
        left, right = before.column(column), after.column(column)
        gone = _unmatched(before.names, left, after.names, right)
        new = _unmatched(after.names, right, before.names, left)
        if gone or new:
            return _named(change, (before, gone), (after, new))
    return None


def _unmatched(
    names: Sequence[str], prints: Sequence[str], others: Sequence[str], known: Sequence[str]
) -> list[int]:
    """Return the nodes whose fingerprint no node of the other graph has left.

    Equal nodes are first matched by name, so that of two equal branches the changed one is found.
    """
    exact, left = Counter(zip(names, prints, strict=True)), Counter(known)
    exact &= Counter(zip(others, known, strict=True))
    for (_, print_), count in exact.items():
        left[print_] -= count
    numbers = []
    for number, key in enumerate(zip(names, prints, strict=True)):
        if exact[key] > 0:
            exact[key] -= 1
        elif left[key[1]] > 0:
            left[key[1]] -= 1
        else:
            numbers.append(number)
    return numbers


Nodes = tuple[GraphTable, list[int]]


def _named(change: str, gone: Nodes, new: Nodes) -> GraphDelta:
    is_gone = len(gone[1]) > len(new[1]) or not new[1]
    table, numbers = gone if is_gone else new
    count = max(len(gone[1]), len(new[1]))
    return _at(change, table, numbers[0], count, is_gone and change == STRUCTURE)


def _at(
    change: str, table: GraphTable, number: int, count: int, is_gone: bool = False
) -> GraphDelta:
    name = table.names[number] or f"number {number}"
    return GraphDelta(change, name, table.operators[number], count, is_gone)


def _of_signature(before: GraphTable, after: GraphTable) -> GraphDelta | None:
    new = [line for line in after.signature if line not in before.signature]
    gone = [line for line in before.signature if line not in after.signature]
    if not new and not gone:
        return None
    detail = "; ".join([*new, *(f"no more: {line}" for line in gone)])
    return GraphDelta(SIGNATURE, detail=detail)


def _beside_content(
    column: str, change: str, before: GraphTable, after: GraphTable
) -> GraphDelta | None:
    """Return where equal values have another fingerprint in a column that no value shows."""
    left, right = (
        ["".join(pair) for pair in zip(table.column("content"), table.column(column), strict=True)]
        for table in (before, after)
    )
    new = _unmatched(after.names, right, before.names, left)
    return _at(change, after, new[0], len(new)) if new else None


def _first(column: str, change: str, before: GraphTable, after: GraphTable) -> GraphDelta | None:
    pairs = zip(before.column(column), after.column(column), strict=True)
    differ = [number for number, (was, now) in enumerate(pairs) if was != now]
    return _at(change, after, differ[0], len(differ)) if differ else None
