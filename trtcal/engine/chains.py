"""Runs of layers that move more than they compute, and what one kernel for each run would move.

A chain is a connected group of element-wise, reduction, pooling and reformat layers with the same
heavy layers before them: so no way leads out of it through a convolution or product and back, and
one kernel could take its place. That a builder can make such a kernel is not said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtcal.buildlog.layers import TensorInfo
from trtcal.engine.flow import Flow, depths
from trtcal.engine.reformats import is_quantize_step
from trtcal.engine.shares import bytes_of, time_of


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

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "saved_bytes": self.saved_bytes}


def find_chains(flow: Flow, shortest: int = 2) -> tuple[Chain, ...]:
    """Return the chains of at least `shortest` layers that move data, what saves most first."""
    groups = _groups(flow)
    moving = [
        group
        for group in groups
        if sum(not flow.layers[index].is_idle for index in group) >= shortest
    ]
    chains = (_chain(flow, group) for group in moving)
    return tuple(sorted(chains, key=lambda chain: -(chain.saved_bytes or 0)))


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
    return Chain(
        flow.names(moving),
        time_of(layers),
        bytes_of(layers) if is_known else None,
        _stitched(flow, inside),
        flow.names(sorted(before)),
        flow.names(sorted(after)),
        tuple(flow.layers[index].name for index in group if _cuts(flow, index, inside)),
    )


def _stitched(flow: Flow, inside: set[int]) -> int | None:
    """Return the bytes of what enters, what is constant, and what is read outside or by nobody."""
    members = [flow.layers[index] for index in sorted(inside)]
    written = {tensor.name for layer in members for tensor in layer.outputs}
    entering = _unique(t for layer in members for t in layer.inputs if t.name not in written)
    constant = _unique(tensor for layer in members for tensor in layer.constants)
    leaving = _unique(
        tensor
        for layer in members
        for tensor in layer.outputs
        if not inside.issuperset(flow.readers.get(tensor.name, [-1]))
    )
    sizes = [tensor.size_bytes for tensor in (*entering, *constant, *leaving)]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _unique(tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    return list({tensor.name: tensor for tensor in tensors}.values())


def _cuts(flow: Flow, index: int, inside: set[int]) -> bool:
    if not is_quantize_step(flow.layers[index]):
        return False
    sides = (flow.before(index), flow.after(index))
    return all(any(_works(flow, other) for other in side if other in inside) for side in sides)


def _works(flow: Flow, index: int) -> bool:
    return not flow.layers[index].is_idle
