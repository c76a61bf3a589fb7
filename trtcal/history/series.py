"""A model's figures over its runs, the shifts in them, and what changed where a shift began."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from trtcal.history.changes import Shift, find_shifts
from trtcal.history.difference import changed_inputs
from trtcal.history.figures import is_better
from trtcal.history.store import Entry, History

WATCHED = (
    *("top1", "agreement", "sqnr_db", "latency_p50", "speedup", "int8_share", "layers"),
    *("broken_fusions", "findings", "silent_fallbacks", "uncalibrated"),
)


@dataclass(frozen=True)
class Series:
    """One figure of one candidate: places of the runs that have it (index among all), and values."""

    candidate: str
    figure: str
    places: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Change:
    """A level that shifted: the first run on the new one, and which inputs that run had changed.

    `is_better` is None where it is neither; `stands` where it is the last shift of its series.
    """

    candidate: str
    figure: str
    run: int
    made_at: str
    before: float
    after: float
    is_better: bool | None
    stands: bool
    inputs: dict[str, tuple[str | None, str | None]]


@dataclass(frozen=True)
class Event:
    """All levels that shifted with one run, and what that run had changed."""

    run: int
    made_at: str
    inputs: dict[str, tuple[str | None, str | None]]
    changes: tuple[Change, ...]

    @property
    def lasting(self) -> int:
        """How many figures are worse since then, and still so."""
        return sum(one.stands and one.is_better is False for one in self.changes)


def read_series(history: History, entries: Sequence[Entry]) -> tuple[Series, ...]:
    """Return the watched series over runs of one name, by figure, then by candidate."""
    ends = entries[0].number, entries[-1].number
    found = history.columns(entries[0].name, *ends, WATCHED)
    places = {entry.number: place for place, entry in enumerate(entries)}
    every = [
        Series(candidate, figure, tuple(map(places.__getitem__, runs)), tuple(values))
        for (candidate, figure), (runs, values) in found.items()
    ]
    return tuple(sorted(every, key=lambda one: (WATCHED.index(one.figure), one.candidate)))


def changes_of(entries: Sequence[Entry], every: Sequence[Series]) -> tuple[Change, ...]:
    """Return every shift of every series, the latest first."""
    found = []
    for series in every:
        shifts = find_shifts(series.values)
        for shift in shifts:
            stands = shift is shifts[-1] and _stands(series, shift)
            found.append(_change(entries, series, shift, stands))
    return tuple(sorted(found, key=lambda one: (-one.run, one.figure, one.candidate)))


def _stands(series: Series, shift: Shift) -> bool:
    """Whether runs since then are on the new level: of few, the return is not yet a shift itself."""
    now = median(series.values[shift.first :])
    return abs(now - shift.after) < abs(now - shift.before)


def events_of(changes: Sequence[Change]) -> tuple[Event, ...]:
    """Return changes by the run that they began with, in their order."""
    found: dict[int, list[Change]] = defaultdict(list)
    for one in changes:
        found[one.run].append(one)
    return tuple(
        Event(
            run, own[0].made_at, dict(pair for one in own for pair in one.inputs.items()), (*own,)
        )
        for run, own in found.items()
    )


def _change(entries: Sequence[Entry], series: Series, shift: Shift, stands: bool) -> Change:
    first = entries[series.places[shift.first]]
    before = entries[series.places[shift.first - 1]]
    return Change(
        series.candidate,
        series.figure,
        first.number,
        first.made_at,
        shift.before,
        shift.after,
        is_better(series.figure, shift.after - shift.before),
        stands,
        changed_inputs(before, first),
    )
