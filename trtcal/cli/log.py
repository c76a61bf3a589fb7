"""`trtcal log`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import StatusLine, most, note, printable, say, say_more
from trtcal.errors import INTERRUPTED

if TYPE_CHECKING:
    from trtcal.evidence.log.states import Found
    from trtcal.evidence.log.summary import LogWriter

STANDARD_INPUT = "-"
SECONDS = 5.0  # of a calibration, below which it hardly read a data set
BACKGROUND = ("memory", "timing", "calibration_progress")
SHOWN = 40
LONGEST_NAME = 60
LONGEST_MESSAGE = 200


class Log(JsonOptions, example="trtcal log build.log --json"):
    """Explain what a build log of TensorRT means: what fell back, failed, or has no range.

    FILE may be - for standard input. --json prints one object for a FILE, and for several one
    object a line; with --follow, one line for each finding.
    """

    files: tuple[str, ...] = argument(metavar="FILE...")
    follow: bool = option("Go on reading while FILE grows, until Ctrl-C.")
    output: Path | None = option("Write the JSON here too.", "-o")

    def _run(self) -> None:
        follow, files = self.follow, self.files
        if len(files) > 1 and (follow or self.output):
            raise click.UsageError("--follow and -o take one FILE")
        if follow and self.output:
            raise click.UsageError("--follow writes no file: leave -o out")
        try:
            if follow:
                _follow(files[0], self.as_json)
            else:
                _explain(self)
        except BrokenPipeError:  # who read it has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            if not follow:
                raise
            click.get_current_context().exit(INTERRUPTED)


command = Log.command()


def _explain(options: Log) -> None:
    from trtcal.evidence.log.summary import LogWriter

    newline = "" if len(options.files) > 1 else "\n"
    for number, file in enumerate(options.files):
        with _writer(options.output, options.as_json) as write:
            writer = LogWriter(file, write, newline)
            writer.write(_portions(file))
        if not options.as_json:
            if number:
                say("")
            show(file, writer)


@contextlib.contextmanager
def _writer(output: Path | None, as_json: bool) -> Iterator[Callable[[bytes], None]]:
    """Yield what takes the JSON's bytes and puts them where they are wanted."""
    from trtcal.documents import replacing

    with contextlib.ExitStack() as stack:
        files = [sys.stdout.buffer] if as_json else []
        if output:
            temporary = stack.enter_context(replacing(output))
            files.append(stack.enter_context(temporary.open("wb")))

        def write(data: bytes) -> None:
            for file in files:
                file.write(data)

        yield write
        for file in files:
            file.flush()


def _portions(file: str) -> Iterable[bytes]:
    from trtcal.evidence.log.files import portions_of_file, portions_of_input

    if file == STANDARD_INPUT:
        return portions_of_input(sys.stdin.buffer)
    return portions_of_file(Path(file))


def show(file: str, writer: LogWriter) -> None:
    """Print what matters first: the kinds of findings, worst first, then a line of figures."""
    document = writer.end["summary"]
    kinds = document["findings"]
    state = "; no engine was built" if document["is_failed"] else ""
    say(f"{file}: {writer.end['lines']} lines, {len(kinds)} kinds of findings{state}")
    for kind in kinds[: most(SHOWN)]:
        _show_kind(kind)
    say_more(len(kinds), most(SHOWN), "kinds")
    say("")
    counts = document["counts"]
    parts = [f"{counts[name]} {name}" for name in BACKGROUND if name in counts]
    parts += [document["tactics"]] if document["tactics"] else []
    parts += [f"{writer.layers} engine layers"] if writer.layers else []
    seconds = document["calibration_s"]
    if seconds is not None:
        few = ": little of a whole data set was read then" if seconds < SECONDS else ""
        parts.append(f"calibrated in {seconds:g} s{few}")
    left_out = {what: count for what, count in document["left_out"].items() if count}
    parts += [f"{count} {what} left out" for what, count in left_out.items()]
    say("; ".join(parts or ["nothing about memory, time or calibration"]))


def _show_kind(kind: dict[str, Any]) -> None:
    subjects = f" about {kind['distinct_subjects']}" if kind["distinct_subjects"] > 1 else ""
    many = f"{kind['count']} times{subjects}, first" if kind["count"] > 1 else "once,"
    say("")
    say(f"{kind['severity'].upper()} {kind['category']}: {many} on line {kind['first_line']}")
    if kind["subjects"]:
        more = ", …" if kind["distinct_subjects"] > len(kind["subjects"]) else ""
        _say_wrapped("  in: ", ", ".join(map(shortened, kind["subjects"])) + more)
    if kind["rule"] is None or not kind["subjects"]:
        _say_wrapped("  message: ", shortened(kind["message"].partition("\n")[0], LONGEST_MESSAGE))
    _say_wrapped("  means: ", kind["meaning"])
    _say_wrapped("  do: ", kind["fix"])


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """Return text with its middle cut out where it is too long."""
    side = longest // 2
    return text if len(text) <= longest else f"{text[:side]}…{text[-side:]}"


def _say_wrapped(head: str, text: str) -> None:
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    say_lines = textwrap.wrap(
        printable(text), width, initial_indent=head, subsequent_indent=" " * len(head)
    )
    for line in say_lines:
        say(line)


def _follow(file: str, as_json: bool) -> None:
    """Print the findings of a growing log as they come, until the user or standard input ends it."""
    from trtcal.evidence.log.reader import Live

    live = Live(lambda found, line: _print_found(found, line, as_json))
    status = StatusLine()
    try:
        for lines in _growing_portions(file):
            status.clear()
            live.read(lines)
            sys.stdout.flush()
            status.show(live.text())
    finally:
        status.clear()
        live.close()
        note(live.text())


def _growing_portions(file: str) -> Iterable[bytes]:
    from trtcal.evidence.log.files import portions_of_growing_file

    return _portions(file) if file == STANDARD_INPUT else portions_of_growing_file(Path(file))


def _print_found(found: Found, line: int, as_json: bool) -> None:
    event = found.event
    if as_json:
        text = f'{{"line":{line}{found.tail}'
        click.echo(text.encode("utf-8", "surrogatepass"))
    else:
        what = f"{line}: {event.severity} {event.category}"
        text = shortened(event.message.partition("\n")[0], LONGEST_MESSAGE)
        say(f"{what}: {shortened(event.subject)}: {text}" if event.subject else f"{what}: {text}")
