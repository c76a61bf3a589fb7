"""Whether a model finds changed samples clearly more like what it was trained on than those given.

A change of contrast makes any network more or less sure of itself, right or not. So only measures that
no factor changes decide there, and being surer counts only where they agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtcal.compare.paired import mcnemar
from trtcal.compare.per_sample import Labels
from trtcal.suspicion.looking import Look, Values

ENOUGH = 8  # samples, at least, to judge by
CLEAR = 3.0  # of a paired t-statistic, or of two taken together
P = 0.01
COLLAPSED = 0.5  # of the information: the samples as given tell less than this part
KEPT = 0.9  # of the information that a change has to keep
FITS = 0.5  # misfit of BatchNormalizations after over before, where a change mends it
UNFIT = 1.1  # and where it makes it worse


@dataclass(frozen=True)
class Evidence:
    """How far samples as changed are better than as given: t-statistics, more is better.

    `seen` by the model alone, `won` and `lost`: samples that only one of them has right; `fit`: misfit
    of BatchNormalizations before and after.
    """

    seen: float
    won: int
    lost: int
    fit: tuple[float, float] | None
    given: Look
    changed: Look

    @property
    def told(self) -> float:
        """What labels say, about normal if there is nothing in it."""
        return (self.won - self.lost) / max(1, self.won + self.lost) ** 0.5

    @property
    def strength(self) -> float:
        """What the model and the labels say together."""
        together = (self.seen + self.told) / 2**0.5 if self.won + self.lost else 0.0
        return max(self.seen, self.told, together)

    @property
    def is_clear(self) -> bool:
        """Whether the change is clearly better."""
        if self.lost - self.won > 1:
            return False
        if self.fit is not None:
            before, after = self.fit
            if after > UNFIT * before:
                return False
            if after < FITS * before:
                return True
        if self.won > self.lost and mcnemar(self.lost, self.won) < P:
            return True
        return self.strength >= CLEAR and self.seen > 0

    def sentence(self) -> str:
        """Say in figures what is better."""
        parts = []
        if self.won + self.lost:
            parts.append(f"{self.won} more samples have their label's class and {self.lost} fewer")
        if self.fit is not None:
            before, after = self.fit
            parts.append(
                f"inputs of BatchNormalizations miss their statistics by {after:.3g} not {before:.3g}"
            )
        if self.given.sharpness is not None and self.changed.sharpness is not None:
            after, before = np.mean(self.changed.sharpness), np.mean(self.given.sharpness)
            parts.append(
                f"the best class stands out by {after:.2f} not {before:.2f} standard deviations"
            )
        return ", ".join(parts)


def weigh(given: Look, changed: Look, gain: float, labels: Labels | None) -> Evidence:
    """Compare two looks at the same samples; `gain` is by how much the change stretches contrast."""
    won = lost = 0
    if labels is not None and given.classes is not None and changed.classes is not None:
        right = changed.classes == labels
        before = given.classes == labels
        won, lost = int((right & ~before).sum()), int((before & ~right).sum())
    fit = None
    if given.misfit is not None and changed.misfit is not None:
        fit = given.misfit, changed.misfit
    return Evidence(_seen(given, changed, gain), won, lost, fit, given, changed)


def _seen(given: Look, changed: Look, gain: float) -> float:
    """Return the t-statistic of what the model alone shows, 0 where it shows nothing."""
    if given.peak is None or changed.peak is None:
        return 0.0
    if changed.information < KEPT * given.information:
        return 0.0
    peak = advantage(changed.peak, given.peak)
    if gain == 1.0:
        return peak
    sharp = advantage(changed.sharpness, given.sharpness)
    surer = advantage(-changed.entropy, -given.entropy)
    collapsed = given.information < COLLAPSED * changed.information
    if collapsed and sharp >= 1 and surer > sharp:
        return surer
    return min(peak, sharp) if gain > 1 else sharp


def advantage(changed: Values | None, given: Values | None) -> float:
    """Return the paired t-statistic of `changed` minus `given`; 0 for too few samples."""
    assert changed is not None and given is not None
    apart = changed - given
    if len(apart) < ENOUGH or not apart.any():
        return 0.0
    return float(apart.mean() / (apart.std(ddof=1) / len(apart) ** 0.5 + 1e-12))
