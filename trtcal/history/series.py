"""A model's figures over its runs, the shifts in them, and what changed where a shift began."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trtcal.history.changes import Shift, find_shifts
from trtcal.history.difference import changed_inputs
from trtcal.history.figures import is_better
from trtcal.history.store import Entry

WATCHED = ("top1", "agreement", "sqnr_db", "latency_p50", "speedup", "int8_share", "findings")


@dataclass(frozen=True)
class Series:
    """One figure of one candidate: places of the runs that have it (index among all), and values."""

    candidate: str
    figure: str
    places: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Change:
    """A level that shifted: the first run on the new one, and which inputs that run had changed."""

    candidate: str
    figure: str
    run: int
    made_at: str
    before: float
    after: float
    is_better: bool
    inputs: dict[str, tuple[str | None, str | None]]


def series_of(entries: Sequence[Entry], figures: Sequence[str] = WATCHED) -> tuple[Series, ...]:
    """Return the series of the figures given, in their order, then by candidate."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    wanted = set(figures)
    for place, entry in enumerate(entries):
        for (candidate, figure), value in entry.figures.items():
            if figure in wanted:
                found[figure, candidate].append((place, value))
    ordered = sorted(found.items(), key=lambda item: (figures.index(item[0][0]), item[0][1]))
    return tuple(
        Series(candidate, figure, *(tuple(column) for column in zip(*points, strict=True)))
        for (figure, candidate), points in ordered
    )


def changes_of(entries: Sequence[Entry], every: Sequence[Series]) -> tuple[Change, ...]:
    """Return every shift of every series, the latest first."""
    found = [
        _change(entries, series, shift) for series in every for shift in find_shifts(series.values)
    ]
    return tuple(sorted(found, key=lambda one: (-one.run, one.figure, one.candidate)))


def _change(entries: Sequence[Entry], series: Series, shift: Shift) -> Change:
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
        changed_inputs(before, first),
    )
