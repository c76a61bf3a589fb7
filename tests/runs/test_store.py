"""The history's file: recorded once, kept whole by many writers, refused if it is none."""

import contextlib
import multiprocessing
import sqlite3

import pytest

from tests.fixtures.commands import refused
from tests.fixtures.fails import fails
from tests.fixtures.slow import SLOW
from tests.runs.runs import report
from trtcal.documents import bounds
from trtcal.errors import InputError, ResourceError
from trtcal.runs.diff import compare_runs
from trtcal.runs.history import APPLICATION, History

WRITERS, RUNS = 8, 50


def test_a_run_comes_back_as_it_was_recorded(tmp_path):
    history = History(tmp_path / "h.sqlite")
    number = history.record(report(1, top1=98.5), folder="runs/1")
    entry = history.entry(number)
    assert entry == history.entries()[0]
    assert (entry.name, entry.verdict, entry.folder) == ("digits", "SHIP", "runs/1")
    assert entry.figures["int8", "top1"] == 98.5
    assert entry.figures["int8", "latency_p50"] == 1.0
    assert entry.digests["evaluation data"] == "sha256:data"


def test_a_run_is_recorded_once(tmp_path):
    history = History(tmp_path / "h.sqlite")
    assert history.record(report(1)) == history.record(report(1))
    assert history.record(report(2)) != history.record(report(1))
    assert len(history.entries()) == 2


def test_a_name_that_is_no_unicode_is_kept_as_its_escape(tmp_path):
    history = History(tmp_path / "h.sqlite")
    entry = history.entry(history.record(report(1, name="a\ud800", variant="\udfff"), "\ud801"))
    assert (entry.name, entry.variant) == ("\\ud801", "\\udfff")
    assert entry.figures["a\\ud800", "top1"] == 98.6


def test_names_and_the_last_few_can_be_asked_for(tmp_path):
    history = History(tmp_path / "h.sqlite")
    for number in range(6):
        history.record(report(number), name="b" if number % 2 else "a")
    assert history.names() == ["a", "b"]
    assert [entry.number for entry in history.entries("b", 2)] == [4, 6]
    assert history.columns("a", 3, 6, ["top1"]) == {
        ("digits", "top1"): ([3, 5], [98.6, 98.6]),
        ("int8", "top1"): ([3, 5], [98.6, 98.6]),
    }
    assert not history.entries("a", with_figures=False)[0].figures


def write(path, writer):
    history = History(path)
    for number in range(RUNS):
        history.record(report(1000 * writer + number), name=f"writer {writer}")


@SLOW
def test_many_writers_lose_nothing(tmp_path):
    path = tmp_path / "h.sqlite"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write, args=(path, number)) for number in range(WRITERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * WRITERS
    entries = History(path).entries()
    assert len({entry.report for entry in entries}) == WRITERS * RUNS
    assert all(entry.figures == entries[0].figures for entry in entries)


def changed(path, script):
    """Change a database behind its history's back; return what is in its file."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(script)
    return path.read_bytes()


def test_what_is_no_history_is_refused(tmp_path):
    (tmp_path / "text").write_text("this is no database, however long it may be" * 100)
    changed(tmp_path / "newer", f"PRAGMA application_id={APPLICATION}; PRAGMA user_version=99")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, hint in (("text", "--db"), ("newer", "update"), ("folder", "file"), ("zero", "file")):
        with fails(InputError, name, hint=hint):
            History(tmp_path / name)


ENDLESS = """
ALTER TABLE runs RENAME TO kept;
CREATE VIEW runs AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
SELECT i AS id, 'r' AS report, 'm' AS made_at, 'n' AS name, 'v' AS verdict, 'v' AS variant,
's' AS sentence, 'c' AS command, 'f' AS folder, '{}' AS digests FROM n;
"""
TRIGGER = "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END"


@pytest.mark.parametrize(("script", "kind"), [(ENDLESS, "view"), (TRIGGER, "trigger")])
def test_a_history_that_computes_something_is_refused(tmp_path, script, kind):
    path = tmp_path / "history.sqlite"
    History(path)
    changed(path, script)
    with fails(InputError, path.name, kind):
        History(path)


MANY = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
INSERT INTO runs SELECT i, i, 'm', 'n', 'v', NULL, 's', NULL, NULL, '{}' FROM n
"""


def test_a_history_that_takes_too_long_is_not_read_on(tmp_path, monkeypatch):
    path = tmp_path / "history.sqlite"
    history = History(path)
    changed(path, MANY)
    monkeypatch.setattr(bounds, "FIRST_S", 1e-6)
    monkeypatch.setattr(bounds, "S_PER_MB", 0.0)
    with fails(ResourceError, path.name, hint="TRTCAL_BOUNDS"):
        history.entries()


OLDER = "CREATE TABLE runs (id INTEGER PRIMARY KEY, candidate TEXT); PRAGMA user_version = 1"
OTHER = "CREATE TABLE notes (text); PRAGMA user_version = 2"


@pytest.mark.parametrize("script", [OLDER, OTHER])
def test_an_older_history_and_the_database_of_another_program_stay_as_they_are(
    tmp_path, capsys, script
):
    path = tmp_path / "other.sqlite"
    before = changed(path, script)
    with fails(InputError, path.name, hint="trtcal history add"):
        History(path)
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (before, [path])
    err = refused(capsys, "history", "list", "--db", path)
    assert (err.count("error: "), "hint: give another --db" in err) == (1, True)


def test_a_history_of_before_there_was_an_application_id_is_still_one(tmp_path):
    path = tmp_path / "history.sqlite"
    History(path)
    changed(path, "PRAGMA application_id = 0")
    for _ in range(2):
        assert History(path).entries() == []
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION,)


def test_a_report_that_lacks_fields_is_refused(tmp_path):
    with pytest.raises(InputError):
        History(tmp_path / "h.sqlite").record({"digest": "sha256:x"})


def test_two_runs_differ_by_figures_and_by_what_they_were_made_of(tmp_path):
    history = History(tmp_path / "h.sqlite")
    for number, changes in enumerate(({}, {"p50": 1.2, "data": "sha256:other", "top1": 97.0})):
        history.record(report(number, **changes))
    found = compare_runs(*history.entries())
    changed = {(one.variant, one.figure): one for one in found.changed}
    assert changed["int8", "latency_p50"].share == pytest.approx(0.2)
    assert not changed["int8", "latency_p50"].is_better
    assert not changed["int8", "top1"].is_better
    assert found.inputs == {"evaluation data": ("sha256:data", "sha256:other")}
