"""What plans lose on samples that had no part in choosing them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.evaluate.search.caches import EvaluationCache
from trtcal.evaluate.search.exchange import Found
from trtcal.evaluate.search.limits import Plan
from trtcal.evaluate.search.losses import Loss
from trtcal.evaluate.search.plan_loss import Evaluator
from trtcal.model import Model
from trtcal.ranges import Calibration

Z = 1.96  # of a 95 % interval
LEAST = 16  # samples, below which there is nothing to tell


@dataclass(frozen=True)
class Pair:
    """A plan's loss on the samples that it was chosen on, and on those held back."""

    int8: Plan
    chosen_on: Loss
    held_back: Loss

    def differs(self, measure: str) -> bool:
        """Tell whether the two are further apart than the 95 % interval of their difference."""
        mine, theirs = self.chosen_on, self.held_back
        if not (mine.is_fit and theirs.is_fit):
            return mine.is_fit != theirs.is_fit
        errors = (one.error_of(measure) for one in (mine, theirs))
        return abs(mine.of(measure) - theirs.of(measure)) > Z * math.hypot(*errors)


@dataclass(frozen=True)
class HeldBack:
    """All INT8 and the recommended plan, on `samples` samples from number `first` on."""

    first: int
    samples: int
    pairs: tuple[Pair, ...]


def check_held_back(
    found: Found,
    model: Model,
    calibration: Calibration,
    units: Sequence[str],
    dataset: Dataset,
    evaluated: int,
    precision: str,
    memory: EvaluationCache,
) -> HeldBack | None:
    """Measure all INT8 and the recommended plan on up to `evaluated` samples after the first so many.

    None where fewer than `LEAST` are left, in whole batches where the model prescribes their size.
    """
    samples = min(len(dataset) - evaluated, evaluated)
    samples -= samples % (fixed_batch(model) or 1)
    if samples < LEAST:
        return None
    known = {point.int8: point.loss for point in found.measured}
    plans = [frozenset(units), *([found.recommended.int8] if found.recommended else [])]
    arguments = (dataset, samples, precision, memory, evaluated)
    with Evaluator(model, calibration, units, *arguments) as evaluator:
        pairs = [Pair(plan, known[plan], evaluator.loss(plan)) for plan in dict.fromkeys(plans)]
        return HeldBack(evaluated, samples, tuple(pairs))
