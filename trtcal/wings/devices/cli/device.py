"""`trtcal device`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.extended import ExtendedGroup
from trtcal.cli.options import ConfigOptions, add_commands, argument, option
from trtcal.cli.output import Columns, print_table, say, warning
from trtcal.documents import Document, to_fields
from trtcal.errors import TrtcalError
from trtcal.reporting.text import size

if TYPE_CHECKING:
    from trtcal.config import DeviceConfig
    from trtcal.wings.devices.backend import Device
    from trtcal.wings.devices.registry import Facts
    from trtcal.wings.devices.stale import Stale


@click.group(cls=ExtendedGroup, epilog="Example: trtcal device add orin ssh://user@orin.local")
def command() -> None:
    """Add and check machines that trtcal reaches by ssh, to build, run and time engines there.

    A device is a target, `@NAME`: `trtcal build int8.onnx --target @orin`. Devices stand under
    [devices.NAME] of trtcal.toml too.
    """


class Add(
    ConfigOptions,
    example="trtcal device add orin ssh://user@orin.local --python /usr/bin/python3.10",
):
    """Add a device NAME at HOST (user@host, or ssh://user@host:port) for all folders, and check it.

    trtcal uses OpenSSH's client, with your keys, agent, known hosts and configuration. It never asks
    for a password.
    """

    name: str = argument()
    host: str = argument()
    python: str | None = option("Python there, 3.8 or later.  [default: python3]", metavar="PATH")
    container: str | None = option("Image of a container to work in.", metavar="IMAGE")
    folder: str | None = option(
        "Folder there for all files of trtcal.  [default: .cache/trtcal-device]", metavar="PATH"
    )

    def _run(self) -> None:
        from trtcal.wings.devices.registry import add_device

        given = {key: getattr(self, key) for key in ("host", "python", "container", "folder")}
        device = add_device(
            self.name, {key: value for key, value in given.items() if value is not None}
        )
        try:
            facts = to_fields(_connect(self.name, device).facts)
        except TrtcalError as error:
            warning(f"added, but it does not answer: {error.message}", error.hint or "")
            facts = None
        document = {"name": self.name, **to_fields(device), "facts": facts}
        self.present(document, lambda: say(f"added @{self.name}, {_hardware(facts)}"))


class List(ConfigOptions, example="trtcal device list"):
    """List the devices of trtcal.toml and those added, with what each said last."""

    def _run(self) -> None:
        from trtcal.wings.devices.registry import known_devices, recall

        self.config.in_use()
        rows = []
        for name, device in known_devices().items():
            facts = recall(name, device)
            where = "trtcal.toml" if name in self.config.devices else "trtcal device add"
            known = facts and to_fields(facts)
            rows.append({"name": name, **to_fields(device), "from": where, "facts": known})
        columns: Columns = {
            "target": lambda row: f"@{row['name']}",
            "host": "{host}",
            "from": "{from}",
            "hardware and runtime, when it last answered": lambda row: _hardware(row["facts"]),
        }
        self.present(rows, lambda: print_table(rows, columns))


def _hardware(facts: Document | None) -> str:
    if facts is None:
        return "not known yet"
    hardware, runtimes = facts["hardware"], facts["runtimes"].items()
    versions = ", ".join(f"{name} {version}" for name, version in runtimes)
    return f"{hardware['kind']}: {hardware['name']}; {versions or 'no runtime'}"


class NamedOptions(ConfigOptions):
    """The argument of a command on one device."""

    name: str = argument()

    def find(self) -> DeviceConfig:
        """Return the device, of this configuration or the user's own."""
        from trtcal.wings.devices.registry import find_device

        self.config.in_use()
        return find_device(self.name.removeprefix("@"))


class Check(NamedOptions, example="trtcal device check orin"):
    """Show what the device NAME has, what it lacks, and what was built there before an update.

    Runs, engines and bundles in this folder are stale where TensorRT, the driver or the GPU on the
    device is another than the one they were built with.
    """

    def _run(self) -> None:
        from trtcal.wings.devices.stale import find_stale

        name = self.name.removeprefix("@")
        device = _connect(name, self.find())
        stale = find_stale(Path(), name, device.facts)
        document = {
            "name": name,
            **to_fields(device.facts),
            "stale": [asdict(item) for item in stale],
        }
        self.present(document, lambda: _show(name, device.facts, stale))


def _show(name: str, facts: Facts, stale: list[Stale]) -> None:
    hardware, runtimes = facts.hardware, facts.runtimes
    rows = {
        "hardware": f"{hardware.kind}: {hardware}",
        "driver": hardware.driver,
        "CUDA": hardware.cuda,
        "clock": hardware.clock_mhz and f"{hardware.clock_mhz:.0f} MHz",
        "power mode": hardware.power_mode,
        "TensorRT": runtimes.get("tensorrt"),
        "trtexec": runtimes.get("trtexec"),
        "ONNX Runtime": runtimes.get("onnxruntime"),
        "builds with": facts.runtime and f"{facts.runtime} {facts.version}",
        "Python": facts.python,
        "system": f"{facts.system}, {facts.machine}",
        "memory": size(facts.memory_bytes),
        "free on the disk": size(facts.free_bytes),
        "folder": f"{facts.folder} (user {facts.user})",
    }
    print_table(rows.items(), {f"@{name}": "{0}", "": "{1}"}, missing="-")
    if facts.lacks:
        print_table(facts.lacks, {"lacks": "{what}", "command there": "{command}"})
    if stale:
        columns: Columns = {"stale": "{kind} {path}", "because": "{why}", "command": "{command}"}
        print_table(stale, columns)


class Clean(NamedOptions, example="trtcal device clean orin"):
    """Delete all files of trtcal on the device NAME; they are sent again where they are needed."""

    def _run(self) -> None:
        name = self.name.removeprefix("@")
        device = _connect(name, self.find())
        removed = device.connection.call("clean", limit=0)[0].get("removed_bytes")
        removed = removed if isinstance(removed, int) else 0
        text = f"deleted {size(removed)} in {device.facts.folder} on @{name}"
        self.present({"name": name, "removed_bytes": removed}, lambda: say(text))


class Remove(NamedOptions, example="trtcal device remove orin"):
    """Forget the device NAME that was added; `trtcal device clean` deletes its files before."""

    def _run(self) -> None:
        from trtcal.wings.devices.registry import remove_device

        name = self.name.removeprefix("@")
        self.config.in_use()
        remove_device(name)
        self.present({"name": name}, lambda: say(f"removed @{name}"))


def _connect(name: str, device: DeviceConfig) -> Device:
    from trtcal.wings.devices.backend import connect

    return connect(name, device)


add_commands(command, Add, List, Check, Clean, Remove)
