"""What a device is: system, memory, disk, hardware and runtimes."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
from typing import Any

from . import runtimes
from .power import describe

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def hello(folder: str) -> dict[str, Any]:
    """Return what the device is and has."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "user": user(),
        "folder": folder,
        "free_bytes": shutil.disk_usage(folder).free,
        "memory_bytes": _memory(),
        "hardware": hardware(),
        "runtimes": runtimes.versions(),
        "lacks": runtimes.lacks(),
    }


def user() -> str:
    """Return the name of the user, their number where there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without it
        return str(os.getuid())


def boot() -> str:
    """Return what changes when the device restarts, nothing if the system does not tell."""
    return _first(BOOT_ID)


def hardware() -> dict[str, Any]:
    """Return the GPU as its driver describes it, else the CPU."""
    return describe() or _cpu()


def _cpu() -> dict[str, Any]:
    name = _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    megahertz = _first("/proc/cpuinfo", "cpu MHz")
    return {"kind": "CPU", "name": name, "clock_mhz": float(megahertz) if megahertz else None}


def _memory() -> int | None:
    kilobytes = _first("/proc/meminfo", "MemAvailable").split(" ")[0]
    return int(kilobytes) * 1024 if kilobytes else None


def _first(path: str, name: str = "") -> str:
    """Return the first line of a file, or the value of its first `name: value`; nothing if none."""
    try:
        with open(path, errors="replace") as file:
            lines = [line for line in file if line.startswith(name)]
    except OSError:
        return ""
    return lines[0].split(":")[-1].strip() if lines else ""
