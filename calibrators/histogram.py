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
SCALARS = ("zeros", "nan", "positive_inf", "negative_inf")

Counts = npt.NDArray[np.int64]
Edges = npt.NDArray[np.float64]


class Histogram:
    """Integer counts of a tensor's values.

    `zeros` (of either sign), `nan`, `positive_inf` and `negative_inf` are counted apart; `minimum` and
    `maximum` are exact over the finite values (`inf` and `-inf` while there are none). The dense
    counts take 8 MiB of address space, of which only the pages of occupied bins become resident.
    """

    __slots__ = ("_counts", "maximum", "minimum", "nan", "negative_inf", "positive_inf", "zeros")

    def __init__(self) -> None:
        self._counts: Counts = np.zeros(BINS, dtype=np.int64)
        self.zeros = 0
        self.nan = 0
        self.positive_inf = 0
        self.negative_inf = 0
        self.minimum = math.inf
        self.maximum = -math.inf

    def update(self, values: npt.ArrayLike) -> None:
        """Count every element of `values` (float32, or float16, which float32 holds exactly)."""
        array = np.ascontiguousarray(values)
        if array.dtype not in (np.float16, np.float32):
            raise TypeError(f"a histogram counts float32 or float16 values, not {array.dtype}")
        flat = array.astype(np.float32, copy=False).reshape(-1)
        if flat.size and not self._count_finite(flat):
            self._count_non_finite(flat)

    def _count_finite(self, flat: npt.NDArray[np.float32]) -> bool:
        low, high, zeros = (int(number) for number in _extent(flat.view(np.int32)))
        if high >= INFINITY_KEY or low <= -INFINITY_KEY - 1:
            return False
        _fill(flat.view(np.uint32), self._counts)
        self.zeros += zeros
        self.minimum = min(self.minimum, _value_of_key(low))
        self.maximum = max(self.maximum, _value_of_key(high))
        return True

    def _count_non_finite(self, flat: npt.NDArray[np.float32]) -> None:
        self.nan += int(np.isnan(flat).sum())
        self.positive_inf += int(np.isposinf(flat).sum())
        self.negative_inf += int(np.isneginf(flat).sum())
        finite = flat[np.isfinite(flat)]
        if finite.size:
            self._count_finite(finite)

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`: afterwards this is the histogram of both sets of values."""
        occupied = np.flatnonzero(other._counts)
        self._counts[occupied] += other._counts[occupied]
        for name in SCALARS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    @property
    def count(self) -> int:
        """Number of finite values."""
        return int(self._counts.sum())

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
        counts = self._counts[:HALF] + self._counts[HALF:]
        counts[0] -= self.zeros  # bin 0 holds zeros and the smallest denormals
        index = np.flatnonzero(counts)
        low, high = _edge(index), np.minimum(_edge(index + 1), self.amax)
        return low, high, counts[index]

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the histogram as arrays (occupied bins only) that `from_arrays` takes back."""
        index = np.flatnonzero(self._counts)
        return {
            "index": index.astype(np.uint32),
            "counts": self._counts[index],
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
        histogram._counts[index] = counts
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
def _extent(bits: npt.NDArray[np.int32]) -> tuple[np.int32, np.int32, int]:
    """Return the lowest and highest key and the number of zeros.

    The key of a float is its bit pattern made to sort like its value, so that the loop is integer
    arithmetic without branches, which the compiler turns into vector instructions.
    """
    low, high, zeros = np.int32(0x7FFFFFFF), np.int32(-0x80000000), 0
    for i in range(bits.size):
        pattern = bits[i]
        key = np.int32(pattern ^ ((pattern >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        low = min(low, key)
        high = max(high, key)
        zeros += np.int32(pattern & np.int32(0x7FFFFFFF)) == 0
    return low, high, zeros


@njit(nogil=True, cache=True)
def _fill(bits: npt.NDArray[np.uint32], counts: Counts) -> None:
    for i in range(bits.size):
        counts[bits[i] >> np.uint32(SHIFT)] += 1
