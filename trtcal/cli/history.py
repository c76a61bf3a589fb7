"""`trtcal history`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trtcal.cli import options
from trtcal.cli.alerts import AlertOptions
from trtcal.cli.extended import ExtendedGroup
from trtcal.cli.options import JsonOptions, add_commands, argument, option, tags_of
from trtcal.cli.output import note, print_csv, print_json, print_limits, print_table, progress, say
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.documents import Document
    from trtcal.runs.diff import RunDifference
    from trtcal.runs.history import Entry, History

RUNS_SHOWN = 20
FIGURES_SHOWN = 40


@click.group(cls=ExtendedGroup, epilog="Example: trtcal history list")
def command() -> None:
    """Follow figures over runs: what changed, since when, and by what."""


class HistoryOptions(options.Options):
    """The option of every command on the history."""

    db: Path | None = option(options.DB)

    def open(self) -> History:
        """Return the history."""
        from trtcal.runs.history import History

        return History(options.history_path(self.db))


class Add(HistoryOptions, example="trtcal history add reports/digits"):
    """Record REPORTs that are not in the history yet.

    A REPORT is a report.json, or a folder with a report.json or with the outputs of single stages,
    which must include a comparison.
    """

    reports: tuple[Path, ...] = argument()
    project: str | None = option(
        "Project of these runs.  [default: their reference model]", formerly="--name"
    )
    tags: tuple[str, ...] = option(
        "A tag of these runs, which replaces one with the same key in a report; may be repeated.",
        "--tag",
        metavar="KEY=VALUE",
    )

    def _run(self) -> None:
        from trtcal.documents import parsing
        from trtcal.runs.history import entry_of

        tags = tags_of(self.tags)
        reports = [(path, _report_at(path)) for path in self.reports]
        for path, report in reports:  # before a history is made for them
            parsing(path, partial(entry_of, report))
        history = self.open()
        for path, report in reports:
            folder = path if path.is_dir() else path.parent
            say(f"run {history.record(report, self.project, str(folder), tags)}: {path}")


def _report_at(path: Path) -> Document:
    """Return the report at a path, made now of a folder that has none."""
    from trtcal.documents import read_document
    from trtcal.documents.streams import command_line
    from trtcal.reporting.document import REPORT_KIND, VERSION, assemble

    file = path / "report.json"
    if path.is_dir() and not file.exists():
        report = assemble(path)
        latest = max(file.stat().st_mtime for file in path.rglob("*.json"))
        when = datetime.fromtimestamp(latest, timezone.utc).isoformat(timespec="seconds")
        report["measured"]["made_at"] = when  # so that it is the same run whenever it is added
    else:
        report = read_document(file if path.is_dir() else path, REPORT_KIND, VERSION)
    if report["comparison"] is None:
        words = ("compare", "MODEL.onnx", "INT8.onnx")
        again = command_line(*words, data="DATA", o=path / "comparison.json")
        what = f"{path} has no comparison with FP32, so it has no figures to follow"
        raise InputError(what, f"`{again}`")
    return report


class List(HistoryOptions, JsonOptions, example="trtcal history list --project resnet50"):
    """List the last runs."""

    project: str | None = option("Only runs of this project.", formerly="--name")
    tags: tuple[str, ...] = option(
        "Only runs with this tag; may be repeated.", "--tag", metavar="KEY=VALUE"
    )
    last: int = option("Number of runs to list.", default=RUNS_SHOWN, least=1)

    def _run(self) -> None:
        history = self.open()
        entries = history.entries(self.project, self.last, tags=tags_of(self.tags))
        if not entries:
            _say_empty(history, self.project, self.tags)
        self.present([entry.to_document() for entry in entries], lambda: _list(entries))


def _list(entries: Sequence[Entry]) -> None:
    from trtcal.runs.history import LISTED

    tags = {"tags": lambda entry: words_of(entry.tags)} if any(e.tags for e in entries) else {}
    print_table(entries, {**LISTED, **tags})


def _say_empty(history: History, name: str | None, tags: Sequence[str]) -> None:
    names = history.names()
    if names and tags:
        note(f"note: {history.path} has no matching run with the tags {', '.join(tags)}")
    elif names:
        note(f"note: no run of {name!r} in {history.path}; its projects: {', '.join(names)}")
    else:
        note(f"note: {history.path} is empty: `trtcal run` records each run, and")
        note("      `trtcal history add FOLDER` one that was made stage by stage;")
        note("      --db names another file")


class Show(HistoryOptions, JsonOptions, example="trtcal history show 12"):
    """Show a run: its verdict, figures and inputs."""

    number: int = argument()

    def _run(self) -> None:
        entry = self.open().entry(self.number)
        self.present(entry.to_document(), lambda: _show(entry))


def _show(entry: Entry) -> None:
    say(f"run {entry.number} of {entry.name}, {entry.made_at}: {entry.verdict}: {entry.sentence}")
    if entry.tags:
        say(f"tags: {words_of(entry.tags)}")
    columns = {"variant": "{0[0]}", "figure": "{0[1]}", "value": "{1:.6g}"}
    print_table([*entry.figures.items()], columns)
    columns = {"made of": "{0}", "digest or version": "{1}"}
    print_table([*entry.digests.items()], columns)


class Devices(HistoryOptions, JsonOptions, example="trtcal history devices --figure speedup"):
    """Show what was measured last of each model on each device."""

    project: str | None = option("Only runs of this project.")
    figure: Literal["latency_p50", "latency_p90", "latency_p99", "speedup", "energy"] = option(
        "Figure to show.", default="latency_p50"
    )

    def _run(self) -> None:
        from trtcal.runs.figures import on_devices

        measured = on_devices(self.open().entries(self.project), self.figure)
        self.present(measured, lambda: _show_devices(measured, self.figure))


def _show_devices(measured: Sequence[Document], figure: str) -> None:
    from trtcal.metrics import metric_of

    models: dict[str, dict[str, str]] = {}
    for each in measured:
        cell = f"{each['value']:.4g} (run {each['run']})"
        models.setdefault(each["model"], {})[each["device"]] = cell
    columns: dict[str, Any] = {"model": "{0}"}
    for device in dict.fromkeys(each["device"] for each in measured):
        columns[device] = lambda row, device=device: row[1].get(device, "-")
    print_table([*models.items()], columns, metric_of(figure).heading)
    if not measured:
        note("note: nothing was measured on a device: `trtcal run --target @NAME` does")


class Diff(HistoryOptions, JsonOptions, example="trtcal history diff 11 12"):
    """Show what got better and worse between two runs, and which inputs changed."""

    before: int = argument()
    after: int = argument()

    def _run(self) -> None:
        from trtcal.runs.diff import compare_runs

        history = self.open()
        difference = compare_runs(history.entry(self.before), history.entry(self.after))
        self.present(difference.to_document(), lambda: show_diff(difference))


def show_diff(difference: RunDifference) -> None:
    """Print the differences between two runs."""
    words = {True: "better", False: "worse"}
    columns: dict[str, Any] = {
        "variant": "{variant}",
        "figure": "{figure}",
        "before": "{before:.6g}",
        "after": "{after:.6g}",
        "change": lambda row: "" if row.share is None else f"{100 * row.share:+.2f} %",
        "for": lambda row: words.get(row.is_better, "noise" if row.is_noise else ""),
    }
    print_table(difference.changed, columns, shown=FIGURES_SHOWN)
    for what, names in (("gone", difference.gone), ("new", difference.new)):
        if names:
            say(f"{what}: {', '.join(names)}")
    for name, (was, now) in difference.inputs.items():
        say(f"changed: {name}: {was or 'none'} to {now or 'none'}")
    if not difference.inputs:
        say("no recorded input changed")


class Export(HistoryOptions, example="trtcal history export --format csv > runs.csv"):
    """Print all runs: JSON with everything, or CSV with a row for each figure; or send them to MLflow.

    A STORE is the address of a tracking server, or a database such as sqlite:///mlflow.db.
    """

    project: str | None = option("Only runs of this project.", formerly="--name")
    form: Literal["json", "csv"] = option("What to print.", "--format", default="json")
    mlflow: str | None = option(
        "MLflow store that receives the runs it does not have yet.", metavar="URI"
    )

    def _run(self) -> None:
        from trtcal.runs.follower import find

        entries = self.open().entries(self.project)
        if self.mlflow is not None:
            mlflow = find("mlflow", "exports to MLflow")
            with progress("sending runs", len(entries), "runs") as advance:
                sent = mlflow.export(entries, self.mlflow, advance)
            say(f"sent {sent} runs; the store already has {len(entries) - sent}")
        elif self.form == "json":
            print_json([entry.to_document() for entry in entries])
        else:
            print_csv(_rows(entries))


def _rows(entries: Iterable[Entry]) -> Iterator[tuple[object, ...]]:
    yield ("run", "name", "made_at", "verdict", "variant", "figure", "value")
    for entry in entries:
        head = (entry.number, entry.name, entry.made_at, entry.verdict)
        for (variant, figure), value in entry.figures.items():
            yield (*head, variant, figure, value)


def words_of(tags: Mapping[str, str]) -> str:
    """Return tags as people write them."""
    return ", ".join(f"{key}={value}" for key, value in tags.items())


class Check(
    HistoryOptions,
    AlertOptions,
    JsonOptions,
    options.LimitOptions,
    example="trtcal history check --limit 'latency_p50 <= +5%' --limit 'top1 >= -0.5'",
):
    """Check the last run against limits on figures and changes; the status is 1 if one is broken."""

    project: str | None = option(
        "Project whose last run is checked.  [default: that of the last run]", formerly="--name"
    )
    against: int | None = option("Number of the baseline run.  [default: the run before]")

    def _run(self) -> None:
        from trtcal.limits import BROKEN, parse_limits, require
        from trtcal.runs.diff import compare_runs, judge_run

        options.required(self.limits or None, "a limit", "--limit")
        before, after = _pair(self.open(), self.project, self.against)
        judged = judge_run(parse_limits(self.limits), before, after)
        document = {
            "run": after.number,
            "name": after.name,
            "verdict": after.verdict,
            "baseline": before.number if before else None,
            "limits": [judgement.to_document() for judgement in judged],
            "inputs": compare_runs(before, after).inputs if before else {},
        }
        self.present(document, lambda: print_limits(judged, f"run {after.number} of {after.name}"))
        if any(judgement.state == BROKEN for judgement in judged):
            self.send_alerts(document)
        first = before.number if before else after.number
        require(judged, f"see `trtcal history diff {first} {after.number}`")


def _pair(history: History, name: str | None, against: int | None) -> tuple[Entry | None, Entry]:
    last = history.entries(name, 1)
    if not last:
        raise InputError(f"{history.path} does not have that run", "see `trtcal history list`")
    after = last[0]
    if against is not None:
        return history.entry(against), after
    both = history.entries(after.name, 2)
    return (both[0] if len(both) == 2 else None), after


add_commands(command, Add, List, Show, Devices, Diff, Export, Check)
