"""Which devices there are: those of trtcal.toml, then those of the user's own file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from trtcal.config import DeviceConfig, configured_devices, read_devices
from trtcal.documents import (
    LOCK_S,
    from_fields,
    read_json,
    removing,
    state_path,
    to_fields,
    unwritable,
    write_json,
)
from trtcal.documents.bounds import parse_json, read_bytes
from trtcal.errors import BackendError, InputError

FILE = "devices.json"
ADD = (
    "`trtcal device add NAME ssh://user@host:port` adds one, `trtcal device list` shows those known"
)
RUNTIMES = {"GPU": ("tensorrt", "trtexec"), "CPU": ("onnxruntime",)}
"""What builds on a device, by its hardware: the first that it has."""


def own_devices() -> dict[str, DeviceConfig]:
    """Return the devices that `trtcal device add` wrote down; `InputError` if one is malformed."""
    path = state_path(FILE)
    if not path.exists():
        return {}
    try:
        return read_devices(read_json(path))
    except InputError as error:
        what = error.message.removeprefix(f"{path} ")
        raise InputError(
            f"{path}, the list of devices, cannot be read: {what}",
            "delete the file, and add the devices again",
        ) from None


def known_devices() -> dict[str, DeviceConfig]:
    """Return all devices by name."""
    return {**own_devices(), **configured_devices()}


def find_device(name: str) -> DeviceConfig:
    """Return a device; `InputError` if it is not known."""
    device = configured_devices().get(name) or own_devices().get(name)
    if device is None:
        raise InputError(f"the device @{name} is not known", ADD)
    return device


def own_device(name: str) -> DeviceConfig:
    """Return a device of the user's own file; `InputError` if it is not in it."""
    device = own_devices().get(name)
    if device is None and name in configured_devices():
        what = f"the device @{name} is in trtcal.toml"
        raise InputError(what, f"delete [devices.{name}] there")
    return device or find_device(name)


def add_device(name: str, table: Mapping[str, Any]) -> DeviceConfig:
    """Write a device down in the user's own file, in place of one of that name."""
    device = read_devices({name: dict(table)})[name]
    _change({name: device})
    return device


def remove_device(name: str) -> None:
    """Take a device out of the user's own file."""
    _change({name: None})
    removing(_memory(name))


def _change(changes: Mapping[str, DeviceConfig | None]) -> None:
    path = state_path(FILE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(f"{path}.lock", mode=0o600, timeout=LOCK_S):
            devices = {**own_devices(), **changes}
            write_json(path, {name: _table(device) for name, device in devices.items() if device})
    except OSError as error:
        raise unwritable(path, error) from error


def _table(device: DeviceConfig) -> dict[str, Any]:
    return {key: value for key, value in to_fields(device).items() if value is not None}


@dataclass(frozen=True)
class Hardware:
    """What computes on a device: a GPU (`capability` such as `sm87`), or its CPU."""

    kind: str
    name: str
    capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    clock_mhz: float | None = None
    power_mode: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.capability})" if self.capability else self.name


@dataclass(frozen=True)
class Lack:
    """What a device lacks, and the command there that brings it."""

    what: str
    command: str = ""


@dataclass(frozen=True)
class Facts:
    """What a device says of itself; sizes in bytes, `runtimes` are versions by name."""

    python: str
    system: str
    machine: str
    user: str
    folder: str
    free_bytes: int
    hardware: Hardware
    runtimes: dict[str, str]
    memory_bytes: int | None = None
    lacks: tuple[Lack, ...] = ()

    def __str__(self) -> str:
        versions = ", ".join(map(" ".join, self.runtimes.items()))
        return f"{self.hardware.kind}: {self.hardware}; {versions or 'no runtime'}"

    @property
    def is_gpu(self) -> bool:
        """Whether its engines run on a GPU."""
        return self.hardware.kind == "GPU"

    @property
    def runtime(self) -> str | None:
        """What builds there, None if nothing does."""
        names = RUNTIMES["GPU" if self.is_gpu else "CPU"]
        return next((name for name in names if name in self.runtimes), None)

    @property
    def backend(self) -> str:
        """The backend of which its engines are."""
        return "tensorrt" if self.is_gpu else "onnxruntime"

    @property
    def version(self) -> str | None:
        """The version of what builds there."""
        return self.runtimes.get(self.runtime or "")


def facts_of(answer: object) -> Facts:
    """Return what a device says of itself; `BackendError` if that is not what a worker says."""
    try:
        facts = from_fields(Facts, answer)
    except (LookupError, TypeError, ValueError) as error:
        what = f"the device describes itself in a form that trtcal does not know: {error}"
        raise BackendError(what, "update trtcal") from error
    if facts.hardware.kind not in RUNTIMES:
        raise BackendError(f"the device has hardware {facts.hardware.kind!r}", "update trtcal")
    return facts


def remember(name: str, device: DeviceConfig, facts: Facts) -> None:
    """Write down what a device said of itself, for when it is not connected."""
    path = _memory(name)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(path, {"device": to_fields(device), "facts": to_fields(facts)})


def recall(name: str, device: DeviceConfig) -> Facts | None:
    """Return what a device last said of itself, None if nothing is written down."""
    with suppress(InputError, BackendError, ValueError, LookupError, TypeError):
        document = parse_json(read_bytes(_memory(name)))
        return facts_of(document["facts"]) if document["device"] == to_fields(device) else None
    return None


def _memory(name: str) -> Path:
    return state_path(os.path.join("devices", f"{name}.json"))
