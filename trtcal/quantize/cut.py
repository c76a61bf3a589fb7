"""The split of a graph into float16 and float32 with the fewest casts: a minimum cut.

Every tensor costs one cast if its producer and any reader differ, however many readers there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

SINGLE, HALF = "fp32", "fp16"
CAST, TIED, UNCUT = 1, 1 << 10, 1 << 20  # a tie gives way to what is fixed only

Crossing = tuple[Hashable, Sequence[Hashable], int]
"""The producer of a tensor, its readers, and what it costs if they differ."""


def split(
    fixed: Mapping[Hashable, str],
    crossings: Iterable[Crossing],
    preferred: str = SINGLE,
) -> set[Hashable]:
    """Return what is in float16.

    `fixed` gives the precision of what has no choice; of several splits with the fewest casts the
    one with most in the `preferred` precision is taken.
    """
    network = _Network()
    for name, precision in fixed.items():
        source, target = (HALF, name) if precision == HALF else (name, SINGLE)
        network.edge(source, target, UNCUT)
    for number, (producer, readers, cost) in enumerate(crossings):
        down, up = ("down", number), ("up", number)
        network.edge(producer, down, cost)  # cut where the producer is in float16, a reader is not
        network.edge(up, producer, cost)  # and here the other way round
        for reader in readers:
            network.edge(down, reader, UNCUT)
            network.edge(reader, up, UNCUT)
    return network.half(preferred)


class _Network:
    """A flow network from float16 to float32."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {HALF: 0, SINGLE: 1}
        self.edges: list[tuple[int, int, int]] = []

    def edge(self, source: Hashable, target: Hashable, capacity: int) -> None:
        start = self.numbers.setdefault(source, len(self.numbers))
        end = self.numbers.setdefault(target, len(self.numbers))
        self.edges.append((start, end, capacity))

    def half(self, preferred: str) -> set[Hashable]:
        """Return the names on the source's side of a minimum cut."""
        rows, columns, capacities = np.array(self.edges or [(0, 1, 0)], np.int32).T
        size = (len(self.numbers), len(self.numbers))
        capacity = coo_array((capacities, (rows, columns)), size).tocsr()
        left = capacity - maximum_flow(capacity, 0, 1).flow
        left.eliminate_zeros()
        if preferred == SINGLE:
            side = set(breadth_first_order(left, 0, return_predecessors=False))
        else:
            side = set(range(size[0])) - set(
                breadth_first_order(left.T.tocsr(), 1, return_predecessors=False)
            )
        return {name for name, number in self.numbers.items() if number in side} - {HALF}
