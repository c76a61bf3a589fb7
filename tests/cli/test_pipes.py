"""Who reads what trtcal prints may leave at any time, or was never there."""

import json
import os
import subprocess
import time

import pytest

from tests.fixtures.commands import PROGRAM, environment
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.slow import SLOW, slow_but
from tests.reporting.samples import build, comparison, write_run
from tests.runs.runs import report
from trtcal.ranges import Calibration, TensorRange
from trtcal.runs.history import History

FAILED = (
    "[11/21/2026-05:00:00] [E] [TRT] 4: [network.cpp::validate::3062] Error Code 4: no output\n"
)
ENDED = "&&&& FAILED TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=x.onnx\n"
HISTORY = "history {} --db h.sqlite"

COMMANDS = {
    "": 0,
    "--help": 0,
    "--version": 0,
    "calibrate --help": 0,
    "completion bash": 0,
    "log --explain": 0,
    "log --explain --json": 0,
    "doctor": 0,
    "doctor --json": 0,
    "log good.log": 0,
    "log bad.log": 1,
    "log bad.log --json": 1,
    "log bad.log good.log --json": 1,
    "log - --exit-zero": 0,
    "report run --md": 0,
    "report --schema run": 0,
    "verify run": 0,
    "ranges show calibration.json": 0,
    "ranges show calibration.json --json": 0,
    "plan show plan.json": 0,
    HISTORY.format("list"): 0,
    HISTORY.format("export"): 0,
    HISTORY.format("export --format csv"): 0,
    HISTORY.format("check --limit 'speedup>=50'").replace("'", ""): 1,
    "no-such-command": 2,
    "log missing.log": 2,
    "calibrate --batch none": 2,
}


def ranged(path, ranges):
    """Write ranges that are the same for all tensors."""
    made = ("minmax", {}, "sha256:m", "sha256:d", 128, "float32")
    ranges = {name: TensorRange(2.0, 3.0, 0.001, "x") for name in ranges}
    Calibration(*made, ranges=ranges, unranged={}).write(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipes")
    (folder / "good.log").write_text("[11/21/2026-05:00:00] [W] [TRT] of a layer\n" * 3)
    (folder / "bad.log").write_text(FAILED + ENDED)
    write_run(folder / "run", comparison(), build("sha256:int8", {"conv1": "int8"}))
    ranged(folder / "calibration.json", (f"tensor {number}" for number in range(3000)))
    (folder / "plan.json").write_text(json.dumps({"layers": {"conv": "fp32"}}))
    history = History(folder / "h.sqlite")
    for number in range(3):
        history.record(report(number))
    return folder


def start(place, arguments, **streams):
    return subprocess.Popen([*PROGRAM, *arguments], cwd=place, env=environment(), **streams)


def unread():
    """Return the end of a pipe to write to, which nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def run_unread(place, arguments, stderr=subprocess.PIPE):
    """Run a command whose output nobody reads; return its status and what it says of that."""
    gone = unread()
    streams = {"stdin": subprocess.DEVNULL, "stdout": gone, "stderr": stderr or gone}
    child = start(place, arguments, **streams)
    os.close(gone)
    err = child.communicate(timeout=600)[1]
    return child.returncode, (err or b"").decode()


@pytest.mark.parametrize(
    ("command", "status"),
    slow_but(COMMANDS.items(), ("log --explain", 0), ("log bad.log --json", 1)),
)
def test_a_result_that_nobody_reads_is_no_failure(place, command, status):
    found, err = run_unread(place, command.split())
    assert found == status, err
    assert not [one for one in ("Exception ignored", "defect", "roken pipe") if one in err]
    assert err.count("error: ") == (status > 0)


@pytest.mark.parametrize(
    "command",
    slow_but(
        ["--help", "doctor --json", "log bad.log", "no-such-command", "log missing.log"],
        "log missing.log",
    ),
)
def test_errors_and_notes_that_nobody_reads_are_none_either(place, command):
    assert run_unread(place, command.split(), stderr=None)[0] == COMMANDS[command]


@pytest.mark.parametrize(
    "command",
    slow_but(
        [
            *("--help", "log --explain --json", "log bad.log --json", "plan show plan.json"),
            "log missing.log",
        ],
        "log --explain --json",
    ),
)
def test_standard_files_that_are_closed_are_no_failure(place, command):
    line = f"{' '.join(PROGRAM)} {command} <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", line], cwd=place, env=environment(), check=False)
    assert done.returncode == COMMANDS.get(command)


@pytest.mark.parametrize(
    "command", ["ranges show calibration.json -v", "ranges show calibration.json --json"]
)
def test_a_reader_that_leaves_after_a_byte_is_no_failure(place, command):
    child = start(place, command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.read(1)
    child.stdout.close()  # most of it does not fit into a pipe
    err = child.stderr.read()
    child.stderr.close()
    assert (child.wait(timeout=600), err) == (0, b"")


@SLOW
def test_work_goes_on_when_nobody_reads_what_is_printed_of_it(place, tmp_path):
    conv_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz")
    status, _ = run_unread(tmp_path, ["calibrate", "net.onnx", "--data", "data.npz", "-v"])
    assert status == 0
    assert Calibration.read(tmp_path / "calibration.json").ranges


def test_nothing_is_followed_for_nobody(place, tmp_path):
    (tmp_path / "growing.log").write_text(FAILED)
    gone = unread()
    child = start(tmp_path, ["log", "--follow", "growing.log"], stdout=gone, stderr=subprocess.PIPE)
    os.close(gone)
    for _ in range(3_000):
        if child.poll() is not None:
            break
        with (tmp_path / "growing.log").open("a") as log:
            log.write(FAILED)
        time.sleep(0.2)
    child.kill()
    err = child.communicate()[1]
    assert child.returncode in (0, 1), err
    assert b"Exception" not in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_a_full_disk_is_still_an_error(place):
    with open("/dev/full", "wb") as full:
        child = start(place, ["log", "--explain", "--json"], stdout=full, stderr=subprocess.PIPE)
        err = child.communicate(timeout=600)[1].decode()
    assert child.returncode == 4
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "hint"]


def test_a_terminal_of_another_encoding_gets_escapes_and_json_stays_utf8(tmp_path):
    ranged(tmp_path / "c.json", ["数字é"])
    program = [*PROGRAM, "ranges", "show", "c.json"]
    options = {"cwd": tmp_path, "env": environment(PYTHONIOENCODING="latin-1"), "check": True}
    text, document = (
        subprocess.run([*program, *more], capture_output=True, **options).stdout
        for more in ([], ["--json"])
    )
    assert "\\u6570\\u5b57é" in text.decode("latin-1")
    assert list(json.loads(document)["ranges"]) == ["数字é"]
