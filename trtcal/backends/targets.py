"""Targets as people write them: `sm89`, `rtx4090`, `sm86,sm120`, `portable`; and this machine."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trtcal.backends.cuda import find_device
from trtcal.config import DEVICE_NAME, is_device
from trtcal.errors import InputError
from trtcal.evidence.gpus import GPUS, capability_of

PORTABLE = "portable"
CAPABILITY = re.compile(r"sm(\d{1,2})(\d)")
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt-ep": "TensorrtExecutionProvider",
}
NAMED = ("gpu", PORTABLE, *PROVIDERS)
"""Targets that are no compute capability."""

Capability = tuple[int, int]


def canonical(target: str) -> str:
    """Return a target with compute capabilities for names of GPUs: `sm86,sm89` of `rtx3090,l4`.

    `InputError` with the nearest names if a part of it is none that is known. A device stays as it is.
    """
    if is_device(target):
        if not DEVICE_NAME.fullmatch(target[1:]):
            hint = "name one device: `trtcal device list` has the names"
            raise InputError(f"target {target!r} is not a device", hint)
        return target
    return ",".join(map(_canonical, target.split(",")))


def _canonical(part: str) -> str:
    text = part.strip().lower().replace("sm_", "sm")
    if CAPABILITY.fullmatch(text) or text in NAMED:
        return text
    capability = capability_of(part)
    if capability is None:
        names = [*NAMED, *(name for names in GPUS.values() for name in names)]
        near = " or ".join(difflib.get_close_matches(text.replace(" ", ""), names, cutoff=0.5))
        hint = f"did you mean {near}? " if near else "use a form like sm89 or rtx4090; "
        what = f"target {part!r} is neither a compute capability nor a known GPU"
        raise InputError(what, f"{hint}`trtcal doctor` lists them")
    return capability


def named_gpus(target: str, most: int = 2) -> str:
    """Return the first GPUs of a target in parentheses, " (t4, rtx2060)"; "" for what has none."""
    names = GPUS.get(target, ())[:most]
    return f" ({', '.join(names)})" if names else ""


def parse_target(target: str) -> tuple[Capability, ...]:
    """Return the compute capabilities of a target, none for `portable`; `InputError` if malformed.

    Whether the builder has them is for its own version to say.
    """
    if target == PORTABLE:
        return ()
    parts = [CAPABILITY.fullmatch(part) for part in target.split(",")]
    capabilities = tuple((int(part[1]), int(part[2])) for part in parts if part)
    if len(capabilities) < len(parts):
        hint = f"use the form sm89, sm86,sm120 for several, or {PORTABLE} for all supported ones"
        raise InputError(f"target {target!r} is not a compute capability", hint)
    if len(set(capabilities)) < len(capabilities):
        what = f"target {target!r} names one capability twice"
        raise InputError(what, "give each capability once")
    return capabilities


def runs_on(target: str, capability: Capability) -> bool:
    """Whether an engine for a target runs on a GPU of this capability.

    Portable engines run on 8.0, 8.6, 8.9, 12.0 and later. Source: NVIDIA's TensorRT-RTX
    documentation, "CPU-Only AOT and TensorRT-RTX Engines".
    """
    capabilities = parse_target(target)
    if capabilities:
        return capability in capabilities
    return capability in ((8, 0), (8, 6), (8, 9)) or capability >= (12, 0)


GPU_S = 10.0  # that the driver may take to answer
PACKAGES = (
    *("numpy", "onnx", "onnx-graphsurgeon", "onnxruntime"),
    *("polygraphy", "tensorrt", "tensorrt-rtx"),
)


@dataclass(frozen=True)
class Gpu:
    """A GPU's name, and its compute capability."""

    name: str
    capability: Capability

    def __str__(self) -> str:
        return f"{self.name} (sm{self.capability[0]}{self.capability[1]})"


def find_gpu() -> Gpu | None:
    """Return the first GPU that CUDA opens, None without one."""
    device = find_device()
    return Gpu(device.name, device.capability) if device.name and device.capability else None


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
    """Return name and driver of the first NVIDIA GPU, from its own tool; {} where there is none.

    Not yet tried beside a real GPU.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        printed = subprocess.run(query, capture_output=True, timeout=GPU_S, check=True)  # noqa: S603
        line = printed.stdout.decode("utf-8", "replace").partition("\n")[0]
        name, _, driver = line.rpartition(", ")
        if name:
            return {"gpu": name, "driver": driver}
    return {}


def packages() -> dict[str, str | None]:
    """Return the versions of the packages that decide results; None where one is missing."""
    return {name: version_of(name) for name in PACKAGES}


def version_of(name: str) -> str | None:
    """Return the version of an installed package, None if it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def has_provider(target: str) -> bool:
    """Whether the installed ONNX Runtime was built with the provider of a target."""
    import onnxruntime

    return PROVIDERS[target] in onnxruntime.get_available_providers()
