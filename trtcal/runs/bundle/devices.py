"""On which devices a bundle loads, by their descriptions: before anything is shipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtcal.backends.targets import CAPABILITY
from trtcal.documents import parsing
from trtcal.errors import InputError
from trtcal.evidence.gpus import Target, capability_of
from trtcal.runs.bundle.building import read_bundle
from trtcal.runs.bundle.verifying import MANIFEST, REFUSED, VERDICTS, Device, choose


@dataclass(frozen=True)
class Fit:
    """How a bundle's best engine fits a device; `target` is what to build for where none loads."""

    device: str
    target: str
    engine: str
    state: str
    reason: str

    @property
    def is_refused(self) -> bool:
        """Whether no engine loads."""
        return self.state == VERDICTS[REFUSED]


def device_of(described: Target) -> Device:
    """Return the device that a description is of; `InputError` if its compute capability is unknown."""
    target = described.capability or capability_of(described.name)
    if target is None or not CAPABILITY.fullmatch(target):
        hint = 'add a line such as capability = "sm89"'
        raise InputError(f"the description of {described.name} has no compute capability", hint)
    return Device(described.name, target, described.cuda, described.platform)


def matrix(bundle: Path, devices: Sequence[Target]) -> list[Fit]:
    """Return how a bundle fits each device, in their order; `InputError` if it was changed."""
    engines = read_bundle(bundle)[0]["engines"]
    described = [device_of(device) for device in devices]
    return parsing(bundle / MANIFEST, lambda: [_fit(engines, device) for device in described])


def _fit(engines: Sequence[Mapping[str, Any]], device: Device) -> Fit:
    engine, check = choose(engines, device)
    state = VERDICTS[check.state]
    return Fit(device.name, str(device.target), engine["target"], state, check.found)
