"""`trtcal history`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.output import (
    json_option,
    limit_option,
    note,
    print_json,
    print_limits,
    print_table,
    progress,
    required,
    say,
)
from trtcal.errors import BackendError, InputError

if TYPE_CHECKING:
    from trtcal.limits import Judgement
    from trtcal.runs import Entry, History

SHOWN = 20
FIGURES_SHOWN = 40
ALERT_LIMIT_S = 60.0

db_option = click.option(
    "--db",
    type=click.Path(path_type=Path),
    help="The history's file.  [default: trtcal/history.sqlite in the user's data folder]",
)


@click.group(epilog="Example: trtcal history list")
def command() -> None:
    """Follow figures over runs: what changed, since when, and by what."""


def _open(db: Path | None) -> History:
    from trtcal.runs import History, default_path

    return History(db or default_path())


@command.command(epilog="Example: trtcal history add reports/digits/report.json")
@click.argument("reports", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--name", help="What the runs are called.  [default: their reference model]")
@db_option
def add(reports: tuple[Path, ...], name: str | None, db: Path | None) -> None:
    """Record REPORTs (report.json) that are not in the history yet."""
    from trtcal.documents import read_document
    from trtcal.reporting.document import KIND, VERSION

    history = _open(db)
    for path in reports:
        number = history.record(read_document(path, KIND, VERSION), name, str(path.parent))
        say(f"run {number}: {path}")


@command.command("list", epilog="Example: trtcal history list --name resnet50")
@click.option("--name", help="Only runs of this name.")
@click.option("--last", type=click.IntRange(1), default=SHOWN, show_default=True, help="How many.")
@db_option
@json_option
def list_runs(name: str | None, last: int, db: Path | None, as_json: bool) -> None:
    """List the last runs."""
    entries = _open(db).entries(name, last)
    if as_json:
        print_json([entry.to_document() for entry in entries])
        return
    rows = [(e.name, str(e.number), e.made_at, e.verdict, e.variant or "") for e in entries]
    print_table(("name", "run", "made", "verdict", "variant"), rows)


@command.command(epilog="Example: trtcal history show 12")
@click.argument("number", type=int)
@db_option
@json_option
def show(number: int, db: Path | None, as_json: bool) -> None:
    """Show a run: its verdict, figures, and what it was made of."""
    entry = _open(db).entry(number)
    if as_json:
        print_json(entry.to_document())
        return
    say(f"run {entry.number} of {entry.name}, {entry.made_at}: {entry.verdict}: {entry.sentence}")
    rows = [(*key, f"{value:.6g}") for key, value in entry.figures.items()]
    print_table(("variant", "figure", "value"), rows)
    print_table(("made of", "digest or version"), list(entry.digests.items()))


@command.command(epilog="Example: trtcal history diff 11 12")
@click.argument("before", type=int)
@click.argument("after", type=int)
@db_option
@json_option
def diff(before: int, after: int, db: Path | None, as_json: bool) -> None:
    """Say what got better and worse between two runs, and which inputs changed."""
    from trtcal.runs import compare_runs

    history = _open(db)
    found = compare_runs(history.entry(before), history.entry(after))
    if as_json:
        print_json(found.to_document())
        return
    rows = [
        (
            one.variant,
            one.figure,
            f"{one.before:.6g}",
            f"{one.after:.6g}",
            "" if one.share is None else f"{100 * one.share:+.2f} %",
            {True: "better", False: "worse", None: ""}[one.is_better],
        )
        for one in found.changed[:FIGURES_SHOWN]
    ]
    print_table(("variant", "figure", "before", "after", "change", "for"), rows)
    if len(found.changed) > FIGURES_SHOWN:
        say(f"… and {len(found.changed) - FIGURES_SHOWN} more: use --json")
    for what, names in (("gone", found.gone), ("new", found.new)):
        if names:
            say(f"{what}: {', '.join(names)}")
    for name, (was, now) in found.inputs.items():
        say(f"changed: {name}: {was or 'none'} to {now or 'none'}")
    if not found.inputs:
        say("no input that is recorded changed")


@command.command(epilog="Example: trtcal history export --format csv > runs.csv")
@click.option("--name", help="Only runs of this name.")
@click.option(
    "--format", "form", type=click.Choice(["json", "csv"]), default="json", show_default=True
)
@click.option(
    "--mlflow",
    "uri",
    metavar="URI",
    help="Send what is not there yet to this MLflow store instead.",
)
@db_option
def export(name: str | None, form: str, uri: str | None, db: Path | None) -> None:
    """Print all runs: JSON with everything, or CSV with a row for each figure; or send them to MLflow.

    A store is a tracking server's address, or a database such as sqlite:///mlflow.db.
    """
    entries = _open(db).entries(name)
    if uri is not None:
        _send(entries, uri)
        return
    if form == "json":
        print_json([entry.to_document() for entry in entries])
        return
    writer = csv.writer(sys.stdout)
    writer.writerow(("run", "name", "made_at", "verdict", "variant", "figure", "value"))
    for entry in entries:
        for (variant, figure), value in entry.figures.items():
            row = (entry.number, entry.name, entry.made_at, entry.verdict, variant, figure, value)
            writer.writerow(row)


def _send(entries: list[Entry], uri: str) -> None:
    from trtcal.runs.mlflow import send_to_mlflow

    with progress("sending runs", len(entries)) as show:
        sent = send_to_mlflow(entries, uri, show)
    say(f"sent {sent} runs; {len(entries) - sent} were there already")


@command.command(epilog="Example: trtcal history dashboard -o site")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write."
)
@click.option("--last", type=click.IntRange(1), help="Only so many runs of each name.")
@db_option
def dashboard(output: Path, last: int | None, db: Path | None) -> None:
    """Write a static site: every name's figures over time, and what changed when."""
    from trtcal.runs.dashboard import write_dashboard

    files = write_dashboard(_open(db), output, last)
    say(f"wrote {len(files)} pages: {files[0]}")


@command.command(
    epilog="Example: trtcal history check --limit 'latency_p50 <= +5%' --limit 'top1 >= -0.5'"
)
@limit_option
@click.option("--name", help="Of which name the last run is checked.  [default: the last run's]")
@click.option("--against", type=int, help="The baseline's number.  [default: the run before]")
@click.option(
    "--alert", metavar="COMMAND", help="Run this on a broken limit, with JSON on its input."
)
@click.option("--webhook", metavar="URL", help="Post the JSON there on a broken limit.")
@db_option
@json_option
def check(
    limits: tuple[str, ...],
    name: str | None,
    against: int | None,
    alert: str | None,
    webhook: str | None,
    db: Path | None,
    as_json: bool,
) -> None:
    """Hold the last run to limits on figures and their changes; the status is 1 if one is broken."""
    from trtcal.limits import BROKEN, parse_limits, require
    from trtcal.runs import judge_run

    required(limits or None, "a limit", "--limit")
    history = _open(db)
    before, after = _pair(history, name, against)
    judged = judge_run(parse_limits(limits), before, after)
    document = _alert_document(before, after, judged)
    if as_json:
        print_json(document)
    else:
        print_limits(judged, f"run {after.number} of {after.name}")
    if any(one.state == BROKEN for one in judged):
        for send, where in ((_run, alert), (_post, webhook)):
            if where:
                send(where, document)
    first = before.number if before else after.number
    require(judged, f"see `trtcal history diff {first} {after.number}`")


def _pair(history: History, name: str | None, against: int | None) -> tuple[Entry | None, Entry]:
    last = history.entries(name, 1)
    if not last:
        raise InputError(f"{history.path} has no such run", "see `trtcal history list`")
    after = last[0]
    if against is not None:
        return history.entry(against), after
    both = history.entries(after.name, 2)
    return (both[0] if len(both) == 2 else None), after


def _alert_document(
    before: Entry | None, after: Entry, judged: Sequence[Judgement]
) -> dict[str, Any]:
    from trtcal.runs import compare_runs

    return {
        "run": after.number,
        "name": after.name,
        "verdict": after.verdict,
        "baseline": before.number if before else None,
        "limits": [one.to_document() for one in judged],
        "inputs": compare_runs(before, after).inputs if before else {},
    }


def _run(command_line: str, document: dict[str, Any]) -> None:
    """Run the user's own command, which says how it went by its status."""
    try:
        done = subprocess.run(  # noqa: S602 (the user's own line)
            command_line, shell=True, input=json.dumps(document), text=True, timeout=ALERT_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        note(f"note: the alert {command_line!r} took more than {ALERT_LIMIT_S:.0f} s")
        return
    if done.returncode:
        note(f"note: the alert {command_line!r} ended with status {done.returncode}")


def _post(url: str, document: dict[str, Any]) -> None:
    """Post JSON to an address that the user gave."""
    import urllib.error
    import urllib.request

    if not url.startswith(("https://", "http://")):
        raise InputError(f"{url!r} is no web address", "give one with https://")
    data = json.dumps(document).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
    try:
        urllib.request.urlopen(request, timeout=ALERT_LIMIT_S).close()  # noqa: S310
    except (urllib.error.URLError, OSError) as error:
        raise BackendError(f"the webhook {url} failed: {error}", "check the address") from error
