"""Several files change together: after a kill, an error or a full disk they are old or new."""

import errno
import os
import resource
import signal
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from tests.fixtures.fails import fails
from tests.fixtures.killing import forked, killed_at, tree
from tests.fixtures.networks import conv_net
from tests.fixtures.tables import each
from tests.runs.runs import report
from trtcal.documents import (
    FILES,
    Workplace,
    clear_places,
    digest_bytes,
    read_json,
    read_record,
    removing,
    replacing_entries,
    together,
    unfinished,
    write_json,
    write_text,
)
from trtcal.documents.staging import CHANGES, COMMIT, _new_staging
from trtcal.errors import InputError, ResourceError
from trtcal.model import load_model
from trtcal.model.files import write_onnx
from trtcal.runs.history import History
from trtcal.wings.fleet.dashboard import write_dashboard


def pages(folder, state):
    """Write a dashboard of one project or, when it is new, of two."""
    history = History(folder.parent / f"{state}.sqlite")
    history.record(report(1))
    if state == "new":
        history.record(report(2, name="other"))
    write_dashboard(history, folder)


def model(folder, state):
    """Write a model with its weights beside it."""
    proto = load_model(conv_net(folder.parent / "net.onnx")).proto
    first = proto.graph.initializer[0]
    values = numpy_helper.to_array(first) * (2 if state == "new" else 1)
    first.CopyFrom(numpy_helper.from_array(values.astype(np.float32), first.name))
    write_onnx(folder / "net.onnx", proto, most=0)


def entries(folder, state):
    """Write what a run would, with a file that only the old one has."""
    owned = ["builds", "run.json", "tails.json", FILES]
    with replacing_entries(folder, owned) as place:
        write_text(place / "builds" / state / "build.json", state)
        write_text(place / "run.json", state)
        if state == "old":
            write_text(place / "tails.json", state)


@pytest.mark.parametrize("write", [pages, model, entries])
def test_a_kill_at_any_change_leaves_the_old_files_or_the_new(tmp_path, write):
    folder, ends = tmp_path / "out", []
    write_text(folder / "mine.txt", "kept")
    for number in count():
        write(folder, "old")
        before = tree(folder)
        was_killed = killed_at(number, lambda: write(folder, "new"))
        clear_places([folder])
        after = tree(folder)
        ends.append(after)
        if not was_killed:
            break
        for name in set(after) - {"mine.txt"}:
            (folder / name).unlink()
    assert before != after
    assert all(end in (before, after) for end in ends)
    assert ends[0] == before
    assert before in ends[1:]


def test_the_record_of_a_run_has_what_is_written_and_removed_in_its_folder(tmp_path):
    run = tmp_path / "out"
    entries(run, "old")
    write_text(run / "ab.json", "kept")
    entries(run, "new")
    with together():
        write_text(run / "run.json", "again")
        write_text(run / "builds" / "new" / "build.log", "log")
    with replacing_entries(run / "bundle", []) as place:
        write_text(place / "deep" / "a", "a")
        assert "bundle/deep/a" not in read_record(run)
    (tmp_path / "link").symlink_to(run / "builds")
    write_text(tmp_path / "link" / "new" / "a.json", "linked")
    write_text(run / "builds" / ".." / ".." / "beside.json", "no file of the run")
    texts = {"ab.json": "kept", "run.json": "again", "bundle/deep/a": "a"}
    texts |= {"builds/new/a.json": "linked"}
    texts |= {"builds/new/build.json": "new", "builds/new/build.log": "log"}
    assert read_record(run) == {name: digest_bytes(text.encode()) for name, text in texts.items()}
    for name in ("build.log", "a.json"):
        removing(run / "builds" / "new" / name)
    (run / "ab.json").unlink()
    entries(run, "new")
    assert set(read_record(run)) == {"run.json", "builds/new/build.json", "bundle/deep/a"}
    assert not (tmp_path / FILES).exists()


@each("change", [lambda data: data + b" ", lambda data: data.replace(b"run.json", b"ran.json")])
def test_a_record_that_was_changed_is_an_error_that_only_a_new_run_ends(tmp_path, change):
    entries(tmp_path, "new")
    record = tmp_path / FILES
    record.write_bytes(change(record.read_bytes()))
    before = record.read_bytes()
    write_text(tmp_path / "a", "a")
    assert record.read_bytes() == before
    with fails(InputError, FILES):
        read_record(tmp_path)
    entries(tmp_path, "new")
    assert set(read_record(tmp_path)) == {"run.json", "builds/new/build.json"}


def test_a_reader_completes_what_a_killed_command_had_decided(tmp_path):
    path, states = tmp_path / "deep" / "er" / "a.json", []
    for number in count():
        pair(path, "old")
        was_killed = killed_at(number, lambda: pair(path, "new"))
        states.append((read_json(path), read_json(path.with_name("b.json"))))
        if not was_killed:
            break
    assert set(states) == {("old", "old"), ("new", "new")}
    assert states.count(("new", "new")) > 5


def pair(path, state):
    """Write two files."""
    with together():
        write_json(path, state)
        write_json(path.with_name("b.json"), state)


def test_files_of_a_block_that_fails_or_is_not_over_stay_as_they_are(tmp_path):
    write_text(tmp_path / "a", "old")

    def fail():
        with together():
            write_text(tmp_path / "a", "new")
            write_text(tmp_path / "made" / "b", "new")
            removing(tmp_path / "a")
            assert (tmp_path / "a").read_text() == "old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert tree(tmp_path) == {"a": b"old"}


def test_renames_that_fail_are_undone(tmp_path, monkeypatch):
    entries(tmp_path, "old")
    before, rename = tree(tmp_path), os.rename

    def refuse(source, destination):
        if (source.name, source.parent.name) == ("run.json", "new"):
            raise OSError(errno.EBUSY, "Device or resource busy")  # as of a mount point
        rename(source, destination)

    monkeypatch.setattr(os, "rename", refuse)
    with fails(ResourceError, "Device or resource busy"):
        entries(tmp_path, "new")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "changes",
    [
        *('{"new": ["../out"], "gone": []}', '{"new": [], "gone": ["/etc/passwd"]}'),
        *('{"new": [], "gone": [".."]}', '{"new": [], "gone": 3}', "["),
    ],
)
def test_a_list_of_changes_from_elsewhere_reaches_nothing_outside_its_folder(tmp_path, changes):
    write_text(tmp_path / "out" / COMMIT / "new" / "out", "new")
    (tmp_path / "out" / COMMIT / CHANGES).write_text(changes)
    with fails(InputError, "changes.json"):
        clear_places([tmp_path / "out"])
    assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize("part", ["old", "new"])
def test_a_list_of_changes_moves_nothing_through_a_link(tmp_path, part):
    write_text(tmp_path / "mine" / "key", "mine")
    write_text(tmp_path / "out" / "key", "theirs")
    write_text(tmp_path / "out" / COMMIT / CHANGES, '{"new": ["key"], "gone": []}')
    (tmp_path / "out" / COMMIT / part).symlink_to(tmp_path / "mine")
    with fails(InputError, part):
        clear_places([tmp_path / "out"])
    assert (tmp_path / "mine" / "key").read_text() == "mine"
    assert (tmp_path / "out" / "key").read_text() == "theirs"


def test_a_list_of_changes_is_no_pipe(tmp_path):
    (tmp_path / COMMIT).mkdir()
    os.mkfifo(tmp_path / COMMIT / CHANGES)
    with fails(InputError, "changes.json"):
        clear_places([tmp_path])


def test_what_another_process_is_writing_is_left_alone(tmp_path):
    with replacing_entries(tmp_path, ["run.json"]) as place:
        write_text(place / "run.json", "new")
        forked(lambda: clear_places([tmp_path]))
    assert tree(tmp_path) == {"run.json": b"new"}


def test_temporary_folders_of_killed_processes_go_with_the_next_command(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def work():
        with Workplace() as folder:
            write_text(Path(folder, "x"), "x")
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(work) == -signal.SIGKILL
    assert tree(tmp_path)
    for number in range(9):
        killed_at(number, lambda: Workplace().cleanup())
        clear_places([])
        assert not list(tmp_path.iterdir())


def test_eight_processes_on_one_folder_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("trtcal.documents.staging.LOCK_S", 600.0)

    def write(number):
        for turn in range(5):
            with replacing_entries(tmp_path / "out", ["a", "b", "c"]) as place:
                for name in "abc":
                    write_text(place / name, f"{number} {turn}")
            write_text(tmp_path / "out" / f"own-{number}-{turn}", "kept")

    children = [forked(lambda number=number: write(number), wait=False) for number in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    found = tree(tmp_path / "out")
    assert len({found.pop(name) for name in "abc"}) == 1
    assert len(found) == 40


def test_a_full_disk_leaves_the_old_files(tmp_path):
    pair(tmp_path / "a.json", "old")
    before = tree(tmp_path)

    def write():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with fails(ResourceError, "File too large"):
            pair(tmp_path / "a.json", "new" * 1000)

    assert forked(write) == 0
    assert tree(tmp_path) == before


def test_the_root_is_a_folder_like_others():
    assert unfinished(Path("/")) == Path("/.unfinished")
    clear_places([Path("/"), Path()])


class DeletedOnce(type(Path())):
    """A folder that another process deletes, empty, while it is being made."""

    errors = iter([FileExistsError()])

    def mkdir(self, *arguments, **options):
        for error in self.errors:
            raise error
        return super().mkdir(*arguments, **options)


def test_a_folder_that_another_process_deletes_is_made_again(tmp_path):
    folder, handle = _new_staging(DeletedOnce(tmp_path, "new"), is_made=False)
    os.close(handle)
    assert folder.is_dir()
    assert not list(DeletedOnce.errors)
