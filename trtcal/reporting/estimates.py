"""How much less time a variant takes on a target, by the datasheet of one GPU of its kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trtcal.evaluate.comparison import Row
from trtcal.evidence.layers.roofline import datasheet_of, estimate, find_target
from trtcal.evidence.manifest import Build

PAYS = 1.05  # times as fast: below that INT8 is not worth its loss


@dataclass(frozen=True)
class Estimate:
    """How many times as fast as `against` a variant is on a target, by a GPU's datasheet."""

    target: str
    gpu: str
    against: str
    ratio: float


def estimates(builds: Sequence[Build], row: Row, others: Iterable[Row]) -> tuple[Estimate, ...]:
    """Return how a variant stands beside others, for each target that both were built for.

    Least times of all layers are added up: bytes and multiply-accumulates at the full rate.
    """
    least = {(build.target, build.model): _least_ms(build) for build in builds}
    targets = dict.fromkeys(target for target, _ in least)
    return tuple(
        Estimate(target, datasheet_of(target) or "", other.name, theirs / mine)
        for target in targets
        for other in others
        if (mine := least.get((target, row.model))) and (theirs := least.get((target, other.model)))
    )


def _least_ms(build: Build) -> float | None:
    """Return the least time of all layers, None where one's or the target's is not known."""
    gpu = datasheet_of(build.target)
    if gpu is None:
        return None
    times = [estimate(layer, find_target(gpu)).estimated_ms for layer in build.layers]
    return math.fsum(time for time in times if time is not None) if None not in times else None
