"""A static site over the history: a page for each name, with figures over time and what changed when.

Files need nothing but each other: no script, no request, a strict Content-Security-Policy. Every chart
has a table of its changes and its last values beside it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from trtcal.documents import write_text
from trtcal.limits import metric_of
from trtcal.reporting.text import count, visible
from trtcal.runs.history import Entry, History
from trtcal.runs.series import Change, Series, changes_of, events_of, read_series

TEMPLATES = Path(__file__).parent / "templates"
STYLE = Path(__file__).parents[1] / "reporting" / "templates" / "report.css"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 190, 64, 12, 10, 26
MOST_POINTS = 240  # of a line: of more, each part's lowest and highest are drawn
MOST_LINES = 8  # of a chart
STEADY_SHOWN = 40
RUNS_SHOWN = 50
EVENTS_SHOWN = 30
CHANGES_SHOWN = 24  # of an event
TITLES = {
    "top1": "Top-1, %",
    "agreement": "Agreement with FP32, %",
    "sqnr_db": "SQNR, dB",
    "latency_p50": "Latency, median, ms",
    "speedup": "Speed-up over FP32",
    "int8_macs": "Multiply-accumulates in INT8, %",
    "layers": "Engine layers: fewer if more was fused",
    "broken_fusions": "Broken fusions",
    "data_issues": "Issues of the calibration data",
    "findings": "Findings of the diagnosis",
    "silent_fallbacks": "Silent fallbacks",
    "uncalibrated": "Tensors without range",
}

Point = tuple[int, float]


@dataclass(frozen=True)
class Line:
    """One variant's line: SVG points, what its last value is, and its number for style."""

    number: int
    variant: str
    points: str
    last: float


@dataclass(frozen=True)
class Chart:
    """One figure over the runs: lines, marks where a level shifted, and the labels of the axes."""

    figure: str
    title: str
    lines: tuple[Line, ...]
    more: int
    marks: tuple[tuple[float, str], ...]
    low: str
    high: str


def write_dashboard(history: History, folder: Path, last: int | None = None) -> list[Path]:
    """Write `index.html` and a page for each name into a folder; return the files."""
    environment = _environment()
    pages = []
    for number, name in enumerate(history.names(), 1):
        entries = history.entries(name, last, with_figures=False)
        page = _page(entries, read_series(history, entries))
        pages.append((f"{number}-{_slug(name)}.html", name, entries, page))
    written = [folder / "index.html"]
    write_text(written[0], environment.get_template("index.html.j2").render(pages=pages))
    for file, name, entries, page in pages:
        template = environment.get_template("model.html.j2")
        write_text(folder / file, template.render(name=name, entries=entries, **page))
        written.append(folder / file)
    return written


def _page(entries: Sequence[Entry], every: Sequence[Series]) -> dict[str, Any]:
    changes = changes_of(entries, every)
    events = events_of(changes)
    moving = {one.figure for one in every if min(one.values) < max(one.values)}
    figures = [figure for figure in TITLES if figure in moving]
    return {
        "charts": [_chart(figure, every, changes, entries) for figure in figures],
        "steady": [
            (TITLES[figure], [(one.variant, one.values[-1]) for one in own[:STEADY_SHOWN]])
            for figure in TITLES
            if figure not in moving and (own := [one for one in every if one.figure == figure])
        ],
        "events": events[:EVENTS_SHOWN],
        "more_events": max(len(events) - EVENTS_SHOWN, 0),
        "bad": [event for event in events if event.lasting][::-1],
        "changes_shown": CHANGES_SHOWN,
        "streak": _streak(entries),
        "runs": entries[: -RUNS_SHOWN - 1 : -1],
        "width": WIDTH,
        "height": HEIGHT,
        "bottom": HEIGHT - BOTTOM,
        "left": LEFT,
        "top": TOP,
    }


def _streak(entries: Sequence[Entry]) -> Entry:
    """Return the first of the last runs that all have one verdict."""
    first = entries[-1]
    for entry in reversed(entries):
        if entry.verdict != first.verdict:
            break
        first = entry
    return first


def _chart(
    figure: str, every: Sequence[Series], changes: Sequence[Change], entries: Sequence[Entry]
) -> Chart:
    own = [one for one in every if one.figure == figure]
    shown = own[:MOST_LINES]
    low = min(min(one.values) for one in shown)
    high = max(max(one.values) for one in shown)
    span = (high - low) or max(abs(high), 1.0) * 0.1
    low, high = max(low - 0.05 * span, min(low, 0.0)), high + 0.05 * span
    lines = tuple(
        Line(number, one.variant, _points(one, len(entries), low, high), one.values[-1])
        for number, one in enumerate(shown, 1)
    )
    numbers = {entry.number: place for place, entry in enumerate(entries)}
    marks = tuple(
        (_x(numbers[one.run], len(entries)), f"run {one.run}: {one.variant} {one.figure}")
        for one in changes
        if one.figure == figure
    )
    labels = (f"{low:.4g}", f"{high:.4g}")
    return Chart(figure, TITLES[figure], lines, len(own) - len(shown), marks, *labels)


def _points(series: Series, runs: int, low: float, high: float) -> str:
    scale = (HEIGHT - TOP - BOTTOM) / (high - low)
    points = _thinned(list(zip(series.places, series.values, strict=True)))
    return " ".join(
        f"{_x(place, runs):.1f},{HEIGHT - BOTTOM - (value - low) * scale:.1f}"
        for place, value in points
    )


def _x(place: int, runs: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * place / max(runs - 1, 1)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most `MOST_POINTS` of the points: of each part of the line its lowest and highest."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = -(-2 * len(points) // MOST_POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def _slug(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", name).strip("-")[:60] or "model"


def _environment() -> jinja2.Environment:
    style = STYLE.read_text(encoding="utf-8") + (TEMPLATES / "dashboard.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["figure"] = lambda value: f"{value:.5g}"
    environment.filters["counted"] = count
    environment.filters["label"] = lambda figure: metric_of(figure).label
    environment.globals["style"] = Markup(style)  # noqa: S704 (our own file)
    environment.globals["policy"] = f"default-src 'none'; style-src 'sha256-{digest}'"
    return environment
