"""A figure in each group of samples (a slice, a class), so that a drop that the mean hides is seen.

Counts and sums of every group are all that is kept, so memory does not grow with samples. A group got
worse if two one-sided tests say so: its figure is lower than the reference's (McNemar's exact test
where it is 0 or 1, else Student's paired one), and by more than that of all other samples (Welch's
test of the differences). Without labels a variant can only be held against the reference, which
agrees with itself: then a group's agreement is held against that of all other samples alone (Fisher's
exact test). The groups of one attribute are one question, and share the error by Holm's correction.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy

from trtcal.data.slices import Attribute
from trtcal.evaluate.accuracy import rounded
from trtcal.evaluate.per_sample import Labels, Values, class_labels, class_scores
from trtcal.metrics import PERCENT, metric_of
from trtcal.stats import ALPHA, LEAST_SLICE, LEVEL, Interval, holm, mcnemar, paired_difference

GROUPS_LISTED = 20  # groups of one figure that are listed; the others are counted
COUNT, REFERENCE, CANDIDATE, LOST, WON, SQUARES = range(6)
WORSE, SUSPECT, JUDGED, TOO_FEW = range(4)


@dataclass(frozen=True)
class Group:
    """One group of samples: its figure for both, and by how much the variant's is lower.

    In points where the figure is a percentage. `interval` is 95 %. `p` is one-sided, for the hypothesis
    that the variant is no worse here, or no more than elsewhere (the larger of two tests' values);
    `adjusted_p` counts all groups of the attribute. Both are None in a group of fewer than 30 samples.
    Of `agreement`, `reference` is that of all other samples.
    """

    name: str
    samples: int
    reference: float
    variant: float
    drop: float
    interval: tuple[float, float]
    p: float | None = None
    adjusted_p: float | None = None

    @property
    def rank(self) -> int:
        """How sure a drop here is: 0 with all groups counted, 1 alone, 2 not, 3 too few samples."""
        if self.p is None or self.adjusted_p is None:
            return TOO_FEW
        if self.adjusted_p < ALPHA:
            return WORSE
        return SUSPECT if self.p < ALPHA else JUDGED


@dataclass(frozen=True)
class Breakdown:
    """One figure by slices or classes, the worst first; `rest` more groups are not listed."""

    by: str
    figure: str
    unit: str
    groups: tuple[Group, ...]
    rest: int = 0

    def ranked(self, rank: int) -> tuple[Group, ...]:
        """Return the groups of one rank, the worst first."""
        return tuple(group for group in self.groups if group.rank == rank)


@dataclass
class _Sums:
    """Of one figure: for the whole and for each slice of each attribute, in rows of six."""

    whole: Values
    parts: list[Values]
    is_binary: bool = True

    @classmethod
    def of(cls, attributes: Sequence[Attribute]) -> _Sums:
        return cls(np.zeros(6), [np.zeros((len(attribute.slices), 6)) for attribute in attributes])


@dataclass
class GroupAccumulator:
    """Collects the figures of one variant, batch by batch."""

    attributes: Sequence[Attribute]
    figures: dict[str, _Sums] = field(default_factory=dict)

    def add(self, numbers: Labels, figures: Mapping[str, tuple[Values, Values]]) -> None:
        """Take in a batch of samples with these numbers: the reference's and the variant's figures."""
        for name, (reference, variant) in figures.items():
            sums = self.figures.setdefault(name, _Sums.of(self.attributes))
            lost = reference - variant
            ones = np.ones_like(lost)
            rows = np.stack([ones, reference, variant, lost > 0, lost < 0, lost**2], axis=1)
            sums.is_binary &= bool(np.isin(rows[:, REFERENCE : CANDIDATE + 1], (0.0, 1.0)).all())
            sums.whole += rows.sum(0)
            for attribute, part in zip(self.attributes, sums.parts, strict=True):
                np.add.at(part, attribute.codes[numbers], rows)

    def whole(self, figure: str) -> Group:
        """Return a figure over all samples, as a group of that name."""
        sums = self.figures[figure]
        return _rounded(_group(figure, figure, sums, sums.whole))

    def result(self, by: str) -> tuple[Breakdown, ...]:
        """Return each figure by groups; `by` says what the attributes are."""
        if not self.attributes:
            return ()
        return tuple(self._breakdown(by, figure, sums) for figure, sums in self.figures.items())

    def _breakdown(self, by: str, figure: str, sums: _Sums) -> Breakdown:
        groups: list[Group] = []
        for attribute, part in zip(self.attributes, sums.parts, strict=True):
            present = np.flatnonzero(part[:, COUNT])
            own = [_group(attribute.slices[i], figure, sums, part[i]) for i in present]
            adjusted = iter(holm([group.p for group in own if group.p is not None]))
            groups += [x if x.p is None else replace(x, adjusted_p=next(adjusted)) for x in own]
        groups.sort(key=lambda group: (group.rank, -group.drop))
        listed = tuple(map(_rounded, groups[:GROUPS_LISTED]))
        unit = "points" if figure in PERCENT else ""
        return Breakdown(by, figure, unit, listed, max(len(groups) - GROUPS_LISTED, 0))


def _group(name: str, figure: str, sums: _Sums, row: Values) -> Group:
    count = int(row[COUNT])
    reference, variant = float(row[REFERENCE]) / count, float(row[CANDIDATE]) / count
    if figure == "agreement" and sums.is_binary:
        reference, drop, p = _against_others(row, sums.whole)
    elif sums.is_binary:
        lost, won = int(row[LOST]), int(row[WON])
        drop, p = paired_difference(lost, won, count), mcnemar(lost, won, one_sided=True)
        p = max(p, _beyond(row, sums.whole))
    else:
        drop, p = _of_values(row)
        p = max(p, _beyond(row, sums.whole))
    factor = metric_of(figure).factor
    return Group(
        name,
        count,
        factor * reference,
        factor * variant,
        factor * drop.value,
        (factor * drop.low, factor * drop.high),
        p if count >= LEAST_SLICE else None,
    )


def _of_values(row: Values) -> tuple[Interval, float]:
    count = row[COUNT]
    if count < 2:
        mean = float(row[REFERENCE] - row[CANDIDATE])
        return Interval(mean, mean, mean), 1.0
    mean, deviation = _moments(row)
    error = deviation / math.sqrt(count)
    margin = float(scipy.stats.t.ppf(0.5 + LEVEL / 2, count - 1)) * error
    p = float(scipy.stats.t.sf(mean / error, count - 1)) if error else float(mean <= 0)
    return Interval(mean, mean - margin, mean + margin), p


def _beyond(row: Values, whole: Values) -> float:
    """Return Welch's one-sided p-value for a drop that is no larger than that of all other samples."""
    others = whole - row
    if min(row[COUNT], others[COUNT]) < 2:
        return 1.0
    means, deviations = zip(*(_moments(part) for part in (row, others)), strict=True)
    if not any(deviations):
        return float(means[0] <= means[1])
    sizes = row[COUNT], others[COUNT]
    stated = [value for part in zip(means, deviations, sizes, strict=True) for value in part]
    test = scipy.stats.ttest_ind_from_stats(*stated, equal_var=False, alternative="greater")
    return float(test.pvalue)


def _moments(row: Values) -> tuple[float, float]:
    count = row[COUNT]
    mean = float(row[REFERENCE] - row[CANDIDATE]) / count
    return mean, math.sqrt(max(row[SQUARES] - count * mean**2, 0.0) / (count - 1))


def _against_others(row: Values, whole: Values) -> tuple[float, Interval, float]:
    """Return the others' agreement, how much lower the group's is, and Fisher's p-value.

    Interval: R. Newcombe's for two proportions, from Wilson's (Statistics in Medicine 17, 1998).
    """
    others = whole - row
    if not others[COUNT]:
        share = float(row[CANDIDATE] / row[COUNT])
        return share, Interval(0.0, 0.0, 0.0), 1.0
    shares, lows, highs = zip(*(_wilson(part) for part in (others, row)), strict=True)
    gap = shares[0] - shares[1]
    low = gap - math.hypot(shares[0] - lows[0], highs[1] - shares[1])
    high = gap + math.hypot(highs[0] - shares[0], shares[1] - lows[1])
    table = [[int(part[LOST]), int(part[COUNT] - part[LOST])] for part in (row, others)]
    p = float(scipy.stats.fisher_exact(table, "greater").pvalue)
    return shares[0], Interval(gap, low, high), p


def _wilson(row: Values) -> tuple[float, float, float]:
    right, count = int(row[COUNT] - row[LOST]), int(row[COUNT])
    interval = scipy.stats.binomtest(right, count).proportion_ci(LEVEL, "wilson")
    return right / count, float(interval.low), float(interval.high)


def _rounded(group: Group) -> Group:
    fields = vars(group).items()
    figures: Any = {name: rounded(each) for name, each in fields if isinstance(each, float)}
    low, high = group.interval
    return replace(group, **figures, interval=(rounded(low), rounded(high)))


WORST_KEPT = 10


@dataclass(frozen=True)
class Sample:
    """One sample: `l2` is the Euclidean norm of the outputs' difference, `cosine` that of both.

    Boxes have neither: `agreement` is the share of the sample's decisions that are the same. `name` is
    its file's where it has one. `reference` and `variant` are the classes that they give, None where
    the first output is no class scores.
    """

    l2: float | None
    index: int
    cosine: float | None
    name: str | None = None
    label: int | None = None
    reference: int | None = None
    variant: int | None = None
    agreement: float | None = None


@dataclass
class Worst:
    """Keeps the samples of the largest error; memory does not grow with samples."""

    files: Sequence[str] | None
    kept: list[tuple[float, int, Sample]] = field(default_factory=list)

    def add(
        self,
        numbers: Labels,
        figures: Mapping[str, Values],
        outputs: tuple[Sequence[Any], Sequence[Any]],
        labels: Labels | None,
    ) -> None:
        """Take in a batch of samples with these numbers: its figures and the outputs of both."""
        labels = class_labels(labels)
        is_found = "score_error" in figures or "l2" not in figures
        errors = 1 - figures["agreement"] if is_found else figures["l2"]
        limit = self.kept[0][0] if len(self.kept) == WORST_KEPT else -1.0
        scores = [None if isinstance(each[0], list) else class_scores(each[0]) for each in outputs]
        for row in np.argsort(-errors, kind="stable")[:WORST_KEPT].tolist():
            if errors[row] <= max(limit, 0.0):
                break
            classes = [None if each is None else int(each[row].argmax()) for each in scores]
            index, label = int(numbers[row]), None if labels is None else int(labels[row])
            name = self.files[index] if self.files else None
            l2, cosine, agreement = (
                rounded(float(figures[key][row])) if key in figures else None
                for key in ("l2", "cosine", "agreement")
            )
            sample = Sample(l2, index, cosine, name, label, classes[0], classes[1], agreement)
            push = heapq.heappushpop if len(self.kept) == WORST_KEPT else heapq.heappush
            push(self.kept, (float(errors[row]), -index, sample))

    def result(self) -> tuple[Sample, ...]:
        """Return the samples, the worst first."""
        return tuple(sample for _, _, sample in sorted(self.kept, reverse=True))
