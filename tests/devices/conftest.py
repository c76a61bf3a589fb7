"""A device by ssh that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.fixtures.sshd import Device, a_device


@pytest.fixture(scope="module")
def server() -> Iterator[Device]:
    with a_device() as device:
        yield device


@pytest.fixture
def device(server, monkeypatch) -> Device:
    """A device whose `ssh` is the one on PATH, and that has no connection from another test."""
    monkeypatch.setenv("PATH", server.path)
    server.kill_clients()
    server.kill_servers()
    server.cut_next()
    return server
