"""How tensors connect the layers of an engine: who writes what, who reads it, what stands between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from trtcal.evidence.layers.layer import Layer, TensorInfo, is_quantize_step, sum_bytes
from trtcal.evidence.layers.roofline import bytes_of, time_of

MOST_NEAR = 64


@dataclass(frozen=True)
class Flow:
    """Layers by number, and for each tensor the numbers of those that write and read it.

    Several layers may write one tensor: parts of a concatenation that needs no copy.
    """

    layers: tuple[Layer, ...]
    writers: dict[str, list[int]]
    readers: dict[str, list[int]]

    def before(self, index: int) -> list[int]:
        """Return the layers that write what this one reads."""
        return _others(index, self.layers[index].inputs, self.writers)

    def after(self, index: int) -> list[int]:
        """Return the layers that read what this one writes."""
        return _others(index, self.layers[index].outputs, self.readers)

    def names(self, indexes: Iterable[int]) -> tuple[str, ...]:
        """Return layers' names."""
        return tuple(self.layers[index].name for index in indexes)


def _others(index: int, tensors: Sequence[TensorInfo], table: dict[str, list[int]]) -> list[int]:
    neighbours = (other for tensor in tensors for other in table.get(tensor.name, ()))
    return [other for other in dict.fromkeys(neighbours) if other != index]


def follow(layers: Sequence[Layer]) -> Flow:
    """Connect layers by the names of their tensors."""
    writers: dict[str, list[int]] = defaultdict(list)
    readers: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(layers):
        for tensor in layer.outputs:
            writers[tensor.name].append(index)
        for tensor in layer.inputs:
            readers[tensor.name].append(index)
    return Flow(tuple(layers), dict(writers), dict(readers))


def depths(flow: Flow) -> list[int]:
    """Return for each layer how many heavy layers lie on the longest way to it, itself included.

    A layer that waits for itself (no list of a builder has one) gets the depth of the rest.
    """
    counts = [0] * len(flow.layers)
    for index in _in_order(flow):
        before = max((counts[other] for other in flow.before(index)), default=0)
        counts[index] = before + flow.layers[index].is_heavy
    return counts


def nearest_heavy(flow: Flow, backwards: bool) -> list[frozenset[int]]:
    """Return for each layer the heavy layers nearest before it (or after), through light ones only.

    At most 64 of them: those that come first in the list.
    """
    nearest: list[frozenset[int]] = [frozenset()] * len(flow.layers)
    order = _in_order(flow)
    for index in order if backwards else reversed(order):
        near: set[int] = set()
        for other in flow.before(index) if backwards else flow.after(index):
            near |= {other} if flow.layers[other].is_heavy else nearest[other]
        nearest[index] = frozenset(sorted(near)[:MOST_NEAR])
    return nearest


def _in_order(flow: Flow) -> list[int]:
    """Return the layers so that each comes after those it reads from, where there is such a way."""
    sorter = TopologicalSorter({index: flow.before(index) for index in range(len(flow.layers))})
    with suppress(CycleError):  # it goes on as far as no layer waits for itself
        sorter.prepare()
    order = list[int]()
    while ready := sorter.get_ready():
        order += ready
        sorter.done(*ready)
    return order


@dataclass(frozen=True)
class Chain:
    """A chain: `stitched_bytes` are what one kernel would read and write, each tensor once.

    `cuts` are the quantize steps in its middle: what stands before and after one is in two kernels
    because of it. Sizes known at run time count as 1. Bytes are None where a type is not known.
    """

    layers: tuple[str, ...]
    time_ms: float | None
    moved_bytes: int | None
    stitched_bytes: int | None
    before: tuple[str, ...]
    after: tuple[str, ...]
    cuts: tuple[str, ...]

    @property
    def saved_bytes(self) -> int | None:
        """What one kernel would not move."""
        if self.moved_bytes is None or self.stitched_bytes is None:
            return None
        return max(0, self.moved_bytes - self.stitched_bytes)


def find_chains(flow: Flow) -> tuple[Chain, ...]:
    """Return the chains of two or more layers that move data, what saves most first."""
    chains = [_chain(flow, group) for group in _groups(flow)]
    long = (chain for chain in chains if len(chain.layers) > 1)
    return tuple(sorted(long, key=lambda chain: -(chain.saved_bytes or 0)))


def _groups(flow: Flow) -> list[list[int]]:
    """Return connected light layers of equal depth, as sorted lists of numbers."""
    deep = depths(flow)
    light = {i for i, layer in enumerate(flow.layers) if not (layer.is_heavy or layer.is_opaque)}
    groups: list[list[int]] = []
    while light:
        group, edge = [], [light.pop()]
        while edge:
            index = edge.pop()
            group.append(index)
            near = {*flow.before(index), *flow.after(index)} & light
            edge += [other for other in near if deep[other] == deep[index]]
            light.difference_update(edge)
        groups.append(sorted(group))
    return sorted(groups)


def _chain(flow: Flow, group: Sequence[int]) -> Chain:
    inside = set(group)
    moving = [index for index in group if not flow.layers[index].is_idle]
    layers = [flow.layers[index] for index in moving]
    before = {other for index in group for other in flow.before(index)} - inside
    after = {other for index in group for other in flow.after(index)} - inside
    is_known = all(layer.bytes_moved is not None for layer in layers)
    sizes = bytes_of(layers) if is_known else None, _stitched(flow, inside)
    near = flow.names(sorted(before)), flow.names(sorted(after))
    cuts = flow.names(index for index in group if _cuts(flow, index, inside))
    return Chain(flow.names(moving), time_of(layers), *sizes, *near, cuts)


def _stitched(flow: Flow, inside: set[int]) -> int | None:
    """Return the bytes of what enters, what is constant, and what is read outside or by nobody."""
    members = [flow.layers[index] for index in sorted(inside)]
    results = [tensor for layer in members for tensor in layer.outputs]
    written = {tensor.name for tensor in results}
    entering = _unique(t for layer in members for t in layer.inputs if t.name not in written)
    constant = _unique(tensor for layer in members for tensor in layer.constants)
    leaving = _unique(t for t in results if not inside.issuperset(flow.readers.get(t.name, [-1])))
    return sum_bytes((*entering, *constant, *leaving))


def _unique(tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    return list({tensor.name: tensor for tensor in tensors}.values())


def _cuts(flow: Flow, index: int, inside: set[int]) -> bool:
    sides = (inside.intersection(near) for near in (flow.before(index), flow.after(index)))
    works = (any(not flow.layers[other].is_idle for other in side) for side in sides)
    return is_quantize_step(flow.layers[index]) and all(works)
