"""The worker itself, as a process on this machine: files, jobs, the lock, and what ends them."""

import ast
import fcntl
import os
import re
import select
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.local_device import (
    LocalDevice,
    batch,
    build_of,
    endless,
    here,
    old_python,
    outer,
    relu,
    time_of,
    until,
)
from tests.fixtures.slow import SLOW
from trtcal.documents.digests import digest_bytes
from trtcal.errors import BackendError, InputError, ResourceError
from trtcal.wings.devices import worker
from trtcal.wings.devices.packing import CORE, SHARED
from trtcal.wings.devices.worker import jobs, lock
from trtcal.wings.devices.worker.frames import Fault

__all__ = ["here"]

SOURCES = sorted(Path(worker.__file__).parent.glob("*.py"))
SOURCES += [CORE / name for name in SHARED if not name.endswith("__init__.py")]
KEY = digest_bytes(b"a job")
LATER = {"removeprefix", "removesuffix", "is_relative_to", "pairwise", "bit_count"}
"""What Python's library has had since 3.9 or later, and one writes without thinking."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_worker_is_python_3_8_and_its_standard_library(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    sources = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {alias.name.split(".")[0] for node in imports for alias in node.names}
    modules = {str(node.module) for node in sources if not node.level}
    shared = {name for name in modules if name.startswith("trtcal.")}
    assert shared <= {f"trtcal.{name[:-3].replace('/', '.')}" for name in SHARED}
    names |= {name.split(".")[0] for name in modules - shared}
    assert names <= sys.stdlib_module_names
    assert {node.level for node in sources} <= {0, 1}
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    called |= {alias.name for node in sources for alias in node.names}
    keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    assert not called & LATER
    assert "strict" not in keywords


def test_it_runs_on_python_3_8_without_any_package(here):
    here.python = old_python() or pytest.skip("no Python 3.8 here: the worker runs on a newer one")
    with here.connect() as connection:
        about = connection.call("hello")[0]
        data = os.urandom(5 << 20)
        assert connection.download(connection.upload(data), len(data)) == data
        with pytest.raises(BackendError, match=r"onnxruntime cannot be loaded"):
            connection.job(build_of(connection.upload(relu())))
        assert connection.call("clean")[0]["removed_bytes"] > len(data)
    assert about["python"].startswith("3.8.")
    assert not os.path.exists(here.folder)


@SLOW
def test_hello_says_what_the_device_is(here):
    with here.connect() as connection:
        about = connection.call("hello", limit=0)[0]
    assert about["hardware"]["kind"] in ("CPU", "GPU")
    assert about["runtimes"]["onnxruntime"]
    assert about["folder"] == here.folder
    assert about["free_bytes"] > 0 < about["memory_bytes"]


def test_a_model_runs_as_it_does_here(here):
    array, feeds = batch()
    with here.connect() as connection:
        about = {"runtime": "onnxruntime", "engine": connection.upload(relu())}
        opened = connection.call("open", about)[0]
        answer, data = connection.call("run", {**about, "feeds": feeds}, array.tobytes())
        nothing = connection.call("run", {**about, "feeds": feeds, "outputs": []}, array.tobytes())
        with pytest.raises(BackendError, match="failed while running"):
            connection.call("run", {**about, "feeds": feeds, "outputs": ["z"]}, array.tobytes())
        with pytest.raises(InputError, match="cut off"):
            connection.call("run", {**about, "feeds": feeds}, array.tobytes()[:-1])
    assert opened["inputs"] == [{"name": "x", "dtype": "float32", "shape": [-1, 3]}]
    assert answer["outputs"] == [{"name": "y", "dtype": "float32", "shape": [2, 3]}]
    assert (np.frombuffer(data, np.float32).reshape(2, 3) == np.maximum(array, 0)).all()
    assert (nothing[0]["outputs"], nothing[1]) == ([], b"")


# Files by content.


def put(connection, data, offset, block, total=None):
    fields = {"digest": digest_bytes(data), "total": total or len(data), "offset": offset}
    return connection.call("put", fields, block)[0]["have"]


def test_a_file_goes_on_where_it_was_cut_and_is_whole_only_then(here):
    data = os.urandom(1000)
    with here.connect() as connection:
        assert put(connection, data, 0, data[:600]) == 600
        assert put(connection, data, 900, data[900:]) == 600  # nothing is there before it
        assert put(connection, data, 0, data[:600]) == 600  # repeated after a cut
        with pytest.raises(InputError, match="does not have"):
            connection.download(digest_bytes(data), len(data))
    with here.connect() as connection:
        assert put(connection, data, 600, data[600:]) == 1000
        assert connection.download(digest_bytes(data), len(data)) == data


@SLOW
def test_a_damaged_part_is_sent_again_and_never_taken_for_the_file(here):
    data = os.urandom(1000)
    with here.connect() as connection:
        put(connection, data, 0, data[:600])
        (part,) = Path(here.folder, "blobs").iterdir()
        part.write_bytes(bytes(600))  # as a power cut leaves it
        digest = connection.upload(data)
        assert connection.download(digest, len(data)) == data


def test_a_file_that_another_connection_finishes_meanwhile_is_there(here):
    data, answers = os.urandom(1000), []
    with here.connect() as connection:
        put(connection, data, 0, data[:600])
        (part,) = Path(here.folder, "blobs").iterdir()
        thread = threading.Thread(target=lambda: answers.append(put(connection, data, 600, data)))
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            thread.start()
            while str(part) not in here.opened():
                time.sleep(0.01)
            file.write(data[600:])
            part.rename(part.with_suffix(""))
        thread.join()
        assert answers == [1000]
        assert connection.download(digest_bytes(data), 1000) == data


@pytest.mark.parametrize("name", ["../../x", "sha256:" + "0" * 63 + "/", "sha256:" + "A" * 64, 5])
def test_a_digest_is_no_path(here, name):
    with here.connect() as connection, pytest.raises(InputError, match="a digest is"):
        connection.call("put", {"digest": name, "total": 1, "offset": 0}, b"x")


def limited(here, limit):
    here.start_by(f'ulimit {limit}; exec "$PYTHON" "$@"')


def test_a_full_disk_is_an_error_that_says_so(here):
    limited(here, "-f 1000")  # blocks of 512 or 1024 bytes
    with here.connect() as connection:
        with pytest.raises(ResourceError, match="disk of the device is full") as caught:
            connection.upload(os.urandom(2 << 20))
        small = connection.upload(b"small")  # it goes on with what fits
        assert connection.download(small, 5) == b"small"
    assert "clean" in caught.value.hint


def test_a_file_larger_than_the_disk_is_refused_before_it_is_sent(here):
    with here.connect() as connection, pytest.raises(ResourceError, match="no room for 524288 MiB"):
        put(connection, b"", 0, b"", total=1 << 39)


@SLOW
def test_no_memory_is_an_error_that_says_so(here):
    limited(here, "-v 600000")  # KiB
    with here.connect() as connection:
        with pytest.raises(ResourceError, match="no memory left"):
            connection.call("hello", {}, bytes(800 << 20))
        connection.upload(b"")
        connection.close()
        limited(here, "-v 4000000")
        about = {"runtime": "onnxruntime", "engine": connection.upload(outer())}
        feeds = [{"name": "x", "dtype": "float32", "shape": [40_000, 1]}]
        with pytest.raises(ResourceError, match="no memory left"):  # 6 GB of output
            connection.call("run", {**about, "feeds": feeds}, bytes(160_000))


# Jobs.


@SLOW
def test_a_build_brings_the_engine_its_graph_and_the_log(here):
    lines = []
    with here.connect() as connection:
        result = connection.job(build_of(connection.upload(relu())), log=lines.append)
        engine = connection.download(**result["files"]["engine"])
        optimized = connection.download(**result["files"]["optimized"])
    assert engine == relu()
    assert b"Relu" in optimized
    assert "onnxruntime" in "".join(lines)
    assert result["seconds"] > 0 < len(result["version"])
    assert not list(Path(here.folder, "jobs").glob("*/work"))


@SLOW
def test_engines_are_timed_in_turns(here):
    with here.connect() as connection:
        result = connection.job(time_of(connection, relu(), relu(), rounds=3))
    times = np.asarray(result["times_ms"])
    assert times.shape == (3, 2, 2)
    assert (times > 0).all()
    assert (result["compute_ms"], result["energy_mj"]) == (None, [None, None])


@SLOW
def test_the_same_key_is_one_job_whose_result_stays(here):
    with here.connect() as connection:
        job = time_of(connection, relu())
        first = connection.job(job)
        again = connection.job(job)
        other = connection.job({**job, "nonce": "another"})
    assert first == again != other


@SLOW
def test_a_failed_job_says_why_and_its_key_starts_again(here):
    with here.connect() as connection:
        broken, good = connection.upload(b"no model"), connection.upload(relu())
        with pytest.raises(BackendError, match="cannot load the model"):
            connection.job(build_of(broken), KEY)
        assert connection.job(build_of(good), KEY)["files"]["engine"]["size"] == len(relu())
        with pytest.raises(InputError, match="a job has a kind"):
            connection.job({"kind": "shell"})
        with pytest.raises(InputError, match="no runtime 'os'"):
            connection.job({**build_of(good), "runtime": "os"})


def start(here, connection, key=KEY):
    """Start a job that never ends, and wait until it runs."""
    connection.call("start", {"key": key, "job": time_of(connection, endless())})
    assert until(connection, key, "running", "done", "failed")["state"] == "running"
    while len(here.processes("/jobs/")) < 2:
        time.sleep(0.01)


def test_a_killed_job_is_failed_and_the_same_key_starts_it_again(here):
    with here.connect() as connection:
        start(here, connection)
        assert here.kill("/jobs/") == 2
        answer = until(connection, KEY, "failed")
        connection.call("start", {"key": KEY, "job": time_of(connection, relu())})
        result = until(connection, KEY, "done")["result"]
    assert "ended without a result: its processes were killed" in answer["error"]["message"]
    assert np.asarray(result["times_ms"]).shape == (2, 1, 2)


@SLOW
@pytest.mark.parametrize(
    ("number", "kind", "what"),
    [
        (signal.SIGSEGV, "backend", "crashed (SIGSEGV)"),
        (signal.SIGKILL, "resource", "killed, as systems do when memory runs out"),
    ],
)
def test_a_crash_of_the_runtime_differs_from_a_lack_of_memory(here, number, kind, what):
    with here.connect() as connection:
        start(here, connection)
        os.kill(max(here.processes("/jobs/")), number)
        error = until(connection, KEY, "failed")["error"]
    assert (error["kind"], what in error["message"]) == (kind, True)


@SLOW
def test_a_job_lives_as_long_as_its_child_and_the_worker_need_not(here):
    with here.connect() as connection:
        start(here, connection)
        child = max(here.processes("/jobs/"))
        assert here.kill(besides=child) == 2  # the job's supervisor, and the worker
        assert until(connection, KEY, "running", "failed")["state"] == "running"
        connection.call("start", {"key": KEY, "job": build_of(KEY)})  # joins: no second one starts
        assert here.processes("/jobs/") == [child]
        here.kill("/jobs/")
        assert until(connection, KEY, "failed", "done")["state"] == "failed"


@SLOW
def test_a_job_of_before_a_restart_of_the_device_says_so(here):
    with here.connect() as connection:
        start(here, connection)
        here.kill("/jobs/")
        (about,) = Path(here.folder, "jobs").glob("*/job.json")
        about.write_text(re.sub(r'"boot": "[^"]*"', '"boot": "before"', about.read_text()))
        error = until(connection, KEY, "failed")["error"]
    assert error["kind"] == "resource"
    assert "the device restarted" in error["message"]


@SLOW
def test_a_job_is_cancelled_while_it_runs_and_while_it_waits(here):
    with here.connect() as connection:
        other = digest_bytes(b"another")
        start(here, connection)
        connection.call("start", {"key": other, "job": time_of(connection, relu())})
        assert connection.call("poll", {"key": other})[0]["state"] == "queued"
        for key in (other, KEY):
            connection.call("cancel", {"key": key})
            assert "cancelled" in until(connection, key, "failed")["error"]["message"]
        assert here.processes("/jobs/") == []
        assert connection.job(time_of(connection, relu()), KEY)["warm_up"] > 0


# The lock, and what is left.


def is_free(file):
    """Tell whether nobody has the lock of a file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


@SLOW
def test_two_users_queue_and_a_killed_holder_frees_the_device(here, tmp_path, capsys):
    second = LocalDevice(str(tmp_path / "second"))
    ahead = []
    with here.connect() as first, second.connect() as other:
        start(here, first)

        def release(text):
            ahead.append(text)
            here.kill("/jobs/")

        result = other.job(time_of(other, relu()), waiting=release)
    assert re.fullmatch(r"\w+ \(measurement, since \d\d:\d\d\)", ahead[0])
    assert len(result["times_ms"]) == 2
    notes = capsys.readouterr().err
    assert (notes.count("this command waits"), f"in use by {ahead[0]}" in notes) == (1, True)


@SLOW
def test_a_run_waits_while_a_job_has_the_device(here):
    array, feeds = batch()
    with here.connect() as connection, here.connect() as other:
        about = {"runtime": "onnxruntime", "engine": connection.upload(relu()), "feeds": feeds}
        with open(lock.lock_path(), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            connection.call("open", about)
            channel = connection._channel
            channel.number += 1
            worker.frames.write_frame(
                channel.requests, {**about, "op": "run", "id": channel.number}, [array.tobytes()]
            )
            with open(lock.lock_path() + lock.GATE, "ab") as gate:
                while is_free(gate):
                    assert not select.select([channel.answers], [], [], 0.01)[0]
            other.upload(b"")  # it does not wait
        assert channel._answer(1 << 20)["ok"]


def test_a_job_that_waits_goes_before_runs_that_come_later(tmp_path, monkeypatch):
    monkeypatch.setenv("TRTCAL_DEVICE_LOCK", str(tmp_path / "lock"))

    def later():
        with pytest.raises(Fault, match="in use by others"), lock.turn(wait_s=0.0):
            pass
        raise Fault("input", "checked")

    with lock.turn():
        with lock.turn(wait_s=0.0):
            pass  # runs share the device
        with pytest.raises(Fault, match="checked"), lock.turn("build", check=later):
            pass
    with lock.turn("build", wait_s=0.0):
        assert "(build, since" in lock.holder()
    assert lock.holder() == ""


def test_the_lock_is_a_file_and_one_that_any_user_can_open(tmp_path, monkeypatch):
    monkeypatch.setenv("TRTCAL_DEVICE_LOCK", str(tmp_path / "lock"))
    with lock.turn("build"):
        assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o666] * 2
    lock.remove_lock()
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(Fault, match="is not a file"), lock.turn():
        pass


def test_a_lock_that_another_removes_is_closed_and_taken_anew(tmp_path, monkeypatch):
    def removing(handle, how):
        (tmp_path / "lock").unlink()

    opened = os.listdir("/proc/self/fd")
    monkeypatch.setattr(lock.fcntl, "flock", removing)
    assert lock._take(str(tmp_path / "lock"), fcntl.LOCK_EX) is None
    assert os.listdir("/proc/self/fd") == opened


def test_clean_says_which_job_runs_and_leaves_nothing(here, tmp_path):
    with here.connect() as connection:
        start(here, connection)
        with pytest.raises(
            ResourceError, match=r"a job 'measurement' of \w+ is running on the device"
        ):
            connection.call("clean")
        assert until(connection, KEY, "running", "failed")["state"] == "running"
        assert connection.call("clean", {"end_jobs": True})[0]["removed_bytes"] > 0
        assert here.processes("/jobs/") == []
    assert os.listdir(tmp_path) == []


def test_a_program_of_a_job_has_the_device_as_long_as_it_lives(tmp_path, monkeypatch):
    monkeypatch.setenv("TRTCAL_DEVICE_LOCK", str(tmp_path / "lock"))
    started = []
    with lock.turn("build") as handle:
        monkeypatch.setattr(jobs, "_locks", [handle])
        program = ["sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!; exit 3"]
        assert jobs.run_program(program, str(tmp_path), started.append) == 3
    with pytest.raises(Fault, match="in use"), lock.turn("measurement", wait_s=0.0):
        pass
    os.kill(int(started[0]), signal.SIGKILL)
    with lock.turn("measurement"):
        pass


@SLOW
def test_clean_leaves_the_files_of_others(here):
    with here.connect() as connection:
        connection.upload(b"ours")
        Path(here.folder, "theirs.txt").write_text("theirs")
        connection.call("clean")
        assert os.listdir(here.folder) == ["theirs.txt"]
        connection.upload(b"ours")  # it begins again
        assert len(os.listdir(here.folder)) == 3
