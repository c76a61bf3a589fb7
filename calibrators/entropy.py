"""The range that loses the least information, as TensorRT chooses it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from calibrators.histogram import Edges, Histogram
from calibrators.range import Range, guard

TIE = 1e-9  # divergences closer than this are equal but for rounding


@dataclass(frozen=True)
class Entropy:
    """amax that minimises the Kullback-Leibler divergence of the quantized from the real values.

    |x| is counted in `bins` linear bins over [0, max |x|]. For every m from `levels` to `bins` the
    first m bins, with all that is clipped added to the last, are compared with themselves quantized
    to `levels` levels; the best m gives amax = (m + 0.5) * bin width, so that unclipped data give
    exactly (bins + 0.5) / bins * max |x|, as TensorRT's own caches show. Exact zeros are left out:
    every range represents them exactly.

    Two guards against collapse, for data with few distinct values: where the reference is mostly its
    own last bin the divergence says nothing, so an m that clips more than `max_clipped` of the values
    (0 to 1) is not considered; and of equally good m the largest is taken.

    Source: S. Migacz, "8-bit Inference with TensorRT", GTC 2017, session S7310.
    """

    bins: int = 2048
    levels: int = 128
    max_clipped: float = 0.05

    def __post_init__(self) -> None:
        if not (isinstance(self.bins, int) and isinstance(self.levels, int)):
            raise ValueError("bins and levels must be whole numbers")
        if not (isinstance(self.max_clipped, (int, float)) and 0.0 <= self.max_clipped < 1.0):
            raise ValueError(f"max_clipped must be from 0 to below 1, not {self.max_clipped!r}")
        if not 2 <= self.levels <= self.bins <= 1 << 16:
            raise ValueError(f"need 2 <= levels <= bins <= 65536, not {self.levels}, {self.bins}")

    def __call__(self, histogram: Histogram) -> Range:
        """Return the range of least divergence."""
        if histogram.amax == 0.0:
            return guard(0.0, histogram)
        linear = linear_bins(histogram, self.bins)
        divergence = _divergences(linear, self.levels)
        kept = np.cumsum(linear)[self.levels - 1 :]
        divergence[kept < (1.0 - self.max_clipped) * kept[-1]] = np.inf
        best = self.levels + int(np.flatnonzero(divergence <= divergence.min() + TIE)[-1])
        return guard((best + 0.5) * histogram.amax / self.bins, histogram)


def linear_bins(histogram: Histogram, bins: int) -> Edges:
    """Return counts of |x| > 0 in `bins` equal bins over [0, amax], float64, shape (bins,).

    A bin of the histogram that straddles an edge is shared out in proportion.
    """
    low, high, counts = histogram.magnitudes()
    if (low == high).all():
        return np.histogram(low, bins, (0.0, histogram.amax), weights=counts)[0].astype(np.float64)
    total = np.cumsum(counts)
    places = np.column_stack([low, high]).ravel()
    up_to_place = np.column_stack([total - counts, total]).ravel()
    edges = np.linspace(0.0, histogram.amax, bins + 1)
    up_to_edge = np.interp(edges, places, up_to_place, left=0.0)
    up_to_edge[-1] = histogram.count - histogram.zeros
    return np.diff(up_to_edge)


@njit(nogil=True, cache=True)
def _divergences(counts: Edges, levels: int) -> npt.NDArray[np.float64]:
    """Return the divergence for each number of kept bins from `levels` to all, shape (n,)."""
    result = np.empty(counts.size - levels + 1)
    for position in range(result.size):
        result[position] = _divergence(counts, position + levels, levels)
    return result


@njit(nogil=True, cache=True)
def _divergence(counts: Edges, kept: int, levels: int) -> float:
    """Return KL(P || Q) for the first `kept` bins.

    P has what was clipped in its last bin, Q has not; both are normalised. Where that bin is empty
    without the clipped values, Q gets one value there: the published text leaves this case open, and
    an infinite divergence would forbid to clip any outlier beyond a gap.
    """
    clipped = counts[kept:].sum()
    smoothing = 1.0 if clipped > 0.0 and counts[kept - 1] == 0.0 else 0.0
    p_total, q_total = counts.sum(), counts[:kept].sum() + smoothing
    divergence, first = 0.0, 0
    for level in range(levels):
        last = -(-(level + 1) * kept // levels)  # bins j with floor(j * levels / kept) == level
        occupied = (counts[first:last] > 0.0).sum()
        mass = counts[first:last].sum()
        if last == kept:
            occupied += smoothing
            mass += smoothing
        for j in range(first, last):
            p = counts[j] + (clipped if j == kept - 1 else 0.0)
            if p > 0.0:
                divergence += p / p_total * np.log(p / p_total * q_total * occupied / mass)
        first = last
    return divergence
