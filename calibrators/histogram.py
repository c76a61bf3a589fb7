"""Exact, mergeable counts of one tensor's values, in bins that do not depend on the data.

A bin is named by the top bits of the IEEE-754 float32 itself: sign, exponent and the first
`MANTISSA_BITS` bits of the mantissa. In every binade the bins are then linear, and the 2,048 bins of
a binade are at least as fine as 2,048 linear bins over any final range. Because the bins are fixed
and the counts are integers, merging is exact, associative and commutative: every split of the same
values over batches, processes or machines gives the same histogram and the same digest.

While there are no more than `VALUES_KEPT` values (finite and not zero), every distinct one has a
bin of its own: what is chosen from few values is then what would be chosen from the values themselves.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.counting import (
    BINS,
    INFINITY_KEY,
    MANTISSA_BITS,
    PART,
    SHIFT,
    ZERO_SLOTS,
    Bits,
    Counts,
    Patterns,
    collect,
    count_values,
    extent,
    finite_nonzero,
    occupied_bins,
    sum_bins,
    warm,
)

VALUES_KEPT = 1 << 17
MANY = 1 << 14  # values for whose counting it pays to have the bins in the cache
SIGN = 0x80000000
COUNT_LIMIT = 2**32 - 1  # values that a 32-bit count is sure to hold
MOST_COUNTED = 1 << 62  # values that are counted, so that sums fit in 64 bits
SCALARS = ("zeros", "nan", "positive_inf", "negative_inf")

Edges = npt.NDArray[np.float64]
Bins = tuple[Patterns, Counts]
"""Occupied bins: the bit patterns of their lower ends (for negative values, upper), rising; counts."""


class Histogram:
    """Integer counts of a tensor's values.

    `zeros` (of either sign), `nan`, `positive_inf` and `negative_inf` are counted separately; `minimum`
    and `maximum` are exact over the finite values (`inf` and `-inf` while there are none). Up to
    `VALUES_KEPT` values take half a MiB, more take 4 MiB.
    """

    def __init__(self) -> None:
        self._dense: npt.NDArray[np.uint32] | None = None
        self._room = COUNT_LIMIT
        self.clear()

    def clear(self) -> None:
        """Forget all values, but keep the memory for counts."""
        self._fold()
        # The first values are kept. When there are too many, they and all that follow go to dense
        # 32-bit counts, and from there to the occupied bins before they can overflow.
        self._kept: Patterns | None = np.empty(0, np.uint32)
        self._size = 0
        self._older: Bins = np.empty(0, np.uint32), np.empty(0, np.int64)
        self.zeros = self.nan = self.positive_inf = self.negative_inf = 0
        self.minimum, self.maximum = math.inf, -math.inf
        self._largest = 0.0

    def update(self, values: npt.ArrayLike, padding: int = 0) -> float:
        """Count every element of `values` (float32, or float16, which float32 holds exactly).

        `padding` says how many of the zeros among them are none of the tensor's own. Returns the
        largest magnitude of the finite ones.
        """
        array = np.ascontiguousarray(values)
        if array.dtype not in (np.float16, np.float32):
            raise TypeError(f"a histogram counts float32 or float16 values, not {array.dtype}")
        bits = array.astype(np.float32, copy=False).reshape(-1).view(np.int32)
        if self._kept is not None and not self.keeps(finite_nonzero(bits)):
            kept, self._kept = self._kept[: self._size], None
            self._count(kept.view(np.int32))
        self._largest = 0.0
        count, most = (self._count, COUNT_LIMIT) if self._kept is None else (self._keep, PART)
        for start in range(0, bits.size, most):
            count(bits[start : start + most])
        self.zeros -= padding
        return self._largest

    def _keep(self, bits: Bits) -> None:
        if self._kept is None or not self._kept.size:
            self._kept = np.empty(VALUES_KEPT, np.uint32)
        size = self._size
        self._size, *numbers = (int(number) for number in collect(bits, self._kept, size))
        self._add(numbers)
        self._extend(*(int(key) for key in extent(self._kept[size : self._size].view(np.int32))))
        if numbers[0]:
            self._extend(0, 0)

    def _count(self, bits: Bits) -> None:
        if bits.size > self._room:
            self._fold()
        self._room -= bits.size
        counts = self._counts()
        if bits.size >= MANY and self.minimum <= self.maximum:
            for start, end in ((0, self.maximum), (BINS // 2, -self.minimum)):
                if end > 0:
                    warm(counts, start + _bin(end))
        low, high, *numbers = (int(number) for number in count_values(bits, counts))
        self._add(numbers)
        self._extend(low, high)

    def compact(self) -> None:
        """Free what dense counts take, now that all is counted; reading is then faster too."""
        if self._kept is None:
            self._older, self._room = self._bins(), COUNT_LIMIT
        else:
            self._kept[: self._size].sort()
        self._dense = None

    def _counts(self) -> npt.NDArray[np.uint32]:
        if self._dense is None:
            self._dense = np.zeros(BINS + ZERO_SLOTS, np.uint32)
        return self._dense

    def _fold(self) -> None:
        """Move the dense counts to the occupied bins."""
        if self._dense is not None and self._room < COUNT_LIMIT:
            bins = occupied_bins(self._dense)
            self._older = sum_bins(*self._older, *bins)
            self._dense[bins[0] >> np.uint32(SHIFT)] = 0  # no other memory is touched
            self._room = COUNT_LIMIT

    def _add(self, numbers: list[int]) -> None:
        for name, number in zip(SCALARS, numbers, strict=True):
            setattr(self, name, getattr(self, name) + number)

    def _extend(self, low: int, high: int) -> None:
        if low <= high:
            lowest, highest = _value_of_key(low), _value_of_key(high)
            self.minimum, self.maximum = min(self.minimum, lowest), max(self.maximum, highest)
            self._largest = max(self._largest, -lowest, highest)

    def _bins(self) -> Bins:
        if self._kept is not None:
            values = np.sort(self._kept[: self._size], kind="stable")  # once sorted, at no cost
            first = np.flatnonzero(np.diff(values, prepend=~values[:1]))
            return values[first], np.diff(first, append=self._size).astype(np.int64)
        if self._dense is None or self._room == COUNT_LIMIT:
            return self._older
        bins: Bins = sum_bins(*self._older, *occupied_bins(self._dense))
        return bins

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`: afterwards this is the histogram of both sets of values."""
        if self.keeps(other._size) and other._kept is not None:
            self._keep(other._kept[: other._size].view(np.int32))
        else:
            self._fold()
            self._older = sum_bins(*self._coarse(), *other._coarse())
            self._kept = None
        self._add([getattr(other, name) for name in SCALARS])
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    def keeps(self, more: int) -> bool:
        """Say whether all values would still be kept with `more` that are finite and not zero."""
        return self._kept is not None and self._size + more <= VALUES_KEPT

    def add_counts(
        self, counts: npt.NDArray[np.uint32], scalars: Sequence[int], low: int, high: int
    ) -> None:
        """Add values that were counted elsewhere, and are too many to be kept.

        `counts` is uint32 of shape (BINS,), a value's bin being its pattern >> SHIFT. In no bin are
        zeros, NaN, +Inf and -Inf, whose numbers are `scalars`. `low` and `high` are the lowest and
        highest key (see `count_values`) of the finite values, 0 for a zero of either sign, and
        low > high if there are none. `ValueError` if this does not fit together, or if `keeps` the
        values.
        """
        if counts.dtype != np.uint32 or counts.shape != (BINS,):
            raise ValueError(f"counts are uint32 of shape ({BINS},)")
        if len(scalars) != len(SCALARS) or min(scalars) < 0:
            raise ValueError(f"scalars are the numbers of {', '.join(SCALARS)}")
        other = Histogram()
        other._older = patterns, totals = occupied_bins(counts)
        _check_counted(patterns, scalars[0], low, high)
        if totals.size:
            if self.keeps(int(totals.sum())):
                raise ValueError("counts are of so few values that they should be kept instead")
            other._kept = None
        other._add([int(number) for number in scalars])
        other._extend(low, high)
        self.merge(other)

    def _coarse(self) -> Bins:
        """Return the bins that this would have if there were more values."""
        if self._kept is None:
            return self._bins()
        return np.unique(self._kept[: self._size] >> SHIFT << SHIFT, return_counts=True)

    @property
    def count(self) -> int:
        """Number of finite values."""
        values = int(self._bins()[1].sum()) if self._kept is None else self._size
        return values + self.zeros

    @property
    def amax(self) -> float:
        """The exact largest magnitude of the finite values, 0.0 if there are none."""
        return max(abs(self.minimum), abs(self.maximum), 0.0) if self.minimum < math.inf else 0.0

    def magnitudes(self) -> tuple[Edges, Edges, Counts]:
        """Return lower edges, upper edges and counts of the occupied bins of |x|, rising.

        Exact zeros are not in it (see `zeros`). The edges are float64, shape (occupied bins,), and
        are equal where a bin is one value; the last upper edge is `amax` itself where that is lower
        than the bin's.
        """
        if self._kept is not None:
            values = self._kept[: self._size] & ~np.uint32(SIGN)
            bins, totals = np.unique(values, return_counts=True)
            return _values(bins), _values(bins), totals
        patterns, counts = self._bins()
        positive = int(np.searchsorted(patterns, SIGN))
        bins, totals = sum_bins(
            patterns[:positive],
            counts[:positive],
            patterns[positive:] ^ np.uint32(SIGN),
            counts[positive:],
        )
        high = np.minimum(_values(bins + np.uint32(1 << SHIFT)), self.amax)
        return _values(bins), high, totals

    def middles(self) -> tuple[Edges, Edges]:
        """Return the middles of the occupied bins of |x|, rising, and their counts, both float64."""
        low, high, counts = self.magnitudes()
        return (low + high) / 2, counts.astype(np.float64)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the histogram as arrays (occupied bins only) that `from_arrays` takes back."""
        patterns, counts = self._bins()
        return {
            "bins": patterns,
            "counts": counts,
            "scalars": np.array([getattr(self, name) for name in SCALARS], dtype=np.int64),
            "extent": np.array([self.minimum, self.maximum], dtype=np.float64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Histogram:
        """Rebuild a histogram; `ValueError` or `KeyError` if the arrays are not one."""
        patterns, counts = arrays["bins"], arrays["counts"]
        _check_bins(patterns, counts)
        _check_numbers(arrays["scalars"], arrays["extent"])
        histogram = cls()
        if counts.sum() <= VALUES_KEPT:
            histogram._keep(np.repeat(patterns, counts).view(np.int32))
        else:
            histogram._kept, histogram._older = None, (patterns, counts)
        histogram._add([int(number) for number in arrays["scalars"]])
        histogram.minimum, histogram.maximum = (float(value) for value in arrays["extent"])
        return histogram

    def digest(self) -> str:
        """Return a SHA-256 over the whole content: equal histograms, equal digests."""
        digest = hashlib.sha256(b"trtcal histogram %d %d" % (MANTISSA_BITS, VALUES_KEPT))
        for name, array in sorted(self.to_arrays().items()):
            little_endian = array.astype(array.dtype.newbyteorder("<"))
            digest.update(name.encode() + little_endian.tobytes())
        return "sha256:" + digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.digest() == other.digest()

    __hash__ = None  # type: ignore[assignment]  # mutable, so not hashable

    def __repr__(self) -> str:
        return f"Histogram(count={self.count}, minimum={self.minimum}, maximum={self.maximum})"


def _check_bins(patterns: npt.NDArray[Any], counts: npt.NDArray[Any]) -> None:
    if patterns.dtype != np.uint32 or counts.dtype != np.int64 or patterns.ndim != 1:
        raise ValueError("bins and counts have wrong types")
    if counts.sum(dtype=np.float64) > MOST_COUNTED:
        raise ValueError("counts are larger than a histogram can count")
    if patterns.shape != counts.shape or (counts <= 0).any() or (np.diff(patterns) == 0).any():
        raise ValueError("bins and counts do not fit together")
    if (patterns[1:] < patterns[:-1]).any() or (patterns & ~np.uint32(SIGN) >= INFINITY_KEY).any():
        raise ValueError("bins are not increasing, or are not bins of finite values")
    if counts.sum() > VALUES_KEPT and (patterns & np.uint32((1 << SHIFT) - 1)).any():
        raise ValueError("bins are finer than so few values allow")


def _check_numbers(scalars: npt.NDArray[Any], extent: npt.NDArray[Any]) -> None:
    if scalars.dtype != np.int64 or scalars.shape != (len(SCALARS),) or extent.shape != (2,):
        raise ValueError("scalars or extent have wrong types")
    if (scalars < 0).any() or (scalars > MOST_COUNTED).any():
        raise ValueError("scalars are not counts")


def _check_counted(patterns: Patterns, zeros: int, low: int, high: int) -> None:
    if (patterns & ~np.uint32(SIGN) >= INFINITY_KEY).any():
        raise ValueError("counts have bins of values that are not finite")
    bits = np.append(patterns.view(np.int32), np.zeros(int(zeros > 0), np.int32))
    ends = [int(key) >> SHIFT for key in extent(bits)] if bits.size else None
    if ends != ([low >> SHIFT, high >> SHIFT] if low <= high else None):
        raise ValueError("counts and the lowest and highest key do not fit together")


def _values(patterns: Patterns) -> Edges:
    return patterns.view(np.float32).astype(np.float64)


def _bin(magnitude: float) -> int:
    return int(np.float32(magnitude).view(np.uint32)) >> SHIFT


def _value_of_key(key: int) -> float:
    """Undo the ordering transformation of `extent`."""
    bits = np.int32(key) if key >= 0 else np.int32(key ^ 0x7FFFFFFF)
    return float(bits.view(np.float32)) + 0.0  # -0.0 and 0.0 are one value
