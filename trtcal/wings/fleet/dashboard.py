"""A static site over the history: an index of projects, and for each its figures over time.

Files need nothing but each other, and load nothing: a strict Content-Security-Policy. Charts are drawn
by uPlot, which stands in the page; without a script the tables have every number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from trtcal.documents import together, write_text
from trtcal.errors import InputError
from trtcal.limits import DO_NOT, SHIP, WITH_CARE
from trtcal.metrics import METRICS, OUTPUTS, metric_of
from trtcal.reporting.render import asset, embedded, policy
from trtcal.reporting.sections import TEMPLATES as REPORT
from trtcal.reporting.sections import environment as templates
from trtcal.reporting.text import visible
from trtcal.reporting.views import CLASSES
from trtcal.runs.history import Entry, History
from trtcal.wings.fleet.cost_table import cost_of_project, costs_by_tag
from trtcal.wings.fleet.costs import Pricing, RunCost, read_runs
from trtcal.wings.fleet.prices import load_prices
from trtcal.wings.fleet.series import (
    WATCHED,
    Change,
    Fall,
    Series,
    changes_of,
    events_of,
    falls_of,
    read_series,
    reference_in,
)

TEMPLATES = Path(__file__).parent / "templates"
GENERATOR = "trtcal history dashboard"
HEAD_BYTES = 4096  # of a page, which name what wrote it
MOST_POINTS = 1000  # of a line: of more, each part's lowest and highest are drawn
MOST_LINES = 8  # of a chart
TONES = 6  # colours of lines in the palette, beside those of FP32 and FP16
FALLS_SHOWN = 3
STEADY_SHOWN = 40
RUNS_SHOWN = 500
EVENTS_SHOWN = 30
CHANGES_SHOWN = 24  # of an event
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 5", "1 4", "12 4", "4 2 1 2")
SPARK_RUNS, SPARK_WIDTH, SPARK_HEIGHT = 60, 120.0, 24.0
MAIN = tuple(name for name in WATCHED if METRICS[name].of == OUTPUTS)
"""What says how good a variant is: the first of these that it has."""

Point = tuple[int, float]
View = dict[str, Any]


def write_dashboard(history: History, folder: Path, last: int | None = None) -> list[Path]:
    """Write `index.html` and a page for each project into a folder; return the files.

    `InputError` if one of them is there and is no page of a dashboard.
    """
    environment = _environment()
    projects, runs = [], list[RunCost]()
    every = read_runs(history, Pricing(load_prices()))
    for number, name in enumerate(history.names(), 1):
        entries = history.entries(name, last, with_figures=False)
        numbers = {entry.number for entry in entries}
        own = [run for run in every if run.entry.number in numbers]
        runs += own
        page = {**_project(entries, read_series(history, entries)), **_costs(own)}
        projects.append({"file": f"{number}-{_slug(name)}.html", "name": name, **page})
    written = [folder / "index.html"]
    for name in (written[0].name, *(project["file"] for project in projects)):
        _check_ours(folder / name)
    projects.sort(key=lambda project: project["last"].made_at, reverse=True)
    tags = costs_by_tag(sorted(runs, key=lambda run: (run.made, run.entry.number)))
    shown = {"projects": projects, "tags": tags, "data": _data_by_tag(tags)}
    with together():
        write_text(written[0], environment.get_template("index.html.j2").render(shown))
        for project in sorted(projects, key=lambda project: project["number"]):
            written.append(folder / project["file"])
            write_text(written[-1], environment.get_template("project.html.j2").render(project))
    return written


def _costs(runs: Sequence[RunCost]) -> View:
    tags = runs[-1].entry.tags if runs else {}
    return {
        "cost": cost_of_project(runs),
        "tags": [f"{key}={value}" for key, value in tags.items()],
        "cost_of": {run.entry.number: run for run in runs},
    }


def _data_by_tag(tags: Sequence[View]) -> str:
    """Return the charts of costs by tag: a line for each group and project in one currency."""
    numbers = sorted({place for tag in tags for line in tag["lines"] for place in line["places"]})
    places = {number: place for place, number in enumerate(numbers)}
    charts = []
    for tag in tags:
        own = [line for line in tag["lines"] if line["values"]]
        tag["currency"] = own[0]["currency"] if own else ""
        same = [line for line in own if line["currency"] == tag["currency"]]
        tag["undrawn"] = len(own) - len(same[:MOST_LINES])
        names = [f"{line['group']}: {line['project']}" for line in same[:MOST_LINES]]
        looks = _looks(names, None)
        lines = [
            _line(name, [places[number] for number in line["places"]], line["values"], looks)
            for name, line in zip(names, same, strict=False)
        ]
        tag["lines_drawn"] = lines
        charts += [{"lines": lines, "marks": []}] if lines else []
    return embedded({"runs": numbers, "charts": charts})


def _check_ours(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("rb") as file:
        is_ours = GENERATOR.encode() in file.read(HEAD_BYTES)
    if not is_ours:
        raise InputError(
            f"cannot write {path}: the file exists and is not from a dashboard of this trtcal",
            "choose another --output, or move the file away",
        )


def _project(entries: Sequence[Entry], every: Sequence[Series]) -> View:
    changes = changes_of(entries, every)
    events = events_of(changes)
    moving = {series.figure for series in every if min(series.values) < max(series.values)}
    titles = {series.figure: metric_of(series.figure).heading for series in every}
    figures = [figure for figure in titles if figure in moving]
    falls = falls_of(entries, every)
    standing = [fall for fall in falls if fall.stands]
    charts = [_chart(figure, every, changes, falls) for figure in figures]
    main = _main(entries[-1], every)
    return {
        "falls": standing[:FALLS_SHOWN],
        "more_falls": len(standing[FALLS_SHOWN:]),
        "falls_of": {fall.run: [each for each in falls if each.run == fall.run] for fall in falls},
        "fallen_since": min((fall.run for fall in standing), default=None),
        "number": entries[0].number,
        "entries": entries,
        "last": entries[-1],
        "stopped": (_streak(entries) if entries[-1].verdict == DO_NOT else None),
        "streak": _streak(entries),
        "main": main,
        "spark": _spark_points(main.values[-SPARK_RUNS:]) if main else [],
        "spark_falls": _spark_falls(entries, main, falls) if main else [],
        "charts": charts,
        "data": embedded({"runs": [entry.number for entry in entries], "charts": charts}),
        "steady": [
            (title, [(series.variant, series.values[-1]) for series in own[:STEADY_SHOWN]])
            for figure, title in titles.items()
            if figure not in moving
            and (own := [series for series in every if series.figure == figure])
        ],
        "events": events[:EVENTS_SHOWN],
        "more_events": max(len(events) - EVENTS_SHOWN, 0),
        "bad": [event for event in events if event.lasting][::-1],
        "runs": entries[: -RUNS_SHOWN - 1 : -1],
    }


def _streak(entries: Sequence[Entry]) -> Entry:
    """Return the first of the last runs that all have one verdict."""
    first = entries[-1]
    for entry in reversed(entries):
        if entry.verdict != first.verdict:
            break
        first = entry
    return first


def _main(last: Entry, every: Sequence[Series]) -> Series | None:
    """Return the series that says how good the last run's variant is."""
    own = {series.figure: series for series in every if series.variant == last.variant}
    return next((own[figure] for figure in MAIN if figure in own), None)


def _spark_points(values: Sequence[float]) -> list[tuple[str, str]]:
    """Return the points of a small line, the latest run on the right."""
    low, span = min(values), (max(values) - min(values)) or 1.0
    step = SPARK_WIDTH / max(len(values) - 1, 1)
    flat = max(values) == min(values)
    heights = [0.5 if flat else (value - low) / span for value in values]
    return [
        (f"{3 + place * step:.1f}", f"{3 + (1 - height) * SPARK_HEIGHT:.1f}")
        for place, height in enumerate(heights)
    ]


def _spark_falls(
    entries: Sequence[Entry], series: Series, falls: Sequence[Fall]
) -> list[tuple[str, str]]:
    """Return the points of a small line with which a figure fell."""
    runs = {fall.run for fall in falls}
    points = _spark_points(series.values[-SPARK_RUNS:])
    places = series.places[-SPARK_RUNS:]
    return [
        point for place, point in zip(places, points, strict=True) if entries[place].number in runs
    ]


def _chart(
    figure: str, every: Sequence[Series], changes: Sequence[Change], falls: Sequence[Fall]
) -> View:
    """Return one figure over the runs: lines, and the runs with which it fell or its level shifted.

    A mark is the number of the run, and whether the figure got worse with it.
    """
    own = [series for series in every if series.figure == figure]
    looks = _looks(_variants(every), reference_in(every))
    fallen = [fall for fall in falls if fall.figure == figure]
    marks = {change.run: False for change in changes if change.figure == figure}
    worse = {each.run for each in changes if each.figure == figure and each.is_better is False}
    marks |= dict.fromkeys((*worse, *(fall.run for fall in fallen)), True)
    return {
        "title": metric_of(figure).heading,
        "lines": [
            _line(series.variant, series.places, series.values, looks)
            for series in own[:MOST_LINES]
        ],
        "more": max(len(own) - MOST_LINES, 0),
        "marks": sorted(marks.items()),
        "falls": [fall.sentence for fall in fallen[:FALLS_SHOWN]],
    }


def _variants(every: Sequence[Series]) -> list[str]:
    """Return all variants by the run that had them first, then by name; builds are the last."""
    first: dict[str, int] = {}
    for series in every:
        place = min(series.places)
        first[series.variant] = min(first.get(series.variant, place), place)
    judged = {series.variant for series in every if metric_of(series.figure).of == OUTPUTS}
    return sorted(first, key=lambda name: (name not in judged, first[name], name))


Look = tuple[str, int]
"""The colour of a line in the palette, and the number of its dashes."""


def _looks(names: Sequence[str], reference: str | None) -> dict[str, Look]:
    """Return how each variant is drawn in all charts; a new one changes none of the others."""
    own = {reference or "": ("reference", 0), "fp16": ("fp16", 0)}
    others = [name for name in names if name not in own]
    return own | {name: (f"series-{place % TONES + 1}", place) for place, name in enumerate(others)}


def _line(
    name: str, places: Sequence[int], values: Sequence[float], looks: Mapping[str, Look]
) -> View:
    tone, dash = looks[name]
    points = _thinned(list(zip(places, values, strict=True)))
    look = {"tone": tone, "dash": DASHES[dash % len(DASHES)]}
    return {"variant": visible(name), "points": points, "last": values[-1], **look}


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
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", name).strip("-")[:60] or "project"


def _environment() -> jinja2.Environment:
    own = [asset(name, TEMPLATES) for name in ("uplot.css", "dashboard.css")]
    style = asset("palette.css") + asset("report.css") + own[0] + own[1]
    scripts = asset("tables.js"), asset("uplot.js", TEMPLATES), asset("dashboard.js", TEMPLATES)
    script = scripts[0] + scripts[1] + scripts[2]
    environment = templates("html", lambda value: visible(value) if type(value) is str else value)
    environment.loader = jinja2.FileSystemLoader([TEMPLATES, REPORT])
    environment.filters["figure"] = lambda value: f"{value:.5g}"
    environment.filters["spark"] = lambda values: _spark_points(values[-SPARK_RUNS:])
    environment.filters["label"] = lambda figure: metric_of(figure).title
    environment.filters["tone"] = lambda verdict: CLASSES.get(verdict, "open")
    environment.globals |= {
        "dict": dict,
        "style": style,
        "script": script,
        "policy": policy(style, script),
    }
    environment.globals |= {
        "generator": GENERATOR,
        "titles": {name: METRICS[name].heading for name in MAIN},
        "changes_shown": CHANGES_SHOWN,
        "shipping": (SHIP, WITH_CARE),
    }
    return environment
