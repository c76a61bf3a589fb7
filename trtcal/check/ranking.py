"""Which of several ways to prepare samples is right: that with which FP32 gets most labels right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from trtcal.check.evidence import LabelEvidence, like_shuffled
from trtcal.check.probe import ModelProbe
from trtcal.check.samples import Samples
from trtcal.evaluate.per_sample import Labels

T = TypeVar("T")
ROUNDS = (32, 128, 512)  # samples; after each, what is clearly worse than the best is left out
Answer = Callable[[T, int], tuple[Labels, Labels]]
"""Gives the model's classes and the labels of so many samples, or all, prepared in one way."""
NO_CLASS = -(1 << 62)


def answered(probe: ModelProbe, samples: Samples) -> tuple[Labels, Labels]:
    """Return the model's classes of samples, `NO_CLASS` where no score is finite, and their labels."""
    classes = probe.run(samples).classes
    known = np.full(len(samples), NO_CLASS) if classes is None else classes
    return known, np.asarray(samples.labels)


@dataclass(frozen=True, eq=False)
class Trial(Generic[T]):
    """A way to prepare samples, the classes that the model gives them so, and their labels."""

    way: T
    classes: Labels
    labels: Labels

    @property
    def right(self) -> int:
        """The number of samples that get their label's class."""
        return int((self.classes == self.labels).sum())

    @property
    def decides(self) -> bool:
        """Whether the labels are of these classes at all."""
        return not like_shuffled(self.classes, self.labels)

    def over(self, other: Trial[T]) -> LabelEvidence:
        """Return what labels say of this way instead of another, on the same samples."""
        return LabelEvidence(other.classes, self.classes, self.labels)


def rank(ways: Sequence[T], answer: Answer[T], least: int = 1) -> list[Trial[T]]:
    """Return all ways, the best first; the first given among equals.

    A way that is clearly worse stays with the samples of the round that showed it; at least `least`
    ways see the second. With 1, a way that will hardly be clearly better than the first is left out
    too. Labels of which no way gives more than chance end it.
    """
    remaining, lost = list(ways), list[Trial[T]]()
    for count in ROUNDS:
        trials = [Trial(way, *answer(way, count)) for way in remaining]
        first = trials[0]
        trials.sort(key=lambda trial: -trial.right)
        close = [trial for trial in trials if not trials[0].over(trial).is_better]
        if least == 1 and first.way is ways[0]:
            close = [trial for trial in close if trial is first or trial.over(first).is_open]
        if count == ROUNDS[0]:
            close = max(close, trials[:least], key=len)
        lost = [trial for trial in trials if trial not in close] + lost
        is_chance = count > ROUNDS[0] and not trials[0].decides
        if len(close) == 1 or len(first.labels) < count or is_chance:
            break
        remaining = [way for way in remaining if any(way is trial.way for trial in close)]
    return close + lost
