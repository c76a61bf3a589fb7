"""`trtcal history cost`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.history import HistoryOptions
from trtcal.cli.options import JsonOptions, option, tags_of
from trtcal.cli.output import (
    Columns,
    is_verbose,
    most,
    note,
    print_csv,
    print_table,
    say,
    say_more,
    warning,
)
from trtcal.errors import InputError, some

if TYPE_CHECKING:
    from trtcal.stats import Interval
    from trtcal.wings.fleet.cost_table import CostLine, CostTable, CostTotal
    from trtcal.wings.fleet.costs import CostChange, Pricing

DAY = click.DateTime(["%Y-%m-%d"])
CHANGES_SHOWN, CAUSES_SHOWN = 10, 6


class Cost(JsonOptions, HistoryOptions, example="trtcal history cost --by team"):
    """Show what a million inferences cost by project or tag, since the first run and the last version.

    The costs are estimates: measured latency times the hourly price of a machine that does nothing
    else, batch after batch. A run keeps the price that it was recorded with, else the price of its
    day in the table. `--prices` and `--at` price runs again, except runs whose price was given.
    """

    by: str = option(
        "Group by project, model, variant, target, or the key of a tag, such as team (tag:KEY if "
        "the tag has one of these names).",
        default="project",
        metavar="WHAT",
    )
    since: datetime | None = option("Only runs of this day and later.", type=DAY)
    project: str | None = option("Only runs of this project.")
    tags: tuple[str, ...] = option(
        "Only runs with this tag; may be repeated.", "--tag", metavar="KEY=VALUE"
    )
    prices: Path | None = option("A TOML table of prices, with which runs are priced again.")
    at: datetime | None = option("A day, at whose prices runs are priced again.", type=DAY)
    csv: bool = option("Print the result as CSV.")
    focus: Path | None = option(
        "CSV file for the costs of runs, with the columns of FOCUS 1.2.", metavar="FILE"
    )
    account: str = option("The BillingAccountId of --focus.", default="trtcal-estimate")

    def _run(self) -> None:
        from trtcal.wings.fleet.cost_table import cost_table

        if self.csv and self.as_json:
            raise InputError("--csv and --json exclude each other", "give one of them")
        if self.focus is not None and self.by == "variant":
            raise InputError(
                "--focus has one row for a run, not for each variant", "leave --by out"
            )
        costs = cost_table(
            self.open(),
            self._pricing(),
            self.by,
            tags_of(self.tags),
            self.project,
            _day(self.since),
        )
        if self.focus is not None:
            _write_focus(self.focus, costs, self.account)
        if self.csv:
            print_csv([[*CSV], *([value(line) for value in CSV.values()] for line in costs.lines)])
        else:
            self.present(costs.to_document(), lambda: _show(costs))
        _say_what_is_missing(costs)

    def _pricing(self) -> Pricing:
        from trtcal.wings.fleet.costs import Pricing
        from trtcal.wings.fleet.prices import load_prices

        is_again = self.prices is not None or self.at is not None
        return Pricing(load_prices(self.prices), is_again, _day(self.at))


command = Cost.command()


def _day(moment: datetime | None) -> date | None:
    return moment.date() if moment else None


def _write_focus(path: Path, costs: CostTable, account: str) -> None:
    from trtcal.documents import write_text
    from trtcal.wings.fleet.focus import focus_rows, to_csv

    if not account.strip():
        raise InputError(
            "--account is empty", "FOCUS needs an account: name it, or leave the option out"
        )
    rows = focus_rows(costs.runs, account)
    write_text(path, to_csv(rows))
    note(f"note: wrote {len(rows)} rows of estimates, not of invoices: {path}")


def _percent(change: CostChange | None) -> float | None:
    return None if change is None else 100 * (change.value - 1)


def _group(line: CostLine | CostTotal) -> str:
    from trtcal.wings.fleet.cost_table import UNTAGGED

    return UNTAGGED if line.group is None else line.group


CSV: dict[str, Callable[[CostLine], object]] = {
    "group": _group,
    "project": lambda line: line.latest.entry.name,
    "model": lambda line: line.latest.version,
    "variant": lambda line: line.latest.variant,
    "device": lambda line: line.latest.device,
    "verdict": lambda line: line.latest.entry.verdict,
    "runs": lambda line: len(line.runs),
    "priced": lambda line: sum(run.cost is not None for run in line.runs),
    "run": lambda line: line.latest.entry.number,
    "made_at": lambda line: line.latest.entry.made_at,
    "currency": lambda line: line.latest.price and line.latest.price.currency,
    "per_hour": lambda line: line.latest.price and line.latest.price.per_hour,
    "price": lambda line: line.latest.price and line.latest.price.name,
    "price_date": lambda line: line.latest.price and line.latest.price.seen,
    "cost_per_million": lambda line: line.latest.cost and line.latest.cost.value,
    "low": lambda line: line.latest.cost and line.latest.cost.low,
    "high": lambda line: line.latest.cost and line.latest.cost.high,
    "per_month": lambda line: line.latest.per_month and line.latest.per_month.value,
    "saving_percent": lambda line: line.latest.saving and line.latest.saving.value,
    "since_first_percent": lambda line: _percent(line.since_first),
    "since_version_percent": lambda line: _percent(line.since_version),
}
"""The columns of `--csv`, with what each holds."""


def _show(costs: CostTable) -> None:
    from trtcal.wings.fleet.cost_table import PROJECT, VARIANT

    columns: Columns = {
        costs.by: _group,
        **({} if costs.by == PROJECT else {PROJECT: lambda line: line.latest.entry.name}),
        **({} if costs.by == VARIANT else {VARIANT: _variant}),
        "runs": lambda line: len(line.runs),
        "a million": _cost,
        "since first run": lambda line: _change(line.since_first, is_verbose()),
        "since last version": lambda line: _change(line.since_version, is_verbose()),
        "saved, %": lambda line: _interval(line.latest.saving, 1),
        "a month": _month,
    }
    print_table(costs.lines, columns, "cost, with 95 % intervals (-v: of changes too)")
    for total in costs.totals if costs.by not in (PROJECT, VARIANT) else ():
        say(_total(total))
    for change in costs.changes[-(most(CHANGES_SHOWN) or 0) :]:
        say(_sentence(change))
    say_more(len(costs.changes), most(CHANGES_SHOWN), "changes")


def _variant(line: CostLine) -> str:
    """Return what the cost is of, with the verdict where it must not ship."""
    from trtcal.limits import DO_NOT

    latest = line.latest
    must_not = f" ({DO_NOT})" if latest.entry.verdict == DO_NOT else ""
    return f"{latest.variant}{must_not}"


def _cost(line: CostLine) -> str:
    cost, price = line.latest.cost, line.latest.price
    return _amount(cost, price.currency) if cost and price else "no price"


def _amount(cost: Interval, currency: str) -> str:
    from trtcal.reporting.text import money

    return f"{money(cost.value)} {currency} ({money(cost.low)} to {money(cost.high)})"


def _total(total: CostTotal) -> str:
    from trtcal.reporting.text import count

    return (
        f"{_group(total)}: {_amount(total.per_month, total.currency)} a month, "
        f"{_amount(total.per_million, total.currency)} a million inferences, known for "
        f"{total.known} of {count(total.projects, 'project')}"
    )


def _month(line: CostLine) -> str:
    from trtcal.reporting.text import money

    month, price = line.latest.per_month, line.latest.price
    return f"{money(month.value)} {price.currency}" if month and price else ""


def _interval(cost: Interval | None, digits: int) -> str:
    from trtcal.reporting.text import between, number

    if cost is None:
        return ""
    value = number(cost.value, digits)
    return f"{value} ({between(cost.low, cost.high, digits)})" if is_verbose() else value


def _change(change: CostChange | None, with_interval: bool = True) -> str:
    """Return a change in percent, with its interval, and whether it is within noise."""
    if change is None:
        return ""
    ends = (f"{100 * end - 100:+.1f}" for end in (change.value, change.low, change.high))
    value, low, high = (end.replace("-", "\u2212") for end in ends)
    inside = [f"{low} to {high}"] if with_interval else []
    inside += [] if change.is_beyond_noise else ["within noise"]
    return f"{value} % ({', '.join(inside)})" if inside else f"{value} %"


def _sentence(change: CostChange) -> str:
    """Return when a cost changed, by how much, and by what."""
    from trtcal.runs.figures import PRICED

    before, after = change.before, change.after
    version = f", version {after.version[:19]}" if before.version != after.version else ""
    causes = [PRICED] if change.by_price != 1 else []
    causes += [name for name in change.inputs if name != PRICED]
    return (
        f"{after.entry.name}, {after.variant}: since run {after.entry.number} of "
        f"{after.made:%Y-%m-%d}{version}: {_change(change)}; changed: "
        f"{some(causes, CAUSES_SHOWN) or 'nothing that is recorded'}"
    )


def _say_what_is_missing(costs: CostTable) -> None:
    from trtcal.reporting.text import count

    if not costs.lines:
        note("note: no run matches: `trtcal history list` shows all; --db names another history")
    if costs.untagged:
        note(f"note: {count(costs.untagged, 'run has', 'runs have')} no tag {costs.by}")
    for why, runs in costs.unpriced.items():
        note(f"note: {count(runs, 'run has', 'runs have')} no cost: {why}")
    for why, runs in costs.warnings.items():
        warning(f"{count(runs, 'run')}: {why}")
