"""Blocks of a network that a page folds: by name scopes, else by segments between cut points.

Exporters write scopes into the names of nodes: `/layer1/layer1.0/conv1/Conv` (PyTorch), `a/b/Conv2D`
(TensorFlow). A long row of nodes without scopes is cut where all goes through one tensor, and segments
that repeat are found by their structure. Rows of blocks of equal structure get a block around them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, takewhile

import onnx

MOST_CHILDREN = 80
"""Of a block and of the top: what a page lays out at once."""
MOST_IN_A_ROW = 40
"""Children of a block above which it is cut into segments."""
MOST_SCOPES = 12  # of a name: deeper ones fold with the last of them
LONGEST_PERIOD = 64  # segments in what repeats
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where PyTorch's exporter by `torch.export` has scopes, whose names of nodes have none."""


@dataclass
class Block:
    """Nodes that fold: blocks and numbers of nodes, in the order of their first nodes.

    `repeat` is how many blocks of equal structure it holds, 1 if it is no row of them.
    """

    title: str
    children: list[Block | int]
    repeat: int = 1

    def nodes(self) -> Iterator[int]:
        """Yield the numbers of all nodes inside."""
        for child in self.children:
            yield from _nodes(child)

    def flat(self, parent: int = -1, first: int = 0) -> Iterator[tuple[Block, int]]:
        """Yield the blocks inside with the numbers of their parents, in the order of their numbers."""
        for child in self.children:
            if isinstance(child, Block):
                inner = [(child, parent), *child.flat(first, first + 1)]
                yield from inner
                first += len(inner)


Child = Block | int


@dataclass(frozen=True)
class Wiring:
    """Nodes by their numbers, in topological order.

    `scopes` are the titles of the scopes of each, the outermost first; `sources` the nodes that it
    reads from.
    """

    names: Sequence[str]
    operators: Sequence[str]
    scopes: Sequence[Sequence[str]]
    sources: Sequence[Sequence[int]]


def scopes_of(node: onnx.NodeProto) -> list[str]:
    """Return the titles of the scopes of a node, the outermost first.

    >>> scopes_of(onnx.NodeProto(name="/layer1/layer1.0/conv1/Conv"))
    ['layer1', 'layer1.0', 'conv1']
    >>> scopes_of(onnx.NodeProto(name="layers.0.mlp/Gemm")), scopes_of(onnx.NodeProto(name="Conv_1"))
    (['layers', 'layers.0', 'layers.0.mlp'], [])
    """
    stated = next((item.value for item in node.metadata_props if item.key == NAME_SCOPES), None)
    if stated is not None:
        parts = re.findall("'([^']*)'", stated)[:-1]
    else:
        name = node.name.partition(";")[0].strip("/")
        parts = name.split("/" if "/" in name else ".")[:-1]
    titles = list[str]()
    for part in filter(None, parts[:MOST_SCOPES]):
        outer = titles[-1] if titles else ""
        title = f"{outer}.{part}" if outer and part.isdigit() else part
        inner = accumulate(title.split(".")[:MOST_SCOPES], "{}.{}".format)
        titles += (scope for scope in inner if not f"{outer}.".startswith(f"{scope}."))
    return titles[:MOST_SCOPES]


def fold(wiring: Wiring) -> Block:
    """Return the top of the blocks of a network; it and each block has at most 80 children."""
    folding = _Folding(wiring)
    top = folding.simple(_by_scopes(wiring))
    while len(inner := [child for child in top.children if isinstance(child, Block)]) == 1:
        if inner[0].repeat > 1 or 2 * len([*inner[0].nodes()]) < len(wiring.names):
            break
        others = [child for child in top.children if child is not inner[0]]
        top = Block("", _in_order([*others, *inner[0].children]))
    top = _limited(folding.grouped(top))
    for block, _ in top.flat():
        block.title = _span(_end(block, wiring.names, 0), _end(block, wiring.names, -1))
    return top


def _by_scopes(wiring: Wiring) -> Block:
    top = Block("", [])
    known: dict[tuple[str, ...], Block] = {(): top}
    for number, scopes in enumerate(wiring.scopes):
        path: tuple[str, ...] = ()
        for scope in scopes:
            outer, path = known[path], (*path, scope)
            if path not in known:
                known[path] = Block(scope, [])
                outer.children.append(known[path])
        known[path].children.append(number)
    return top


class _Folding:
    """Dissolves, cuts and groups blocks; knows the structure of blocks by its number."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.structures: dict[object, int] = {}

    def simple(self, block: Block) -> Block:
        """Return a block whose inner ones that fold nothing have given it their children."""
        children = list[Child]()
        for child in block.children:
            inner = self.simple(child) if isinstance(child, Block) else child
            children += [inner] if isinstance(inner, int) or self._folds(inner) else inner.children
        return Block(block.title, _in_order(children))

    def _folds(self, block: Block) -> bool:
        """Tell whether it has several children that belong together, with nothing between them."""
        inside = set(block.nodes())
        is_connected = any(not inside.isdisjoint(self.wiring.sources[node]) for node in inside)
        return len(block.children) > 1 and is_connected and self._is_convex(inside)

    def _is_convex(self, inside: set[int]) -> bool:
        """Tell whether no way leads out of nodes and back, as where a function is called twice."""
        behind = set[int]()
        for node in range(min(inside), max(inside) + 1):
            sources = self.wiring.sources[node]
            if node in inside and not behind.isdisjoint(sources):
                return False
            if node not in inside and not (
                inside.isdisjoint(sources) and behind.isdisjoint(sources)
            ):
                behind.add(node)
        return True

    def grouped(self, block: Block) -> Block:
        """Return a block whose long rows are cut into segments, and equal blocks in a row are one."""
        children: list[Child] = [
            self.grouped(child) if isinstance(child, Block) else child for child in block.children
        ]
        if len(children) > MOST_IN_A_ROW:
            children = self._periods(self._segments(children))
        children = self._rows(children)
        only = children[0]
        if len(children) == 1 and isinstance(only, Block):
            return Block(block.title or only.title, only.children, only.repeat)
        return Block(block.title, children, block.repeat)

    def _rows(self, children: Sequence[Child]) -> list[Child]:
        """Return children with a block around consecutive blocks of equal structure."""
        rows = list[Child]()
        for _, equal in groupby(children, self._kind):
            row = list(equal)
            rows.append(Block("", row, len(row)) if len(row) > 1 else row[0])
        return rows

    def _kind(self, child: Child) -> object:
        """Return what is equal for the blocks of a row, and for nothing else."""
        is_plain = isinstance(child, Block) and child.repeat == 1
        return self.structure([child]) if is_plain else object()

    def structure(self, children: Sequence[Child]) -> int:
        """Return a number of the operators in children and of the wires between them."""
        numbers = sorted(number for child in children for number in _nodes(child))
        place = {number: index for index, number in enumerate(numbers)}
        key = tuple(
            (
                self.wiring.operators[number],
                *(place[source] for source in self.wiring.sources[number] if source in place),
            )
            for number in numbers
        )
        return self.structures.setdefault(key, len(self.structures))

    def _segments(self, children: Sequence[Child]) -> list[list[Child]]:
        """Return children between the places through which one tensor goes at most.

        What spans more than half of them (masks, long skips) does not count.
        """
        crossing = self._crossing(children)
        segments, many = list[list[Child]]([[]]), 0
        for child, change in zip(children, crossing, strict=True):
            segments[-1].append(child)
            many += change
            if many <= 1:
                segments.append([])
        return [segment for segment in segments if segment]

    def _crossing(self, children: Sequence[Child]) -> list[int]:
        """Return how many more tensors are read behind each child than behind the one before."""
        place = {node: index for index, child in enumerate(children) for node in _nodes(child)}
        last: dict[int, int] = {}
        for node, index in place.items():
            for source in self.wiring.sources[node]:
                last[source] = max(index, last.get(source, 0))
        changes = [0] * len(children)
        for source, end in last.items():
            start = place.get(source, end)
            if start < end <= start + len(children) // 2:
                changes[start] += 1
                changes[end] -= 1
        return changes

    def _periods(self, segments: Sequence[list[Child]]) -> list[Child]:
        """Return what segments hold, those of several children and rows that repeat as blocks."""
        structures = [self.structure(segment) for segment in segments]
        children, start = list[Child](), 0
        while start < len(segments):
            period, count = _period(structures, start)
            if count > 1 and sum(map(len, segments[start : start + period])) > 1:
                starts = range(start, start + period * count, period)
                parts = (segments[at : at + period] for at in starts)
                children.append(Block("", [_joined(part) for part in parts], count))
                start += period * count
            else:  # of equal nodes all at once: a search at each takes long
                end = start + (count if period == 1 else 1)
                children += map(_joined, ([segment] for segment in segments[start:end]))
                start = end
        return children


def _period(structures: Sequence[int], start: int) -> tuple[int, int]:
    """Return of which number of segments the longest row of repeats is made, and how often they are.

    >>> _period([7, 1, 2, 1, 2, 1, 2, 3], 1)
    (2, 3)
    """
    best, left = (1, 1), len(structures) - start
    for period in range(1, min(LONGEST_PERIOD, left // 2) + 1):
        end = start + period
        while end < len(structures) and structures[end] == structures[end - period]:
            end += 1
        count = (end - start) // period
        if count > 1 and period * count > best[0] * best[1]:
            best = period, count
    return best


def _joined(segments: Sequence[list[Child]]) -> Child:
    """Return segments as one block, or their only child."""
    children = [child for segment in segments for child in segment]
    return children[0] if len(children) == 1 else Block("", children)


def _end(child: Child, names: Sequence[str], at: int) -> str:
    """Return the title of the first (0) or the last (-1) of what an untitled block holds."""
    while isinstance(child, Block) and not child.title:
        child = child.children[at]
    return child.title if isinstance(child, Block) else names[child]


def _span(first: str, last: str) -> str:
    """Return a title, without what both names have in common.

    >>> _span("layers.0", "layers.11"), _span("Conv_0", "Relu_1"), _span("head", "head")
    ('layers.0 to 11', 'Conv_0 to Relu_1', 'head')
    """
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    shared = re.sub("[^/._]*$", "", "".join(letter for letter, _ in same))
    return first if first == last else f"{first} to {last[len(shared) :]}"


def _nodes(child: Child) -> Iterator[int]:
    return iter((child,)) if isinstance(child, int) else child.nodes()


def _in_order(children: Sequence[Child]) -> list[Child]:
    return sorted(children, key=lambda child: next(_nodes(child)))


def _limited(block: Block) -> Block:
    """Return a block of at most 80 children, as are those inside: more are folded once more."""
    children = [_limited(child) if isinstance(child, Block) else child for child in block.children]
    while len(children) > MOST_CHILDREN:
        size = math.isqrt(len(children) - 1) + 1
        parts = [children[start : start + size] for start in range(0, len(children), size)]
        equal = block.repeat > 1  # then so are the parts of a row
        children = [
            part[0] if len(part) == 1 else Block("", part, len(part) if equal else 1)
            for part in parts
        ]
    return Block(block.title, children, block.repeat)
