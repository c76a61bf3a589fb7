"""The calibrators: from the histogram of one tensor to its range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from calibrators.floating import near_least
from calibrators.histogram import Edges, Histogram
from calibrators.range import LEVELS, Range, guard


@dataclass(frozen=True)
class MinMax:
    """amax = max |x|: nothing is clipped, and one outlier decides the step of all values.

    Source: H. Wu et al., "Integer Quantization for Deep Learning Inference" (2020), section 3.2, "Max".
    """

    def __call__(self, histogram: Histogram) -> Range:
        """Return the exact largest magnitude as range."""
        return guard(histogram.amax, histogram)


@dataclass(frozen=True)
class Percentile:
    """amax = the given percentile of |x|, zeros included, exact to the histogram's bin.

    It is the linearly interpolated order statistic, as `numpy.quantile(abs(x), percentile / 100)`.
    Source: H. Wu et al., "Integer Quantization for Deep Learning Inference" (2020), section 3.2,
    "Percentile".
    """

    percentile: float = 99.999

    def __post_init__(self) -> None:
        number = isinstance(self.percentile, (int, float))
        if not (number and 0.0 < self.percentile <= 100.0):
            raise ValueError(f"percentile must be above 0 and at most 100, not {self.percentile!r}")

    def __call__(self, histogram: Histogram) -> Range:
        """Return the percentile of the magnitudes as range."""
        rank = self.percentile / 100.0 * max(histogram.count - 1, 0)
        low, high = _order_statistics(histogram, (math.floor(rank), math.ceil(rank)))
        return guard(low + (high - low) * (rank - math.floor(rank)), histogram)


def _order_statistics(histogram: Histogram, ranks: tuple[int, int]) -> tuple[float, float]:
    """Return the upper edges of the bins in which the magnitudes of these ranks lie (0: smallest)."""
    _, upper, counts = histogram.magnitudes()
    edges = np.concatenate([[0.0], upper])
    up_to = histogram.zeros + np.concatenate([[0], np.cumsum(counts)])
    first, second = np.searchsorted(up_to, ranks, side="right")
    return float(edges[min(first, upper.size)]), float(edges[min(second, upper.size)])


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


def _divergences(counts: Edges, levels: int) -> npt.NDArray[np.float64]:
    """Return KL(P || Q) for each number of kept bins from `levels` to all, shape (n,).

    P has what was clipped in its last bin, Q has not; both are normalised. Where that bin is empty
    without the clipped values, Q gets one value there: the published text leaves this case open, and
    an infinite divergence would forbid to clip any outlier beyond a gap. Sums up to each bin make
    the work of a number of kept bins that of its levels.
    """
    kept = np.arange(levels, counts.size + 1)
    mass, occupied, logs = (
        np.concatenate([[0.0], np.cumsum(each)]) for each in (counts, counts > 0.0, _x_log(counts))
    )
    clipped, last = mass[-1] - mass[kept], counts[kept - 1]
    smoothing = ((clipped > 0.0) & (last == 0.0)).astype(np.float64)
    divergence = logs[kept - 1] + _x_log(last + clipped)
    first = np.zeros_like(kept)
    for level in range(levels):
        end = -(-(level + 1) * kept // levels)  # bins j with floor(j * levels / kept) == level
        here, bins = mass[end] - mass[first], occupied[end] - occupied[first]
        beyond, more = (clipped, smoothing) if level == levels - 1 else (0.0, 0.0)
        some = here + beyond > 0.0
        ratio = np.divide(bins + more, here + more, out=np.ones(kept.size), where=some)
        divergence += (here + beyond) * np.log(ratio)
        first = end
    return np.asarray(divergence / mass[-1] + np.log((mass[kept] + smoothing) / mass[-1]))


def _x_log(x: Edges) -> Edges:
    return x * np.log(np.where(x > 0.0, x, 1.0))


@dataclass(frozen=True)
class MSE:
    """amax that minimises the mean of (x - Q(x))^2, rounding and clipping together.

    `candidates` thresholds in equal steps up to max |x| are tried, every value standing in the middle
    of its bin; of equally good ones the largest is taken.
    Source: Y. Choukroun et al., "Low-bit Quantization of Neural Networks for Efficient Inference"
    (2019), section 3.
    """

    candidates: int = 256

    def __post_init__(self) -> None:
        if not isinstance(self.candidates, int) or not 2 <= self.candidates <= 1 << 16:
            raise ValueError(f"candidates must be from 2 to 65536, not {self.candidates!r}")

    def __call__(self, histogram: Histogram) -> Range:
        """Return the range of least error."""
        if histogram.amax == 0.0:
            return guard(0.0, histogram)
        thresholds = np.linspace(0.0, histogram.amax, self.candidates + 1)[1:]
        values, counts = histogram.middles()
        near = near_least(values, counts, np.arange(LEVELS + 1.0), thresholds / LEVELS)
        errors = _squared_errors(values, counts, thresholds[near])
        best = near[np.flatnonzero(errors <= errors.min() * (1 + 1e-12))[-1]]
        return guard(float(thresholds[best]), histogram)


def squared_errors(histogram: Histogram, thresholds: Edges) -> npt.NDArray[np.float64]:
    """Return the sum of squared errors of symmetric INT8 for each amax, shape of `thresholds`."""
    return _squared_errors(*histogram.middles(), thresholds)


def _squared_errors(values: Edges, counts: Edges, thresholds: Edges) -> npt.NDArray[np.float64]:
    errors, work = np.zeros(thresholds.size), np.empty_like(values)
    for number, step in enumerate(thresholds / LEVELS):
        np.rint(np.divide(values, step, out=work), out=work)
        np.minimum(work, LEVELS, out=work)
        np.subtract(values, np.multiply(work, step, out=work), out=work)
        np.square(work, out=work)
        errors[number] = np.multiply(work, counts, out=work).sum()
    return errors


METHODS: dict[str, Callable[[], Callable[[Histogram], Range]]] = {
    "minmax": MinMax,
    "percentile": Percentile,
    "entropy": Entropy,
    "mse": MSE,
}


@dataclass(frozen=True)
class Auto:
    """Takes the whole range unless clipping pays: then the method with the least squared error.

    The few largest values of an activation often matter more than their number says, so another
    method than `minmax` must bring at least `min_gain_db` of signal to quantization noise (dB) on the
    tensor itself. The note says what was chosen and why.
    """

    min_gain_db: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.min_gain_db, (int, float)) or not self.min_gain_db >= 0:
            raise ValueError(f"min_gain_db must be at least 0, not {self.min_gain_db!r}")

    def __call__(self, histogram: Histogram) -> Range:
        """Return the chosen range, its reason in the note."""
        ranges = {name: make()(histogram) for name, make in METHODS.items()}
        return self.choose(ranges, gains(ranges, histogram))

    def choose(self, ranges: Mapping[str, Range], gains: Mapping[str, float]) -> Range:
        """Return one of the ranges by method and their gains, its reason in the note."""
        if not gains:
            return ranges["minmax"]
        best = max(gains, key=lambda name: gains[name])
        if gains[best] < self.min_gain_db:
            reason = f"minmax: {best} would gain only {gains[best]:.2f} dB"
            best = "minmax"
        else:
            reason = f"{best}: {gains[best]:.2f} dB better than minmax"
        notes = filter(None, [reason, ranges[best].note])
        return replace(ranges[best], note="; ".join(notes))


def gains(ranges: Mapping[str, Range], histogram: Histogram) -> dict[str, float]:
    """Return the signal to noise (dB) that each range gains over minmax; none where all is zero."""
    if histogram.amax == 0.0:
        return {}
    errors = squared_errors(histogram, np.array([item.amax for item in ranges.values()]))
    errors = np.maximum(errors, np.finfo(np.float64).tiny)
    whole = errors[[*ranges].index("minmax")]
    return dict(zip(ranges, 10.0 * np.log10(whole / errors), strict=True))
