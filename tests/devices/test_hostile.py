"""A device that lies: each lie is one error, within bounds, that a terminal cannot be deceived by."""

import contextlib
import os
import re
import resource
import shutil
import sys
import traceback

import pytest

from tests.fixtures.hostile import HARMLESS, LIES, hostile_python
from tests.fixtures.killing import forked, tree
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.slow import slow_but
from trtcal.cli.main import run_command
from trtcal.wings.devices import connection

CHECK = "device check bad"
BUILD = "build net.onnx --target @bad -o built"
COMPARE = "compare net.onnx int8.onnx --data data.npz --rounds 2 --on bad"
COMMANDS = {"boot": CHECK, "hello": CHECK, "open": COMPARE, "run": COMPARE}
MEASURED = ("times", "energy", "clocks", "warm-up", "warnings")
TABLE = '[devices.bad]\nhost = "local:"\npython = "{}"\nfolder = "{}"\n'
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
MORE_BYTES = 200 << 20
QUICK = (
    "gigabyte that nobody asked for",
    "engine that is a path",
    "error of a megabyte of escapes",
)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A folder with models and data, in which the device has built them already."""
    folder = tmp_path_factory.mktemp("honest")
    conv_net(folder / "net.onnx")
    samples(folder / "data.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in ("calibrate net.onnx --data data.npz", "quantize net.onnx -o int8.onnx"):
            assert run_command(words.split()) == 0
        configure(folder, sys.executable)
        assert outcome(folder, COMPARE)[0] == 0
        (folder / "comparison.json").unlink()
    return folder


def configure(folder, python):
    (folder / "trtcal.toml").write_text(TABLE.format(python, folder / "device"))


def outcome(folder, words):
    """Run a command in a forked process; return its status, all it printed, and its memory in bytes."""
    child = forked(lambda: os._exit(printed_to(folder / "printed", words)), wait=False)
    _, status, usage = os.wait4(child, 0)
    text = (folder / "printed").read_bytes().decode()
    return os.waitstatus_to_exitcode(status), text, usage.ru_maxrss << 10


def printed_to(path, words):
    with path.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        try:
            return run_command(words.split())
        except BaseException:
            traceback.print_exc(file=file)
            return 99


@pytest.fixture
def lie(honest, tmp_path, monkeypatch):
    """Run a command on a device that lies; return its status and what it printed."""
    monkeypatch.setattr(connection, "RETRIES_S", (0.0,) * len(connection.RETRIES_S))
    monkeypatch.setattr(connection, "LOG_LIMIT_BYTES", 1 << 22)
    monkeypatch.chdir(honest)

    def run(name, table):
        configure(honest, hostile_python(tmp_path / "python", name))
        command = COMPARE if name.startswith(MEASURED) else COMMANDS.get(table[name].op, BUILD)
        shutil.rmtree("built", ignore_errors=True)
        before, usual = files(honest), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        status, text, memory_bytes = outcome(honest, command)
        assert memory_bytes < usual + MORE_BYTES
        assert not CONTROL.search(text), repr(text)
        return status, text, files(honest) - before

    return run


def files(folder):
    return {name for name in tree(folder) if not name.startswith(("device", "printed"))}


@pytest.mark.parametrize("name", slow_but(LIES, *QUICK))
def test_a_lie_is_one_error(lie, name):
    status, text, written = lie(name, LIES)
    assert status in (2, 3, 4), text
    assert len(re.findall("^error: ", text, re.MULTILINE)) == 1, text
    assert re.search("^hint: ", text, re.MULTILINE), text
    assert "Traceback" not in text
    assert "is not known" not in text
    assert len(text) < 4000
    assert not {"built/build.json", "comparison.json"} & written
    assert all(path.startswith("built/") for path in written)


@pytest.mark.parametrize("name", slow_but(HARMLESS, "name with escapes"))
def test_texts_of_a_device_do_not_reach_the_terminal(lie, name):
    status, text, _ = lie(name, HARMLESS)
    assert status == 0, text
