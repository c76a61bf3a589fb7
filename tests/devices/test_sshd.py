"""The test service itself: what a device's tests rely on."""

import socket
import subprocess

import pytest

from tests.fixtures.slow import SLOW
from tests.fixtures.sshd import Cut, a_device, processes

WAIT = "echo ready; cat"
ECHO = "head -c 100000; echo done"


def words(device, command):
    return ["ssh", "-F", f"{device.folder}/ssh_config", "-oBatchMode=yes", device.host, command]


def ssh(device, command, data=b""):
    return subprocess.run(words(device, command), input=data, capture_output=True, check=False)


def test_commands_run_on_the_device(device):
    data = bytes(100_000)
    assert ssh(device, ECHO, data).stdout == data + b"done\n"


def test_another_host_key_is_refused(device):
    known = device.folder / "known_hosts"
    text = known.read_text()
    known.write_text(text.replace("AAAAI", "AAAAJ", 1))
    answer = ssh(device, "echo reached")
    known.write_text("")
    unknown = ssh(device, "echo reached")
    known.write_text(text)
    assert (answer.returncode, answer.stdout, unknown.returncode, unknown.stdout) == (255, b"") * 2
    assert b"Host key verification failed" in unknown.stderr


@SLOW
@pytest.mark.parametrize("cut", [Cut(50_000), Cut(50_000, reset=True), Cut(50_000, half=True)])
def test_a_connection_is_cut_after_its_bytes_and_the_next_one_is_not(device, cut):
    before = device.cut
    device.cut_next(cut)
    answers = [ssh(device, ECHO, bytes(100_000)) for _ in range(2)]
    assert [answer.returncode for answer in answers] == [255, 0]
    assert len(answers[0].stdout) < 50_000
    assert device.cut == before + 1


@SLOW
def test_a_killed_sshd_ends_the_command_of_its_client(device):
    pipe = subprocess.PIPE
    with subprocess.Popen(words(device, WAIT), stdin=pipe, stdout=pipe, stderr=pipe) as client:
        assert client.stdout.readline() == b"ready\n"
        assert device.kill_servers() == 1
        assert client.wait() == 255


@SLOW
def test_a_service_that_stops_leaves_no_process_no_port_and_no_file():
    with a_device() as device:
        pipe = subprocess.PIPE
        client = subprocess.Popen(words(device, WAIT), stdin=pipe, stdout=pipe)
        assert client.stdout.readline() == b"ready\n"
    client.communicate()
    assert not device.folder.exists()
    assert processes(str(device.folder)) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", device.port))
