"""The part of `pycuda.driver` that our code uses, over the stand-in of the CUDA driver.

It makes the calls that PyCUDA 2026.1 makes, in their order, with its list of contexts for each thread
and its errors; `make test-cuda` runs the same tests with PyCUDA itself.
"""

import ctypes
import gc
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np


class Error(Exception):
    pass


class MemoryError(Error):  # noqa: A001  # PyCUDA's name
    pass


class LogicError(Error):
    pass


class LaunchError(Error):
    pass


class CompileError(Error):
    pass


KINDS = {2: MemoryError, 719: LaunchError, 999: Error}


class Calls:
    """The driver's functions; `cuda.cuInit(0)` raises what PyCUDA would."""

    library: ctypes.CDLL

    def __getattr__(self, name):
        def call(*arguments):
            code = getattr(self.library, name)(*arguments)
            if code:
                text = ctypes.c_char_p()
                self.library.cuGetErrorString(code, ctypes.byref(text))
                shown = name.partition("_v")[0]
                raise KINDS.get(code, LogicError)(f"{shown} failed: {text.value.decode()}")

        return call

    def attempt(self, name, *arguments):
        """Make a call that cleans up, whose error PyCUDA only prints."""
        try:
            getattr(self, name)(*arguments)
        except Error as error:
            print(f"PyCUDA WARNING: a clean-up operation failed\n{error}", file=sys.stderr)


cuda = Calls()
threads = threading.local()


def stack():
    return threads.__dict__.setdefault("stack", [])


def init():
    cuda.cuInit(0)


class Device:
    def __init__(self, number):
        self.number = ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(self.number), number)

    def retain_primary_context(self):
        handle = ctypes.c_void_p()
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), self.number)
        return Context(handle, self.number)


class Context:
    def __init__(self, handle, device):
        self.handle, self.device, self.valid = handle, device, True
        self.thread = threading.get_ident()

    @staticmethod
    def get_current():
        while stack() and not stack()[-1].valid:
            stack().pop()
        return stack()[-1] if stack() else None

    @staticmethod
    def _suspend():
        if stack():
            cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def push(self):
        self._suspend()
        cuda.cuCtxPushCurrent_v2(self.handle)
        stack().append(self)

    @staticmethod
    def pop():
        Context._suspend()
        stack().pop()
        if current := Context.get_current():
            cuda.cuCtxPushCurrent_v2(current.handle)

    @staticmethod
    def synchronize():
        cuda.cuCtxSynchronize()

    @staticmethod
    def ask_architecture():
        device = ctypes.c_int()
        cuda.cuCtxGetDevice(ctypes.byref(device))
        cuda.cuDeviceComputeCapability(*[ctypes.byref(ctypes.c_int()) for _ in "ab"], device)

    def detach(self):
        if not self.valid:
            raise LogicError("context::detach failed: invalid device context")
        active = self.get_current() is self
        if not active and self.thread == threading.get_ident():
            cuda.attempt("cuCtxPushCurrent_v2", self.handle)
        if active or self.thread == threading.get_ident():
            cuda.attempt("cuDevicePrimaryCtxRelease_v2", self.device)
        self.valid = False
        self.get_current()

    def clean_up(self, name, *arguments):
        """Make a call in this context, unless it is dead or of another thread."""
        if not self.valid:
            return
        switched = self.get_current() is not self
        if switched and self.thread != threading.get_ident():
            return
        if switched:
            self.push()
        cuda.attempt(name, *arguments)
        if switched:
            self.pop()


def current():
    found = Context.get_current()
    if found is None:
        raise LogicError("explicit_context_dependent failed: no currently active context?")
    return found


class DeviceAllocation:
    def __init__(self, address):
        self.address, self.context, self.valid = address, current(), True

    def __int__(self):
        return self.address.value

    def free(self):
        if not self.valid:
            raise LogicError("device_allocation::free failed: invalid resource handle")
        self.context.clean_up("cuMemFree_v2", self.address)
        self.valid = False

    def __del__(self):
        if self.valid:
            self.free()


def mem_alloc(nbytes):
    address = ctypes.c_uint64()
    try:
        cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes))
    except MemoryError:
        gc.collect()
        cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes))
    return DeviceAllocation(address)


def memcpy_htod(address, array):
    assert array.flags.forc
    source = array.ctypes.data_as(ctypes.c_void_p)
    cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(address), source, ctypes.c_size_t(array.nbytes))


def memcpy_dtoh(array, address):
    place = array.ctypes.data_as(ctypes.c_void_p)
    cuda.cuMemcpyDtoH_v2(place, ctypes.c_uint64(address), ctypes.c_size_t(array.nbytes))


class Function:
    def __init__(self, module, name):
        self.module, self.handle = module, ctypes.c_void_p()
        cuda.cuModuleGetFunction(ctypes.byref(self.handle), module.handle, name.encode())

    def __call__(self, *arguments, block, grid):
        cuda.cuFuncSetBlockShape(self.handle, *block)
        form = "".join(np.dtype(type(argument)).char for argument in arguments)
        packed = struct.pack(form, *map(int, arguments))
        size = ctypes.c_size_t(len(packed))
        buffer = ctypes.create_string_buffer(packed, len(packed))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        sizes = (*grid, *[1] * (3 - len(grid)), *block)
        cuda.cuLaunchKernel(self.handle, *sizes, 0, None, None, extra)


class SourceModule:
    """Of `pycuda.compiler`: what `nvcc` makes of a source, loaded."""

    def __init__(self, source, no_extern_c):
        assert no_extern_c, "templates cannot be C"
        with suppress(Error):
            Context.ask_architecture()
        with TemporaryDirectory() as folder:
            Path(folder, "kernel.cu").write_text(source)
            subprocess.run(["nvcc", "--cubin", "kernel.cu"], cwd=folder, check=True)  # noqa: S607
            image = Path(folder, "kernel.cubin").read_bytes()
        self.handle, self.context = ctypes.c_void_p(), current()
        cuda.cuModuleLoadDataEx(ctypes.byref(self.handle), image, 0, None, None)

    def get_function(self, name):
        return Function(self, name)

    def __del__(self):
        if getattr(self, "handle", None):
            self.context.clean_up("cuModuleUnload", self.handle)


compiler = ModuleType("pycuda.compiler")
compiler.SourceModule = SourceModule
