"""Falls: runs with which the accuracy of FP32 or a variant dropped at once.

A shift (`series`) takes several runs to show; a fall is seen in the run that has it. The history has no
intervals, so that a fall is what exceeds both the scatter of the runs before and `LEAST`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trtcal.metrics import HIGHER, OUTPUTS, metric_of
from trtcal.runs.figures import reference_of
from trtcal.runs.history import Entry
from trtcal.wings.fleet.series import BASELINE, BOUND, MAD, Series

LEAST = {"%": 1.0, "dB": 3.0}
"""Unit -> the smallest drop that is a fall: the default limit of a share, half of the amplitude."""


@dataclass(frozen=True)
class Fall:
    """A figure that fell with a run; `stands` unless it came back until the last run."""

    variant: str
    figure: str
    before: float
    after: float
    run: int
    stands: bool
    is_of_reference: bool

    @property
    def sentence(self) -> str:
        """What fell, with its unit and run."""
        metric, name = metric_of(self.figure), "FP32" if self.is_of_reference else self.variant
        unit = metric.unit
        drop = f"{self.before:.3g} {unit} to {self.after:.3g} {unit}"
        return f"{name} fell from {drop} in run {self.run} ({metric.title})"


def falls_of(entries: Sequence[Entry], every: Sequence[Series]) -> tuple[Fall, ...]:
    """Return every fall, the latest run first, in it FP32's before others.

    What fell in a run in which FP32 fell is left out: it has the same cause.
    """
    reference = reference_in(every)
    falls = [fall for series in every for fall in _falls(entries, series, reference)]
    caused = {fall.run for fall in falls if fall.is_of_reference}
    own = [fall for fall in falls if fall.is_of_reference or fall.run not in caused]
    return tuple(sorted(own, key=lambda fall: (-fall.run, not fall.is_of_reference)))


def reference_in(every: Sequence[Series]) -> str | None:
    """Return the variant that is FP32; None if that is not one."""
    return reference_of({(series.variant, series.figure): series.values[-1] for series in every})


def _falls(entries: Sequence[Entry], series: Series, reference: str | None) -> Iterator[Fall]:
    metric, values = metric_of(series.figure), np.asarray(series.values)
    if metric.of != OUTPUTS or metric.better != HIGHER or metric.unit not in LEAST:
        return
    least, start = LEAST[metric.unit], 0
    for place in map(int, np.flatnonzero(np.diff(values) < -least) + 1):
        before = values[max(start, place - BASELINE) : place]
        level = float(np.median(before))
        scatter = MAD * float(np.median(np.abs(before - level)))
        if level - values[place] <= max(least, BOUND * scatter):
            continue
        start, after = place, float(values[place])
        stands = abs(values[-1] - after) < abs(values[-1] - level) or values[-1] < after
        run = entries[series.places[place]].number
        is_of_reference = series.variant == reference
        yield Fall(series.variant, series.figure, level, after, run, bool(stands), is_of_reference)
