"""Exact, mergeable counts of one tensor's values, in bins that do not depend on the data.

A bin is named by the top bits of the IEEE-754 float32 itself: sign, exponent and the first
`MANTISSA_BITS` bits of the mantissa. In every binade the bins are then linear, and the 2,048 bins of
a binade are at least as fine as 2,048 linear bins over any final range. Because the bins are fixed
and the counts are integers, merging is exact, associative and commutative: every split of the same
values over batches, processes or machines gives the same histogram and the same digest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

MANTISSA_BITS = 11
SHIFT = 23 - MANTISSA_BITS
BINS = 1 << (32 - SHIFT)
HALF = BINS // 2  # bins from here on are those of the negative values
INFINITY_KEY = 0x7F800000
ZERO_SLOTS = 8  # zeros, by far the most frequent value, are counted by turns so as not to queue
COUNT_LIMIT = 2**32 - 1  # values that a 32-bit count is sure to hold
BLOCK = 4096  # values counted together: 16 KiB, half of a usual first cache
SCALARS = ("zeros", "nan", "positive_inf", "negative_inf")

Counts = npt.NDArray[np.int64]
Edges = npt.NDArray[np.float64]


class Histogram:
    """Integer counts of a tensor's values.

    `zeros` (of either sign), `nan`, `positive_inf` and `negative_inf` are counted apart; `minimum` and
    `maximum` are exact over the finite values (`inf` and `-inf` while there are none). The dense
    counts take 12 MiB of address space, of which only the pages of occupied bins become resident.
    """

    __slots__ = (
        "_older",
        "_recent",
        "_room",
        "_sparse",
        "maximum",
        "minimum",
        "nan",
        "negative_inf",
        "positive_inf",
        "zeros",
    )

    def __init__(self) -> None:
        # New values go to 32-bit counts, which stay in the cache, and from there to 64-bit ones
        # before they can overflow.
        self._recent = np.zeros(BINS + ZERO_SLOTS, dtype=np.uint32)
        self._older: Counts = np.zeros(BINS, dtype=np.int64)
        self._room = COUNT_LIMIT
        self._sparse: tuple[npt.NDArray[np.intp], Counts] | None = None
        self.zeros = 0
        self.nan = 0
        self.positive_inf = 0
        self.negative_inf = 0
        self.minimum = math.inf
        self.maximum = -math.inf

    def update(self, values: npt.ArrayLike, padding: int = 0) -> None:
        """Count every element of `values` (float32, or float16, which float32 holds exactly).

        `padding` says how many of the zeros among them are none of the tensor's own.
        """
        array = np.ascontiguousarray(values)
        if array.dtype not in (np.float16, np.float32):
            raise TypeError(f"a histogram counts float32 or float16 values, not {array.dtype}")
        bits = array.astype(np.float32, copy=False).reshape(-1).view(np.int32)
        for start in range(0, bits.size, COUNT_LIMIT):
            self._count(bits[start : start + COUNT_LIMIT])
        self.zeros -= padding

    def _count(self, bits: npt.NDArray[np.int32]) -> None:
        self._sparse = None
        if bits.size > self._room:
            self._fold()
        self._room -= bits.size
        low, high, *others = (int(number) for number in _count(bits, self._recent))
        zeros, nan, positive, negative = others
        self.zeros += zeros
        self.nan += nan
        self.positive_inf += positive
        self.negative_inf += negative
        if low <= high:
            self.minimum = min(self.minimum, _value_of_key(low))
            self.maximum = max(self.maximum, _value_of_key(high))

    def _fold(self) -> None:
        occupied = np.flatnonzero(self._recent[:BINS])
        self._older[occupied] += self._recent[occupied]
        self._recent[occupied] = 0
        self._room = COUNT_LIMIT

    def _occupied(self) -> tuple[npt.NDArray[np.intp], Counts]:
        """Return the numbers of the occupied bins and their counts."""
        if self._sparse is None:
            self._fold()
            index = np.flatnonzero(self._older)
            self._sparse = index, self._older[index]
        return self._sparse

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`: afterwards this is the histogram of both sets of values."""
        index, counts = other._occupied()
        self._older[index] += counts
        self._sparse = None
        for name in SCALARS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    @property
    def count(self) -> int:
        """Number of finite values."""
        return int(self._occupied()[1].sum()) + self.zeros

    @property
    def non_finite(self) -> int:
        """Number of NaN and infinite values."""
        return self.nan + self.positive_inf + self.negative_inf

    @property
    def amax(self) -> float:
        """The exact largest magnitude of the finite values, 0.0 if there are none."""
        return max(abs(self.minimum), abs(self.maximum)) if self.count else 0.0

    def magnitudes(self) -> tuple[Edges, Edges, Counts]:
        """Return lower edges, upper edges and counts of the occupied bins of |x|, rising.

        Exact zeros are not in it (see `zeros`). The edges are float64, shape (occupied bins,); the
        last upper edge is `amax` itself where that is lower than the bin's.
        """
        signed, counts = self._occupied()
        index, place = np.unique(signed % HALF, return_inverse=True)
        totals = np.zeros(index.size, dtype=np.int64)
        np.add.at(totals, place, counts)
        low, high = _edge(index), np.minimum(_edge(index + 1), self.amax)
        return low, high, totals

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the histogram as arrays (occupied bins only) that `from_arrays` takes back."""
        index, counts = self._occupied()
        return {
            "index": index.astype(np.uint32),
            "counts": counts,
            "scalars": np.array([getattr(self, name) for name in SCALARS], dtype=np.int64),
            "extent": np.array([self.minimum, self.maximum], dtype=np.float64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Histogram:
        """Rebuild a histogram; `ValueError` or `KeyError` if the arrays are not one."""
        index, counts = arrays["index"], arrays["counts"]
        scalars, extent = arrays["scalars"], arrays["extent"]
        if index.shape != counts.shape or index.ndim != 1 or (counts < 0).any():
            raise ValueError("bin numbers and counts do not fit together")
        if index.size and (int(index.max()) >= BINS or np.unique(index).size != index.size):
            raise ValueError("bin numbers are out of range or repeated")
        histogram = cls()
        histogram._older[index] = counts
        for name, value in zip(SCALARS, scalars.tolist(), strict=True):
            setattr(histogram, name, int(value))
        histogram.minimum, histogram.maximum = (float(value) for value in extent)
        return histogram

    def digest(self) -> str:
        """Return a SHA-256 over the whole content: equal histograms, equal digests."""
        digest = hashlib.sha256(b"trtcal histogram %d" % MANTISSA_BITS)
        for name, array in sorted(self.to_arrays().items()):
            little_endian = array.astype(array.dtype.newbyteorder("<"))
            digest.update(name.encode() + little_endian.tobytes())
        return "sha256:" + digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.digest() == other.digest()

    __hash__ = None  # type: ignore[assignment]  # mutable, so not hashable

    def __repr__(self) -> str:
        return f"Histogram(count={self.count}, minimum={self.minimum}, maximum={self.maximum})"


def _edge(index: npt.NDArray[np.intp]) -> Edges:
    """Return the lower edge (float64) of positive bins by number."""
    bits = (index.astype(np.uint32) << np.uint32(SHIFT)).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)


def _value_of_key(key: int) -> float:
    """Undo the ordering transformation of `_extent`."""
    bits = np.int32(key) if key >= 0 else np.int32(key ^ 0x7FFFFFFF)
    return float(bits.view(np.float32)) + 0.0  # -0.0 and 0.0 are one value


@njit(nogil=True, cache=True)
def _count(
    bits: npt.NDArray[np.int32], counts: npt.NDArray[np.uint32]
) -> tuple[np.int32, np.int32, int, int, int, int]:
    """Count values by their bit patterns, a block at a time while it lies in the first cache.

    Returns the lowest and highest key of the finite values, and the numbers of zeros, NaN, +Inf and
    -Inf. The key of a float is its pattern made to sort like its value.
    """
    lowest, highest = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    nan, positive, negative = 0, 0, 0
    for start in range(0, bits.size, BLOCK):
        block = bits[start : start + BLOCK]
        low, high = _extent(block)
        if high >= INFINITY_KEY or low <= -INFINITY_KEY - 1:
            block, a, b, c = _finite(block)
            nan, positive, negative = nan + a, positive + b, negative + c
            low, high = _extent(block)
        lowest, highest = min(lowest, low), max(highest, high)
        _fill(block.view(np.uint32), counts)
    zeros = counts[BINS:].sum()
    counts[BINS:] = 0
    return lowest, highest, zeros, nan, positive, negative


@njit(nogil=True, cache=True)
def _finite(bits: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], int, int, int]:
    """Return the patterns of the finite values, and the numbers of NaN, +Inf and -Inf."""
    magnitude = bits & np.int32(0x7FFFFFFF)
    infinite = magnitude == INFINITY_KEY
    negative = (infinite & (bits < 0)).sum()
    nan = (magnitude > INFINITY_KEY).sum()
    return bits[magnitude < INFINITY_KEY], nan, infinite.sum() - negative, negative


@njit(nogil=True, cache=True)
def _extent(bits: npt.NDArray[np.int32]) -> tuple[np.int32, np.int32]:
    """Return the lowest and highest key.

    Integer arithmetic without branches, which the compiler turns into vector instructions.
    """
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(bits.size):
        pattern = bits[i]
        key = np.int32(pattern ^ ((pattern >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        low = min(low, key)
        high = max(high, key)
    return low, high


@njit(nogil=True, cache=True)
def _fill(bits: npt.NDArray[np.uint32], counts: npt.NDArray[np.uint32]) -> None:
    for i in range(bits.size):
        pattern = bits[i]
        zero = (pattern & np.uint32(0x7FFFFFFF)) == 0
        slot = np.uint32(BINS) + np.uint32(i & (ZERO_SLOTS - 1))
        counts[slot if zero else pattern >> np.uint32(SHIFT)] += np.uint32(1)
