"""Accuracy of a variant's outputs against the reference's, accumulated batch by batch."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from trtcal.data.issues import DataIssue
from trtcal.evaluate.outputs import Figures
from trtcal.evaluate.per_sample import Labels, Values
from trtcal.evaluate.tasks import PRECISIONS, Rows, Task
from trtcal.limits import BROKEN, HOLDS, Judgement, Limit
from trtcal.metrics import LOGARITHMS, OUTPUTS, metric_of
from trtcal.stats import Interval, Moments, one_sided, paired_difference, proportion

DIGITS = 6  # significant digits kept: below this, batch size and threads decide


def rounded(value: float) -> float:
    """Return a figure to the digits that are kept of it."""
    return float(f"{value:.{DIGITS}g}")


def sqnr_db(signal: float, error: float) -> float | None:
    """Return signal over error power in dB, None where either is zero or not finite."""
    if not (0 < signal < math.inf and 0 < error < math.inf):
        return None
    return rounded(10.0 * math.log10(signal / error))


def doubted(
    judgement: Judgement,
    contrast: Mapping[str, float],
    base_of: Callable[[str], float],
    issues: Iterable[DataIssue],
) -> Judgement:
    """Return a judgement on outputs that decides nothing where the data are no evidence.

    That is where an issue of the data is an error, but what is lost without labels is lost whatever
    they are; or where the outputs for other samples would hold the limit too. `contrast` has by metric
    the figure halfway between the reference's outputs and those for other samples, or the best that are
    the same for all; `base_of` gives the reference's own.
    """
    error, about = DataIssue.error_of(issues), judgement.limit.about
    if error is None or about.of != OUTPUTS:
        return _contrasted(judgement, contrast, base_of)
    if error.subject == "labels" and judgement.state == BROKEN and not about.needs_labels:
        return judgement
    return replace(judgement, reason=str(error))


def _contrasted(
    judgement: Judgement, contrast: Mapping[str, float], base_of: Callable[[str], float]
) -> Judgement:
    limit = judgement.limit
    metric = limit.about.drop_of or limit.metric
    if metric not in contrast or judgement.figure is None or judgement.state == BROKEN:
        return judgement
    factor, base = metric_of(metric).factor, base_of(metric)
    value = contrast[metric] * factor
    if limit.about.drop_of:
        value = base * factor - value
    elif limit.is_change:
        value -= base * factor
        value *= 100.0 / abs(base * factor) if limit.is_relative and base else 1.0
    if limit.state(value, value) != HOLDS:
        return judgement
    near = f"({value:.4g} {limit.unit}".rstrip()
    others = "FP32's outputs for other samples come"
    if metric_of(metric).needs_labels and metric not in PRECISIONS:
        others = "an answer that is the same for all samples comes"
    reason = (
        f"the limit is too weak: {others} nearly as close {near} halfway to it); use more varied data, "
        "or a stricter limit"
    )
    return replace(judgement, reason=reason)


def of_ratio(limit: Limit, ratio: Interval, before: float = 1.0, after: float = 1.0) -> Interval:
    """Return a speed-up in the unit of a limit on it or on the median latency, or its change.

    The medians, `before` and `after`, in milliseconds, count where the limit is not relative.
    """
    if limit.metric == "speedup":
        ends = [end - float(limit.is_change) for end in (ratio.value, ratio.low, ratio.high)]
    else:
        slower = [math.inf if r == 0.0 else 1.0 / r for r in (ratio.value, ratio.high, ratio.low)]
        scale = 1.0 if limit.is_relative else before
        ends = [(end - float(limit.is_change)) * scale for end in slower]
        ends[0] = ends[0] if limit.is_change else after
    return Interval(*(100.0 * end if limit.is_relative else end for end in ends))


@dataclass(frozen=True)
class Mean:
    """A variant's mean of one figure, and its change against the reference's on the same samples.

    `reach` is the range of all values of both. `lost` and `won` count the samples in which it is lower
    and higher, where every value is 0 or 1, else None.
    """

    value: Moments
    change: Moments
    reach: float
    lost: int | None = None
    won: int | None = None

    @classmethod
    def of(cls, reference: Values, variant: Values) -> Mean:
        """Return the mean of both models' figures of each sample, each of shape (samples,)."""
        pairs = _Pairs()
        pairs.add(reference, variant)
        return pairs.result()

    def level(self, limit: Limit, level: float) -> float:
        """Return the level of its interval for a limit: both ends of exact pairs err as agreed."""
        is_change = limit.is_change or limit.about.drop_of is not None
        return one_sided(level) if is_change and self.lost is not None else level

    def held(self, limit: Limit, level: float, same: bool = False) -> Interval | None:
        """Return the mean in the unit of a limit, or its change; None of a relative change of zero.

        `same`: the reference is the best there can be.
        """
        metric = limit.about
        if metric.drop_of:
            return self.difference(level).scaled(-100.0)
        if not limit.is_change:
            ends = self.interval(level, metric.reach)
            if metric.reach == 1.0:
                ends = ends.within(0.0 if metric.is_share else -1.0, 1.0)
            return ends.scaled(metric.factor)
        change = self.difference(level, metric.reach, same)
        if metric.is_share:
            change = change.within(-1.0, 1.0)
        base = self.value.mean - self.change.mean
        if limit.is_relative:
            return change.scaled(100.0 / abs(base)) if base else None
        return change.scaled(metric.factor)

    def interval(self, level: float, reach: float | None = None) -> Interval:
        """Return the mean with its interval, the exact one where values are 0 and 1."""
        if self.lost is not None:
            return proportion(round(self.value.mean * self.value.count), self.value.count, level)
        return self.value.interval(level, self._reach(reach))

    def difference(self, level: float, reach: float | None = None, same: bool = False) -> Interval:
        """Return the change with its interval; `same`: the reference is the best there can be.

        It is the exact paired one where values are 0 and 1, with both ends corrected.
        """
        if self.lost is not None and same:
            return proportion(self.lost, self.change.count, level).scaled(-1.0)
        if self.lost is not None and self.won is not None:
            change = paired_difference(self.won, self.lost, self.change.count, level, strict=True)
            change = change.within(-1.0, 1.0)
        else:
            change = self.change.interval(level, self._reach(reach))
        return change.within(-math.inf, max(0.0, change.value)) if same else change

    def exponential(self) -> Mean:
        """Return the exponential of a mean logarithm, its moments to the first order (delta method).

        A sample that was not seen is taken to change within four standard deviations.
        """
        after, before = math.exp(self.value.mean), math.exp(self.value.mean - self.change.mean)
        value, change = self.value.around(after, after), self.change.around(after - before, after)
        return Mean(value, change, rounded(4 * math.sqrt(change.variance)))

    def _reach(self, reach: float | None) -> float:
        return (self.reach or math.inf) if reach is None else reach


@dataclass
class _Sums:
    """Sums of powers of the distance to the first value, which loses no digits of a mean near 1."""

    origin: float = math.nan
    count: int = 0
    powers: Values = field(default_factory=lambda: np.zeros(3))
    least: float = math.inf
    largest: float = -math.inf

    def add(self, values: Values) -> None:
        if not self.count:
            self.origin = float(values[0])
        distances = values - self.origin
        self.count += len(values)
        self.powers += [float((distances**power).sum()) for power in (1, 2, 3)]
        self.least = min(self.least, float(values.min()))
        self.largest = max(self.largest, float(values.max()))

    def result(self) -> Moments:
        mean, squares, cubes = (self.powers / self.count).tolist()
        variance = max(squares - mean**2, 0.0) * self.count / max(self.count - 1, 1)
        if self.least == self.largest:
            variance = 0.0
        third = cubes - 3 * mean * squares + 2 * mean**3
        return Moments(self.count, rounded(self.origin + mean), rounded(variance), rounded(third))


@dataclass
class _Pairs:
    reference: _Sums = field(default_factory=_Sums)
    value: _Sums = field(default_factory=_Sums)
    change: _Sums = field(default_factory=_Sums)
    counts: Values = field(default_factory=lambda: np.zeros(2))
    is_binary: bool = True

    def add(self, reference: Values, variant: Values) -> None:
        self.reference.add(reference)
        self.value.add(variant)
        self.change.add(variant - reference)
        self.counts += [(variant < reference).sum(), (variant > reference).sum()]
        both = np.concatenate([reference, variant])
        self.is_binary &= bool(np.isin(both, (0.0, 1.0)).all())

    def result(self) -> Mean:
        ends = (self.reference, self.value)
        least, largest = min(end.least for end in ends), max(end.largest for end in ends)
        reach = largest - least or max(abs(largest), abs(least))
        lost, won = (int(end) if self.is_binary else None for end in self.counts)
        return Mean(self.value.result(), self.change.result(), rounded(reach), lost, won)


@dataclass
class MeanCollector:
    """Collects figures of a variant beside the reference's, batch by batch."""

    pairs: dict[str, _Pairs] = field(default_factory=dict)

    def add(self, reference: Mapping[str, Values], variant: Mapping[str, Values]) -> None:
        """Take in a batch: each figure of both, of shape (samples,)."""
        for name, values in variant.items():
            has_mean = name not in ("signal", "error") and metric_of(name).has_mean
            if has_mean and name in reference and len(values):
                self.pairs.setdefault(name, _Pairs()).add(reference[name], values)

    def result(self, samples: int) -> dict[str, Mean]:
        """Return the means of figures that every sample had."""
        pairs = {n: pair for n, pair in self.pairs.items() if pair.value.count == samples}
        means = {name: pair.result() for name, pair in pairs.items()}
        return {n: mean.exponential() if n in LOGARITHMS else mean for n, mean in means.items()}


def noise_shares(signal: Values, error: Values) -> Values:
    """Return values whose mean is error over signal power, and their deviation that of the ratio.

    The first order of the ratio of two means around its value (the delta method), for each sample.
    """
    mean = float(signal.mean())
    if mean == 0.0:
        return np.where(error > 0, math.inf, 0.0)
    ratio = float(error.mean()) / mean
    return np.asarray(ratio + (error - ratio * signal) / mean)


def sqnr_interval(noise: Moments, level: float) -> Interval:
    """Return SQNR (dB) with its interval, infinite where there is no error.

    A sample that was not seen is taken to lie within four standard deviations.
    """
    if noise.mean == 0.0:
        return Interval(math.inf, math.inf, math.inf)
    reach = 4 * math.sqrt(noise.variance) if math.isfinite(noise.mean) else math.inf
    ratio = noise.interval(level, reach)
    ends = (ratio.value, ratio.low, ratio.high)
    value, high, low = (math.inf if end <= 0 else -10 * math.log10(end) for end in ends)
    return Interval(value, low, high)


@dataclass(frozen=True)
class Accuracy:
    """How good a variant's outputs are, over `samples` samples.

    `top1`, `agreement` and `top1_drop` are percentages (points), None without labels or without
    decisions; so is `top5`, with more than five classes. `agreement` is the share of decisions that
    are the reference's, in the mean over samples, each of which is as good as its worst output.
    `sqnr_db` is 10 log10 of signal over error power, of the worst output, None where there is no error
    or no float output. `top1_drop_interval` is 95 %, paired. The others are means over samples of what
    `trtcal.evaluate.per_sample` names, `linf` the largest, None of boxes after a NonMaxSuppression.
    `top1_lost` counts the samples that only the reference has right, `top1_won` the opposite.
    """

    samples: int
    top1: float | None
    top1_drop: float | None
    top1_drop_interval: tuple[float, float] | None
    agreement: float | None
    sqnr_db: float | None
    cosine: float | None
    top5: float | None = None
    kl: float | None = None
    l0: float | None = None
    l1: float | None = None
    l2: float | None = None
    linf: float | None = None
    top1_lost: int | None = None
    top1_won: int | None = None
    relative_error: float | None = None
    score_error: float | None = None


@dataclass(frozen=True)
class OutputFigures:
    """One output's own figures, as in `Accuracy`, and its kind, see `trtcal.evaluate.outputs`.

    `noise` has the moments of error over signal power, which the interval of `sqnr_db` takes; None of
    outputs without distances: integers, and boxes after a NonMaxSuppression.
    """

    name: str
    kind: str
    agreement: float | None = None
    score_error: float | None = None
    cosine: float | None = None
    relative_error: float | None = None
    sqnr_db: float | None = None
    noise: Moments | None = None


POWERS = ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (1, 2), (0, 3))
"""Exponents of signal and error in the sums that the moments of their ratio take."""


def _noise(sums: Values, count: int) -> Moments:
    """Return the moments of `noise_shares` from sums over samples of `POWERS`."""
    signal, error, ss, se, ee, sss, sse, see, eee = (sums / count).tolist()
    if signal == 0.0:
        return Moments(count, math.inf if error else 0.0, 0.0, 0.0)
    ratio = error / signal
    variance = max(ee - 2 * ratio * se + ratio**2 * ss, 0.0) / signal**2
    third = (eee - 3 * ratio * see + 3 * ratio**2 * sse - ratio**3 * sss) / signal**3
    numbers = (ratio, variance * count / max(count - 1, 1), third)
    return Moments(count, *map(rounded, numbers))


@dataclass
class _Means:
    samples: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, size: int, figures: Figures) -> None:
        self.samples += size
        for name, values in figures.items():
            self.counts[name] += len(values)
            self.sums[name] += float(values.sum())

    def mean(self, name: str) -> float | None:
        """Return the mean of a figure that every sample had, in the metric's unit."""
        if not self.samples or self.counts[name] != self.samples:
            return None
        return rounded(metric_of(name).factor * self.sums[name] / self.samples)

    def of(self, kind: type) -> dict[str, Any]:
        """Return the means of the figures that a dataclass has a field for."""
        names = (item.name for item in fields(kind))
        return {name: self.mean(name) for name in names if name in self.counts}


@dataclass
class _OutputMeter:
    means: _Means = field(default_factory=_Means)
    powers: Values = field(default_factory=lambda: np.zeros(len(POWERS)))

    def add(self, figures: Figures) -> None:
        self.means.add(len(next(iter(figures.values()))), figures)
        if "error" in figures:
            signal, error = figures["signal"], figures["error"]
            self.powers += [float((signal**a * error**b).sum()) for a, b in POWERS]

    def result(self, name: str, kind: str) -> OutputFigures:
        figures = OutputFigures(name, kind, **self.means.of(OutputFigures))
        if "error" not in self.means.counts:
            return figures
        noise = _noise(self.powers, self.means.samples)
        sqnr = sqnr_db(float(self.powers[0]), float(self.powers[1]))
        return replace(figures, sqnr_db=sqnr, noise=noise)


@dataclass
class AccuracyMeter:
    """Collects batches of reference and variant outputs, of one task."""

    task: Task
    means: _Means = field(default_factory=_Means)
    outputs: dict[str, _OutputMeter] = field(default_factory=lambda: defaultdict(_OutputMeter))
    lost: int = 0
    won: int = 0
    largest: float | None = None

    def update(self, reference: Rows, variant: Rows, labels: Labels | None) -> Figures:
        """Add one batch of the task's rows and return its figures, as `Task.compare` does."""
        by_output = self.task.by_output(reference, variant)
        for name, figures in by_output.items():
            self.outputs[name].add(figures)
        figures = self.task.compare(reference, variant, labels, by_output)
        self.means.add(len(reference[0]), figures)
        if "linf" in figures:
            self.largest = max(self.largest or 0.0, float(figures["linf"].max(initial=0.0)))
        if labels is not None and "top1" in figures:
            right = self.task.of_labels(reference, reference, labels)["top1"]
            self.lost += int((right > figures["top1"]).sum())
            self.won += int((right < figures["top1"]).sum())
        return figures

    def by_output(self) -> tuple[OutputFigures, ...]:
        """Return the figures so far of each output."""
        return tuple(self.outputs[it.name].result(it.name, it.kind) for it in self.task.outputs)

    def result(self) -> Accuracy:
        """Return the figures so far."""
        ratios = [output.sqnr_db for output in self.by_output() if output.sqnr_db is not None]
        figures: dict[str, Any] = {item.name: None for item in fields(Accuracy)}
        figures |= self.means.of(Accuracy) | {"sqnr_db": min(ratios, default=None)}
        figures |= {"linf": None if self.largest is None else rounded(self.largest)}
        if figures["top1"] is not None:
            drop = paired_difference(self.lost, self.won, self.means.samples).scaled(100.0)
            ends = (rounded(drop.low), rounded(drop.high))
            figures |= {"top1_drop": rounded(drop.value), "top1_drop_interval": ends}
            figures |= {"top1_lost": self.lost, "top1_won": self.won}
        return Accuracy(**(figures | {"samples": self.means.samples}))
