"""Shared by the commands: printing that hostile names cannot disturb, progress, values of options."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from trtcal.documents import streams, to_json
from trtcal.documents.overview import Columns as Columns
from trtcal.documents.overview import Overview, cells_of
from trtcal.documents.overview import filled as filled
from trtcal.errors import InputError, some

if TYPE_CHECKING:
    from rich.console import Console

    from trtcal.limits import Judgement
    from trtcal.quantization.coverage import Coverage

LONGEST_CELL = 160
REPORT_S = 10.0
NO_PROGRESS = "TRTCAL_NO_PROGRESS"
"""With this variable set no line of progress is printed where there is no terminal."""
BLANKS = dict.fromkeys(map(ord, "\n\r\t"), " ")

_QUIET = ContextVar("quiet", default=False)
_VERBOSE = ContextVar("verbose", default=False)


@contextlib.contextmanager
def verbosity(quiet: bool, verbose: bool) -> Iterator[None]:
    """Print as much as -q (no notes, no progress) and -v (nothing left out) say in this block."""
    tokens = _QUIET.set(quiet), _VERBOSE.set(verbose)
    try:
        yield
    finally:
        _QUIET.reset(tokens[0])
        _VERBOSE.reset(tokens[1])


def is_quiet() -> bool:
    """Whether notes and progress are left out."""
    return _QUIET.get()


def is_verbose() -> bool:
    """Whether nothing is left out."""
    return _VERBOSE.get()


def most(count: int) -> int | None:
    """Return how many of many things are shown: so many, or all of them with -v."""
    return None if is_verbose() else count


def say_more(total: int, shown: int | None, what: str = "") -> None:
    """Say how many more there are than were shown, if there are any."""
    if shown is not None and total > shown:
        say(f"… and {' '.join(filter(None, (f'{total - shown} more', what)))}: use -v")


def reasons(of: Mapping[str, str], shown: int = 3) -> Iterator[str]:
    """Yield every reason, after the first names that have it: all of them with -v."""
    for reason in dict.fromkeys(of.values()):
        names = [name for name, why in of.items() if why == reason]
        yield f"{some(names, len(names) if is_verbose() else shown)}: {reason}"


def printable(text: object) -> str:
    """Return text with control, format and direction characters shown as escapes, on one line."""
    return streams.visible(str(text).translate(BLANKS))


def print_json(document: object) -> None:
    """Print a JSON document on standard output, what cannot be seen in it as JSON's escapes."""
    with json_printer() as write:
        write(to_json(document))


@contextlib.contextmanager
def json_printer() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints pieces of JSON on standard output."""
    stream = streams.output(streams.IN_JSON)
    yield stream.utf8()
    stream.flush()


def print_page(text: str) -> None:
    """Print a whole text on standard output: Markdown, a script, help."""
    stream = streams.output(streams.JOINED)
    stream.utf8()(text)
    stream.flush()


def print_csv(rows: Iterable[Sequence[object]]) -> None:
    """Print rows as CSV in which texts are quoted, visible, and no formulas; numbers stay numbers."""
    stream = streams.output()
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    for row in rows:
        cells = (streams.visible_cell(each) if isinstance(each, str) else each for each in row)
        writer.writerow(cells)
    stream.flush()


def print_table(
    things: Iterable[Any],
    columns: Columns,
    title: str = "",
    missing: str = "",
    shown: int | None = None,
) -> None:
    """Print a table on standard output with a row for each thing; a title needs no rows.

    `columns` gives for each heading what stands there: a template such as "{amax:.6g}", which names
    fields of the thing or places in it, or a function of it. The first column is text, the others are
    right-aligned. At most `shown` rows are printed, and how many there are more; all with -v.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)) if title else None, title_justify="left")
    for number, column in enumerate(columns):
        heading = Text(printable(column))
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    every, rows = list(things), None if shown is None else most(shown)
    for thing in every[:rows]:
        cells = cells_of(thing, columns, missing)
        table.add_row(*(Text(_shortened(printable(cell))) for cell in cells))
    stream = streams.output(streams.AS_IS)  # its texts are printable; the rest is the terminal's
    console = _console(stream)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = 140
    with console.capture() as captured:
        console.print(table)
    stream.write(captured.get())
    stream.flush()
    say_more(len(every), rows)


def print_overview(view: Overview, title: str = "", shown: int | None = None) -> None:
    """Print the table of a result, under its own title or another one."""
    print_table(view.things, view.columns, title or view.title, view.missing, shown)


def _console(stream: streams.Guarded) -> Console:
    from rich.console import Console

    return Console(file=cast("IO[str]", stream))


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_CELL or is_verbose() else f"{text[: LONGEST_CELL - 1]}…"


def say(*lines: object, head: str = "") -> None:
    """Print each line, behind the head, on standard output."""
    _print_lines(streams.output(), lines, head)


def _print_lines(stream: streams.Guarded, lines: Iterable[object], head: str) -> None:
    for line in lines:
        stream.write(f"{printable(f'{head}{line}')}\n")
        stream.flush()


def say_wrapped(head: str, text: str) -> None:
    """Print a text behind a head, at most 100 columns wide; nothing if it is empty."""
    import textwrap  # not for every command

    wrapper = textwrap.TextWrapper(
        width=min(100, shutil.get_terminal_size((100, 24)).columns),
        initial_indent=printable(head),
        subsequent_indent=" " * (len(printable(head)) or 2),
        break_on_hyphens=False,
    )
    say(*wrapper.wrap(printable(text)))


def say_written(path: Path, digest: str) -> None:
    """Print which file was written, and how its digest begins."""
    say(f"wrote {path}  {digest[:19]}")


def note(*lines: object, head: str = "") -> None:
    """Print lines about the work, not its result, on standard error, unless with -q."""
    if not is_quiet():
        _print_lines(streams.errors(), lines, head)


def remark(*lines: object) -> None:
    """Print notes that begin with `note: `, unless with -q."""
    note(*lines, head="note: ")


def warning(message: str, hint: str | None = None) -> None:
    """Print on standard error what may be wrong, and what to do about it; -q leaves it."""
    error(message, hint, label="warning")


def error(
    message: str, hint: str | None = None, page: str | None = None, label: str = "error"
) -> None:
    """Print on standard error what went wrong, what to do about it, and the page that says more."""
    for name, text in ((label, message), ("hint", hint), ("docs", page)):
        if text:
            _print_lines(streams.errors(), [text], f"{name}: ")


def warn_in_our_words() -> None:
    """Print warnings of libraries like our own, on one line."""

    def show(message: object, category: type[Warning], *_: object, **__: object) -> None:
        warning(f"{category.__name__}: {message}")

    warnings.showwarning = show


def _report_s() -> float:
    return math.inf if os.environ.get(NO_PROGRESS) else REPORT_S


class Every:
    """Prints the progress on standard error every 10 s, with the seconds since the start."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def show(self, text: str) -> None:
        """Print a line, if the last one is long ago."""
        now = time.monotonic()
        if now >= self._last + _report_s():
            self._last = now
            note(f"{text}, {now - self._started:.0f} s")


@contextlib.contextmanager
def progress(title: str, total: int, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error where that is a terminal, else a line every 10 s."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        update(advance=count)
        show_line(f"{title}: {done:,} of {total:,} {unit}".rstrip())

    with _bar(title, total) as (update, show_line):
        yield advance


@contextlib.contextmanager
def clock(title: str) -> Iterator[Callable[[str], None]]:
    """Show the elapsed time and the latest message on standard error, without a terminal every 10 s."""

    def show(text: str) -> None:
        update(description=printable(f"{title}: {text}"))
        show_line(f"{title}: {text}")

    with _bar(title, None) as (update, show_line):
        yield show


@contextlib.contextmanager
def _bar(
    title: str, total: int | None
) -> Iterator[tuple[Callable[..., object], Callable[[str], None]]]:
    """Yield what changes a bar on a terminal, and what prints a line every 10 s elsewhere."""
    stream = streams.errors(streams.AS_IS)
    if is_quiet() or not stream.isatty():
        yield (lambda **_: None), Every().show
        return
    from rich import progress as rich

    message = rich.TextColumn("{task.description}", markup=False)
    columns = (message, *rich.Progress.get_default_columns()[1:])
    if total is None:
        columns = (rich.SpinnerColumn(), rich.TimeElapsedColumn(), message)
    shown = rich.Progress(*columns, console=_console(stream), transient=True)
    with shown as bars, streams.guarded():
        yield partial(bars.update, bars.add_task(printable(title), total=total)), lambda text: None


class StatusLine:
    """One line on standard error that the next one replaces; without a terminal, a few lines."""

    def __init__(self) -> None:
        self._is_terminal = bool(streams.errors().isatty())
        self._next_s = 0.0

    def show(self, text: str) -> None:
        """Show the line as it is now."""
        if is_quiet():
            return
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._put(f"\r\x1b[2K{printable(text)[:width]}")
        elif time.monotonic() >= self._next_s:
            note(text)
            self._next_s = time.monotonic() + _report_s()

    def clear(self) -> None:
        """Make room for what is printed otherwise."""
        if self._is_terminal:
            self._put("\r\x1b[2K")

    def _put(self, text: str) -> None:
        stream = streams.errors(streams.AS_IS)
        stream.write(text)
        stream.flush()


def print_limits(judgements: Sequence[Judgement], title: str = "limits") -> None:
    """Print the table of limits, if there are any."""
    from trtcal.limits import COLUMNS

    if judgements:
        print_table(judgements, COLUMNS, title)


def show_coverage(coverage: Coverage) -> None:
    """Print how much of the compute is in INT8, and the largest of the rest with the reasons."""
    say(coverage.headline)
    say(*coverage.details(), head="  ")


def parameters(pairs: Sequence[str]) -> dict[str, int | float | str]:
    """Read `NAME=VALUE` options; numbers become numbers."""
    values: dict[str, int | float | str] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not (name and separator):
            raise InputError(f"{pair!r} is not NAME=VALUE", "write it like percentile=99.9")
        values[name] = _number(text)
    return values


def size_in_bytes(text: str) -> int:
    """Read a size like 512MB, 4GB or 1.5GiB; `InputError` if it is none."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if not parts:
        raise InputError(f"{text!r} is not a size", "write it like 512MB or 4GB")
    base = 1024 if parts[3] else 1000
    return int(float(parts[1]) * base ** " KMGT".index(parts[2].upper() or " "))


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
