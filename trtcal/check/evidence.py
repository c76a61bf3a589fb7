"""Whether a model finds changed samples clearly more like what it was trained on than those given.

A change of contrast makes any network more or less confident, right or not. There only measures decide
that no factor changes, or how well the model distinguishes the samples; confidence counts where they
agree. Running statistics of BatchNormalizations overrule that. All of it is a question: only labels, by
how many samples get their class, make it a statement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trtcal.check.probe import Response
from trtcal.data.issues import DataIssue
from trtcal.evaluate.per_sample import Labels, Values
from trtcal.stats import mcnemar, paired_difference, proportion

ENOUGH = 8  # samples, at least, to judge by
CLEAR = 3.0  # of a paired t-statistic, or of two taken together
CLEAR_FEATURES = 4.0  # of that of inner layers: on images unlike those of training it errs by more
CLEAR_WRONG = 2.0  # for samples in a form that no model is trained on
HOPE = 0.0  # of a few: above it, more samples are worth while
BORDERLINE = 1.5  # worth more samples
P = 0.01  # of McNemar's test: below it, labels decide for a change
AGAINST = 0.25  # of its one-sided form: below it, more labels would hardly decide for a change
AS_GOOD = 0.95  # of the mutual information that the best change gives
COLLAPSED = 0.5  # as given, samples have less than this part of what a change gives
SOME = 0.2  # nats of mutual information of samples that the model can distinguish at all
LOSES = 1.1  # a change that loses this factor of mutual information is none
FITTING = 0.1  # nats: a misfit below which what BatchNormalizations read is as in training
FITS = 0.5  # misfit of BatchNormalizations after over before, where a change corrects it
FITS_FAR = 0.2  # and where it is not quite as in training after it
UNFIT = 1.1  # and where it makes it worse
USUAL = (-1.0, 1.5)  # the first layer's signal to bias, in powers of ten, where samples are right
POSSIBLE = (-1.3, 2.2)  # and with whatever a network was trained on: some have no normalization


@dataclass(frozen=True)
class LabelEvidence:
    """The classes that samples get as given and as changed, and those of their labels, [n] each."""

    given: Labels
    changed: Labels
    labels: Labels

    @property
    def counts(self) -> tuple[int, int]:
        """The samples that get their label's class only as given, and only as changed."""
        before, after = self.given == self.labels, self.changed == self.labels
        return int((before & ~after).sum()), int((after & ~before).sum())

    @property
    def is_better(self) -> bool:
        """Whether significantly more samples get their label's class as changed."""
        lost, won = self.counts
        return won > lost and mcnemar(lost, won) < P

    @property
    def is_far_better(self) -> bool:
        """Whether that is far more of them."""
        return bool(np.subtract(*self.counts) < -GAP * len(self.labels))

    @property
    def beats_constant(self) -> bool:
        """Whether they are significantly more than one class for all samples would get right."""
        classes, counts = np.unique(self.labels, return_counts=True)
        constant = np.full_like(self.labels, classes[counts.argmax()])
        return replace(self, given=constant).is_better

    @property
    def is_open(self) -> bool:
        """Whether more samples might make it so."""
        return mcnemar(*self.counts, one_sided=True) > AGAINST

    @property
    def points(self) -> str:
        """The difference in percentage points, as changed minus as given, with its interval."""
        points = paired_difference(*self.counts, len(self.labels)).scaled(-100)
        return f"{points.value:+.1f} points, 95 % interval {points.low:+.1f} to {points.high:+.1f}"

    def sentence(self) -> str:
        """Return both accuracies and their difference."""
        before, after = (100 * (c == self.labels).mean() for c in (self.given, self.changed))
        return (
            f"so prepared, FP32 gets {after:.1f} % of {len(self.labels)} labels right instead of "
            f"{before:.1f} % ({self.points})"
        )

    def figures(self) -> dict[str, float]:
        """Return numbers by name, as given and as changed."""
        lost, won = map(float, self.counts)
        return {"labels_won": won, "labels_lost": lost, "labels": float(len(self.labels))}


@dataclass(frozen=True)
class Evidence:
    """How much better samples are as changed than as given.

    `model_t` is a t-statistic of what the model alone shows, `threshold` how much of it is enough;
    `features_t`: a t-statistic of how much more inner layers distinguish samples (see `InnerLayers`).
    """

    given: Response
    changed: Response
    model_t: float
    threshold: float
    features_t: float = 0.0

    @property
    def is_clear(self) -> bool:
        """Whether the samples are clearly better as changed."""
        before, after = self.given.misfit, self.changed.misfit
        if before is not None and after is not None:
            if after > UNFIT * before:
                return False
            share = FITS if after < FITTING else FITS_FAR
            if before > FITTING and after < share * before and self.model_t > -1:
                return True
        return self.model_t >= self.threshold if self.by_signal is None else self.by_signal

    @property
    def is_borderline(self) -> bool:
        """Whether more samples are worth reading."""
        return not self.is_clear and self.model_t > BORDERLINE

    @property
    def by_signal(self) -> bool | None:
        """Whether the first layer's signal to bias shows that the change is right, or wrong.

        Plain class scores show more, and overrule it.
        """
        before, after = self.given.signal_to_bias, self.changed.signal_to_bias
        if before is None or after is None:
            return None
        plain = self.given.classes is not None
        if is_possible(before):
            return None if plain or is_possible(after) else False
        if plain and (not _within(after, USUAL) or _loses(self.given, self.changed)):
            return None
        return _within(after, USUAL)

    @property
    def may_be_clear(self) -> bool:
        """Whether more samples might make it so."""
        before, after = self.given.misfit, self.changed.misfit
        fits = before is not None and after is not None and after < before
        return self.is_clear or fits or self.model_t > HOPE

    @property
    def rank(self) -> tuple[float, float]:
        """What orders changes, the best last."""
        return (-(self.changed.misfit or 0.0), self.mutual_information)

    @property
    def mutual_information(self) -> float:
        """Mutual information of sample and class as changed, in nats."""
        return _mean(self.changed.mutual_information) or 0.0

    def is_as_good_as(self, best: Evidence) -> bool:
        """Whether nothing speaks for another change instead of this one."""
        same = self.rank[0] >= best.rank[0]
        return same and self.mutual_information >= AS_GOOD * best.mutual_information

    def sentence(self) -> str:
        """Return in figures what is better."""
        shown = {"misfit": True, "features": self.features_t > 0, "signal_to_bias": self.by_signal}
        inner = [name for name, is_so in shown.items() if is_so]
        clauses = [*filter(None, map(self._clause, inner))]
        clauses = clauses or [*filter(None, map(self._clause, PER_SAMPLE))][:1]
        return f"so prepared, {', and '.join(clauses)}"

    def _clause(self, name: str) -> str:
        before, after = (_mean(getattr(side, name)) for side in (self.given, self.changed))
        if before is None or after is None:
            return ""
        unit = POWERS.get(name, float)
        return f"{CLAUSES[name]} instead of {{:.3g}}".format(unit(after), unit(before))

    def figures(self) -> dict[str, float]:
        """Return what `sentence` says as numbers by name, as given and as changed."""
        figures = {"t_statistic": self.model_t}
        for side, response in (("given", self.given), ("changed", self.changed)):
            for name in (*PER_SAMPLE, *PER_MODEL):
                value = _mean(getattr(response, name))
                if value is not None and math.isfinite(value):
                    figures[f"{name}_{side}"] = value
        return figures


CLAUSES = {
    "mutual_information": "its classes say more about the samples, in nats of information: {:.3g}",
    "lead": "the score of its best class leads by {:.3g}",
    "misfit": "its batch normalizations read values that differ from those of training by {:.3g}",
    "features": "its layers distinguish the samples by {:.3g}",
    "signal_to_bias": "in its first layer pixels weigh {:.3g} times a bias",
}
POWERS: dict[str, Callable[[float], float]] = {
    "features": math.exp,
    "signal_to_bias": lambda decades: math.pow(10, decades),
}
PER_SAMPLE = ("mutual_information", "lead")
PER_MODEL = ("misfit", "signal_to_bias")


def _mean(values: Values | float | None) -> float | None:
    return None if values is None else float(np.mean(values))


def weigh(
    original: Response, changed: Response, gain: float | None, wrong: bool = False
) -> Evidence:
    """Compare two responses to the same samples.

    `gain` is by how much the change stretches contrast, None if it changes no value; `wrong`: no model
    is trained on the form given.
    """
    model_t, features_t = _model_t(original, changed, gain, wrong), 0.0
    if gain is None:  # the inner layers see colours, and may overrule the classes
        features_t = advantage(changed.features, original.features)
        alone = model_t if features_t > -BORDERLINE else 0.0
        model_t = max(alone, features_t * CLEAR / CLEAR_FEATURES)
    return Evidence(original, changed, model_t, CLEAR_WRONG if wrong else CLEAR, features_t)


def _model_t(original: Response, changed: Response, gain: float | None, wrong: bool) -> float:
    before, after = _mean(original.mutual_information), _mean(changed.mutual_information)
    if before is None or after is None or _loses(original, changed):
        return 0.0
    if after < SOME:  # one class or one scene: any change moves them all alike, as chance has it
        return 0.0
    lead = advantage(changed.lead, original.lead)
    if gain is None:
        return lead
    sharp = advantage(changed.sharpness, original.sharpness)
    t = min(lead, sharp) if gain >= 1 else sharp
    # What confuses the model separates samples of one class: it is less confident then.
    confused = sharp < -1 or advantage(changed.entropy, original.entropy) > 1
    if before < COLLAPSED * after and (wrong or not confused):
        return max(t, advantage(changed.mutual_information, original.mutual_information))
    return t


def _loses(original: Response, changed: Response) -> bool:
    before, after = _mean(original.mutual_information), _mean(changed.mutual_information)
    return before is not None and after is not None and before > LOSES * after


def advantage(changed: Values | None, original: Values | None) -> float:
    """Return the paired t-statistic of `changed` minus `given`; 0 for too few samples."""
    if changed is None or original is None or len(original) < ENOUGH:
        return 0.0
    difference = changed - original
    if not difference.any():
        return 0.0
    error = difference.std(ddof=1) / len(difference) ** 0.5
    return float(difference.mean() / (error + 1e-12))


def is_possible(signal_to_bias: float) -> bool:
    """Return whether a network may have been trained on samples that drive it so."""
    return _within(signal_to_bias, POSSIBLE)


def _within(value: float, ends: tuple[float, float]) -> bool:
    return ends[0] <= value <= ends[1]


SHUFFLES = 999
NO_BETTER = 0.05  # p-value above which labels are no better than shuffled ones
PART = 0.5  # of the confidence, or of all: with fewer right, or renumbered, data may be wrong
GAP = 0.2  # between the model's confidence and the most that labels may grant it


def check_label_numbers(response: Response, labels: Labels) -> DataIssue | None:
    """Return the issue that labels are numbered from another class than the model's first."""
    if response.classes is None or response.confidence is None or len(labels) < ENOUGH:
        return None
    least = PART * response.confidence.mean()
    right = response.classes == labels
    for offset in (1, -1):
        moved = response.classes == labels + offset
        won, lost = int((moved & ~right).sum()), int((right & ~moved).sum())
        clear = won > lost and mcnemar(lost, won) < P and moved.mean() > least
        if clear and not like_shuffled(response.classes, labels + offset):
            return _off_by_one(offset, int(right.sum()), int(moved.sum()), len(labels))
    return None


def _off_by_one(offset: int, right: int, moved: int, samples: int) -> DataIssue:
    return DataIssue(
        "labels_off_by_one",
        "labels",
        f"the FP32 model agrees with {right} of {samples} labels, and with {moved} if "
        f"{'1 is added to' if offset > 0 else '1 is taken from'} each",
        {"right": float(right), "right_if_moved": float(moved), "samples": float(samples)},
        "number the classes as the model does: it may count from 0, or have a class for the "
        "background",
    )


def check_labels(response: Response, labels: Labels) -> DataIssue | None:
    """Return the issue that labels are not those of the samples."""
    if response.classes is None or response.confidence is None or len(labels) < ENOUGH:
        return None
    right, samples = int((response.classes == labels).sum()), len(labels)
    expected = float(response.confidence.mean())
    if expected - right / samples <= GAP:
        return None
    most = proportion(right, samples, 0.98).high
    is_few = most < PART * expected or like_shuffled(response.classes, labels)
    if expected - most <= GAP or not is_few:
        return None
    return DataIssue(
        "labels_disagree",
        "labels",
        f"the FP32 model agrees with {right} of {samples} labels, too few for its confidence in its "
        f"classes of {expected:.0%}",
        {"right": float(right), "samples": float(samples), "confidence": expected},
        "check that labels and samples have the same order, that labels are numbered as the model's "
        "classes, and how the inputs are prepared",
    )


def like_shuffled(classes: Labels, labels: Labels) -> bool:
    """Return whether the labels fit the classes no better than the same labels in another order."""
    rng = np.random.default_rng(0)
    right = int((classes == labels).sum())
    others = [int((classes == rng.permutation(labels)).sum()) for _ in range(SHUFFLES)]
    return (1 + sum(other >= right for other in others)) / (1 + SHUFFLES) > NO_BETTER
