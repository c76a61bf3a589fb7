"""Full disks, too little memory, two users at once, and an update between build and run."""

import fcntl
import itertools
import re
import shlex
import shutil
import subprocess
import sys

import onnxruntime
import pytest

from tests.fixtures.commands import run, shows, succeed
from tests.fixtures.cuts import RUNTIME, network, use
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.slow import SLOW
from trtcal.config import DeviceConfig
from trtcal.evidence.manifest import read_build
from trtcal.wings.devices import connection
from trtcal.wings.devices.connection import Connection

TABLE = '[devices.here]\nhost = "local:"\npython = "{}"\nfolder = "{}"\n'
BUILD = ("build", "net.onnx", "--target", "@here", "-o", "built")
UNSHARE = shutil.which("unshare") or "false"
UPDATED = """\
import importlib, sys
sys.path.remove({folder!r})
del sys.modules["onnxruntime"]
importlib.import_module("onnxruntime").__version__ = "99.0"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Have a device whose Python is started by a line of shell; return a function for that line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTCAL_DEVICE_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(connection, "RETRIES_S", (0.0,) * len(connection.RETRIES_S))
    (tmp_path / "net.onnx").write_bytes(network(4096))
    numbers = itertools.count()

    def start_by(line):
        script = tmp_path / f"python-{next(numbers)}"  # a connection of its own
        script.write_text(f"#!/bin/sh\n{line.format(python=shlex.quote(sys.executable))}\n")
        script.chmod(0o755)
        (tmp_path / "trtcal.toml").write_text(TABLE.format(script, tmp_path / "device"))
        return tmp_path

    return start_by


def one_error(capsys, *words):
    """Run a command that ends for lack of something; return what it prints of that."""
    status, _, err = run(capsys, *words)
    assert status == 4, err
    assert len(re.findall("^error: ", err, re.MULTILINE)) == 1, err
    assert len(re.findall("^hint: ", err, re.MULTILINE)) == 1, err
    return err


@SLOW
def test_a_full_disk_is_one_error_and_its_files_stay_valid(here, capsys):
    usual = here('exec {python} "$@"') / "usual"
    succeed(capsys, *BUILD[:-1], "usual")
    succeed(capsys, "device", "clean", "here")
    for kilobytes in (60, 100):
        here(f'ulimit -f {2 * kilobytes}; exec {{python}} "$@"')
        shows(one_error(capsys, *BUILD), "full", "trtcal device clean NAME")
    here('exec {python} "$@"')
    succeed(capsys, *BUILD)
    assert read_build(here("") / "built").digest == read_build(usual).digest


@SLOW
def test_a_disk_with_room_for_a_part_of_a_build_is_one_error(here, capsys):
    folder = here("")
    device = folder / "device"
    mount = "mount -t tmpfs -o size={} tmpfs " + str(device)
    device.mkdir()
    if subprocess.run([UNSHARE, "-Urm", *mount.format("1m").split()], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    statuses = []
    for kilobytes in (64, 192, 320, 400, 2000):
        line = mount.format(f"{kilobytes}k") + ' && exec {python} "$@"'
        here(f"exec {UNSHARE} -Urm sh -c '{line}' sh \"$@\"")
        status, _, err = run(capsys, *BUILD)
        assert status == 0 or len(re.findall("^error: ", err, re.MULTILINE)) == 1, err
        statuses.append(status)
    assert statuses[-1] == 0
    assert set(statuses[:-1]) <= {0, 4}
    assert statuses[0] == 4


@SLOW
def test_too_little_memory_is_one_error(here, capsys):
    statuses = []
    for megabytes in (120, 180):
        here(f'ulimit -v {megabytes << 10}; exec {{python}} "$@"')
        status, _, err = run(capsys, *BUILD)
        assert not status or len(re.findall("^error: ", err, re.MULTILINE)) == 1, err
        assert "Traceback" not in err
        statuses.append(status)
    assert statuses[0]
    assert set(statuses) <= {0, 3, 4}


@SLOW
def test_two_users_queue(tmp_path, monkeypatch):
    monkeypatch.setenv("TRTCAL_DEVICE_LOCK", str(tmp_path / "lock"))
    folders = [str(tmp_path / name) for name in "ab"]
    devices = [DeviceConfig("local:", sys.executable, folder=folder) for folder in folders]
    with (tmp_path / "lock").open("w") as lock, Connection(devices[0]) as first:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Connection(devices[1]) as second:
            users = (first, second)
            keys = [started(user) for user in users]
            before = [state_of(*pair) for pair in zip(users, keys, strict=True)]
            fcntl.flock(lock, fcntl.LOCK_UN)
            folders = [next((tmp_path / name / "jobs").iterdir()) for name in ("a", "b")]
            overlaps = 0
            while not all((folder / "result.json").exists() for folder in folders):
                overlaps += all(map(computes, (*folders, folders[0])))
            assert use(first)["outputs"] == use(second)["outputs"]
    assert before == ["queued", "queued"]
    assert overlaps == 0


def computes(folder):
    return (folder / "running").exists() and not (folder / "result.json").exists()


def started(user):
    job = {**RUNTIME, "kind": "build", "model": user.upload(network())}
    key = "sha256:" + "1" * 64
    user.call("start", {"key": key, "job": job})
    return key


def state_of(user, key):
    return user.call("poll", {"key": key, "offset": 0})[0]["state"]


@SLOW
def test_an_update_between_build_and_run_names_both_versions_and_the_command(here, capsys):
    folder = here('exec {python} "$@"')
    conv_net(folder / "net.onnx")
    samples(folder / "data.npz")
    conv_net(folder / "reference.onnx")
    succeed(capsys, *BUILD)
    package = folder / "update" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(UPDATED.format(folder=str(package.parent)))
    here(f'PYTHONPATH={package.parent} exec {{python}} "$@"')
    status, _, err = run(
        capsys, "compare", "reference.onnx", "built", "--data", "data.npz", "--on", "here"
    )
    assert status == 2, err
    shows(err, onnxruntime.__version__, "99.0", "trtcal build")
    out = succeed(capsys, "device", "check", "here", "--json")
    shows(out, "built", "trtcal build net.onnx --target @here -o built")
