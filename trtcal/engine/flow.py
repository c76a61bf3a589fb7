"""How tensors connect the layers of an engine: who writes what, who reads it, what stands between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trtcal.buildlog.layers import Layer, TensorInfo

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
    found = (other for tensor in tensors for other in table.get(tensor.name, ()))
    return [other for other in dict.fromkeys(found) if other != index]


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
    found = [0] * len(flow.layers)
    for index in _in_order(flow):
        before = max((found[other] for other in flow.before(index)), default=0)
        found[index] = before + flow.layers[index].is_heavy
    return found


def nearest_heavy(flow: Flow, backwards: bool) -> list[frozenset[int]]:
    """Return for each layer the heavy layers nearest before it (or after), through light ones only.

    At most 64 of them: those that come first in the list.
    """
    found: list[frozenset[int]] = [frozenset()] * len(flow.layers)
    order = _in_order(flow)
    for index in order if backwards else reversed(order):
        near: set[int] = set()
        for other in flow.before(index) if backwards else flow.after(index):
            near |= {other} if flow.layers[other].is_heavy else found[other]
        found[index] = frozenset(sorted(near)[:MOST_NEAR])
    return found


def _in_order(flow: Flow) -> list[int]:
    """Return the layers so that each comes after those it reads from, where there is such a way."""
    waits = [len(flow.before(index)) for index in range(len(flow.layers))]
    ready = [index for index, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        index = ready.pop()
        order.append(index)
        for other in flow.after(index):
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return order
