"""`trtcal device`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.extended import ExtendedGroup
from trtcal.cli.options import ConfigOptions, add_commands, argument, option
from trtcal.cli.output import Columns, note, print_table, say, warning
from trtcal.documents import Document, to_fields
from trtcal.errors import TrtcalError
from trtcal.reporting.text import size

if TYPE_CHECKING:
    from trtcal.config import DeviceConfig
    from trtcal.wings.devices.connection import Connection
    from trtcal.wings.devices.registry import Facts
    from trtcal.wings.devices.stale import Stale


UNKNOWN = "not known yet"


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

        keys = ("host", "python", "container", "folder")
        table = {key: value for key in keys if (value := getattr(self, key)) is not None}
        device = add_device(self.name, table)
        facts = None
        try:
            facts = _connect(self.name, device).facts
        except TrtcalError as error:
            warning(f"added, but it does not answer: {error.message}", error.hint or "")
        document = _document(self.name, device, facts)
        if facts and facts.runtime is None:
            warning(
                "nothing there builds engines",
                f"`trtcal device check {self.name}` says what it lacks",
            )
        self.present(document, lambda: say(f"added @{self.name}, {facts or UNKNOWN}"))


class List(ConfigOptions, example="trtcal device list"):
    """List the devices of trtcal.toml and those added, with what each said last."""

    def _run(self) -> None:
        from trtcal.wings.devices.registry import known_devices, recall

        table = self.config.in_use().devices
        rows = [
            (name, device, "trtcal.toml" if name in table else "device add", recall(name, device))
            for name, device in known_devices().items()
        ]
        columns: Columns = {
            "target": "@{0}",
            "host": "{1.host}",
            "from": "{2}",
            "hardware and runtime, when it last answered": lambda row: row[3] or UNKNOWN,
        }
        documents = [{**_document(n, d, facts), "from": where} for n, d, where, facts in rows]
        self.present(documents, lambda: print_table(rows, columns))
        if not rows:
            note("note: no device is known: `trtcal device add NAME ssh://user@host:port` adds one")


def _document(name: str, device: DeviceConfig, facts: Facts | None) -> Document:
    return {"name": name, **to_fields(device), "facts": facts and to_fields(facts)}


class NamedOptions(ConfigOptions):
    """The argument of a command on one device."""

    device: str = argument(metavar="NAME")

    @property
    def name(self) -> str:
        """Its name, which may be given as a target too."""
        return self.device.removeprefix("@")

    def connect(self) -> Connection:
        """Return the device, of this configuration or the user's own, connected."""
        from trtcal.wings.devices.registry import find_device

        self.config.in_use()
        return _connect(self.name, find_device(self.name))


class Check(NamedOptions, example="trtcal device check orin"):
    """Show what the device NAME has, what it lacks, and what was built there before an update.

    Runs, engines and bundles in this folder are stale where TensorRT, the driver or the GPU on the
    device is another than the one they were built with.
    """

    def _run(self) -> None:
        from trtcal.wings.devices.stale import find_stale

        facts = self.connect().facts
        stale = find_stale(Path(), self.name, facts)
        document = {"name": self.name, **to_fields(facts), "stale": [*map(asdict, stale)]}
        self.present(document, lambda: _show(self.name, facts, stale))


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


class CleanOptions(NamedOptions):
    """The options of a command that deletes what is on a device."""

    end_jobs: bool = option("End the jobs that run there first.")


class Clean(CleanOptions, example="trtcal device clean orin"):
    """Delete all files of trtcal on the device NAME; they are sent again where they are needed.

    While a job runs there it deletes nothing, and says whose job that is.
    """

    def _run(self) -> None:
        device = self.connect()
        removed = device.clean(self.end_jobs)
        text = f"deleted {size(removed)} in {device.facts.folder} on @{self.name}"
        self.present({"name": self.name, "removed_bytes": removed}, lambda: say(text))


class Remove(CleanOptions, example="trtcal device remove orin"):
    """Delete all files of trtcal on the device NAME that was added, and forget the device.

    While a job runs there it does neither. A device that does not answer is forgotten; its files stay.
    """

    def _run(self) -> None:
        from trtcal.wings.devices.registry import own_device, remove_device

        self.config.in_use()
        device, removed = own_device(self.name), None
        try:
            connected = _connect(self.name, device)
        except TrtcalError as error:
            warning(f"the files on the device stay there: {error.message}", error.hint or "")
        else:
            removed = connected.clean(self.end_jobs)
        remove_device(self.name)
        document = {"name": self.name, "removed_bytes": removed}
        self.present(document, lambda: say(f"removed @{self.name}"))


def _connect(name: str, device: DeviceConfig) -> Connection:
    from trtcal.wings.devices.backend import connect

    return connect(name, device)


add_commands(command, Add, List, Check, Clean, Remove)
