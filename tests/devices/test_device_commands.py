"""`trtcal device`: devices that are added, listed, checked, cleaned and removed; the real worker."""

import json
import shutil
import sys
from dataclasses import replace

import onnxruntime
import pytest

from tests.fixtures.commands import answer, refused, run, shows, succeed
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import find_backend
from trtcal.config import Config, parse_config
from trtcal.documents import state_path, write_document, write_json
from trtcal.errors import BackendError, InputError
from trtcal.evidence.manifest import MANIFEST
from trtcal.model import load_model
from trtcal.runs.bundle.verifying import MANIFEST as BUNDLE
from trtcal.wings.devices.connection import Connection
from trtcal.wings.devices.registry import facts_of, find_device, recall

VERSION = onnxruntime.__version__


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, with the user's own files in another."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield tmp_path
    Config().in_use()


def added(capsys, place, name="board"):
    folder = place / "device"
    words = ("device", "add", name, "local:", "--python", sys.executable, "--folder", folder)
    return succeed(capsys, *words)


def test_a_device_is_added_listed_checked_cleaned_and_removed(place, capsys):
    assert added(capsys, place).startswith("added @board, CPU: ")
    (row,) = answer(capsys, "device", "list")
    assert (row["name"], row["host"], row["python"]) == ("board", "local:", sys.executable)
    assert row["facts"]["runtimes"]["onnxruntime"] == VERSION
    shows(succeed(capsys, "device", "list"), "@board", "local:", f"onnxruntime {VERSION}")
    shows(succeed(capsys, "device", "check", "board"), "@board", VERSION, "CPU", "Python")
    checked = answer(capsys, "device", "check", "@board")
    assert (checked["hardware"]["kind"], checked["stale"]) == ("CPU", [])
    assert checked["free_bytes"] > 0
    assert list((place / "device").iterdir())
    assert answer(capsys, "device", "clean", "board")["removed_bytes"] > 0
    assert not list(place.glob("device/*"))
    assert list((place / "device").glob("worker*")) == []
    added(capsys, place)
    assert succeed(capsys, "device", "remove", "board") == "removed @board\n"
    assert not (place / "device").exists()
    assert answer(capsys, "device", "list") == []
    shows(refused(capsys, "device", "check", "board"), "@board", "device add")
    assert not list(place.glob("state/trtcal/devices/*"))


def test_devices_of_trtcal_toml_come_first_and_stay_there(place, capsys):
    added(capsys, place)
    text = '[devices.board]\nhost = "user@other"\n[devices.gate]\nhost = "ssh://a@b:2222"\n'
    (place / "here" / "trtcal.toml").write_text(text)
    rows = {row["name"]: row for row in answer(capsys, "device", "list")}
    assert (rows["board"]["host"], rows["board"]["facts"]) == ("user@other", None)
    assert (rows["gate"]["host"], rows["gate"]["from"]) == ("ssh://a@b:2222", "trtcal.toml")
    shows(refused(capsys, "device", "remove", "gate"), "@gate", "trtcal.toml", "[devices.gate]")
    succeed(capsys, "device", "remove", "board")
    assert [row["from"] for row in answer(capsys, "device", "list")] == ["trtcal.toml"] * 2


@each(
    "host",
    ["-oProxyCommand=x", "user@-x", "ssh://-x", "a b", "a\nb", "a\x1b[2J", "", "a:22", "a;b", "ü"],
)
def test_a_host_that_ssh_could_misread_is_refused(host, place, capsys):
    status, _, err = run(capsys, "device", "add", "board", "--", host)
    assert (status, "host' must be a host such as" in err) == (2, True), err
    with fails(InputError, "devices.board.host"):
        parse_config(f"[devices.board]\nhost = {json.dumps(host)}\n", place / "trtcal.toml")
    assert not state_path("devices.json").exists()


@each("size", ["many", -1, None, True, 1.5])
def test_a_size_that_is_none_is_refused(size, place, capsys):
    added(capsys, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "call", lambda *_, **__: ({"removed_bytes": size}, b""))
        shows(refused(capsys, "device", "clean", "board", status=3), "@board", repr(size))


@each("name", ["slices", "a b", "", "x" * 33, "a/b", "..", "a.b", "@a", "ä", "-a", "_a"])
def test_a_name_that_is_no_target_is_refused(name, place, capsys):
    shows(refused(capsys, "device", "add", "--", name, "local:"), "1 to 32 letters")
    with fails(InputError, "1 to 32 letters"):
        text = f"[devices.{json.dumps(name, ensure_ascii=False)}]\nhost = 'local:'\n"
        parse_config(text, place / "trtcal.toml")


@each(
    "key, value", [("python", "-c"), ("python", "a b"), ("container", "-v/:/x"), ("folder", "a\tb")]
)
def test_words_that_could_be_options_are_refused(key, value, place):
    with fails(InputError, f"devices.a.{key}"):
        text = f"[devices.a]\nhost = 'b'\n{key} = {json.dumps(value)}\n"
        parse_config(text, place / "trtcal.toml")


def test_a_device_is_added_though_it_does_not_answer(place, capsys):
    words = ("device", "add", "gone", "local:", "--python", place / "python")
    status, _, err = run(capsys, *words)
    assert status == 0
    shows(err, "it does not answer")
    shows(refused(capsys, "device", "check", "gone", status=3), "@gone")
    shows(succeed(capsys, "device", "list"), "@gone", "not known yet")
    status, _, err = run(capsys, "device", "remove", "gone")
    assert (status, answer(capsys, "device", "list")) == (0, [])
    shows(err, "the files on the device stay there")


def test_a_device_that_builds_nothing_says_what_it_lacks(place, capsys):
    """A Python without packages, on a machine without a GPU."""
    python, without = place / "python", place / "without"
    without.mkdir()
    (without / "onnxruntime.py").write_text("raise ImportError")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={without} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = ("device", "add", "bare", "local:", "--python", python, "--folder", place / "device")
    status, _, err = run(capsys, *words)
    assert (status, "`trtcal device check bare`" in err) == (0, True)
    (lack,) = answer(capsys, "device", "check", "bare")["lacks"]
    assert lack["command"].endswith("-m pip install onnxruntime")
    conv_net("net.onnx")
    err = refused(capsys, "build", "net.onnx", "--target", "@bare", status=3)
    assert err.startswith("error: the device @bare has nothing that builds")


def test_without_devices_the_list_says_how_to_add_one(place, capsys):
    status, _, err = run(capsys, "device", "list")
    assert (status, "trtcal device add NAME" in err) == (0, True)


def test_a_damaged_file_of_devices_is_one_error(place, capsys):
    added(capsys, place)
    path = state_path("devices.json")
    document = json.loads(path.read_text())
    document["board"]["host"] = "-oProxyCommand=x"
    for text in ("{", "[]", '{"slices": {"host": "a"}}', json.dumps(document)):
        path.write_text(text)
        shows(refused(capsys, "device", "list"), "devices.json", "delete the file")


FACTS = {
    "python": "3.10.12",
    "system": "Linux",
    "machine": "aarch64",
    "user": "user",
    "folder": "/home/user/.cache/trtcal-device",
    "free_bytes": 1 << 30,
    "hardware": {"kind": "GPU", "name": "Orin", "capability": "sm87", "driver": "540.4"},
    "runtimes": {"tensorrt": "10.3.0", "onnxruntime": "1.20.0"},
}


def test_what_a_device_says_decides_what_builds_there():
    facts = facts_of(FACTS)
    assert (facts.runtime, facts.version, facts.backend) == ("tensorrt", "10.3.0", "tensorrt")
    assert str(facts.hardware) == "Orin (sm87)"
    only_program = facts_of({**FACTS, "runtimes": {"trtexec": "8.6.1"}})
    assert (only_program.runtime, only_program.backend) == ("trtexec", "tensorrt")
    nothing = facts_of({**FACTS, "runtimes": {"onnxruntime": "1.20.0"}})  # there the GPU is idle
    assert (nothing.runtime, nothing.version) == (None, None)
    cpu = facts_of({**FACTS, "hardware": {"kind": "CPU", "name": "A78"}})
    assert (cpu.runtime, cpu.backend) == ("onnxruntime", "onnxruntime")


@each(
    "change",
    [
        {"free_bytes": "much"},
        {"runtimes": ["tensorrt"]},
        {"runtimes": {"tensorrt": 10}},
        {"hardware": {"kind": "TPU", "name": "x"}},
        {"hardware": None},
        {"lacks": "all"},
        {"python": ["3"]},
    ],
)
def test_what_no_worker_says_is_refused(change):
    with fails(BackendError, "the device", hint="update trtcal"):
        facts_of({**FACTS, **change})
    with fails(BackendError):
        facts_of(None)


def test_what_another_machine_under_the_name_said_is_forgotten(place, capsys):
    added(capsys, place)
    device = find_device("board")
    assert recall("board", device).runtimes["onnxruntime"] == VERSION
    assert recall("board", replace(device, host="user@other")) is None
    state_path("devices/board.json").write_text("{}")
    assert recall("board", device) is None


@pytest.fixture
def old(place, capsys):
    """A build on a device, in a folder, a run and a bundle, as an older ONNX Runtime made it."""
    added(capsys, place)
    path = conv_net(place / "here" / "net.onnx")
    backend, target = find_backend(None, "@board")
    result = build(load_model(path), backend, BuildOptions(target), place / "built")
    folders = [
        place / "here" / name for name in ("alone", "run/builds/net-@board", "b/engines/@board")
    ]
    for folder in folders:
        folder.mkdir(parents=True)
        shutil.copy(result.engine, folder)
        write_document(folder / MANIFEST, replace(result, backend_version="1.0.0").to_document())
    write_json(place / "here" / "run" / "run.json", {"command": "trtcal run net.toml"})
    (place / "here" / "b" / BUNDLE).write_text("{}")
    shutil.copytree(result.folder, place / "here" / "fresh")
    return result


def test_check_names_what_an_update_made_stale_and_the_command(old, capsys):
    stale = answer(capsys, "device", "check", "board")["stale"]
    by_path = {(item["kind"], item["path"]): item for item in stale}
    assert by_path.keys() == {("engine", "alone"), ("run", "run"), ("bundle", "b")}
    assert {item["why"] for item in stale} == {f"onnxruntime 1.0.0 -> {VERSION}"}
    assert by_path["run", "run"]["command"] == "trtcal run net.toml"
    assert by_path["engine", "alone"]["command"] == "trtcal build net.onnx --target @board -o alone"
    shows(succeed(capsys, "device", "check", "board"), "alone", "trtcal run net.toml")


@SLOW
def test_a_new_driver_makes_stale_too(old, place, capsys):
    measured = {**old.measured, "device": {**old.measured["device"], "driver": "535.1"}}
    folder = place / "here" / "fresh"
    write_document(folder / MANIFEST, replace(old, measured=measured).to_document())
    stale = {item["path"]: item for item in answer(capsys, "device", "check", "board")["stale"]}
    assert stale["fresh"]["why"] == "driver 535.1 -> none"
