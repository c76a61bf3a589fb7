"""Costs of the runs of a history by tag and over time, with the runs between which they changed.

A project's runs are one series whatever becomes of its model, so a new version is held against the one
before. What the dashboard shows of them is plain data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import pairwise
from typing import Any

from trtcal.documents import Document
from trtcal.reporting.text import between, money
from trtcal.runs.history import History
from trtcal.stats import Interval
from trtcal.wings.fleet.costs import CostChange, Pricing, RunCost, change_between, read_runs
from trtcal.wings.fleet.prices import MILLION

PROJECT, MODEL, VARIANT, TARGET = "project", "model", "variant", "target"
TAG = "tag:"
UNTAGGED = "(untagged)"
KEYS_SHOWN = 8  # tags that have a section of their own
CHANGES_SHOWN = 10
CAUSES_SHOWN = 6

View = dict[str, Any]


@dataclass(frozen=True)
class CostLine:
    """The runs of one project, and variant, in one group; `series` are all until the last of them."""

    group: str | None
    runs: tuple[RunCost, ...]
    series: tuple[RunCost, ...]

    @property
    def latest(self) -> RunCost:
        """The last run that has a cost, or the last one."""
        return next((run for run in reversed(self.runs) if run.cost), self.runs[-1])

    @property
    def since_first(self) -> CostChange | None:
        """How the cost changed since the first run of the series that has one."""
        first = next((run for run in self.series if run.cost), self.latest)
        return None if first is self.latest else change_between(first, self.latest)

    @property
    def since_version(self) -> CostChange | None:
        """How the cost changed since the last run of the version before."""
        earlier = self.series[: self.series.index(self.latest)]
        others = [run for run in earlier if run.cost and run.version != self.latest.version]
        return change_between(others[-1], self.latest) if others else None

    def to_document(self) -> Document:
        """Return the JSON form."""
        latest = self.latest
        changes = {"since_first": self.since_first, "since_version": self.since_version}
        costs = {name: getattr(latest, name) for name in ("cost", "per_month", "saving")}
        return {
            "group": self.group,
            "project": latest.entry.name,
            "runs": len(self.runs),
            "priced": sum(run.cost is not None for run in self.runs),
            "run": latest.entry.number,
            "made_at": latest.entry.made_at,
            "model": latest.version,
            "variant": latest.variant,
            "device": latest.device,
            "verdict": latest.entry.verdict,
            "price": latest.price.to_document() if latest.price else None,
            **{name: cost and asdict(cost) for name, cost in costs.items()},
            **{name: change and change.to_document() for name, change in changes.items()},
        }


@dataclass(frozen=True)
class CostTotal:
    """What a group's projects cost together in one currency: of those whose inferences are known.

    `per_million` is the mean of their costs, weighted by the inferences of each.
    """

    group: str | None
    currency: str
    projects: int
    known: int
    inferences: float
    per_month: Interval

    @property
    def per_million(self) -> Interval:
        """The cost of a million inferences of the group."""
        return self.per_month.scaled(MILLION / self.inferences)

    def to_document(self) -> Document:
        """Return the JSON form."""
        costs = {"per_month": asdict(self.per_month), "per_million": asdict(self.per_million)}
        return {**vars(self), **costs}


def _total(group: str | None, currency: str, latest: Sequence[RunCost]) -> CostTotal:
    """Add costs up; their errors are independent, so squares of half intervals add up too."""
    months = [run.per_month for run in latest if run.per_month]
    value = math.fsum(month.value for month in months)
    low = value - math.hypot(*(month.value - month.low for month in months))
    high = value + math.hypot(*(month.high - month.value for month in months))
    inferences = math.fsum(run.settings.inferences_per_month or 0 for run in latest)
    total = Interval(value, low, high)
    return CostTotal(group, currency, len(latest), len(months), inferences, total)


@dataclass(frozen=True)
class CostTable:
    """Costs by group, and the runs between which a cost changed."""

    by: str
    lines: tuple[CostLine, ...]
    changes: tuple[CostChange, ...]

    @property
    def totals(self) -> tuple[CostTotal, ...]:
        """What groups cost a month, where that is known of a project."""
        every: dict[tuple[str | None, str], list[RunCost]] = {}
        for line in self.lines:
            latest = line.latest
            if latest.price:
                every.setdefault((line.group, latest.price.currency), []).append(latest)
        totals = (_total(*key, own) for key, own in every.items())
        return tuple(total for total in totals if total.known)

    @property
    def runs(self) -> list[RunCost]:
        """All runs; with a grouping by variant, a run stands once for each."""
        return [run for line in self.lines for run in line.runs]

    @property
    def untagged(self) -> int:
        """How many runs are in no group."""
        return sum(len(line.runs) for line in self.lines if line.group is None)

    @property
    def unpriced(self) -> dict[str, int]:
        """Why runs have no cost -> how many."""
        return dict(Counter(run.why for run in self.runs if run.cost is None))

    @property
    def warnings(self) -> dict[str, int]:
        """What is wrong with a price -> of how many runs."""
        return dict(Counter(run.why for run in self.runs if run.cost and run.why))

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {
            "by": self.by,
            "lines": [line.to_document() for line in self.lines],
            "totals": [total.to_document() for total in self.totals],
            "changes": [change.to_document() for change in self.changes],
            "runs": len(self.runs),
            "untagged": self.untagged,
            "unpriced": self.unpriced,
            "warnings": self.warnings,
        }


Key = tuple[str, str]
"""Project, and variant where runs are grouped by that, else ""."""


def cost_table(
    history: History,
    pricing: Pricing,
    by: str = PROJECT,
    tags: Mapping[str, str] | None = None,
    project: str | None = None,
    since: date | None = None,
) -> CostTable:
    """Return what runs cost by project, model, variant, target or any tag, in the order of groups.

    `tag:KEY` is the tag of a key that is called like one of those. Runs without the tag are in the
    group None, runs without a price are counted with the reason.
    """
    runs = read_runs(history, pricing, project, tags, every_variant=by == VARIANT)
    runs = [run for run in runs if since is None or run.made.date() >= since]
    return table_of(runs, by)


def table_of(runs: Sequence[RunCost], by: str = PROJECT) -> CostTable:
    """Return costs by group of runs that are in the order of their time."""
    every: dict[Key, list[RunCost]] = {}
    groups: dict[tuple[str | None, Key], list[RunCost]] = {}
    for run in runs:
        key = (run.entry.name, run.variant if by == VARIANT else "")
        every.setdefault(key, []).append(run)
        groups.setdefault((_group(run, by), key), []).append(run)
    lines = []
    for (group, key), own in groups.items():
        end = every[key].index(own[-1]) + 1
        lines.append(CostLine(group, tuple(own), tuple(every[key][:end])))
    lines.sort(key=lambda line: (line.group is None, line.group or "", line.latest.entry.name))
    changes = [change for series in every.values() for change in changes_of(series)]
    return CostTable(by, tuple(lines), tuple(sorted(changes, key=lambda change: change.after.made)))


def changes_of(series: Sequence[RunCost]) -> list[CostChange]:
    """Return the changes beyond noise from each run that has a cost to the next."""
    priced = [run for run in series if run.cost]
    changes = [change_between(*pair) for pair in pairwise(priced)]
    return [change for change in changes if change and change.is_beyond_noise]


def _group(run: RunCost, by: str) -> str | None:
    named = {PROJECT: run.entry.name, MODEL: run.version, VARIANT: run.variant, TARGET: run.device}
    return named[by] if by in named else run.entry.tags.get(by.removeprefix(TAG))


def cost_of_project(runs: Sequence[RunCost]) -> View | None:
    """Return a project's cost, its values over time and its changes; None if no run has a cost."""
    table = table_of(runs)
    if not any(run.cost for run in runs):
        return None
    view = _line(table.lines[0])
    return {
        **view,
        "unpriced": sum(run.cost is None for run in runs),
        "changes": [_change(change) for change in table.changes[: -CHANGES_SHOWN - 1 : -1]],
    }


def costs_by_tag(runs: Sequence[RunCost]) -> list[View]:
    """Return for each tag that runs have its groups, and how their costs went: one line a project."""
    keys = sorted({key for run in runs for key in run.entry.tags})
    return [
        {
            "key": key,
            "lines": [
                {**_line(line), "group": UNTAGGED if line.group is None else line.group}
                for line in table_of(runs, TAG + key).lines
            ],
        }
        for key in keys[:KEYS_SHOWN]
    ]


def _line(line: CostLine) -> View:
    latest, saving, month = line.latest, line.latest.saving, line.latest.per_month
    cost, price = latest.cost, latest.price
    currency = price.currency if price else ""
    same = [run for run in line.runs if run.price and run.price.currency == currency]
    return {
        "project": latest.entry.name,
        "runs": len(line.runs),
        "variant": latest.variant,
        "value": cost.value if cost else None,
        "cost": f"{money(cost.value)} {currency}" if cost else None,
        "interval": f"{money(cost.low)} to {money(cost.high)}" if cost else "",
        "price": price.to_document() if price else None,
        "month": f"{money(month.value)} {currency}" if month else None,
        "saving": saving,
        "saved": between(saving.low, saving.high, 1) if saving else "",
        "since": [
            (what, _change(change))
            for what, change in (
                ("first run", line.since_first),
                ("last version", line.since_version),
            )
            if change
        ],
        "places": [run.entry.number for run in same],
        "values": [run.cost.value for run in same if run.cost],
        "currency": currency,
    }


def _change(change: CostChange) -> View:
    after = change.after
    is_new = change.before.version != after.version
    return {
        "run": after.entry.number,
        "made_at": after.entry.made_at,
        "version": after.version[:19] if is_new else "",
        "percent": f"{100 * change.value - 100:+.1f}",
        "interval": f"{100 * change.low - 100:+.1f} to {100 * change.high - 100:+.1f}",
        "is_noise": not change.is_beyond_noise,
        "inputs": list(change.inputs)[:CAUSES_SHOWN],
        "more": max(len(change.inputs) - CAUSES_SHOWN, 0),
    }
