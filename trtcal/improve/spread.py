"""How sure the mean losses of draws are, and how far apart those of two sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from trtcal.compare.statistics import LEVEL, Interval

ROUNDS = 3  # of fits
WIDEST = 20.0  # of the logarithm of a ratio
NOTHING = 1e-9  # a loss below that is none: what is divided by is no less

Values = npt.NDArray[np.float64]
Losses = Mapping[int, Values]
"""By size: the losses of each draw on each held-back sample, shape (draws, samples)."""


@dataclass(frozen=True)
class Spread:
    """Why draws differ, as variances of one draw's loss over the mean loss of that size.

    `rounding` is the part that does not fall with samples: every other scale rounds otherwise.
    `sampling` over the number of samples is the part of which samples they are.
    """

    rounding: float
    sampling: float
    degrees: int

    def deviation(self, size: int) -> float:
        """Return the standard deviation of one draw, over the mean."""
        return math.sqrt(self.rounding + self.sampling / size)

    def margin(self, size: int, draws: int, share: float) -> float:
        """Return the half width of the mean's interval, over the mean.

        Each draw holds a `share` of the pool; 0 where they share no samples.
        """
        kept = share + (1 - share) / draws  # the error of the pool itself is in all of them
        variance = self.rounding / draws + self.sampling / size * kept
        return _quantile(self.degrees) * math.sqrt(variance)


def spread_of(means: Mapping[int, Values], shares: Mapping[int, float]) -> Spread:
    """Fit both parts to the variances of all sizes; `means` are the draws' losses.

    Draws that share samples, each a `share` of the pool, vary by 1 - share of the sampling part
    (finite population correction). Least squares relative to the fit, both parts at least 0.
    """
    several = [size for size, values in means.items() if len(values) > 1]
    degrees = np.array([len(means[size]) - 1 for size in several])
    centres = np.array([max(float(means[size].mean()), NOTHING) for size in several])
    seen = np.array([means[size].var(ddof=1) for size in several]) / centres**2
    parts = np.array([[1.0, (1 - shares[size]) / size] for size in several])
    fit, least = np.ones(len(several)), 1e-6 * float(seen.max())
    found = np.zeros(2)
    for _ in range(ROUNDS if least else 0):
        weights = np.sqrt(degrees) / np.maximum(fit, least)
        found, _ = optimize.nnls(parts * weights[:, None], seen * weights)
        fit = parts @ found
    return Spread(float(found[0]), float(found[1]), int(degrees.sum()))


def excess(losses: Losses, size: int, margins: Mapping[int, float]) -> Interval:
    """Return how much more a size loses than the largest, relative to that, with its interval.

    `margins` are those of the sizes' means over draws, relative too. The interval is that of the
    logarithm of the ratio. Draws of two sizes are taken for independent, though they share
    samples: that rather widens it.
    """
    most = max(losses)
    if size == most:
        return Interval(0.0, 0.0, 0.0)
    ratio = _ratio(losses[size], losses[most])
    ours = sample_margin(losses[size], losses[most])
    factor = math.exp(min(math.hypot(ours, margins[size], margins[most]), WIDEST))
    return Interval(ratio - 1, ratio / factor - 1, ratio * factor - 1)


def sample_margin(losses: Values, most: Values) -> float:
    """Return the half width that held-back samples alone give the ratio of two means, over it."""
    shares = [one.mean(0) / max(float(one.mean()), NOTHING) for one in (losses, most)]
    apart = shares[0] - shares[1]
    return _quantile(len(apart) - 1) * float(apart.std(ddof=1)) / math.sqrt(len(apart))


def _ratio(losses: Values, most: Values) -> float:
    return max(float(losses.mean()), NOTHING) / max(float(most.mean()), NOTHING)


def _quantile(degrees: int) -> float:
    return float(stats.t.ppf(0.5 + LEVEL / 2, degrees))
