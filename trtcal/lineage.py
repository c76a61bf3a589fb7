"""What a run consumed and produced, by digest: `run.json`."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trtcal import __version__
from trtcal.storage import Document, seal, write_document

KIND = "run"
PACKAGES = (
    "numpy",
    "onnx",
    "onnx-graphsurgeon",
    "onnxruntime",
    "polygraphy",
    "tensorrt",
    "tensorrt-rtx",
)
GPU_S = 10.0  # that the driver may take to answer


@dataclass(frozen=True)
class Step:
    """One stage's output: `output` is its path inside the run folder."""

    stage: str
    output: str
    digest: str
    seconds: float = 0.0


@dataclass
class Lineage:
    """The steps of a run in order, what they started from, and which builds could not be made."""

    model: str
    calibration_data: str
    evaluation_data: str
    steps: list[Step] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def to_document(self, command: str) -> Document:
        """Return the run as a sealed document; times and the machine stand under `measured`."""
        steps = [{"stage": s.stage, "output": s.output, "digest": s.digest} for s in self.steps]
        body = {
            "trtcal": __version__,
            "model": self.model,
            "calibration_data": self.calibration_data,
            "evaluation_data": self.evaluation_data,
            "command": command,
            "stages": steps,
            "missing_builds": self.missing,
            "measured": {
                "seconds": {step.output: round(step.seconds, 3) for step in self.steps},
                "machine": machine(),
                "packages": packages(),
            },
        }
        return seal({"kind": KIND, "schema_version": 1, **body})

    def write(self, folder: Path, command: str) -> Document:
        """Write `run.json`."""
        return write_document(folder / "run.json", self.to_document(command))


def machine() -> dict[str, Any]:
    """Return what of this machine bears on speed."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "python": ".".join(map(str, sys.version_info[:3])),
        **_gpu(),
    }


@functools.cache
def _gpu() -> dict[str, str]:
    """Return name and driver of the first NVIDIA GPU, as its own tool tells; {} where there is none.

    Not yet tried beside a real GPU.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(query, capture_output=True, timeout=GPU_S, check=True)  # noqa: S603
        name, _, driver = said.stdout.decode("utf-8", "replace").partition("\n")[0].rpartition(", ")
        if name:
            return {"gpu": name, "driver": driver}
    return {}


def packages() -> dict[str, str | None]:
    """Return the versions of the packages that decide results; None where one is missing."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
