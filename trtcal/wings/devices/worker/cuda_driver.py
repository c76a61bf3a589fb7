"""The CUDA driver's API through ctypes: memory, streams, events, graphs. Not yet run on a GPU.

It needs `libcuda` alone, which every driver brings: no PyCUDA and no CUDA runtime. All work is done in
the primary context of the first device, in which TensorRT works too, by the thread that opened it.
Source: CUDA Driver API, sections 6.2 to 6.24.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from ctypes import c_size_t, c_uint64
from typing import Any, Callable

from .frames import Fault

LIBRARIES = ("libcuda.so.1", "libcuda.so")
OUT_OF_MEMORY, NO_DEVICE = 2, 100
CLOCK_RATE, MAJOR, MINOR = 13, 75, 76  # CU_DEVICE_ATTRIBUTE_...
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_...
NON_BLOCKING = 1  # CU_STREAM_...
TEXT = 128


class CudaError(Fault):
    """What the driver refuses."""

    def __init__(self, message: str, code: int = 0) -> None:
        hint = "check `nvidia-smi` and the kernel's log for Xid messages, then try again"
        if code == OUT_OF_MEMORY:
            hint = "end other programs that use the GPU, or take a smaller batch"
        super().__init__("resource" if code == OUT_OF_MEMORY else "backend", message, hint)


class NoCudaError(CudaError):
    """There is no driver, or no device."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.hint = "install NVIDIA's driver, or start the container with `--gpus all`"


def load_driver() -> Any:
    """Return libcuda; `NoCudaError` if there is none."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NoCudaError("the CUDA driver (libcuda.so.1) cannot be loaded")


class Device:
    """The first device, without a context: what it is."""

    def __init__(self, library: Any = None) -> None:
        self._library = load_driver() if library is None else library
        self.call("cuInit", 0)
        self._device = self._int("cuDeviceGet", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call one function; `CudaError` if it fails or this driver does not have it."""
        if not hasattr(self._library, name):
            raise CudaError(f"the CUDA driver is too old: it has no {name}")
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            why = (text.value or b"unknown error").decode("utf-8", "replace")
            what = f"{name.partition('_v')[0]} failed: {why} ({code})"
            raise NoCudaError(what) if code == NO_DEVICE else CudaError(what, code)

    def release(self, name: str, *arguments: Any) -> None:
        """Give something back; what is wrong then was reported by the call that met it first."""
        getattr(self._library, name)(*arguments)

    def _int(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def _text(self, name: str) -> bytes:
        text = ctypes.create_string_buffer(TEXT)
        self.call(name, text, TEXT, self._device)
        return text.value

    def pci_bus_id(self) -> bytes:
        """Return the device's address, by which NVML knows it too."""
        return self._text("cuDeviceGetPCIBusId")

    def describe(self) -> dict[str, Any]:
        """Return name, compute capability (`sm87`), CUDA version and maximal clock in MHz."""
        version = self._int("cuDriverGetVersion")
        clock_khz, major, minor = [
            self._int("cuDeviceGetAttribute", attribute, self._device)
            for attribute in (CLOCK_RATE, MAJOR, MINOR)
        ]
        return {
            "kind": "GPU",
            "name": self._text("cuDeviceGetName").decode("utf-8", "replace"),
            "capability": f"sm{major}{minor}",
            "cuda": f"{version // 1000}.{version % 1000 // 10}",
            "clock_mhz": clock_khz / 1e3,
        }


class Driver(Device):
    """A device in its primary context, current in this thread until `close`."""

    def __init__(self, library: Any = None) -> None:
        super().__init__(library)
        context = c_uint64()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        try:
            self.call("cuCtxPushCurrent_v2", context)
        except CudaError:
            self.release("cuDevicePrimaryCtxRelease_v2", self._device)
            raise

    def close(self) -> None:
        """Give the context back."""
        self.release("cuCtxPopCurrent_v2", ctypes.byref(c_uint64()))
        self.release("cuDevicePrimaryCtxRelease_v2", self._device)


class Resources:
    """Memory, streams, events and graphs that are given back together; handles are integers."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._closing = ExitStack()

    def _new(self, free: str, name: str, *arguments: Any) -> int:
        handle = c_uint64()
        self.driver.call(name, ctypes.byref(handle), *arguments)
        self._closing.callback(self.driver.release, free, handle)
        return handle.value

    def allocate(self, nbytes: int) -> int:
        """Return the address of so many bytes (at least one) on the device."""
        return self._new("cuMemFree_v2", "cuMemAlloc_v2", c_size_t(max(nbytes, 1)))

    def allocate_host(self, nbytes: int) -> int:
        """Return the address of so many bytes here that are not swapped, so that copies overlap."""
        return self._new("cuMemFreeHost", "cuMemHostAlloc", c_size_t(max(nbytes, 1)), 0)

    def stream(self) -> int:
        """Return a stream that does not wait for the default one."""
        return self._new("cuStreamDestroy_v2", "cuStreamCreate", NON_BLOCKING)

    def event(self) -> int:
        """Return an event that keeps its time."""
        return self._new("cuEventDestroy_v2", "cuEventCreate", 0)

    def graph(self, stream: int, work: Callable[[], object]) -> int:
        """Return the executable graph of what `work` puts into a stream."""
        graph, queue = c_uint64(), c_uint64(stream)
        self.driver.call("cuStreamBeginCapture_v2", queue, THREAD_LOCAL)
        try:
            work()
        except BaseException:  # a capture that stays open spoils the stream
            self.driver.release("cuStreamEndCapture", queue, ctypes.byref(graph))
            self.driver.release("cuGraphDestroy", graph)
            raise
        self.driver.call("cuStreamEndCapture", queue, ctypes.byref(graph))
        self._closing.callback(self.driver.release, "cuGraphDestroy", graph)
        return self._new("cuGraphExecDestroy", "cuGraphInstantiateWithFlags", graph, c_uint64(0))

    def close(self) -> None:
        """Give everything back, the last first."""
        self._closing.close()


class Stream:
    """What is done in one stream, in order."""

    def __init__(self, resources: Resources) -> None:
        self._call, self.handle = resources.driver.call, resources.stream()
        self._queue = c_uint64(self.handle)

    def upload(self, device: int, host: int, nbytes: int) -> None:
        """Copy bytes of this machine to the device."""
        self._copy("cuMemcpyHtoDAsync_v2", device, host, nbytes)

    def download(self, host: int, device: int, nbytes: int) -> None:
        """Copy bytes of the device to this machine."""
        self._copy("cuMemcpyDtoHAsync_v2", host, device, nbytes)

    def _copy(self, name: str, target: int, source: int, nbytes: int) -> None:
        if nbytes:
            self._call(name, c_uint64(target), c_uint64(source), c_size_t(nbytes), self._queue)

    def record(self, event: int) -> None:
        """Let an event happen when all before is done."""
        self._call("cuEventRecord", c_uint64(event), self._queue)

    def launch(self, graph: int) -> None:
        """Do what a graph holds."""
        self._call("cuGraphLaunch", c_uint64(graph), self._queue)

    def wait(self) -> None:
        """Wait until all is done; errors of what was done before are raised here."""
        self._call("cuStreamSynchronize", self._queue)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Return the milliseconds between two events that have happened."""
        ms = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(ms), c_uint64(start), c_uint64(end))
        return ms.value
