"""Whether labels are those of the samples, told from the classes that the FP32 model gives."""

from __future__ import annotations

import numpy as np
from scipy import stats

from trtcal.compare.paired import mcnemar
from trtcal.compare.per_sample import Labels
from trtcal.suspicion.judging import ENOUGH, P
from trtcal.suspicion.looking import Look
from trtcal.suspicion.words import Suspicion

SHUFFLES = 999
AS_GOOD = 0.05  # p-value above which labels are no better than shuffled ones
PART = 0.5  # of what the model is sure of: other numbers have to be right in more
GAP = 0.2  # between what the model is sure of and the most that labels may grant it


def check_numbers(look: Look, labels: Labels) -> Suspicion | None:
    """Return the suspicion that labels are numbered from another class than the model's first."""
    if look.classes is None or look.sureness is None or len(labels) < ENOUGH:
        return None
    least = PART * look.sureness.mean()
    right = look.classes == labels
    for offset in (1, -1):
        moved = look.classes == labels + offset
        won, lost = int((moved & ~right).sum()), int((right & ~moved).sum())
        clear = won > lost and mcnemar(lost, won) < P and moved.mean() > least
        if clear and not _like_shuffled(look.classes, labels + offset):
            return _moved(offset, int(right.sum()), int(moved.sum()), len(labels))
    return None


def check_labels(look: Look, labels: Labels) -> Suspicion | None:
    """Return the suspicion that labels are not those of the samples."""
    if look.classes is None or look.sureness is None or len(labels) < ENOUGH:
        return None
    right, expected = int((look.classes == labels).sum()), float(look.sureness.mean())
    if expected - _most(right, len(labels)) > GAP and _like_shuffled(look.classes, labels):
        return _unlike(right, len(labels), expected)
    return None


def _most(right: int, samples: int) -> float:
    """Return the highest accuracy that the samples leave open, at 99 %."""
    return float(stats.binomtest(right, samples).proportion_ci(0.98, "exact").high)


def _like_shuffled(classes: Labels, labels: Labels) -> bool:
    """Tell whether the labels fit the classes no better than the same labels in another order."""
    rng = np.random.default_rng(0)
    right = int((classes == labels).sum())
    others = [int((classes == rng.permutation(labels)).sum()) for _ in range(SHUFFLES)]
    return (1 + sum(other >= right for other in others)) / (1 + SHUFFLES) > AS_GOOD


def _moved(offset: int, right: int, moved: int, samples: int) -> Suspicion:
    return Suspicion(
        "labels_off_by_one",
        f"the FP32 model agrees with {right} of {samples} labels, and with {moved} if "
        f"{'1 is added to' if offset > 0 else '1 is taken from'} each",
        "number the classes as the model does: it may count from 0, or have a class for background",
    )


def _unlike(right: int, samples: int, expected: float) -> Suspicion:
    return Suspicion(
        "labels_disagree",
        f"the FP32 model agrees with {right} of {samples} labels, no more than with the same labels in "
        f"another order, though it is sure of its classes to {expected:.0%}",
        "check that labels and samples are in the same order and numbered as the model's classes",
    )
