"""Whether a model finds changed samples clearly more like what it was trained on than those given.

A change of contrast makes any network more or less sure of itself, right or not. There only measures
decide that no factor changes, or how well the model tells the samples apart; being surer counts where
they agree. Running statistics of BatchNormalizations, and labels, overrule all that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from trtcal.check.probe import Response, Values
from trtcal.evaluate.per_sample import Labels
from trtcal.stats import mcnemar

ENOUGH = 8  # samples, at least, to judge by
CLEAR = 3.0  # of a paired t-statistic, or of two taken together
CLEAR_STIR = 4.0  # of that of inner layers: on images unlike those of training it errs by more
CLEAR_ODD = 2.0  # for samples in a form that no model is trained on
HOPE = 0.0  # of a few: above it, more samples are worth while
BORDERLINE = 1.5  # worth more samples
P = 0.01
AS_GOOD = 0.95  # of what the best change tells
COLLAPSED = 0.5  # as given, samples can be told apart by less than this part of what a change gives
SOME = 0.2  # nats by which samples differ where the model has anything to tell of them
LOSES = 1.1  # a change by which they can be told apart less than this is none
FITTING = 0.1  # nats: a misfit below which what BatchNormalizations read is as in training
FITS = 0.5  # misfit of BatchNormalizations after over before, where a change mends it
FITS_FAR = 0.2  # and where it is not quite as in training after it
UNFIT = 1.1  # and where it makes it worse
USUAL = (-1.0, 1.5)  # powers of ten of a first layer's drive, with samples as in training
POSSIBLE = (-1.3, 2.2)  # and with whatever a network was trained on: some have no normalization


@dataclass(frozen=True)
class Evidence:
    """How much better samples are as changed than as given.

    `seen` is a t-statistic of what the model alone shows, `needed` how much of it is enough; `won` and
    `lost`: samples that get their label's class only as changed, and only as given; `stirred`: a
    t-statistic of by how much more inner layers tell them apart (see `Depths`), 0 if nobody asked.
    """

    given: Response
    changed: Response
    seen: float
    needed: float
    won: int
    lost: int
    stirred: float = 0.0

    def with_depths(self, stirred: float) -> Evidence:
        """Return the evidence together with that of inner layers, a t-statistic; they may overrule."""
        seen = max(self.seen if stirred > -BORDERLINE else 0.0, stirred * CLEAR / CLEAR_STIR)
        return replace(self, seen=seen, stirred=stirred)

    @property
    def strength(self) -> float:
        """What the model and the labels say together, as a t-statistic."""
        if not self.won + self.lost:
            return self.seen
        told = (self.won - self.lost) / math.sqrt(self.won + self.lost)
        return max(self.seen, (self.seen + told) / 2**0.5)

    @property
    def is_clear(self) -> bool:
        """Whether the samples are clearly better as changed."""
        if self.lost > self.won + 1:
            return False
        before, after = self.given.misfit, self.changed.misfit
        if before is not None and after is not None:
            if after > UNFIT * before:
                return False
            share = FITS if after < FITTING else FITS_FAR
            if before > FITTING and after < share * before and self.seen > -1:
                return True
        if self.driven is not None:
            return self.driven
        if self.won > self.lost and mcnemar(self.lost, self.won) < P:
            return True
        return self.seen > 0 and self.strength >= self.needed

    @property
    def driven(self) -> bool | None:
        """Whether the first layer's drive tells that the change is right or that it is wrong.

        Plain class scores tell more, and overrule it.
        """
        before, after = self.given.drive, self.changed.drive
        if before is None or after is None:
            return None
        plain = self.given.classes is not None
        if _within(before, POSSIBLE):
            return None if plain or _within(after, POSSIBLE) else False
        if plain and (not _within(after, USUAL) or _tells_less(self.given, self.changed)):
            return None
        return _within(after, USUAL)

    @property
    def may_be_clear(self) -> bool:
        """Whether more samples might make it so."""
        before, after = self.given.misfit, self.changed.misfit
        fits = before is not None and after is not None and after < before
        return self.is_clear or fits or self.won > self.lost or self.strength > HOPE

    @property
    def rank(self) -> tuple[float, int, float]:
        """What orders changes, the best last."""
        return (-(self.changed.misfit or 0.0), self.won - self.lost, self.tells)

    @property
    def tells(self) -> float:
        """By how many nats the samples differ to the model as changed."""
        return 0.0 if self.changed.told is None else float(self.changed.told.mean())

    def is_as_good_as(self, best: Evidence) -> bool:
        """Whether nothing speaks for another change instead of this one."""
        same = self.rank[:2] >= best.rank[:2]
        return same and self.tells >= AS_GOOD * best.tells

    def surpasses(self, other: Evidence) -> bool:
        """Whether this is clear, and more so than another."""
        return self.is_clear and self.strength > other.strength

    def sentence(self) -> str:
        """Say in figures what is better."""
        parts = []
        if self.won + self.lost:
            parts.append(f"{self.won} more samples get their label's class, {self.lost} no more")
        if self.given.misfit is not None:
            parts.append(
                "what BatchNormalizations read is off their statistics by "
                f"{self.changed.misfit:.3g}, not {self.given.misfit:.3g}"
            )
        if self.stirred > 0:
            parts.append(f"inner layers tell samples further apart (t = {self.stirred:.1f})")
        if self.driven and self.given.drive is not None and self.changed.drive is not None:
            before, after = math.pow(10, self.given.drive), math.pow(10, self.changed.drive)
            parts.append(
                f"pixels weigh {after:.3g} times a bias in the first layer, not {before:.3g}"
            )
        for name, text in (("peak", "the best class leads by"), ("told", "samples differ by")):
            before, after = getattr(self.given, name), getattr(self.changed, name)
            if before is not None and after is not None:
                parts.append(f"{text} {np.mean(after):.3g}, not {np.mean(before):.3g}")
        return ", ".join(parts)


def weigh(
    given: Response, changed: Response, gain: float | None, labels: Labels | None, odd: bool = False
) -> Evidence:
    """Compare two looks at the same samples.

    `gain` is by how much the change stretches contrast, None if it changes no value; `odd`: no model is
    trained on the form given.
    """
    won = lost = 0
    if labels is not None and given.classes is not None and changed.classes is not None:
        before, after = given.classes == labels, changed.classes == labels
        won, lost = int((after & ~before).sum()), int((before & ~after).sum())
    seen = _seen(given, changed, gain, odd)
    return Evidence(given, changed, seen, CLEAR_ODD if odd else CLEAR, won, lost)


def _seen(given: Response, changed: Response, gain: float | None, odd: bool) -> float:
    if given.told is None or changed.told is None:
        return 0.0
    before, after = float(given.told.mean()), float(changed.told.mean())
    peak = advantage(changed.peak, given.peak)
    if _tells_less(given, changed):
        return 0.0
    if after < SOME:  # one class or one scene: any change moves them all alike, as chance has it
        return 0.0
    if gain is None:
        return peak
    sharp = advantage(changed.sharpness, given.sharpness)
    seen = min(peak, sharp) if gain >= 1 else sharp
    # Samples of one class are told apart better by what confuses the model: it is less sure then.
    confused = sharp < -1 or advantage(changed.entropy, given.entropy) > 1
    if before < COLLAPSED * after and (odd or not confused):
        return max(seen, advantage(changed.told, given.told))
    return seen


def _tells_less(given: Response, changed: Response) -> bool:
    if given.told is None or changed.told is None:
        return False
    return float(given.told.mean()) > LOSES * float(changed.told.mean())


def advantage(changed: Values | None, given: Values | None) -> float:
    """Return the paired t-statistic of `changed` minus `given`; 0 for too few samples."""
    if changed is None or given is None or len(given) < ENOUGH:
        return 0.0
    apart = changed - given
    if not apart.any():
        return 0.0
    return float(apart.mean() / (apart.std(ddof=1) / len(apart) ** 0.5 + 1e-12))


def _within(value: float, ends: tuple[float, float]) -> bool:
    return ends[0] <= value <= ends[1]
