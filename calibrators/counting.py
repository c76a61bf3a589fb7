"""The kernels under `histogram.py`: compiled, without the GIL, on bit patterns alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators.imports import compiled

MANTISSA_BITS = 11
SHIFT = 23 - MANTISSA_BITS
BINS = 1 << (32 - SHIFT)
INFINITY_KEY = 0x7F800000
ZERO_SLOTS = 8  # zeros, by far the most frequent value, are counted by turns so as not to queue
BLOCK = 4096  # values counted together: 16 KiB, half of a usual first cache
REACH = 16 << MANTISSA_BITS  # bins in a row that hold nearly all values of a tensor: 16 binades
LINE = 16  # counts in a line of the cache

Bits = npt.NDArray[np.int32]
Patterns = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]


def load_kernels() -> None:
    """Load the compiled code now; else it is loaded when first used. It takes some 60 MB."""
    bits, counts = np.zeros(1, np.int32), np.zeros(BINS + ZERO_SLOTS, np.uint32)
    finite_nonzero(bits)
    collect(bits, np.empty(1, np.uint32), 0)
    count_values(bits, counts)
    warm(counts, 1)
    bins = occupied_bins(counts)
    empty_bins(counts, bins[0])
    sum_bins(*bins, *bins)


@compiled
def finite_nonzero(bits: Bits) -> int:
    """Return the number of finite values that are not zero."""
    count = 0
    for i in range(bits.size):
        magnitude = bits[i] & np.int32(0x7FFFFFFF)
        count += (magnitude > 0) & (magnitude < INFINITY_KEY)
    return count


@compiled
def collect(bits: Bits, kept: Patterns, size: int) -> tuple[int, int, int, int, int]:
    """Append the finite values that are not zero to the `size` kept ones.

    Returns the new size and the numbers of zeros, NaN, +Inf and -Inf.
    """
    zeros, nan, positive, negative = 0, 0, 0, 0
    for i in range(bits.size):
        magnitude = bits[i] & np.int32(0x7FFFFFFF)
        if magnitude == 0:
            zeros += 1
        elif magnitude < INFINITY_KEY:
            kept[size] = np.uint32(bits[i])
            size += 1
        elif magnitude > INFINITY_KEY:
            nan += 1
        elif bits[i] > 0:
            positive += 1
        else:
            negative += 1
    return size, zeros, nan, positive, negative


@compiled
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
        low, high = extent(block)
        if high >= INFINITY_KEY or low <= -INFINITY_KEY - 1:
            block, a, b, c = _finite(block)
            nan, positive, negative = nan + a, positive + b, negative + c
            low, high = extent(block)
        lowest, highest = min(lowest, low), max(highest, high)
        _fill(block.view(np.uint32), counts)
    zeros = counts[BINS:].sum()
    counts[BINS:] = 0
    return lowest, highest, zeros, nan, positive, negative


@compiled
def warm(counts: npt.NDArray[np.uint32], end: int) -> np.uint32:
    """Read the `REACH` bins before `end` into the cache, in order, which is faster than as they come.

    Returns their sum over lines, so that no compiler leaves it out.
    """
    total = np.uint32(0)
    for i in range(max(end - REACH, 0), end, LINE):
        total += counts[i]
    return total


@compiled
def _finite(bits: Bits) -> tuple[Bits, int, int, int]:
    """Return the patterns of the finite values, and the numbers of NaN, +Inf and -Inf."""
    magnitude = bits & np.int32(0x7FFFFFFF)
    infinite = magnitude == INFINITY_KEY
    negative = (infinite & (bits < 0)).sum()
    nan = (magnitude > INFINITY_KEY).sum()
    return bits[magnitude < INFINITY_KEY], nan, infinite.sum() - negative, negative


@compiled
def extent(bits: Bits) -> tuple[np.int32, np.int32]:
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


@compiled
def _fill(bits: Patterns, counts: npt.NDArray[np.uint32]) -> None:
    for i in range(bits.size):
        pattern = bits[i]
        zero = (pattern & np.uint32(0x7FFFFFFF)) == 0
        slot = np.uint32(BINS) + np.uint32(i & (ZERO_SLOTS - 1))
        counts[slot if zero else pattern >> np.uint32(SHIFT)] += np.uint32(1)


@compiled
def occupied_bins(counts: npt.NDArray[np.uint32]) -> tuple[Patterns, Counts]:
    """Return the occupied bins of dense counts."""
    occupied = 0
    for i in range(BINS):
        occupied += counts[i] > 0
    patterns, totals = np.empty(occupied, np.uint32), np.empty(occupied, np.int64)
    place = 0
    for i in range(BINS):
        if counts[i] > 0:
            patterns[place], totals[place] = np.uint32(i) << np.uint32(SHIFT), counts[i]
            place += 1
    return patterns, totals


@compiled
def empty_bins(counts: npt.NDArray[np.uint32], patterns: Patterns) -> None:
    """Empty these bins, and touch no other memory."""
    for pattern in patterns:
        counts[pattern >> np.uint32(SHIFT)] = 0


@compiled
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
