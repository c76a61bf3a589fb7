"""Which layer of one engine is which layer of another, by ONNX names first, then by arithmetic.

Exporters number nodes in their order (`Conv_34`), so such a name may mean another node in another
export: it joins two layers only if their arithmetic is the same. Names of weights and of modules
join alone. What no name joins is joined in order where the arithmetic agrees.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from trtcal.evidence.layers.layer import QDQ_NODE, Layer

NUMBERED = re.compile(r"^[A-Za-z]+_\d+$|^\(Unnamed Layer\*")
MOST_ALIGNED = 4000


@dataclass(frozen=True)
class Pair:
    """A layer of each engine that do the same work; `by` is name, or arithmetic and order."""

    before: int
    after: int
    by: str


def own_nodes(layer: Layer) -> tuple[str, ...]:
    """Return the nodes that a layer came from, but for Q/DQ."""
    return tuple(node for node in layer.nodes if not QDQ_NODE.search(node))


def join_heavy(before: Sequence[Layer], after: Sequence[Layer]) -> tuple[Pair, ...]:
    """Pair the convolutions and products of two engines; each is in one pair at most."""
    left = [index for index, layer in enumerate(before) if layer.is_heavy]
    right = [index for index, layer in enumerate(after) if layer.is_heavy]
    pairs: list[Pair] = []

    def is_same(i: int, j: int) -> bool:
        return work_of(before[i]) == work_of(after[j])

    for keep, accepts in ((lambda node: not NUMBERED.match(node), None), (NUMBERED.match, is_same)):
        pairs_by_name = _by_names(before, after, left, right, keep, accepts)
        pairs += [Pair(i, j, "name") for i, j in pairs_by_name]
        here, there = ({pair[side] for pair in pairs_by_name} for side in (0, 1))
        left, right = [i for i in left if i not in here], [j for j in right if j not in there]
    if max(len(left), len(right)) <= MOST_ALIGNED:
        works = [work_of(before[i]) for i in left], [work_of(after[j]) for j in right]
        matcher = SequenceMatcher(None, *works, autojunk=False)
        pairs += [
            Pair(left[a + k], right[b + k], "arithmetic and order")
            for a, b, size in matcher.get_matching_blocks()
            for k in range(size)
        ]
    return tuple(sorted(pairs, key=lambda pair: pair.before))


def work_of(layer: Layer) -> Hashable:
    """Return what stays the same of a layer in another precision: its arithmetic, else its shape."""
    return layer.macs if layer.macs is not None else tuple(t.shape for t in layer.outputs)


def _by_names(
    before: Sequence[Layer],
    after: Sequence[Layer],
    left: Sequence[int],
    right: Sequence[int],
    keep: Callable[[str], object],
    accepts: Callable[[int, int], bool] | None,
) -> list[tuple[int, int]]:
    """Pair layers that share names which one layer of each engine alone has, most shared first."""
    here, there = _owners(before, left, keep), _owners(after, right, keep)
    votes = Counter(
        (here[name][0], there[name][0])
        for name in here
        if len(here[name]) == 1 and len(there.get(name, ())) == 1
    )
    chosen: dict[int, int] = {}
    taken: set[int] = set()
    for i, j in sorted(votes, key=lambda pair: (-votes[pair], pair)):
        if i not in chosen and j not in taken and (accepts is None or accepts(i, j)):
            chosen[i] = j
            taken.add(j)
    return list(chosen.items())


def _owners(
    layers: Sequence[Layer], indexes: Sequence[int], keep: Callable[[str], object]
) -> dict[str, list[int]]:
    owners: dict[str, list[int]] = defaultdict(list)
    for index in indexes:
        for node in dict.fromkeys(own_nodes(layers[index])):
            if keep(node):
                owners[node].append(index)
    return owners
