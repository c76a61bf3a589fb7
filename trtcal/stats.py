"""Tests and intervals for models that saw the same samples, or were timed in the same blocks.

Pairing is what gives power: what both get wrong and what slows both cancels. Nothing here knows what
a model is; everything takes numbers and a level, and returns numbers. No interval has width zero
because the data lack variance: what was not seen in n samples may still happen in a share of
1 - alpha^(1/n) of all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

LEVEL = 0.95
ALPHA = 0.05
LEAST_SLICE = 30  # samples of a slice below which it is shown and not judged
SAME_SPEED = math.log(1.01)
FEWEST = 8  # values below which no interval of a mean is given
RESAMPLES = 500  # of a bootstrap, from which variance and third moment are taken, no quantiles
HOPELESS = 300.0  # half-widths from the limit beyond which no number of samples is named
IN_INTEGERS = 10_000  # throws up to which a binomial tail is summed in whole numbers
GRID = 1601  # points on which a sequential test's distribution is integrated


class _SciPy:
    """Its packages, each imported when first used: they take as long as a small calibration."""

    def __getattr__(self, name: str) -> Any:
        return import_module(f"scipy.{name}")


scipy = _SciPy()


def softmax(rows: Values) -> Values:
    """Return scores of shape (rows, classes, ...) as shares of each row's classes, without SciPy."""
    powers: Values = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares: Values = powers / powers.sum(axis=1, keepdims=True)
    return shares


@dataclass(frozen=True)
class Interval:
    """An estimate and its interval, 95 % unless another level was asked for."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Interval:
        """Return all three times `factor`; a negative one swaps the ends."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(self.value * factor, low, high)

    def within(self, low: float, high: float) -> Interval:
        """Return the interval without what lies outside the possible range."""
        return Interval(self.value, max(self.low, low), min(self.high, high))

    def at_level(self, level: float) -> Interval:
        """Return an interval of 95 % at another level, as if the estimate were normal."""
        factor = normal_quantile(level) / normal_quantile(LEVEL)
        low, high = self.value - self.low, self.high - self.value
        return Interval(self.value, self.value - factor * low, self.value + factor * high)


def normal_quantile(level: float) -> float:
    """Return the number of standard errors on each side of a normal estimate at a level."""
    return float(scipy.special.ndtri((1 + level) / 2))


def one_sided(level: float) -> float:
    """Return the level of the interval of which each end alone errs in 1 - `level` of cases.

    An equivalence test at alpha judges the interval of level 1 - 2 alpha (D. Schuirmann, J.
    Pharmacokinet. Biopharm. 15, 1987). It is for exact intervals, or those with both ends corrected.
    """
    return 2 * level - 1


def unseen(samples: int, level: float = LEVEL) -> float:
    """Return the largest share of all samples that can show what none of `samples` did.

    The exact one-sided bound 1 - alpha^(1/n), with half of the error on each side (C. Clopper and
    E. Pearson, Biometrika 26, 1934, for no success).
    """
    return float(1.0 - ((1 - level) / 2) ** (1 / samples))


def proportion(successes: int, samples: int, level: float = LEVEL) -> Interval:
    """Return a proportion and its exact interval (C. Clopper and E. Pearson, Biometrika 26, 1934)."""
    alpha, failures = (1 - level) / 2, samples - successes
    low = float(scipy.special.betaincinv(successes, failures + 1, alpha)) if successes else 0.0
    high = float(scipy.special.betainccinv(successes + 1, failures, alpha)) if failures else 1.0
    return Interval(successes / samples, low, high)


@functools.lru_cache(maxsize=1 << 14)
def paired_difference(
    lost: int, won: int, samples: int, level: float = LEVEL, strict: bool = False
) -> Interval:
    """Return how much lower the candidate's proportion is, on the same samples.

    `lost`: only the reference was right; `won`: only the candidate was. Score interval of T. Tango
    (Statistics in Medicine 17, 1998) with a continuity correction of half a sample at the end towards
    zero, which is the one that the score alone misses too often where few pairs are discordant;
    without any discordant pair the exact bound. `strict` corrects both ends: each end alone then
    errs in no more than (1 - level) / 2 of cases, also where that is 5 % (shown by enumeration up to
    n = 1,000).
    """
    if lost + won == 0:
        return Interval(0.0, -unseen(samples, level), unseen(samples, level))
    z = normal_quantile(level)
    low = -_score_bound(won, lost, samples, z, strict)
    return Interval((lost - won) / samples, low, _score_bound(lost, won, samples, z, strict))


def _score_bound(lost: int, won: int, samples: int, z: float, strict: bool) -> float:
    """Return the largest difference whose score test accepts the counts (T. Tango, equation 5)."""
    correction = 0.5 if strict or lost < won else 0.0

    def excess(difference: float) -> float:
        b = -lost - won + (2 * samples - lost + won) * difference
        c = -won * difference * (1 - difference)
        share = (math.sqrt(max(b * b - 8 * samples * c, 0.0)) - b) / (4 * samples)
        variance = samples * (2 * share + difference * (1 - difference))
        distance = samples * difference - (lost - won) - correction
        return distance - z * math.sqrt(max(variance, 0.0))

    start = min((lost - won + correction) / samples, 1.0)
    if excess(1.0) <= 0.0 or excess(start) >= 0.0:
        return 1.0
    return float(scipy.optimize.brentq(excess, start, 1.0))


@dataclass(frozen=True)
class Moments:
    """Number, mean, variance and third central moment: what the interval of a mean takes."""

    count: int
    mean: float
    variance: float
    third: float

    @classmethod
    def of(cls, values: Values) -> Moments:
        """Return the moments of values, of any shape."""
        count, mean = values.size, float(values.sum()) / values.size
        squares, cubes = (float((values**power).sum()) for power in (2, 3))
        variance = max(squares / count - mean**2, 0.0) * count / max(count - 1, 1)
        third = cubes / count - 3 * mean * squares / count + 2 * mean**3
        if np.ptp(values) == 0.0 or variance <= (1e-12 * float(values.max())) ** 2:
            variance = 0.0
        return cls(count, mean, variance, third)

    def around(self, mean: float, factor: float) -> Moments:
        """Return the moments of the same values, scaled around another mean."""
        return Moments(self.count, mean, factor**2 * self.variance, factor**3 * self.third)

    def interval(self, level: float, reach: float) -> Interval:
        """Return the mean and its interval; `reach` is how far a value not seen may lie from it.

        A skewed sum is taken for a Poisson number of jumps of size third moment / variance, whose exact
        interval (F. Garwood, Biometrika 28, 1936) covers the mean. It becomes Student's t interval as
        the skewness vanishes, and the exact one where rare equal losses make the whole difference. It
        is no narrower than what `unseen` allows for.
        """
        if self.count < FEWEST:
            return Interval(self.mean, -math.inf, math.inf)
        floor = reach * unseen(self.count, level)
        margins = (
            _tail(self.variance, sign * self.third, self.count, level) for sign in (-1.0, 1.0)
        )
        low, high = (max(margin, floor) for margin in margins)
        return Interval(self.mean, self.mean - low, self.mean + high)


def _tail(variance: float, third: float, count: int, level: float) -> float:
    """Return how far the mean may lie above its estimate."""
    if variance == 0.0:
        return 0.0
    quantile = float(scipy.special.stdtrit(count - 1, (1 + level) / 2))
    plain = quantile * math.sqrt(variance / count)
    jump = third / variance
    events = count * variance / jump**2 if jump else math.inf
    if events > 1e8 or jump < 0.0:
        return plain
    above = float(scipy.special.chdtri(2 * events + 2, (1 - level) / 2)) / 2 - events
    return max(plain, above * jump / count * quantile / normal_quantile(level))


@dataclass(frozen=True)
class Paired:
    """A candidate's mean against the baseline's: `difference` is candidate minus baseline.

    `p` is two-sided, for the hypothesis that there is no difference: McNemar's exact test where values
    are 0 and 1 (`mid_p` beside it), else Student's paired one (`mid_p` is None).
    """

    samples: int
    baseline: float
    candidate: float
    difference: Interval
    p: float
    mid_p: float | None = None


def bootstrap(figure: Callable[[Values], Values], samples: int, where: Mask | None) -> Values:
    """Return a figure of the samples (all, or those in `where`), then of resamples of them.

    `figure` takes how often each sample counts (B. Efron, Ann. Stat. 7, 1979, with a fixed seed).
    """
    chosen = np.arange(samples) if where is None else np.flatnonzero(where)
    drawn = np.random.default_rng(0).choice(chosen, (RESAMPLES, len(chosen)))
    weights = (np.bincount(numbers, minlength=samples) for numbers in (chosen, *drawn))
    return np.array([figure(numbers.astype(np.float64)) for numbers in weights])


@dataclass(frozen=True)
class Corpus:
    """A figure of whole data sets, which is no mean over samples, of a baseline and a candidate.

    `values` are those of both, (1 + resamples, 2): of the samples as they are, then of resamples, the
    same for both. NaN is no figure: without any the interval has no end.
    """

    samples: int
    values: Values

    @property
    def candidate(self) -> Moments:
        """The candidate's figure, as if it were a mean over samples."""
        return self._moments(self.values[:, 1])

    @property
    def change(self) -> Moments:
        """The candidate's figure minus the baseline's, of the same samples."""
        return self._moments(self.values[:, 1] - self.values[:, 0])

    def _moments(self, values: Values) -> Moments:
        """Return moments whose mean has the variance and the third moment of the resamples."""
        resampled = values[1:][np.isfinite(values[1:])]
        if len(resampled) < 2:
            return Moments(1, float(np.nan_to_num(values[0])), 0.0, 0.0)
        third = float(((resampled - resampled.mean()) ** 3).mean())
        variance = float(resampled.var(ddof=1)) * self.samples
        return Moments(self.samples, float(values[0]), variance, third * self.samples**2)

    def compare(self, level: float, reach: float) -> Paired:
        """Compare both; `reach` is the largest difference that one sample can make."""
        change = self.change
        error = math.sqrt(change.variance / change.count)
        p = 2 * float(scipy.special.ndtr(-abs(change.mean) / error)) if error else 1.0
        baseline, candidate = np.nan_to_num(self.values[0]).tolist()
        return Paired(self.samples, baseline, candidate, change.interval(level, reach), p)


OfMany = Callable[["Mask | None"], Corpus]
"""A figure of all samples together, or of those in a mask."""


def mcnemar(lost: int, won: int, one_sided: bool = False) -> float:
    """Return the exact p-value of Q. McNemar (Psychometrika 12, 1947), two-sided unless `one_sided`.

    `lost`: samples that only the baseline has right; `won`: only the candidate. Without either it is 1.
    One-sided it is that of a candidate that is not worse.
    """
    most = won if one_sided else min(lost, won)
    return min((2 - one_sided) * _at_most(most, lost + won), 1.0)


def mcnemar_mid_p(lost: int, won: int) -> float:
    """Return McNemar's mid-p: the exact p-value less the probability of what was seen.

    It has more power than the exact test, and its error was nowhere above the nominal one
    (M. Fagerland, S. Lydersen and P. Laake, BMC Medical Research Methodology 13:91, 2013).
    """
    count, least = lost + won, min(lost, won)
    if count == 0:
        return 1.0
    seen = _at_most(least, count) - (_at_most(least - 1, count) if least else 0.0)
    return min(mcnemar(lost, won) - seen, 1.0)


def _at_most(most: int, count: int) -> float:
    """Return the probability of `most` heads or fewer in `count` throws of a fair coin.

    For few throws in whole numbers, since SciPy takes long to load.
    """
    if count > IN_INTEGERS:
        return float(scipy.special.betainc(count - most, most + 1, 0.5)) if most < count else 1.0
    term = total = 1
    for heads in range(most):
        term = term * (count - heads) // (heads + 1)
        total += term
    return total / (1 << count)


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """Return p-values that hold together, in the order given (S. Holm, Scand. J. Stat. 6, 1979)."""
    order = np.argsort(ps)
    factors = np.arange(len(ps), 0, -1)
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(np.maximum.accumulate(np.asarray(ps)[order] * factors), 1.0)
    return tuple(adjusted.tolist())


def holm_levels(
    holds: Callable[[int, float], bool],
    count: int,
    alpha: float = 1 - LEVEL,
    fails: Callable[[int], bool] = lambda number: False,
) -> tuple[float, ...]:
    """Return at which level each of `count` variants is judged, so that all hold together.

    `holds` says whether a variant holds at a level. Of k variants one has to hold at 1 - alpha / k;
    then another at 1 - alpha / (k - 1), and so on until none does (S. Holm, Scand. J. Stat. 6, 1979).

    One that `fails`, plainly on the wrong side at 1 - alpha, cannot be chosen: it is not among the k
    and keeps that level. A bad variant is out with probability alpha or more, so with m bad ones at
    their limits, independent or alike, the error is at most alpha (1 - alpha^m) / (1 - alpha): alpha
    is made smaller by as much (as J. Storey's estimate of true hypotheses, J. R. Stat. Soc. B 64,
    2002, does with a threshold of 1 - alpha).
    """
    levels = {number: 1 - alpha for number in range(count) if fails(number)}
    if levels:
        alpha *= (1 - alpha) / (1 - alpha**count)
    while len(levels) < count:
        level = 1 - alpha / (count - len(levels))
        passed = [
            number for number in range(count) if number not in levels and holds(number, level)
        ]
        if not passed:
            return tuple(levels.get(number, level) for number in range(count))
        levels |= dict.fromkeys(passed, level)
    return tuple(levels[number] for number in range(count))


def compare_means(
    baseline: Values,
    candidate: Values,
    level: float = LEVEL,
    reach: float | None = None,
    same: bool = False,
) -> Paired:
    """Compare the means of a figure over the same samples, each of shape (samples,).

    `reach` is the largest difference that one sample can have, None where only the values seen tell.
    `same`: the baseline is compared with itself, and nothing can be better than that.
    """
    differences = candidate - baseline
    both = np.concatenate([baseline, candidate])
    means = float(baseline.mean()), float(candidate.mean())
    mid_p: float | None = None
    if np.isin(both, (0.0, 1.0)).all() and both.any():
        lost, won = int((differences < 0).sum()), int((differences > 0).sum())
        difference = paired_difference(won, lost, len(differences), level).within(-1.0, 1.0)
        p, mid_p = mcnemar(lost, won), mcnemar_mid_p(lost, won)
    else:
        seen = float(np.ptp(both)) or float(np.abs(both).max()) or math.inf
        difference = Moments.of(differences).interval(level, seen if reach is None else reach)
        p = _student(differences)
    if same:
        difference = difference.within(-math.inf, max(0.0, difference.value))
    return Paired(len(differences), *means, difference, p, mid_p)


def _student(differences: Values) -> float:
    if len(differences) < FEWEST or np.ptp(differences) == 0:
        return 1.0
    return float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)


def median_interval(times: Values) -> Interval:
    """Return the median and its distribution-free interval, from order statistics."""
    ordered = np.sort(times)
    rank = math.ceil(scipy.special.bdtrik((1 - LEVEL) / 2, len(ordered), 0.5))
    low, high = ordered[max(rank - 1, 0)], ordered[min(len(ordered) - rank, len(ordered) - 1)]
    return Interval(float(np.median(ordered)), float(low), float(high))


def ratio_of_blocks(
    baseline: Values, candidate: Values, level: float = LEVEL
) -> tuple[Interval, float]:
    """Return how many times as fast the candidate is, and the p-value of the same speed.

    Times of shape (blocks,): of each block the baseline's and the candidate's, measured in turns. The
    median of the blocks' ratios, with its distribution-free interval (order statistics), and the sign
    test: no assumption on how times are distributed, only that blocks don't hang together. Speeds
    within 1 % are the same: where buffers lie in memory changes the same program's speed by that.
    """
    logs = np.log(baseline) - np.log(candidate)
    test = scipy.stats.quantile_test(logs, q=0.0, p=0.5)
    interval = test.confidence_interval(confidence_level=level)
    low = float(np.exp(interval.low)) if np.isfinite(interval.low) else 0.0
    high = float(np.exp(interval.high)) if np.isfinite(interval.high) else np.inf
    sides = (int((logs > SAME_SPEED).sum()), int((logs < -SAME_SPEED).sum()))
    p = 2 * scipy.stats.binomtest(max(sides), len(logs), 0.5, "greater").pvalue
    return Interval(float(np.exp(np.median(logs))), low, high), min(float(p), 1.0)


def spent(alpha: float, part: float) -> float:
    """Return the error rate that may be spent once this part of the samples was seen.

    The spending function of K. Lan and D. DeMets (Biometrika 70, 1983) that resembles O'Brien and
    Fleming's bounds: little at first.
    """
    if part <= 0:
        return 0.0
    return float(2 * scipy.stats.norm.sf(scipy.stats.norm.isf(alpha / 2) / math.sqrt(part)))


@functools.lru_cache
def sequential_levels(alpha: float, parts: tuple[float, ...]) -> tuple[float, ...]:
    """Return at which level each interim analysis is judged, so that all err no more often than alpha.

    `parts` are the shares of the samples seen, rising, the last one 1. Estimates of later analyses
    contain the earlier ones: the bounds are those of their joint normal distribution, each of which is
    crossed first with the error newly spent (P. Armitage, C. McPherson and B. Rowe, J. R. Stat. Soc. A
    132, 1969, by numerical integration over the sums of independent increments).
    """
    levels, grid, density, before = [], np.zeros(1), np.ones(1), 0.0
    for part in parts:
        newly = (spent(alpha, part) - spent(alpha, before)) / 2
        step = math.sqrt(part - before)

        def beyond(bound: float, grid: Values = grid, density: Values = density, step: float = step,
                   part: float = part, newly: float = newly) -> float:  # fmt: skip
            above = scipy.stats.norm.sf((bound * math.sqrt(part) - grid) / step)
            return float((density * above).sum()) - newly

        bound = float(scipy.optimize.brentq(beyond, 0.0, 40.0)) if newly > 0.0 else 40.0
        levels.append(1.0 - 2.0 * float(scipy.stats.norm.sf(bound)))
        edge = bound * math.sqrt(part)
        points = np.linspace(-edge, edge, GRID)
        steps = scipy.stats.norm.pdf((points[:, None] - grid[None, :]) / step) / step
        grid, density, before = points, (steps @ density) * (points[1] - points[0]), part
    return tuple(levels)


def samples_needed(ends: tuple[float, float, float], bound: float, samples: int) -> int | None:
    """Return roughly how many samples put the whole interval on the estimate's side of a bound.

    `ends` are value, low and high. The half-width shrinks with the square root of the number of
    samples. The answer has two significant digits and is at least `LEAST_SLICE`; None where the
    estimate lies so near the bound that it would be a hundred thousand times the samples or more, or
    where the interval has no end.
    """
    value, low, high = ends
    distance = abs(bound - value)
    half = high - value if value <= bound else value - low
    if distance <= 0 or not math.isfinite(half) or half / distance > HOPELESS:
        return None
    needed = max(samples * (half / distance) ** 2, samples + 1.0, LEAST_SLICE)
    unit = int(10 ** max(math.floor(math.log10(max(needed, 1.0))) - 1, 0))
    return math.ceil(needed / unit) * unit
