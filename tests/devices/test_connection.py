"""The connection to a device: what it runs, how it goes on after a cut, what it takes."""

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.fixtures.local_device import LocalDevice, endless, here, relu, time_of, until
from tests.fixtures.slow import SLOW
from trtcal.errors import BackendError, InputError, ResourceError, TrtcalError
from trtcal.wings.devices import connection as connections
from trtcal.wings.devices.connection import Connection, command_of, key_of
from trtcal.wings.devices.packing import pack

__all__ = ["here"]

ANSWER = '{"id": 1, "ok": true, "size": 0}'


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(connections, "RETRIES_S", (0.0,) * 7)
    monkeypatch.setattr(connections, "BUSY_S", 0.0)


def liar(here, greeting="MARK ready", *answers, then=""):
    """Make a device's Python a program that says these things, whatever is asked."""
    lines, runs = Path(f"{here.folder}-answers"), Path(f"{here.folder}-runs")
    lines.write_text("\n".join(answers) + "\n" * bool(answers))
    greet = f"for last; do :; done; echo {shlex.quote(greeting)} | sed s/MARK/$last/"
    here.start_by(f"echo $$ >> {runs}\n{greet}\nread -r request\ncat {lines}\n{then}")
    return lambda: len(runs.read_text().splitlines())


# What is run.


def test_ssh_gets_options_that_ask_nothing_and_then_only_the_host(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TRTCAL_SSH", "ssh -F 'my config'")
    words = command_of(LocalDevice("~/my folder", "python3", "ssh://me@orin.local:2222"), "mark")
    options = set(words[4:-3:2])
    assert words[:4] == ["ssh", "-F", "my config", "-T"]
    assert words[-3:-1] == ["--", "ssh://me@orin.local:2222"]
    assert {"BatchMode=yes", "ForwardAgent=no", "ControlMaster=auto"} < {*words[5:-3:2]}
    assert options == {"-o"}
    assert not any("StrictHostKeyChecking" in word or "Password" in word for word in words)
    assert (tmp_path / f"trtcal-ssh-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    shell = shlex.split(words[-1])
    assert (shell[:3], shell[4]) == (["exec", "python3", "-c"], "~/my folder")


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=x", "me@-x", "a b", "ssh://", "a;b", "", "a\nb", "@a"]
)
def test_a_host_that_is_none_is_refused(host):
    with pytest.raises(InputError, match="is no address that ssh takes"):
        Connection(LocalDevice("~/x", host=host))


@pytest.mark.parametrize(
    "host", ["orin", "me@10.0.0.7", "me@[fe80::1]", "ssh://orin:22", "ssh://a.b@orin.local/"]
)
def test_addresses_of_ssh_are_taken(host):
    Connection(LocalDevice("~/x", host=host))


def test_shared_connections_lie_in_a_folder_that_nobody_else_reads(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / f"trtcal-ssh-{os.getuid()}"
    folder.mkdir(0o755)
    with pytest.raises(ResourceError, match="no private folder"):
        command_of(LocalDevice("~/x", host="orin"), "mark")


DOCKER = """\
#!/bin/sh
[ "$1" = info ] && echo " Runtimes: runc$GPUS" && exit
echo "$@" > "$0.words"
while [ "$1" != image ]; do shift; done
shift
exec "$@"
"""


@SLOW
@pytest.mark.parametrize(("gpus", "options"), [("", ""), (" nvidia", "--runtime nvidia -e N")])
def test_a_container_sees_the_folder_and_the_lock_of_the_device(
    here, tmp_path, monkeypatch, gpus, options
):
    docker = tmp_path / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GPUS", gpus)
    monkeypatch.setattr(connections, "LOCK_PATH", str(tmp_path / "shared"))
    here.folder, here.container = "~/my device", "image"
    place = f"{tmp_path}/my device"
    with here.connect() as connection:
        assert connection.call("hello")[0]["folder"] == place
    words = Path(f"{docker}.words").read_text()
    assert words.startswith(f"run --rm -i {options}")
    assert ("--runtime" in words) == bool(gpus)
    assert f"-v {place}:{place} -v {tmp_path}/shared:{tmp_path}/shared " in words
    assert {"shared", "shared.gate"} < set(os.listdir(tmp_path))


@SLOW
def test_the_worker_is_sent_once_and_the_same_sources_make_the_same_file(here):
    name = "worker-*.pyz"
    with here.connect() as connection:
        connection.upload(b"")
    (path,) = Path(here.folder).glob(name)
    before = path.stat().st_mtime_ns
    assert path.read_bytes() == pack() == pack.__wrapped__()
    with here.connect() as connection:
        connection.upload(b"")
    assert path.stat().st_mtime_ns == before
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with here.connect() as connection:
        connection.upload(b"")
    assert path.read_bytes() == pack()


# After a cut.


def test_a_call_is_repeated_after_the_worker_was_killed(here):
    with here.connect() as connection:
        data = os.urandom(9 << 20)
        digest = connection.upload(data)
        blocks = []
        call = connection.call

        def killing(op, *arguments, **options):
            here.kill(".pyz")
            blocks.append(op)
            return call(op, *arguments, **options)

        connection.call = killing
        assert connection.download(digest, len(data)) == data
    assert blocks == ["get"] * 3


def test_a_device_that_is_away_for_a_while_is_tried_again_once_it_was_reached(here, tmp_path):
    away = tmp_path / "away"
    text = f"[ -s {away} ] && sed -i 1d {away} && echo refused >&2 && exit 255"
    here.start_by(text + '\nexec "$PYTHON" "$@"')
    with here.connect() as connection:
        away.write_text("1\n")
        with pytest.raises(BackendError, match="cannot be reached: refused"):
            connection.upload(b"")
        connection.upload(b"")
        away.write_text("1\n2\n3\n")
        here.kill(".pyz")
        connection.upload(b"")
    assert away.read_text() == ""


@SLOW
def test_a_job_goes_on_while_the_connection_is_cut(here):
    with here.connect() as connection:
        job = time_of(connection, relu(), rounds=3)
        call = connection.call

        def cutting(op, *arguments, **options):
            answer = call(op, *arguments, **options)
            connection._channel.process.kill()
            connection._channel.process.wait()
            return answer

        connection.call = cutting
        assert len(connection.job(job)["times_ms"]) == 3


@SLOW
@pytest.mark.parametrize("nonce", [True, False])
def test_an_interrupted_job_goes_on_if_it_can_be_joined(here, nonce):
    with here.connect() as connection:
        job = time_of(connection, endless())
        job = job if nonce else {name: job[name] for name in job if name != "nonce"}
        key = key_of(job)

        call = connection.call

        def interrupting(op, *arguments, **options):
            answer = call(op, *arguments, **options)
            if answer[0].get("state") == "running":
                connection.call = call
                raise KeyboardInterrupt
            return answer

        connection.call = interrupting
        with pytest.raises(KeyboardInterrupt):
            connection.job(job)
        if nonce:
            assert "cancelled" in until(connection, key, "failed")["error"]["message"]
        assert bool(here.processes("/jobs/")) != nonce


def test_a_worker_that_ends_each_time_is_an_error_after_a_bounded_number_of_tries(here):
    runs = liar(here)
    with here.connect() as connection:
        with pytest.raises(ResourceError, match="ended again and again during 'hello'") as caught:
            connection.call("hello")
        assert runs() == 8
        with pytest.raises(ResourceError, match="during 'run'"):
            connection.call("run")
    assert runs() == 8 + 5  # an engine that crashes the worker
    assert "same command again" in caught.value.hint


def test_a_device_that_does_not_answer_is_given_up(here, monkeypatch):
    monkeypatch.setattr(connections, "ANSWER_S", 0.1)
    monkeypatch.setattr(connections, "RETRIES_S", ())
    liar(here, then="exec sleep 1000")
    with here.connect() as connection, pytest.raises(ResourceError, match="it does not answer"):
        connection.call("hello")


def test_a_busy_device_is_asked_again(here):
    busy = ANSWER.replace("true", 'false, "error": {"kind": "busy"}')
    runs = liar(here, "MARK ready", busy, ANSWER.replace("1", "2"))
    with here.connect() as connection:
        assert connection.call("run")[0]["id"] == 2
    assert runs() == 1


def test_a_device_that_stays_busy_is_given_up(here, monkeypatch):
    monkeypatch.setattr(connections, "BUSY_LIMIT_S", 0.0)
    busy = 'false, "error": {"kind": "busy", "message": "the device is in use by eve"}'
    liar(here, "MARK ready", ANSWER.replace("true", busy))
    with here.connect() as connection, pytest.raises(ResourceError, match="in use by eve"):
        connection.call("run")


# What cannot be reached.


def test_a_python_that_is_not_there_is_named(here):
    here.python = "no-such-python"
    with (
        here.connect() as connection,
        pytest.raises(BackendError, match="no-such-python") as caught,
    ):
        connection.call("hello")
    assert "--python" in caught.value.hint


def test_a_program_that_is_no_python_is_not_started_again(here, tmp_path):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho >> {tmp_path}/starts\n")
    program.chmod(0o755)
    here.python = str(program)
    with here.connect() as connection, pytest.raises(BackendError) as caught:
        connection.call("hello")
    assert "--python" in caught.value.hint
    assert (tmp_path / "starts").read_text() == "\n"


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("Host key verification failed.", "accept the host's key"),
        ("ssh: connect to host a port 22: Connection refused", "check host and port"),
        ("ssh: connect to host a port 22: Connection timed out", "check host and port"),
        ("ssh: Could not resolve hostname a: Name or service not known", "check host and port"),
        ("a: Permission denied (publickey).", "without a password"),
    ],
)
def test_a_host_that_ssh_does_not_reach_has_a_hint_with_its_command(
    monkeypatch, tmp_path, reason, hint
):
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\necho "{reason}" >&2\nexit 255\n')
    program.chmod(0o755)
    monkeypatch.setenv("TRTCAL_SSH", str(program))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    host = "ssh://me@a:2222"
    with pytest.raises(BackendError, match="cannot be reached: ") as caught:
        Connection(LocalDevice("~/x", host=host), "@a").call("hello")
    assert hint in caught.value.hint
    assert f"`{program} {host}`" in caught.value.hint


def test_an_old_python_is_an_error_that_says_its_version(here):
    liar(here, "MARK python 3.6")
    with here.connect() as connection, pytest.raises(BackendError, match=r"has Python 3\.6"):
        connection.call("hello")


@pytest.mark.parametrize("stream", [1, 2])
def test_what_a_device_says_before_it_ends_is_cut_short(here, stream):
    words = "for mark; do :; done; printf '%s error ' $mark; " * (stream == 1)
    text = "yes x | head -c 99999 | tr '\\n' x; echo"
    here.start_by(f"({words}{text}) >&{stream}; exit 9")
    with here.connect() as connection, pytest.raises(TrtcalError, match="xxx") as caught:
        connection.call("hello")
    assert len(caught.value.message) < 3000


def test_a_folder_that_cannot_be_used_is_an_error(here, tmp_path):
    (tmp_path / "file").write_text("")
    here.folder = str(tmp_path / "file" / "folder")
    with here.connect() as connection, pytest.raises(ResourceError, match="Not a directory"):
        connection.call("hello")


@SLOW
def test_what_a_shell_prints_first_is_skipped(here):
    here.start_by('echo welcome; echo ready; exec "$PYTHON" "$@"')
    with here.connect() as connection:
        connection.upload(b"")


# What a device sends.


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("no JSON", "no JSON"),
        ("[1]", "no answer"),
        (ANSWER.replace("1", "2"), "no answer"),
        (ANSWER.replace("true", "1"), "no answer"),
        (ANSWER.replace("0", "true"), "no answer"),
        (ANSWER.replace("0", "-1"), "-1 bytes"),
        (ANSWER.replace("0", "1000000000000"), "1000000000000 bytes, of which 10 fit"),
        (ANSWER.replace("}", ', "x": NaN}'), "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("x" * (1 << 20), "a line of over 1 MiB"),
        ('{"id": 1, "ok": false, "size": 0, "error": 5}', "it failed"),
    ],
    ids=range(11),
)
def test_an_answer_that_is_none_is_an_error(here, answer, what):
    runs = liar(here, "MARK ready", answer)
    with here.connect() as connection, pytest.raises(BackendError, match=re.escape(what)):
        connection.call("hello", limit=10)
    assert runs() == 1


def test_text_of_a_device_cannot_move_the_cursor(here):
    error = '"error": {"kind": "input", "message": "\\u001b[31mred\\u0007", "hint": "\\u009b2J"}'
    liar(here, "MARK ready", ANSWER.replace("true", f"false, {error}"))
    with here.connect() as connection, pytest.raises(InputError) as caught:
        connection.call("hello")
    assert (caught.value.message + caught.value.hint).isprintable()
    assert "red" in caught.value.message


def test_more_lines_than_a_shell_prints_are_an_error(here):
    liar(here, "\n".join(["welcome"] * 2000))
    with here.connect() as connection, pytest.raises(BackendError, match="lines that are no"):
        connection.call("hello")


def test_a_file_that_is_another_is_an_error(here):
    line = ANSWER.replace('"size": 0', '"size": 5')
    liar(here, "MARK ready", line + "\nhello")
    with here.connect() as connection:
        with pytest.raises(BackendError, match="does not have its digest"):
            connection.download("sha256:" + "0" * 64, 5)
        for digest, size in (("../x", 5), ("sha256:" + "0" * 64, "5"), (None, 5)):
            with pytest.raises(BackendError, match="without digest and size"):
                connection.download(digest, size)


@pytest.mark.parametrize("have", ["6", "-1", "true", '"5"', "null"])
def test_a_size_that_is_none_ends_an_upload(here, have):
    liar(here, "MARK ready", ANSWER.replace("}", f', "have": {have}}}'))
    with here.connect() as connection, pytest.raises(BackendError, match="of 5 bytes"):
        connection.upload(b"hello")


def test_a_log_that_never_ends_is_given_up(here, monkeypatch):
    block = bytes(connections.LOG_BYTES)
    with here.connect() as connection:
        monkeypatch.setattr(connection, "call", lambda *_, **__: ({"state": "running"}, block))
        with pytest.raises(BackendError, match="sent a log of over 256 MiB"):
            connection.job({"kind": "build"})


def test_the_time_limit_of_a_job_counts_from_when_it_runs(here, monkeypatch):
    states, calls = iter(["queued", "queued", "running", "failed"]), []

    def call(op, *_, **__):
        calls.append(op)
        return ({"state": next(states), "error": {"kind": "resource"}} if op == "poll" else {}), b""

    with here.connect() as connection:
        monkeypatch.setattr(connection, "call", call)
        with pytest.raises(ResourceError, match="after the time limit of -1 s") as caught:
            connection.job({"kind": "build"}, limit_s=-1.0)  # over as soon as it begins
    assert calls == ["start", "poll", "poll", "poll", "cancel", "poll"]
    assert "--time-limit" in caught.value.hint


def test_an_upload_that_never_ends_is_given_up(here, monkeypatch):
    with here.connect() as connection:
        monkeypatch.setattr(connection, "_put", lambda *_: 0)
        with pytest.raises(BackendError, match="does not take a file of 5 bytes"):
            connection.upload(b"hello")
