"""What the commands share: printing that hostile names cannot disturb, progress, common options."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.config import FILE, Config, read_config
from trtcal.documents import to_json
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.data import Dataset
    from trtcal.limits import Judgement, Limit
    from trtcal.model import Model
    from trtcal.model.files import OnnxFile

LONGEST_CELL = 160
REPORT_S = 10.0
CONTROL = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: object) -> str:
    """Return text with control, format and direction characters shown as escapes, on one line."""
    return "".join(
        character if unicodedata.category(character) not in CONTROL else _escaped(character)
        for character in str(text)
    )


def _escaped(character: str) -> str:
    code = ord(character)
    if character in "\n\r\t":
        return " "
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def print_json(document: object) -> None:
    """Print a JSON document on standard output."""
    sys.stdout.buffer.write(to_json(document).encode("utf-8", "surrogatepass"))
    sys.stdout.buffer.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table on standard output; the first column is text, the others are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)) if title else None, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shortened(printable(cell))) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(table)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def say(message: str) -> None:
    """Print one line on standard output."""
    click.echo(printable(message))


def show_written(path: Path, written: OnnxFile) -> None:
    """Print which ONNX file was written, and its file of weights if it has one."""
    say(f"wrote {path}  {written.digest[:19]}")
    if written.weights is not None:
        say(f"wrote its weights beside it, where they have to stay: {written.weights}")


def note(message: str) -> None:
    """Print one line about the work, not its result, on standard error."""
    click.echo(printable(message), err=True)


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=total)
        yield lambda done: bars.advance(task, done)


@contextlib.contextmanager
def clock(title: str) -> Iterator[Callable[[str], None]]:
    """Show the elapsed time and the latest message on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    disable = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as bars:
        task = bars.add_task(printable(title), total=None)
        yield lambda text: bars.update(task, description=printable(f"{title}: {text}"))


class StatusLine:
    """One line on standard error that the next one replaces; without a terminal, a few lines."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next_s = 0.0

    def show(self, text: str) -> None:
        """Show the line as it is now."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r\x1b[2K{printable(text)[:width]}", err=True, nl=False)
        elif time.monotonic() >= self._next_s:
            note(text)
            self._next_s = time.monotonic() + REPORT_S

    def clear(self) -> None:
        """Make room for what is printed otherwise."""
        if self._is_terminal:
            click.echo("\r\x1b[2K", err=True, nl=False)


def config_here(path: Path | None = None) -> Config:
    """Return the given configuration, or that of the current folder, or an empty one."""
    if path is not None:
        return read_config(path)
    default = Path(FILE)
    return read_config(default) if default.is_file() else Config(default)


def required(value: Any, what: str, option: str) -> Any:
    """Return a value that came from an option or from trtcal.toml; `InputError` if from neither."""
    if value is None:
        raise InputError(f"{what} is not given", f"give {option}, or set it in {FILE}")
    return value


def limits_here(
    config: Config, given: Sequence[str], known: Callable[[Limit], bool] = lambda limit: True
) -> tuple[Limit, ...]:
    """Return the limits given on the command line, and those of trtcal.toml that they leave.

    Of trtcal.toml only those count that are about what this command measures (`known`).
    """
    from trtcal.limits import joined, parse_limits

    asked = parse_limits(given)
    for limit in asked:
        if not known(limit):
            raise InputError(f"this command does not measure what {limit} is about", "see --help")
    return joined([limit for limit in config.limits if known(limit)], asked)


def print_limits(judgements: Sequence[Judgement], title: str = "limits") -> None:
    """Print the table of limits, if there are any."""
    rows = [
        (
            str(one.limit),
            one.subject,
            one.measured if one.figure is not None else one.reason,
            "" if one.margin is None else f"{one.margin:+.4g}",
            "" if one.samples_needed is None else f"{one.samples_needed:,}",
            one.state,
        )
        for one in judgements
    ]
    if rows:
        columns = ("limit", "of", "measured", "margin", "samples needed", "state")
        print_table(columns, rows, title)


def parameters(
    pairs: Sequence[str], example: str = "percentile=99.9"
) -> dict[str, int | float | str]:
    """Read `NAME=VALUE` options; numbers become numbers."""
    found: dict[str, int | float | str] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not (name and separator):
            raise InputError(f"{pair!r} is not NAME=VALUE", f"write it like {example}")
        found[name] = _number(text)
    return found


def size_in_bytes(text: str) -> int:
    """Read a size like 512MB, 4GB or 1.5GiB; `InputError` if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if not found:
        raise InputError(f"{text!r} is not a size", "write it like 512MB or 4GB")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " KMGT".index(found[2].upper() or " "))


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def prepared_model(
    model: Model, config: Config, skipped: Sequence[str], optimizations: Path | None = None
) -> Model:
    """Return a model made ready for Q/DQ, with optimizations if there are any.

    The nodes that the passes left alone are printed on standard error.
    """
    from trtcal.model.passes import prepare_with_record

    settings = config.prepare
    prepared = prepare_with_record(model, [*settings.skip, *skipped], settings.add)
    for line in prepared.notes:
        note(f"note: left alone: {line}")
    if optimizations is None:
        return prepared.model
    from trtcal.ptq.artifact import read_optimizations

    return read_optimizations(optimizations).apply(prepared.model)


optimizations_option = click.option(
    "--optimizations",
    type=click.Path(path_type=Path),
    help="What `quantize --improve` found; the ranges have to be those written beside it.",
)


limit_option = click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help='What must hold, as in "top1 >= -1.0" or "speedup >= 1.3"; may be repeated. A bound with a '
    "sign limits the change.",
)
data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="An .npz; a folder of .npy files or images; Polygraphy's .json; a load_data() script.",
)
trust_option = click.option(
    "--trust", is_flag=True, help="Load engines that were built elsewhere: they are programs."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
skip_option = click.option(
    "--skip-pass",
    "skipped",
    multiple=True,
    metavar="NAME",
    help="A preparation pass to skip (see `trtcal prepare --list`); may be repeated.",
)
config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help=f"Configuration for what is not given here.  [default: {FILE} in this folder]",
)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of a command that evaluates a prepared model on data."""

    model: Path | None
    data: Path | None
    optimizations: Path | None
    skipped: tuple[str, ...]
    config_path: Path | None


def model_and_data(options: ModelOptions) -> tuple[Model, Model, Dataset]:
    """Return the model, the same prepared, and the evaluation data, by options and `trtcal.toml`."""
    from trtcal.data import open_dataset
    from trtcal.model import load_model

    config = config_here(options.config_path)
    model = load_model(required(options.model or config.model, "the model", "MODEL"))
    prepared = prepared_model(model, config, options.skipped, options.optimizations)
    source = required(options.data or config.evaluation.data, "the data", "--data")
    return model, prepared, open_dataset(source, model, config.images, config.evaluation.labels)
