"""The kernels under `histogram.py`, on bit patterns alone: compiled where there are many values."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from calibrators.imports import Compiled, compiled

MANTISSA_BITS = 11
SHIFT = 23 - MANTISSA_BITS
BINS = 1 << (32 - SHIFT)
INFINITY_KEY = 0x7F800000
ZERO_SLOTS = 8  # zeros, by far the most frequent value, are counted by turns so as not to queue
BLOCK = 4096  # values counted together: 16 KiB, half of a usual first cache
REACH = 16 << MANTISSA_BITS  # bins in a row that hold nearly all values of a tensor: 16 binades
LINE = 16  # counts in a line of the cache
PART = 1 << 16  # values that NumPy counts together
MAGNITUDE = np.int32(0x7FFFFFFF)

Bits = npt.NDArray[np.int32]
Patterns = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]


def load_kernels() -> None:
    """Load the compiled code now; else it is loaded when first used. It takes some 60 MB."""
    Compiled.left = -1
    counts = np.zeros(BINS + ZERO_SLOTS, np.uint32)
    count_values(np.zeros(1, np.int32), counts)
    warm(counts, 1)
    bins = occupied_bins(counts)
    sum_bins(*bins, *bins)


def finite_nonzero(bits: Bits) -> int:
    """Return the number of finite values that are not zero."""
    parts = (bits[start : start + PART] & MAGNITUDE for start in range(0, bits.size, PART))
    return sum(int(np.count_nonzero((part > 0) & (part < INFINITY_KEY))) for part in parts)


def collect(bits: Bits, kept: Patterns, size: int) -> tuple[int, int, int, int, int]:
    """Append the finite values that are not zero to the `size` kept ones.

    Returns the new size and the numbers of zeros, NaN, +Inf and -Inf.
    """
    block, *numbers = split(bits)
    values = block[block & MAGNITUDE != 0].view(np.uint32)
    kept[size : size + values.size] = values
    return size + values.size, block.size - values.size, *numbers


def _count(
    bits: Bits, counts: npt.NDArray[np.uint32]
) -> tuple[np.int32, np.int32, int, int, int, int]:
    lowest, highest, numbers = MAGNITUDE, ~MAGNITUDE, np.zeros(4, np.int64)
    for start in range(0, bits.size, PART):
        block, *others = split(bits[start : start + PART])
        low, high = extent(block)
        lowest, highest = min(lowest, low), max(highest, high)
        values = block[block & MAGNITUDE != 0].view(np.uint32)
        np.add.at(counts, values >> np.uint32(SHIFT), np.uint32(1))
        numbers += [block.size - values.size, *others]
    return lowest, highest, *numbers


@partial(compiled, plain=_count, cost=2)
def count_values(
    bits: Bits, counts: npt.NDArray[np.uint32]
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


@partial(compiled, plain=lambda counts, end: np.uint32(0), cost=0)
def warm(counts: npt.NDArray[np.uint32], end: int) -> np.uint32:
    """Read the `REACH` bins before `end` into the cache, in order, which is faster than as they come.

    Returns their sum over lines, so that no compiler leaves it out.
    """
    total = np.uint32(0)
    for i in range(max(end - REACH, 0), end, LINE):
        total += counts[i]
    return total


def split(bits: Bits) -> tuple[Bits, int, int, int]:
    """Return the patterns of the finite values, and the numbers of NaN, +Inf and -Inf."""
    magnitude = bits & np.int32(0x7FFFFFFF)
    infinite = magnitude == INFINITY_KEY
    negative = (infinite & (bits < 0)).sum()
    nan = (magnitude > INFINITY_KEY).sum()
    return bits[magnitude < INFINITY_KEY], nan, infinite.sum() - negative, negative


@compiled
def _finite(bits: Bits) -> tuple[Bits, int, int, int]:
    """Return the same by a loop, which compiles much faster than NumPy's functions."""
    finite, size, nan, positive = np.empty_like(bits), 0, 0, 0
    for pattern in bits:
        finite[size] = pattern
        size += (pattern & MAGNITUDE) < INFINITY_KEY
        nan += (pattern & MAGNITUDE) > INFINITY_KEY
        positive += pattern == INFINITY_KEY
    return finite[:size], nan, positive, bits.size - size - nan - positive


def extent(bits: Bits) -> tuple[np.int32, np.int32]:
    """Return the lowest and highest key."""
    keys = bits ^ ((bits >> np.int32(31)) & MAGNITUDE)
    return keys.min(initial=MAGNITUDE), keys.max(initial=~MAGNITUDE)


@compiled
def _extent(bits: Bits) -> tuple[np.int32, np.int32]:
    """Return the same by integer arithmetic that the compiler turns into vector instructions."""
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(bits.size):
        pattern = bits[i]
        key = np.int32(pattern ^ ((pattern >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        low = min(low, key)
        high = max(high, key)
    return low, high


@compiled
def _fill(bits: Patterns, counts: npt.NDArray[np.uint32]) -> None:
    for i in range(bits.size):
        pattern = bits[i]
        zero = (pattern & np.uint32(0x7FFFFFFF)) == 0
        slot = np.uint32(BINS) + np.uint32(i & (ZERO_SLOTS - 1))
        counts[slot if zero else pattern >> np.uint32(SHIFT)] += np.uint32(1)


def occupied_bins(counts: npt.NDArray[np.uint32]) -> tuple[Patterns, Counts]:
    """Return the occupied bins of dense counts."""
    bins = np.flatnonzero(counts[:BINS] != 0)
    return bins.astype(np.uint32) << np.uint32(SHIFT), counts[bins].astype(np.int64)


def _sum(a: Patterns, in_a: Counts, b: Patterns, in_b: Counts) -> tuple[Patterns, Counts]:
    order = np.argsort(patterns := np.concatenate((a, b)), kind="stable")
    patterns, counts = patterns[order], np.concatenate((in_a, in_b))[order]
    first = np.flatnonzero(np.diff(patterns, prepend=~patterns[:1]))
    return patterns[first], np.add.reduceat(counts, first)


@partial(compiled, plain=_sum, cost=4)
def sum_bins(a: Patterns, in_a: Counts, b: Patterns, in_b: Counts) -> tuple[Patterns, Counts]:
    """Return the sum of two lists of bins, both rising."""
    patterns = np.empty(a.size + b.size, np.uint32)
    counts = np.empty(patterns.size, np.int64)
    i, j, size = 0, 0, 0
    while i < a.size or j < b.size:
        of_a = i < a.size and (j == b.size or a[i] <= b[j])
        of_b = j < b.size and (i == a.size or b[j] <= a[i])
        patterns[size] = a[i] if of_a else b[j]
        counts[size] = (in_a[i] if of_a else 0) + (in_b[j] if of_b else 0)
        i, j, size = i + of_a, j + of_b, size + 1
    return patterns[:size].copy(), counts[:size].copy()
