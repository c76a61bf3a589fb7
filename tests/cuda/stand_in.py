"""Builds the stand-in of the CUDA driver, and gives it to PyCUDA, or to what stands in for that too.

PyCUDA has no wheels: `make test-cuda` compiles it. Everywhere else the tests use `pycuda_driver`.
"""

import ctypes
import gc
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from calibrators import device_memory
from tests.cuda import pycuda_driver

REAL = bool(os.environ.get("WITH_PYCUDA"))
KINDS = ("memory", "contexts", "modules", "streams", "events", "current")
KINDS += ("host", "graphs", "executables")
FAR = 1 << 60
SOURCE = Path(__file__).with_name("driver.c")
NVCC = """#!/bin/sh
case "$1" in --version) echo stand-in;; *) printf '%s\\0' {library} > kernel.cubin;; esac
"""


def build(folder):
    """Return the path of `libcuda.so.1` in a folder; skips the test without a C compiler."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc, for the stand-in of the CUDA driver")
    library = folder / "libcuda.so.1"
    # With its name, PyCUDA would find it, and everything else in this process too.
    named = ["-Wl,-soname,libcuda.so.1"] if REAL else []
    command = ["cc", "-shared", "-fPIC", *named, "-o", library, SOURCE, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


class StandIn:
    """The driver's calls, what is held of it, and what is to fail."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL if REAL else ctypes.RTLD_LOCAL)
        self.library.stand_in_call.restype = ctypes.c_char_p

    def held(self):
        """Return how many of each kind are held, without those of which there are none."""
        gc.collect()
        found = {kind: self.library.stand_in_live(n) for n, kind in enumerate(KINDS)}
        return {kind: number for kind, number in found.items() if number}

    def calls(self):
        """Return the names of the calls since the last reset."""
        names = [self.library.stand_in_call(n) for n in range(self.library.stand_in_calls())]
        return [name.decode().partition("_v")[0] for name in names]

    def fail(self, number, code, forever=False):
        """Let a call fail, counted from 0, and all that follow if that is wanted."""
        self.library.stand_in_fail(number, code, forever)

    def room(self, nbytes):
        """Let the device have so much memory."""
        self.library.stand_in_room(ctypes.c_size_t(nbytes))

    def reset(self):
        """Give the primary contexts back, and begin anew."""
        self.library.stand_in_fail(-1, 0, 0)
        if device_memory._primary_context.cache_info().currsize:
            device_memory._primary_context(0).give_up()
        gc.collect()
        self.library.stand_in_reset()

    @contextmanager
    def tensorrt(self):
        """Make TensorRT's calls, in the primary context: they are not counted and never fail."""
        context = ctypes.c_void_p()
        self.library.stand_in_quiet(1)
        self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.library.cuCtxPushCurrent_v2(context)
        yield
        self.library.cuCtxPopCurrent_v2(ctypes.byref(context))
        self.library.cuDevicePrimaryCtxRelease_v2(0)
        self.library.stand_in_quiet(0)

    def read(self, address, size):
        """Return bytes of the device."""
        return ctypes.string_at(address - FAR, size)

    def offer(self, monkeypatch):
        """Make `pycuda.driver` importable, on this driver."""
        if REAL:
            sys.setdlopenflags(os.RTLD_LAZY)  # what we never call is not there
            return
        pycuda_driver.cuda.library = self.library
        package = ModuleType("pycuda")
        package.driver = pycuda_driver
        for name, module in (
            ("pycuda", package),
            ("pycuda.driver", pycuda_driver),
            ("pycuda.compiler", pycuda_driver.compiler),
        ):
            monkeypatch.setitem(sys.modules, name, module)


def offer_nvcc(folder, library, monkeypatch):
    """Put an `nvcc` on PATH whose output is the path of kernels made for this machine's CPU."""
    tool = folder / "nvcc"
    tool.write_text(NVCC.format(library=library))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("PYCUDA_DISABLE_CACHE", "1")


_built = {}


@pytest.fixture
def cuda(tmp_path_factory, monkeypatch):
    """The stand-in, with nothing held, and PyCUDA on it."""
    if not _built:
        _built["it"] = StandIn(build(tmp_path_factory.mktemp("cuda")))
    stand_in = _built["it"]
    stand_in.offer(monkeypatch)
    stand_in.reset()
    gc.freeze()  # what there is of other tests would have to be looked through at each collection
    yield stand_in
    gc.unfreeze()
    stand_in.reset()
