"""Every plan that is quick enough: found by branch and bound over the cost model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from trtcal.search.costs import Costs, Storage
from trtcal.search.gates import Plan


@dataclass(frozen=True)
class Least(Costs):
    """No more than any plan costs: `undecided` layers ask for nothing to be stored.

    Kernels that only move values are to be left out of its work, and undecided layers to be given as
    INT8, in which they read, hold and multiply least.
    """

    undecided: frozenset[str] = frozenset()

    def storage(self, int8: Iterable[str]) -> dict[str, Storage]:
        """Return what the decided layers ask for; a tensor that none asks for is stored in INT8."""
        kernels = (
            replace(one, reads=tuple(r for r in one.reads if r.unit not in self.undecided))
            for one in self.work.kernels
        )
        asked = Costs(replace(self.work, kernels=tuple(kernels)), self.target, self.precision)
        least = dict.fromkeys(self.work.sizes, Storage(int8=True, float=False))
        return least | asked.storage(set(int8))


def quick_plans(units: Sequence[str], costs: Costs, most_ms: float) -> Iterator[Plan]:
    """Yield every plan that takes no longer than `most_ms`, each once."""
    kernels = tuple(one for one in costs.work.kernels if not one.moves)
    work = replace(costs.work, kernels=kernels)
    bounds = [
        Least(work, costs.target, costs.precision, costs.times, undecided=frozenset(units[i:]))
        for i in range(1, len(units) + 1)
    ]

    def below(place: int, int8: Plan) -> Iterator[Plan]:
        if place == len(units):
            if costs.plan_ms(int8) <= most_ms:
                yield int8
            return
        for plan in (int8, int8 - {units[place]}):
            if bounds[place].plan_ms(plan) <= most_ms:
                yield from below(place + 1, plan)

    return below(0, frozenset(units))


def maximal(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that have no other of them within: none leaves the same and more in float."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=len):
        if not any(other < plan for other in kept):
            kept.append(plan)
    return kept
