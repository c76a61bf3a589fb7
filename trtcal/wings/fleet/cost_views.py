"""What the dashboard shows of costs: of a project, and by each tag over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtcal.reporting.text import between, money
from trtcal.wings.fleet.cost_table import TAG, UNTAGGED, CostLine, table_of
from trtcal.wings.fleet.costs import CostChange, RunCost

KEYS_SHOWN = 8  # tags that have a section of their own
CHANGES_SHOWN = 10
CAUSES_SHOWN = 6

View = dict[str, Any]


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
