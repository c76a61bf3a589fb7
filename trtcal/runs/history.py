"""Runs in a local SQLite file: appended by many writers, never changed.

Write-ahead logging lets readers and writers work at once; a writer waits for another one. A run is
known by its report's digest and the time it was made: to record it twice changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trtcal.config import CostConfig, read_tags
from trtcal.documents import Document, from_fields, parsing
from trtcal.documents.bounds import ARRAYS_BYTES, check_file, parse_json, seconds_for, too_slow
from trtcal.documents.overview import ROWS, Overview, Shown
from trtcal.documents.schema import changes_of, replace_texts
from trtcal.errors import InputError, ResourceError
from trtcal.runs.figures import Figures, digests_of_run, figures_of_run
from trtcal.runs.follower import follower_kinds

T = TypeVar("T")
VERSION, OLDEST = 3, 2  # what is written; from which on the tables that are missing are added
APPLICATION = 0x7472_6361  # "trca": the file is ours, as SQLite records it in the file's header
WAIT_S = 60.0
STEPS = 10_000  # of SQLite's machine between two looks at the clock
FILE = "history.sqlite"
SCHEMA = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")


Columns = dict[tuple[str, str], tuple[list[int], list[float]]]
"""(variant, figure) -> numbers of the runs that have it, and its values."""


@dataclass(frozen=True)
class Entry(Shown):
    """One run: what it was called, its verdict, what it was made of, its figures and tags."""

    number: int
    report: str
    made_at: str
    name: str
    verdict: str
    variant: str | None
    sentence: str
    command: str | None
    folder: str | None
    digests: dict[str, str]
    figures: Figures
    tags: dict[str, str] = field(default_factory=dict)

    def to_document(self) -> Document:
        """Return the JSON form, figures by variant."""
        figures: dict[str, dict[str, float]] = {}
        for (variant, figure), value in self.figures.items():
            figures.setdefault(variant, {})[figure] = value
        return {**{k: v for k, v in vars(self).items() if k != "figures"}, "figures": figures}


COLUMNS = tuple(column.name for column in fields(Entry))[1:-3]
"""Of a run in the file, between its number and its digests."""


LISTED = {"name": "{name}", "run": "{number}", "made": "{made_at}"}
LISTED |= {"verdict": "{verdict}", "variant": "{variant}"}
"""The table of runs, for entries."""


def default_path() -> Path:
    """Return where the history lies if nobody says otherwise: in the user's data folder."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "trtcal" / FILE


class History(Shown):
    """The runs in one file.

    `InputError` if the file is not a history, `ResourceError` if it is in use for more than a
    minute or cannot be written.

    >>> from pathlib import Path
    >>> History(Path("history.sqlite")).entries()
    []
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            hint = "check the path"
            raise ResourceError(f"cannot create {path.parent}: {error.strerror}", hint) from error
        if path.exists() and path.stat().st_size:
            self._check()
        with self._open() as connection:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(SCHEMA)
            connection.execute(f"PRAGMA user_version = {VERSION}")

    def overview(self) -> Overview:
        """Return the last runs, which are read for a notebook only."""
        return Overview(f"History in {self.path}", things=self._last(), columns=LISTED)

    def _last(self) -> Iterator[Entry]:
        yield from reversed(self.entries(last=ROWS))

    def _check(self) -> None:
        """Refuse a file of another program, or of another version, without a change to it.

        Histories of before there was an `APPLICATION` are known by their columns.
        """
        with self._open(f"{self.path.absolute().as_uri()}?mode=ro&immutable=1") as connection:
            mark, version, columns = (
                [row[0] for row in connection.execute(question)]
                for question in (
                    "PRAGMA application_id",
                    "PRAGMA user_version",
                    "SELECT name FROM pragma_table_info('runs')",
                )
            )
        if mark != [APPLICATION] and (mark != [0] or columns != ["id", *COLUMNS, "digests"]):
            raise InputError(
                f"{self.path} is the database of another program, or the history of an older trtcal",
                "give another --db, and record the runs again: `trtcal history add REPORT.json`",
            )
        if version[0] not in (0, *range(OLDEST, VERSION + 1)):
            what = f"{self.path} is a history of format {version[0]}"
            raise InputError(f"{what}; this trtcal reads format {VERSION}", "update trtcal")

    def _refuse_code(self, connection: sqlite3.Connection) -> None:
        """Refuse what SQLite would compute where we read a table, or write to one."""
        connection.execute("PRAGMA trusted_schema = OFF")
        kinds = "SELECT type FROM sqlite_master WHERE type IN ('view', 'trigger')"
        for (kind,) in connection.execute(kinds):
            raise InputError(f"{self.path} is not a history: it has a {kind}", "give another --db")

    @contextlib.contextmanager
    def _open(self, uri: str | None = None) -> Iterator[sqlite3.Connection]:
        size = check_file(self.path, ARRAYS_BYTES) if self.path.exists() else 0
        end = time.process_time() + seconds_for(size)
        try:
            connection = sqlite3.connect(uri or self.path, timeout=WAIT_S, uri=uri is not None)
            connection.set_progress_handler(lambda: time.process_time() > end, STEPS)
            with contextlib.closing(connection), connection:
                self._refuse_code(connection)
                yield connection
        except sqlite3.DatabaseError as error:
            if str(error) == "interrupted":
                raise too_slow(self.path, size) from error
            if isinstance(error, sqlite3.OperationalError):
                hint = "check that no other program uses it and that the disk has room"
                raise ResourceError(f"{self.path}: {error}", hint) from error
            what = f"{self.path} is not a history: {error}"
            raise InputError(what, "give another --db") from error
        except (LookupError, TypeError, ValueError) as error:  # of another type than we wrote
            raise InputError(f"{self.path} is damaged: {error}", "give another --db") from error

    def record(
        self,
        report: Document,
        name: str | None = None,
        folder: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> int:
        """Add a run by its report document; return its number. One that is there already is left.

        `tags` stand beside those of the report, and before them. What a run that is there lacks is
        added: tags, and what its cost follows from, which histories did not have at first.
        """
        entry: Entry = parsing(self.path, lambda: entry_of(report, name, folder))
        own = read_tags({**entry.tags, **(tags or {})})
        meters = (parsing(self.path, partial(kind.meter, report)) for kind in follower_kinds())
        meter = next((meter for meter in meters if meter is not None), None)
        row = (*(getattr(entry, key) for key in COLUMNS), json.dumps(entry.digests, sort_keys=True))
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            query = "SELECT id FROM runs WHERE report = ? AND made_at = ?"
            known = connection.execute(query, row[:2]).fetchone()
            number = int(known[0]) if known else _insert(connection, row, entry.figures)
            rows = [(number, *pair) for pair in own.items()]
            connection.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?, ?)", rows)
            if meter is not None:
                plain = [number, json.dumps(meter)]
                connection.execute("INSERT OR IGNORE INTO meters VALUES (?, ?)", plain)
            return number

    def convert(self) -> bool:
        """Give figures and words the names that they have now; tell whether one changed."""
        with self._open() as connection:
            before = connection.total_changes
            for change in changes_of("history"):
                for names in change.keys.items():
                    rename = "UPDATE figures SET figure = ?2 WHERE figure = ?1"
                    connection.execute(rename, names)
                for column, words in change.words.items():
                    rename = f"UPDATE runs SET {column} = ?2 WHERE {column} = ?1"  # noqa: S608
                    connection.executemany(rename, [*words.items()])
            return connection.total_changes > before

    def entries(
        self,
        name: str | None = None,
        last: int | None = None,
        with_figures: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> list[Entry]:
        """Return runs in the order of their numbers, of one name or all, the last so many.

        With `tags`, only runs that have all of them.
        """
        with self._open() as connection:
            connection.execute("BEGIN")
            rows = connection.execute(
                f"SELECT * FROM runs WHERE (?1 IS NULL OR name = ?1) AND {TAGGED} "  # noqa: S608
                "ORDER BY id DESC LIMIT ?2",
                [name, -1 if last is None else last, json.dumps(dict(tags or {}))],
            ).fetchall()[::-1]
            return _entries(connection, rows, with_figures)

    def meters(self, read: Callable[[Any], T]) -> dict[int, T]:
        """Return what the cost of each run follows from, by its number; older histories lack some.

        `read` makes a meter of what `Follower.meter` returned.
        """
        with self._open() as connection:
            rows = connection.execute("SELECT run, meter FROM meters")
            return {run: read(parse_json(meter)) for run, meter in rows}

    def columns(self, name: str, first: int, last: int, figures: Sequence[str]) -> Columns:
        """Return figures of a name's runs from number `first` to `last`, by variant and figure.

        Those measured on devices (`figure@device`) are among them.
        """
        columns: Columns = defaultdict(lambda: ([], []))
        with self._open() as connection:
            rows = connection.execute(
                "SELECT f.variant, figure, run, value FROM runs CROSS JOIN figures AS f ON run = id "
                "WHERE name = ? AND id BETWEEN ? AND ? AND "
                "substr(figure, 1, instr(figure || '@', '@') - 1) IN "
                "(SELECT value FROM json_each(?)) ORDER BY id",
                [name, first, last, json.dumps(list(figures))],
            )
            for variant, figure, run, value in rows:
                runs, values = columns[variant, figure]
                runs.append(run)
                values.append(value)
        return dict(columns)

    def entry(self, number: int) -> Entry:
        """Return one run; `InputError` if there is none of this number."""
        with self._open() as connection:
            row = connection.execute("SELECT * FROM runs WHERE id = ?", [number]).fetchone()
            if row is None:
                hint = "`trtcal history list` shows the runs"
                raise InputError(f"{self.path} has no run {number}", hint)
            return _entries(connection, [row])[0]

    def before(self, entry: Entry) -> Entry | None:
        """Return the last run made before this one of the same name or the same FP32 model."""
        with self._open() as connection:
            row = connection.execute(
                "SELECT * FROM runs WHERE (name = ?3 OR json_extract(digests, '$.model') = ?4) AND "
                "(made_at, id) < (?1, coalesce((SELECT id FROM runs WHERE made_at = ?1 AND "
                "report = ?2), 9e18)) ORDER BY made_at DESC, id DESC LIMIT 1",
                [entry.made_at, entry.report, entry.name, entry.digests["model"]],
            ).fetchone()
            return _entries(connection, [row])[0] if row else None

    def names(self) -> list[str]:
        """Return the names that runs have, in the order of their first run."""
        with self._open() as connection:
            rows = connection.execute("SELECT name FROM runs GROUP BY name ORDER BY min(id)")
            return [str(row[0]) for row in rows]


def _insert(connection: sqlite3.Connection, row: Sequence[object], figures: Figures) -> int:
    values = ", ".join("?" * len(row))
    number = connection.execute(f"INSERT INTO runs VALUES (NULL, {values})", row).lastrowid  # noqa: S608
    rows = [(number, *key, value) for key, value in figures.items()]
    connection.executemany("INSERT INTO figures VALUES (?, ?, ?, ?)", rows)
    return int(number or 0)


TAGGED = (
    "NOT EXISTS (SELECT 1 FROM json_each(?3) AS wanted WHERE NOT EXISTS (SELECT 1 FROM tags "
    "WHERE run = runs.id AND tags.key = wanted.key AND tags.value = wanted.value))"
)
"""Whether a run has all tags of the JSON object that is the third parameter."""
FIGURES = "SELECT run, variant, figure, value FROM figures WHERE run BETWEEN ? AND ?"
TAGS = "SELECT run, key, value FROM tags WHERE run BETWEEN ? AND ?"


def _entries(
    connection: sqlite3.Connection, rows: Sequence[Sequence[Any]], with_figures: bool = True
) -> list[Entry]:
    numbers = [row[0] for row in rows]
    ends = [min(numbers, default=0), max(numbers, default=0)]
    figures: dict[int, Figures] = defaultdict(dict)
    tags: dict[int, dict[str, str]] = defaultdict(dict)
    for run, *key, value in connection.execute(FIGURES, ends) if with_figures else ():
        figures[run][key[0], key[1]] = value
    for run, name, value in connection.execute(TAGS, ends):
        tags[run][name] = value
    return [_entry(row, figures[row[0]], tags[row[0]]) for row in rows]


def _entry(row: Sequence[object], figures: Figures, tags: Mapping[str, str]) -> Entry:
    plain: dict[str, Any] = dict(zip(("number", *COLUMNS), row[:-1], strict=True))
    digests = parse_json(str(row[-1]))
    return from_fields(Entry, {**plain, "digests": digests, "figures": figures, "tags": tags})


VERDICT = {"verdict": "word", "variant": "variant", "sentence": "sentence"}
DIGITS_SHOWN = 6  # digits of a structure that tell two networks of one file name from each other


def entry_of(report: Document, name: str | None = None, folder: str | None = None) -> Entry:
    """Return a report document as the entry that it becomes, without a number yet (0).

    If nobody says, it is called like its reference model, with the first digits of its structure: files
    of one name may hold other networks. A field that is missing is a `KeyError`.
    """
    measured, comparison = report["measured"], report["comparison"]
    structure = str(comparison.get("structure") or "").partition(":")[2][:DIGITS_SHOWN]
    own = f"{comparison['rows'][0]['name']} {structure}".rstrip()
    plain = {
        "made_at": measured["made_at"],
        "name": name or own,
        **{key: measured["verdict"][field] for key, field in VERDICT.items()},
        "command": (measured["run"] or {}).get("command"),
        "folder": folder,
        "digests": digests_of_run(report),
    }
    figures = {(storable(name), key): v for (name, key), v in figures_of_run(report).items()}
    facts = {"figures": figures, "tags": CostConfig.from_document(report).tags}
    first = {"number": 0, "report": report["digest"]}
    return from_fields(Entry, {**first, **replace_texts(plain, storable), **facts})


def storable(text: str) -> str:
    """Return text without lone surrogates, which no database takes."""
    return text.encode("utf-8", "backslashreplace").decode()
