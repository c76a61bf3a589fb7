"""Machines that trtcal reaches by ssh: engines are built, timed and run there."""

from trtcal.backends.base import Backend
from trtcal.extensions import Command

COMMANDS = (
    Command(
        "device",
        "Add and check machines on which engines are built, timed and run.",
        "trtcal.wings.devices.cli.device",
        "Build, and see what was built",
    ),
)


def device_backend(target: str) -> Backend:
    """Return what builds and runs on a device, of a target such as `@orin`."""
    from trtcal.wings.devices.backend import device_backend

    return device_backend(target)
