"""Machines that trtcal reaches by ssh: engines are built, timed and run there."""

from trtcal.backends.base import Backend
from trtcal.errors import InputError
from trtcal.extensions import Command

COMMANDS: tuple[Command, ...] = ()


def device_backend(target: str) -> Backend:
    """Return what builds and runs on a device, of a target such as `@orin`."""
    raise InputError(f"device {target} is not known", "`trtcal device list` shows those that are")
