"""A model's figures over its runs: shifts, what changed where a shift began, and falls.

A shift takes several runs to show; a fall of the accuracy of FP32 or a variant is seen in the run that
has it. The history has no intervals, so that a fall is what exceeds both the scatter of the runs before
and `LEAST`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from trtcal.metrics import HIGHER, METRICS, OUTPUTS, metric_of
from trtcal.runs.diff import Changed, Inputs, changed_inputs
from trtcal.runs.figures import reference_of
from trtcal.runs.history import Entry, History

Values = npt.NDArray[np.float64]

TOGETHER = 3  # runs that decide
FEWEST = 10  # runs before, below which no shift is reported
BASELINE = 60  # runs before that count
BOUND = 3.2  # of one run's deviation, in units of the scatter
LIMIT = 4.2  # of the runs together, in units of the scatter of their mean
UNCERTAIN = 3.5  # how much more is wanted of few runs
SMALLEST_SCATTER = 0.0004  # scatter that is taken at least, relative to the level
SMALLEST_SHIFT = 0.002  # relative change that is shown
TINY = 1e-12
CHUNK = 1024  # runs examined together
MAD = 1.4826  # makes the median absolute deviation the standard deviation of a normal distribution
LEAST = {"%": 1.0, "dB": 3.0}
"""Unit -> the smallest drop that is a fall: the default limit of a share, half of the amplitude."""


@dataclass(frozen=True)
class Shift:
    """A level that shifted: the first run on the new one (index), and both levels."""

    first: int
    found: int
    before: float
    after: float


def find_shifts(values: Sequence[float]) -> tuple[Shift, ...]:
    """Return the shifts of a series, in order; each is found a few runs after it began."""
    series = np.asarray(values, np.float64)
    if not len(series) or series.min() == series.max():
        return ()
    shifts: list[Shift] = []
    start = 0
    while (shift := _first_shift(series, start)) is not None:
        shift = replace(shift, first=_first_on_it(series, shift))
        shifts.append(shift)
        start = shift.first
    return tuple(shifts)


def _first_shift(series: Values, start: int) -> Shift | None:
    """Return the first shift that the runs from `start` on show."""
    growing = start + BASELINE + TOGETHER
    for end in range(start + FEWEST + TOGETHER, min(growing, len(series) + 1)):
        before = series[start : end - TOGETHER][None]
        if (shift := _find(before, series[end - TOGETHER : end][None], end)) is not None:
            return shift
    for end in range(growing, len(series) + 1, CHUNK):
        part = series[end - growing + start : end - 1 + CHUNK]
        windows = sliding_window_view(part, BASELINE + TOGETHER)
        shift = _find(windows[:, :BASELINE], windows[:, BASELINE:], end)
        if shift is not None:
            return shift
    return None


def _first_on_it(series: Values, shift: Shift) -> int:
    """Return the first run on the new level, of the few that decided: one may still be on the old."""
    run = shift.first
    while abs(series[run] - shift.before) < abs(series[run] - shift.after):
        run += 1
    return run


def _find(before: Values, last: Values, end: int) -> Shift | None:
    """Return the first of several places, of which each has a row, where the level shifted.

    `before` has the runs before, `last` the few that decide, the first of which ends at `end`.
    """
    level, scatter = _level_and_scatter(before)
    distances = np.clip((last - level[:, None]) / scatter[:, None], -BOUND, BOUND)
    # Of few runs level and scatter are uncertain themselves.
    limit = LIMIT * (1 + UNCERTAIN / before.shape[1])
    after = np.median(last, axis=1)
    is_far = np.abs(distances.sum(1)) / math.sqrt(TOGETHER) >= limit
    places = np.flatnonzero(is_far & (np.abs(after - level) >= SMALLEST_SHIFT * np.abs(level)))
    if not len(places):
        return None
    place = int(places[0])
    end += place
    return Shift(end - TOGETHER, end - 1, float(level[place]), float(after[place]))


def _level_and_scatter(before: Values) -> tuple[Values, Values]:
    """Return mean and standard deviation of each row, with odd runs pulled in to three deviations."""
    middle = np.median(before, axis=1, keepdims=True)
    reach = 3 * MAD * np.median(np.abs(before - middle), axis=1, keepdims=True)
    pulled = np.clip(before, middle - reach, middle + reach)
    level: Values = pulled.mean(axis=1)
    return level, np.maximum(pulled.std(axis=1, ddof=1), SMALLEST_SCATTER * np.abs(level) + TINY)


WATCHED = tuple(metric.name for metric in METRICS.values() if metric.is_watched)


@dataclass(frozen=True)
class Series:
    """One figure of one variant: places of the runs that have it (index among all), and values."""

    variant: str
    figure: str
    places: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Change(Changed):
    """A level that shifted: the first run on the new one, and which inputs that run had changed.

    `stands` where it is the last shift of its series.
    """

    run: int
    made_at: str
    stands: bool
    inputs: Inputs


@dataclass(frozen=True)
class Event:
    """All levels that shifted with one run, and what that run had changed."""

    run: int
    made_at: str
    inputs: Inputs
    changes: tuple[Change, ...]

    @property
    def lasting(self) -> int:
        """How many figures are worse since then, and still so."""
        return sum(change.stands and change.is_better is False for change in self.changes)


def read_series(history: History, entries: Sequence[Entry]) -> tuple[Series, ...]:
    """Return the watched series over runs of one name, by figure, then by variant."""
    ends = entries[0].number, entries[-1].number
    columns = history.columns(entries[0].name, *ends, WATCHED)
    places = {entry.number: place for place, entry in enumerate(entries)}
    every = [
        Series(variant, figure, tuple(map(places.__getitem__, runs)), tuple(values))
        for (variant, figure), (runs, values) in columns.items()
    ]
    return tuple(sorted(every, key=_place))


def _place(series: Series) -> tuple[int, str, str]:
    """Return what sorts series by figure, on devices after here, then by variant."""
    metric = series.figure.partition("@")[0]
    return WATCHED.index(metric), series.figure, series.variant


def changes_of(entries: Sequence[Entry], every: Sequence[Series]) -> tuple[Change, ...]:
    """Return every shift of every series, the latest first."""
    changes = []
    for series in every:
        shifts = find_shifts(series.values)
        for shift in shifts:
            stands = shift is shifts[-1] and _stands(series, shift)
            changes.append(_change(entries, series, shift, stands))
    return tuple(sorted(changes, key=lambda change: (-change.run, change.figure, change.variant)))


def _stands(series: Series, shift: Shift) -> bool:
    """Whether runs since then are on the new level: of few, the return is not yet a shift itself."""
    now = median(series.values[shift.first :])
    return abs(now - shift.after) < abs(now - shift.before)


def events_of(changes: Sequence[Change]) -> tuple[Event, ...]:
    """Return changes by the run that they began with, in their order."""
    changes_of_run: dict[int, list[Change]] = defaultdict(list)
    for change in changes:
        changes_of_run[change.run].append(change)
    return tuple(
        Event(
            run,
            own[0].made_at,
            dict(pair for change in own for pair in change.inputs.items()),
            (*own,),
        )
        for run, own in changes_of_run.items()
    )


def _change(entries: Sequence[Entry], series: Series, shift: Shift, stands: bool) -> Change:
    first = entries[series.places[shift.first]]
    before = entries[series.places[shift.first - 1]]
    return Change(
        series.variant,
        series.figure,
        shift.before,
        shift.after,
        first.number,
        first.made_at,
        stands,
        changed_inputs(before, first),
    )


@dataclass(frozen=True)
class Fall(Changed):
    """A figure that fell with a run; `stands` unless it came back until the last run."""

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
