"""Machines that trtcal reaches by ssh: engines are built, timed and run there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtcal.extensions import Command

if TYPE_CHECKING:
    from trtcal.backends.base import Backend

COMMANDS = (
    Command(
        "device",
        "Add and check machines that build, run and time engines.",
        "trtcal.wings.devices.cli.device",
        "Build, and see what was built",
    ),
)


def device_backend(target: str) -> Backend:
    """Return what builds and runs on a device, of a target such as `@orin`."""
    from trtcal.wings.devices.backend import device_backend

    return device_backend(target)
