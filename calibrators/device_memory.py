"""Where a network's inputs lie while TensorRT calibrates on them."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class DeviceError(RuntimeError):
    """CUDA failed: the device is lost, say, or its context no longer valid."""


class DeviceMemoryError(DeviceError):
    """The device's memory ran out."""


class Memory(Protocol):
    """Memory of a device, by address; `DeviceError` if the device fails."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes` new bytes."""

    def copy(self, address: int, array: Array) -> None:
        """Copy the elements of an array, in C order, to `address`; they are there on return."""

    def free(self, address: int) -> None:
        """Give back what `allocate` gave."""


class PyCudaMemory:
    """Memory of a GPU, through PyCUDA.

    It lies in the context that is PyCUDA's current one, else in the device's primary context, which
    is the one that TensorRT uses by itself. `ImportError` without PyCUDA or an NVIDIA driver; what
    goes wrong later is a `DeviceError`.
    """

    def __init__(self, device: int = 0) -> None:
        self._cuda = _pycuda()
        with self._errors("open a GPU"):
            self._primary = _primary_context(device)
        self._allocated: dict[int, Any] = {}

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Say what was to be done when a call of CUDA failed."""
        try:
            yield
        except self._cuda.CompileError:  # of `nvcc`, not of CUDA
            raise
        except self._cuda.MemoryError as error:
            raise DeviceMemoryError(f"no GPU memory is left to {what}: {_line(error)}") from error
        except self._cuda.Error as error:
            raise DeviceError(f"CUDA cannot {what}: {_line(error)}") from error

    @contextmanager
    def _context(self, what: str) -> Iterator[Any]:
        """Make a context current for PyCUDA, whose list of contexts is each thread's own."""
        with self._errors(what):
            if self._cuda.Context.get_current() is not None:
                yield self._cuda.Context
            else:
                with self._primary.current():
                    yield self._cuda.Context

    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes` new bytes; `DeviceMemoryError` if too many."""
        with self._context(f"allocate {nbytes} bytes"):
            allocation = self._cuda.mem_alloc(nbytes)
        self._allocated[int(allocation)] = allocation
        return int(allocation)

    def copy(self, address: int, array: Array) -> None:
        """Copy the elements of an array, in C order, to `address`; they are there on return."""
        with self._context(f"copy {array.nbytes} bytes to the GPU") as context:
            # TensorRT works in a stream of its own, for which a copy waits no more than it for the
            # copy: before, it may still read the last batch; after, this one may be on its way.
            context.synchronize()
            self._cuda.memcpy_htod(address, np.ascontiguousarray(array))
            context.synchronize()

    def free(self, address: int) -> None:
        """Give back what `allocate` gave, if it has not gone with its context."""
        allocation = self._allocated.pop(address)
        if not self._primary.given_up:
            with self._context("free memory"):
                allocation.free()


class _PrimaryContext:
    """A device's primary context; it is given up for good when it cannot be entered or left.

    PyCUDA ends the process when a thread ends with a context on its list, and when it collects
    memory whose context cannot be made current. What lies in a context that is given up, it
    leaves alone: that goes with the context, once nobody else holds it.
    """

    def __init__(self, cuda: Any, device: int) -> None:
        cuda.init()
        self._cuda, self.given_up = cuda, False
        self._context = cuda.Device(device).retain_primary_context()

    @contextmanager
    def current(self) -> Iterator[None]:
        if self.given_up:
            raise DeviceError("the GPU's context was closed after a CUDA error")
        try:
            self._context.push()
        except self._cuda.Error:
            self._try_again(self._context.push, self._cuda.Context.pop)
            raise
        try:
            yield
        except BaseException:
            with suppress(self._cuda.Error):  # the first error says what went wrong
                self._leave()
            raise
        self._leave()

    def _leave(self) -> None:
        try:
            self._cuda.Context.pop()
        except self._cuda.Error:
            self._try_again(self._cuda.Context.pop)
            raise

    def _try_again(self, *calls: Callable[[], object]) -> None:
        """Give the context up if what failed fails once more; CUDA also reports what failed before."""
        try:
            for call in calls:
                call()
        except self._cuda.Error:
            self.give_up()

    def give_up(self) -> None:
        """Give the context back, and let the next `PyCudaMemory` begin with a new one.

        PyCUDA's object for it must not just go out of use: that leaves the context on the driver's
        stack and calls a function which is not for primary contexts.
        """
        if not self.given_up:
            self.given_up = True
            _primary_context.cache_clear()
            self._context.detach()


@cache
def _primary_context(device: int) -> _PrimaryContext:
    """Return a device's primary context, one for the whole process."""
    context = _PrimaryContext(_pycuda(), device)
    atexit.register(context.give_up)
    return context


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _pycuda() -> Any:
    try:
        return import_module("pycuda.driver")
    except ImportError as error:
        raise ImportError(
            f"trtcal reads GPU memory with PyCUDA, which cannot be imported here ({error}): `pip "
            "install pycuda`; it needs the CUDA toolkit and an NVIDIA driver"
        ) from error
