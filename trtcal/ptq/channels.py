"""Which channels of which tensors can be scaled together without changing what a network computes.

Every channel of every tensor gets a number; numbers that have to be scaled alike are joined (the two
inputs of an Add, what a Relu reads and makes). A channel is free if all that make it and all that
read it can make up for its scale: a weight, or what a normalization multiplies with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Edit:
    """A constant that takes part: `axis` has the channels `ids`; `sign` -1 is divided by the scale.

    `groups` above 1 is a convolution's whose input channels lie in `groups` runs over its outputs.
    """

    tensor: str
    node: str
    axis: int
    ids: Ids
    sign: int
    groups: int = 1


@dataclass
class Channels:
    """The channels of a sorted graph: `of` a tensor its (axis, ids).

    `limits` are sums of which a Clip cuts off what is larger than that, whatever the scale.
    """

    of: dict[str, tuple[int, Ids]] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    parent: list[int] = field(default_factory=list)
    frozen: set[int] = field(default_factory=set)

    def new(self, count: int) -> Ids:
        """Return numbers for new channels."""
        first = len(self.parent)
        self.parent.extend(range(first, first + count))
        return np.arange(first, first + count)

    def root(self, one: int) -> int:
        """Return the number that stands for all that are joined with one."""
        while self.parent[one] != one:
            self.parent[one] = self.parent[self.parent[one]]
            one = self.parent[one]
        return one

    def roots(self, ids: Ids) -> Ids:
        """Return what stands for each."""
        return np.array([self.root(int(one)) for one in ids], np.int64)

    def join(self, left: Ids, right: Ids) -> None:
        """Join channels one by one."""
        for a, b in zip(left, right, strict=True):
            self.parent[self.root(int(a))] = self.root(int(b))

    def freeze(self, tensor: str) -> None:
        """Keep a tensor's channels as they are."""
        if tensor in self.of:
            self.frozen.update(map(int, self.of[tensor][1]))

    def is_free(self) -> npt.NDArray[np.bool_]:
        """Return for each number whether it may be scaled, shape (numbers,)."""
        roots = self.roots(np.arange(len(self.parent)))
        held = np.zeros(len(roots), bool)
        held[roots[sorted(self.frozen)]] = True
        return ~held[roots]
