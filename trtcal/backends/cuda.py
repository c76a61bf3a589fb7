"""Whether a CUDA device can be opened here, and what is missing if not.

A child process asks the driver, through ctypes: a broken driver may crash or hang, and TensorRT's own
runtime crashes where there is no device. Run as a program, this opens the first device and prints what
came of it; so it imports nothing but Python's own modules.
"""

from __future__ import annotations

import ctypes
import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBRARY = "libcuda.so.1"
WAIT_S = 30.0  # several GPUs without NVIDIA's persistence mode take seconds
NAME_BYTES = 256
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h


@dataclass(frozen=True)
class Device:
    """The first CUDA device, and the CUDA that its driver supports; or what is missing, and a hint."""

    name: str | None = None
    cuda: str | None = None
    missing: str | None = None
    hint: str | None = None
    capability: tuple[int, int] | None = None


@functools.cache
def find_device() -> Device:
    """Return the first device if it can be opened, else what is missing; never raises."""
    command = [sys.executable, "-I", __file__]
    try:
        child = subprocess.run(command, capture_output=True, timeout=WAIT_S)  # noqa: S603
        answer = json.loads(child.stdout)
    except subprocess.TimeoutExpired:
        return _broken(f"does not answer within {WAIT_S:g} s")
    except (OSError, ValueError):
        return _broken("crashes when it opens a device")
    return _read(answer)


def _broken(how: str) -> Device:
    hint = "restart the machine; check `nvidia-smi`, and the kernel's log for Xid messages"
    return Device(missing=f"the NVIDIA driver {how}", hint=hint)


def _read(answer: dict[str, Any]) -> Device:
    """Return what the child's answer means."""
    version = answer.get("cuda")
    cuda = f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) else None
    if "name" in answer:
        return Device(answer["name"], cuda, capability=tuple(answer["capability"]))
    if "code" not in answer:
        missing = f"there is no NVIDIA driver ({LIBRARY}) on this machine"
        hint = "build on the machine of the GPU; start a container with --gpus all"
        return Device(missing=missing, hint=hint)
    code = answer["code"]
    meaning, hint = known_errors().get(str(code), (None, "see `nvidia-smi`"))
    what = f"no CUDA device can be opened: error {code} of {answer['call']}"
    return Device(None, cuda, f"{what}: {meaning}" if meaning else what, hint)


def known_errors() -> dict[str, tuple[str | None, str]]:
    """Return what errors of CUDA mean and what to do, by code."""
    from trtcal.config import read_toml  # not in the child

    return read_toml(Path(__file__).with_name("cuda_errors.toml"))


def open_first() -> dict[str, object]:
    """Open the first device, which may crash this process; return its name, or the call that failed."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return {}
    version, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    name = ctypes.create_string_buffer(NAME_BYTES)
    capability = ctypes.c_int(), ctypes.c_int()
    answer: dict[str, object] = {}
    for call, arguments in (
        ("cuDriverGetVersion", (ctypes.byref(version),)),
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuDeviceGetName", (name, NAME_BYTES, device)),
        ("cuDeviceGetAttribute", (ctypes.byref(capability[0]), MAJOR, device)),
        ("cuDeviceGetAttribute", (ctypes.byref(capability[1]), MINOR, device)),
    ):
        if code := getattr(cuda, call)(*arguments):
            return {**answer, "call": call, "code": code}
        answer["cuda"] = version.value
    found = {
        "name": name.value.decode(errors="replace"),
        "capability": [n.value for n in capability],
    }
    return {**answer, **found}


if __name__ == "__main__":
    print(json.dumps(open_first()))
