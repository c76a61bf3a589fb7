"""What Python and a notebook show of a result: a sentence, some facts, and a table.

    @dataclass(frozen=True)
    class Pair(Shown):
        def overview(self) -> Overview:
            return Overview(f"Pair of {self.first} and {self.second}")

`repr` is the sentence and the first facts; a notebook shows the table below them. Texts are untrusted.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trtcal.documents.streams import visible

LINES, CHARACTERS = 5, 480
LINE, CELL, ROWS = 240, 100, 20
FACTS_HTML, ROWS_HTML = 2500, 6000  # characters
LEFT = "text-align:left"
BORDER = "border-left:4px solid {tone};padding:0 0 2px 12px"
NEUTRAL = "#8793a0"
"""A color that is seen on white and on black."""

Columns = Mapping[str, str | Callable[[Any], object]]


class _Cells(string.Formatter):
    """Writes a thing's fields by their names, or a sequence's by their places; None as `missing`."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def get_value(self, key: int | str, args: Sequence[Any], _kwargs: object) -> Any:
        thing = args[0]
        return getattr(thing, str(key)) if is_dataclass(thing) else thing[key]

    def format_field(self, value: Any, format_spec: str) -> str:
        return self.missing if value is None else super().format_field(value, format_spec)


def filled(template: str, thing: Any, missing: str = "") -> str:
    """Return a template such as "{amax:.6g}" with a thing's fields, or its places, filled in."""
    return _Cells(missing).format(template, thing)


def cells_of(thing: Any, columns: Columns, missing: str = "") -> Iterator[object]:
    """Yield what the table has of a thing in each of its columns."""
    for column in columns.values():
        yield filled(column, thing, missing) if isinstance(column, str) else column(thing)


@dataclass(frozen=True)
class Overview:
    """A sentence, facts of a line each, and a table with a row for each of `things`.

    `columns` gives for each heading what stands there: a template such as "{amax:.6g}", which names
    fields of the thing or places in it, or a function of it. `brief` are lines in place of the table
    in `repr`, `page` is a file that shows more, `tone` the color of the border.
    """

    title: str
    facts: Sequence[str] = ()
    brief: Iterable[str] = ()
    things: Iterable[Any] = ()
    columns: Columns = field(default_factory=dict)
    missing: str = "-"
    page: Path | None = None
    tone: str = NEUTRAL

    @property
    def text(self) -> str:
        """The sentence and the first facts, at most 5 lines and 500 characters."""
        lines = [self.title, *self.facts, *self.brief][:LINES]
        return "\n  ".join(_shortened(line, CHARACTERS // len(lines)) for line in lines)

    @property
    def html(self) -> str:
        """Everything, in at most 10 KB of HTML without a script."""
        lines = [f"<strong>{_escaped(self.title, LINE)}</strong>"]
        lines += _fitting((_escaped(fact, LINE) for fact in self.facts), FACTS_HTML)
        if self.page is not None:
            link = quote(os.path.relpath(self.page))
            lines.append(f'<a href="{link}">{_escaped(self.page, LINE)}</a>')
        border = BORDER.format(tone=self.tone)
        return f'<div style="{border}">{"<br>".join(lines)}{self._table()}</div>'

    def _table(self) -> str:
        things = islice(self.things, ROWS)
        rows = ("".join(map(_cell, cells_of(each, self.columns, self.missing))) for each in things)
        shown = [*_fitting((f"<tr>{row}</tr>" for row in rows), ROWS_HTML)]
        if not shown:
            return ""
        heads = "".join(f'<th style="{LEFT}">{_escaped(name, CELL)}</th>' for name in self.columns)
        rest = (len(self.things) if isinstance(self.things, Sized) else 0) - len(shown)
        more = f"<em>and {rest:,} more</em>" if rest > 0 else ""
        return (
            f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(shown)}</tbody></table>{more}"
        )


def _cell(value: object) -> str:
    return f'<td style="{LEFT}">{_escaped(value, CELL)}</td>'


def _escaped(value: object, limit: int) -> str:
    return escape(_shortened(value, limit))


def _shortened(value: object, limit: int) -> str:
    text = visible(str(value)[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _fitting(parts: Iterable[str], room: int) -> Iterator[str]:
    """Yield the first parts that have no more than `room` characters together."""
    for part in parts:
        room -= len(part)
        if room < 0:
            return
        yield part


class Shown:
    """Base of what has a short `repr` and a card in a notebook; a dataclass gets no other `repr`.

    Without an `overview` of its own, a dataclass shows the fields that differ from their defaults.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = Shown.__repr__  # type: ignore[method-assign]  # else `dataclass` writes one

    def __repr__(self) -> str:
        return self.overview().text

    def _repr_html_(self) -> str:
        return self.overview().html

    def overview(self) -> Overview:
        """Return what Python and a notebook show."""
        changed = list(_changed(self))
        pairs = ", ".join(f"{name}={text}" for name, text in changed)
        columns = {"field": "{0}", "value": "{1}"}
        return Overview(f"{type(self).__name__}({pairs})", things=changed, columns=columns)


def _changed(thing: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields that differ from their defaults, with their values as short texts."""
    for each in fields(thing):
        value = getattr(thing, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if each.repr and value != default:
            yield each.name, _shortened(value if isinstance(value, Path) else repr(value), CELL)
