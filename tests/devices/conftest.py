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
    """A device that ssh finds, without connections from another test."""
    server.enter(monkeypatch)
    server.kill_clients()
    server.kill_servers()
    server.cut_next()
    return server
