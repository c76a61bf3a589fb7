"""`trtcal log`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import (
    StatusLine,
    json_printer,
    most,
    note,
    say,
    say_more,
    say_wrapped,
    warning,
)
from trtcal.documents.streams import output
from trtcal.errors import INTERRUPTED, GateFailed, InputError
from trtcal.formats import PLANNED, PRECISIONS
from trtcal.reporting.text import shorten

if TYPE_CHECKING:
    from trtcal.evidence.explanations import Explanation
    from trtcal.evidence.log.recognition import UnplacedEvent
    from trtcal.evidence.log.summary import LogWriter

STANDARD_INPUT, ALL = "-", "all"
SECONDS = 5.0  # of a calibration, below which it hardly read a data set
BACKGROUND = ("memory", "timing", "calibration_progress")
KINDS_SHOWN = 40
LONGEST_NAME = 60
LONGEST_MESSAGE = 200
LEAST_RECOGNIZED = 0.2  # of the lines of a build log
RESULTS = {"built": "an engine was built", "failed": "the build failed"}
COMPUTED = {PRECISIONS[name].listed: f"in {PRECISIONS[name].label}" for name in PLANNED} | {
    "other": "in other types",
    "unknown": "unknown",
    "none": "only copying",
}
NO_RESULT = "the log does not say whether an engine was built"


class Log(JsonOptions, example="trtcal log build.log --json"):
    """Explain what a build log of TensorRT means: what fell back, failed, or has no range.

    FILE - is standard input; of a folder, the logs of its builds are read. --json prints one object
    for a FILE, one object on each line for several FILEs, and with --follow one line for each
    finding. --explain takes the name of a message or finding, or a pasted line. The status is 1
    if the log is of a build that failed.
    """

    files: tuple[str, ...] = argument(metavar="FILE...", required=False)
    explain: str | None = option(
        "Explain the message or kind of finding of this name, or pasted lines, or list all names.",
        metavar="[NAME]",
        is_flag=False,
        flag_value=ALL,
    )
    follow: bool = option("Keep reading while FILE grows, until Ctrl-C.")
    output: Path | None = option("JSON file for the result, in addition to the printed text.", "-o")
    exit_zero: bool = option("End with status 0 even if the build failed.")

    def _run(self) -> None:
        if self.explain is not None:
            return self._show_explanations(self.explain)
        files, follow = tuple(chain.from_iterable(map(_logs, self.files))), self.follow
        if not files:
            raise click.UsageError("missing argument 'FILE...'")
        if len(files) > 1 and (follow or self.output):
            raise click.UsageError("--follow and -o take one FILE")
        if follow and self.output:
            raise click.UsageError("--follow writes no file: leave -o out")
        try:
            failed = _follow(files[0], self.as_json) if follow else _explain(self, files)
            if failed and not self.exit_zero:
                raise _failure(failed)
        except KeyboardInterrupt:
            if not follow:
                raise
            click.get_current_context().exit(INTERRUPTED)

    def _show_explanations(self, name: str) -> None:
        from trtcal.evidence.explanations import explain, explanations

        entries = tuple(explanations()) if name == ALL else explain(name)
        show = _list if name == ALL else _explain_all
        self.present({"explanations": list(map(asdict, entries))}, lambda: show(entries))


command = Log.command()


def _logs(file: str) -> list[str]:
    """Return the logs of the builds in a folder, or the file itself; `InputError` if there are none."""
    from trtcal.evidence.manifest import LOG

    folder = Path(file)
    if file == STANDARD_INPUT or not folder.is_dir():
        return [file]
    logs = sorted(str(log) for depth in ("", "*/", "*/*/") for log in folder.glob(f"{depth}*{LOG}"))
    if logs:
        return logs
    raise InputError(f"{file} has no {LOG}, which a build keeps", "give the log's file")


def _explain_all(entries: tuple[Explanation, ...]) -> None:
    for number, entry in enumerate(entries):
        if number:
            say("")
        say(f"{entry.name}: {entry.title}")
        say_wrapped("  means: ", entry.meaning)
        say_wrapped("  bad because: ", entry.why)
        say_wrapped("  do: ", entry.fix)
        say_wrapped("  occurs with: ", entry.needs)
        say_wrapped("  reports: ", ", ".join(entry.threads))
        for example in entry.examples:
            say_wrapped("  line: ", example)


def _list(entries: tuple[Explanation, ...]) -> None:
    about = None
    for entry in entries:
        if entry.about == "finding" != about:
            say("", "Findings of a diagnosis")
        about = entry.about
        if about == "category":
            say("")
        head = entry.name if about == "category" else f"  {entry.name}"
        say_wrapped(f"{head}: ", entry.meaning.partition(". ")[0])


def _failure(failed: Sequence[tuple[str, str, str]]) -> GateFailed:
    """Return the error about builds that failed: their logs, and of one alone why and what helps."""
    (file, what, fix), *others = failed
    files = ", ".join(name for name, _, _ in failed)
    if others or not what:
        return GateFailed(f"the build failed: {files}", "--exit-zero ends with status 0")
    return GateFailed(f"the build failed: {file}: {what}", fix)


def _explain(options: Log, files: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Read the files, print what they say, and return those of builds that failed, with the cause."""
    from trtcal.evidence.diagnosis.failure import ends_build, recorded, summarized
    from trtcal.evidence.log.summary import LogWriter

    failed = []
    newline = "" if len(files) > 1 else "\n"
    for number, file in enumerate(files):
        with _writer(options.output, options.as_json) as write:
            causes = tuple(filter(ends_build, recorded(Path(file))))
            writer = LogWriter(file, write, newline, bool(causes))
            writer.write(_portions(file))
        summary = writer.end["summary"]
        if not options.as_json:
            if number:
                say("")
            show(file, writer)
        _warn_of_few(file, writer.end)
        failed += [summarized(file, summary, causes)] if summary["is_failed"] else []
    return failed


@contextlib.contextmanager
def _writer(output: Path | None, as_json: bool) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes the JSON's bytes to standard output and the file."""
    from trtcal.documents import replacing

    with contextlib.ExitStack() as stack:
        writes: list[Callable[[bytes], object]] = []
        if as_json:
            show = stack.enter_context(json_printer())
            writes.append(lambda data: show(data.decode("utf-8", "surrogatepass")))
        if output:
            temporary = stack.enter_context(replacing(output))
            writes.append(stack.enter_context(temporary.open("wb")).write)
        yield lambda data: [write(data) for write in writes]


def _portions(file: str, is_growing: bool = False) -> Iterable[bytes]:
    from trtcal.evidence.log import files

    if file == STANDARD_INPUT:
        return files.portions_of_input(sys.stdin.buffer)
    return (files.portions_of_growing_file if is_growing else files.portions_of_file)(Path(file))


def show(file: str, writer: LogWriter) -> None:
    """Print how the build ended, the kinds of findings, worst first, then a line of figures."""
    document = writer.end["summary"]
    kinds = [kind for kind in document["findings"] if "follows" not in kind]
    ends = [kind for kind in document["findings"] if "follows" in kind]
    result = RESULTS.get(document["result"], NO_RESULT)
    say(f"{file}: {result}; {_counts(writer.end, len(kinds))}")
    say_wrapped("  ", "; ".join(_facts(document)))
    for kind in kinds[: most(KINDS_SHOWN)]:
        _show_kind(kind)
        if ends and kind is kinds[0]:
            first, last = min(e["first_line"] for e in ends), max(e["last_line"] for e in ends)
            say(f"  this ended the build: line{f's {first} to' if last > first else ''} {last}")
    say_more(len(kinds), most(KINDS_SHOWN), "kinds")
    say("", "; ".join(_figures(document) or ["nothing about memory, time or calibration"]))


def _counts(end: dict[str, Any], kinds: int) -> str:
    none = "no known message" if _is_hardly_a_log(end) else "no findings"
    findings = {0: none, 1: "1 kind of finding"}.get(kinds, f"{kinds} kinds of findings")
    return f"{end['lines']} lines, {end['recognised']} recognized, {findings}"


def _is_hardly_a_log(end: dict[str, Any]) -> bool:
    return not end["recognised"] or end["recognised"] < LEAST_RECOGNIZED * end["lines"]


def _warn_of_few(file: str, end: dict[str, Any]) -> None:
    if _is_hardly_a_log(end):
        few = f"{end['recognised']} of {end['lines']} lines are recognized"
        text = "the text that trtexec, Polygraphy or the script printed while it built the engine"
        warning(f"{file}: {few}: this may be no build log", f"give {text}")


def _facts(document: dict[str, Any]) -> list[str]:
    built_by = [f"TensorRT {document['version']}"] if document["version"] else []
    built_by += [document["gpu"]] if document["gpu"] else []
    parts = [" on ".join(built_by)] if built_by else []
    if document["build_s"] is not None:
        parts.append(f"built in {round(document['build_s'], 2):g} s")
    peaks = {"CPU": document["peak_cpu_mib"], "GPU": document["peak_gpu_mib"]}
    memory = [f"{where} {size:,} MiB" for where, size in peaks.items() if size is not None]
    parts += [f"peak memory {', '.join(memory)}"] if memory else []
    layers = document["precisions"]
    shown = [f"{layers[name]} {words}" for name, words in COMPUTED.items() if name in layers]
    return parts + ([f"layers: {', '.join(shown)}"] if shown else [])


def _figures(document: dict[str, Any]) -> list[str]:
    counts = document["counts"]
    parts = [f"{counts[name]} {name}" for name in BACKGROUND if name in counts]
    parts += [document["tactics"]] if document["tactics"] else []
    seconds = document["calibration_s"]
    if seconds is not None:
        few = ": too short to read a whole data set" if seconds < SECONDS else ""
        parts.append(f"calibrated in {seconds:g} s{few}")
    left_out = {what: count for what, count in document["left_out"].items() if count}
    return parts + [f"{count} {what} left out" for what, count in left_out.items()]


def _show_kind(kind: dict[str, Any]) -> None:
    subjects = f" about {kind['distinct_subjects']}" if kind["distinct_subjects"] > 1 else ""
    many = f"{kind['count']} times{subjects}, first" if kind["count"] > 1 else "once,"
    name = named(kind["rule"], kind["category"])
    say("", f"{kind['severity'].upper()} {name}: {many} on line {kind['first_line']}")
    if kind["subjects"]:
        more = ", …" if kind["distinct_subjects"] > len(kind["subjects"]) else ""
        names = (shorten(name, LONGEST_NAME) for name in kind["subjects"])
        say_wrapped("  in: ", ", ".join(names) + more)
    if kind["rule"] is None or not kind["subjects"]:
        say_wrapped("  message: ", shorten(kind["message"].partition("\n")[0], LONGEST_MESSAGE))
    if kind["rule"] is not None:
        say_wrapped("  means: ", kind["meaning"])
        say_wrapped("  do: ", kind["fix"])
    if "threads" in kind:
        from trtcal.evidence.explanations import in_versions

        words = {"versions": in_versions, "fixed": "fixed in {}".format, "needs": "with {}".format}
        known = (word(kind[name]) for name, word in words.items() if name in kind)
        say_wrapped("  known: ", "; ".join([*known, *kind["threads"]]))


def named(rule: object, category: str) -> str:
    """Return a rule's name, which `log --explain` takes, with its category, unless they are one."""
    name = f"{rule} ({category})" if rule else f"{category} without a rule"
    return category if rule == category else name


def _follow(file: str, as_json: bool) -> list[tuple[str, str, str]]:
    """Print the findings of a growing log as they come, until the user or standard input ends it.

    Return the file if its build failed.
    """
    from trtcal.evidence.log.reader import Live

    live = Live(lambda event, line: _print_finding(event, line, as_json))
    status = StatusLine()
    try:
        for lines in _portions(file, is_growing=True):
            status.clear()
            live.read(lines)
            if output().is_dropped:
                break
            status.show(live.text())
    finally:
        status.clear()
        live.close()
        note(live.text())
    return [(file, "", "")] if live.facts.to_document()["is_failed"] else []


def _print_finding(unplaced: UnplacedEvent, line: int, as_json: bool) -> None:
    event = unplaced.event
    if as_json:
        with json_printer() as show:
            show(f'{{"line":{line}{unplaced.tail}\n')
    else:
        what = f"{line}: {event.severity} {named(event.fields.get('rule'), event.category)}"
        text = shorten(event.message.partition("\n")[0], LONGEST_MESSAGE)
        subject = f"{shorten(event.subject, LONGEST_NAME)}: " if event.subject else ""
        say(f"{what}: {subject}{text}")
