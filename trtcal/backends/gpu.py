"""The NVIDIA GPU of this machine, asked of its driver. Never yet run on a GPU by its authors."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h


@dataclass(frozen=True)
class Gpu:
    """A GPU's name, and its compute capability."""

    name: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name} (sm{self.capability[0]}{self.capability[1]})"


def driver_present() -> bool:
    """Whether NVIDIA's driver can be loaded."""
    return _driver() is not None


def find_gpu() -> Gpu | None:
    """Return the first GPU that CUDA shows, None without one."""
    cuda = _driver()
    device = ctypes.c_int()
    if cuda is None or cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    name = ctypes.create_string_buffer(256)
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        cuda.cuDeviceGetName(name, len(name), device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    )
    return None if failed else Gpu(name.value.decode(errors="replace"), (major.value, minor.value))


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
