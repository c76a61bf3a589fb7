"""Tests and intervals for two models that saw the same samples, or were timed in the same blocks.

Pairing is what gives power: what both get wrong and what slows both cancels. Nothing here knows what
a model is; everything takes numbers and a level, and returns numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Times = npt.NDArray[np.float64]
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Interval:
        """Return all three times `factor` (positive)."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)


def paired_difference(lost: int, won: int, samples: int, level: float = LEVEL) -> Interval:
    """Return how much lower the candidate's proportion is, on the same samples.

    `lost`: only the reference was right; `won`: only the candidate was. Adjusted Wald interval for
    matched pairs: A. Agresti and Y. Min, Statistics in Medicine 24 (2005), which adds one half to
    each discordant count and two to the number of pairs.
    """
    count = samples + 2.0
    difference = (lost - won) / count
    spread = math.sqrt(max(lost + won + 1.0 - (lost - won) ** 2 / count, 0.0)) / count
    margin = float(stats.norm.ppf(0.5 + level / 2)) * spread
    return Interval((lost - won) / samples, difference - margin, difference + margin)


def median_interval(times: Times) -> Interval:
    """Return the median and its distribution-free interval, from order statistics."""
    ordered = np.sort(times)
    rank = int(stats.binom.ppf((1 - LEVEL) / 2, len(ordered), 0.5))
    low, high = ordered[max(rank - 1, 0)], ordered[min(len(ordered) - rank, len(ordered) - 1)]
    return Interval(float(np.median(ordered)), float(low), float(high))


Values = npt.NDArray[np.float64]

RESAMPLES = 4000
BATCH_BYTES = 1 << 25  # of one batch of resamples
SAME_SPEED = math.log(1.01)
FEWEST = 8  # values below which no interval is given


@dataclass(frozen=True)
class Paired:
    """A candidate's mean against the baseline's: `difference` is candidate minus baseline.

    `p` is two-sided, for the hypothesis that there is no difference; exact by McNemar's test where
    values are 0 and 1, else from the bootstrap.
    """

    samples: int
    baseline: float
    candidate: float
    difference: Interval
    p: float


def mcnemar(lost: int, won: int) -> float:
    """Return the exact two-sided p-value of Q. McNemar (Psychometrika 12, 1947).

    `lost`: samples that only the baseline has right; `won`: only the candidate. Without either it is 1.
    """
    if lost + won == 0:
        return 1.0
    return float(stats.binomtest(won, lost + won, 0.5).pvalue)


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """Return p-values that hold together, in the order given (S. Holm, Scand. J. Stat. 6, 1979)."""
    order = np.argsort(ps)
    factors = np.arange(len(ps), 0, -1)
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(np.maximum.accumulate(np.asarray(ps)[order] * factors), 1.0)
    return tuple(adjusted.tolist())


def compare_means(
    baseline: Values, candidate: Values, level: float = 0.95, seed: int = 0
) -> Paired:
    """Compare the means of a figure over the same samples, each of shape (samples,)."""
    apart = candidate - baseline
    both = np.concatenate([baseline, candidate])
    if np.isin(both, (0.0, 1.0)).all() and both.any():
        difference, p = _of_counts(
            int((apart < 0).sum()), int((apart > 0).sum()), len(apart), level
        )
    else:
        difference, p = _of_values(apart, level, seed)
    return Paired(len(apart), float(baseline.mean()), float(candidate.mean()), difference, p)


def _of_counts(lost: int, won: int, samples: int, level: float) -> tuple[Interval, float]:
    """Return how much higher the candidate's proportion is, and McNemar's p."""
    return paired_difference(won, lost, samples, level), mcnemar(lost, won)


def _of_values(apart: Values, level: float, seed: int) -> tuple[Interval, float]:
    """Return the bootstrap's interval of the mean difference, and Student's p for it.

    Interval: bias-corrected and accelerated (B. Efron, JASA 82, 1987), by scipy.
    """
    mean = float(apart.mean())
    if len(apart) < FEWEST:
        return Interval(mean, -np.inf, np.inf), 1.0
    if np.ptp(apart) == 0:
        return Interval(mean, mean, mean), 1.0 if mean == 0 else 0.0
    found = stats.bootstrap(
        (apart,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, BATCH_BYTES // (8 * len(apart))),
        confidence_level=level,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    p = float(stats.ttest_1samp(apart, 0.0).pvalue)
    return Interval(mean, float(found.low), float(found.high)), p


def ratio_of_blocks(
    baseline: Values, candidate: Values, level: float = 0.95
) -> tuple[Interval, float]:
    """Return how many times as fast the candidate is, and the p-value of the same speed.

    Times of shape (blocks,): of each block the baseline's and the candidate's, measured in turns. The
    median of the blocks' ratios, with its distribution-free interval (order statistics), and the sign
    test: no assumption on how times are distributed, only that blocks don't hang together. Speeds
    within 1 % are the same: where buffers lie in memory changes the same program's speed by that.
    """
    logs = np.log(baseline) - np.log(candidate)
    found = stats.quantile_test(logs, q=0.0, p=0.5)
    interval = found.confidence_interval(confidence_level=level)
    low = float(np.exp(interval.low)) if np.isfinite(interval.low) else 0.0
    high = float(np.exp(interval.high)) if np.isfinite(interval.high) else np.inf
    sides = (int((logs > SAME_SPEED).sum()), int((logs < -SAME_SPEED).sum()))
    p = 2 * stats.binomtest(max(sides), len(logs), 0.5, "greater").pvalue
    return Interval(float(np.exp(np.median(logs))), low, high), min(float(p), 1.0)
