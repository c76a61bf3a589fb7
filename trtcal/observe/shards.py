"""Which samples are looked at together: a fixed number of shards, by index alone.

Batches never cross the end of a shard. So what runs together in a batch is the same for any number
of workers, however often the work was broken off.
"""

from __future__ import annotations

from collections.abc import Iterable

SHARDS = 64

Span = tuple[int, int]
"""Samples from the first up to, not including, the second."""


def shards(samples: int, unit: int = 1) -> list[Span]:
    """Cut samples into at most `SHARDS` equal spans, multiples of `unit`; the last may be shorter."""
    length = -(-samples // (SHARDS * unit)) * unit
    return [(start, min(start + length, samples)) for start in range(0, samples, length)]


def batches(span: Span, size: int) -> list[Span]:
    """Cut a span into batches."""
    return [(start, min(start + size, span[1])) for start in range(*span, size)]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the same samples in as few spans as possible, rising."""
    result: list[Span] = []
    for start, stop in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(stop, result[-1][1])
        else:
            result.append((start, stop))
    return result


def missing(wanted: Iterable[Span], done: Iterable[Span]) -> list[Span]:
    """Return what is left of each wanted span; `done` are joined spans."""
    left: list[Span] = []
    for start, stop in wanted:
        for first, last in done:
            if first < stop and last > start:
                if start < first:
                    left.append((start, first))
                start = max(start, last)
        if start < stop:
            left.append((start, stop))
    return left


def count(spans: Iterable[Span]) -> int:
    """Return the number of samples in spans that do not overlap."""
    return sum(stop - start for start, stop in spans)
