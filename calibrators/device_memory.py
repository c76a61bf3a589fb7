"""Where a network's inputs lie while TensorRT calibrates on them."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Memory(Protocol):
    """Memory of a device, by address."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes` new bytes."""
        ...

    def copy(self, address: int, array: Array) -> None:
        """Copy the elements of an array, in C order, to `address`; they are there on return."""
        ...

    def free(self, address: int) -> None:
        """Give back what `allocate` gave."""
        ...


class PyCudaMemory:
    """Memory of a GPU, through PyCUDA. This has not been run on a GPU.

    It lies in the context that is PyCUDA's current one, else in the device's primary context, which
    is the one that TensorRT uses by itself. `ImportError` without PyCUDA or an NVIDIA driver; what
    goes wrong later is a `pycuda.driver.Error`.
    """

    def __init__(self, device: int = 0) -> None:
        self._cuda = _pycuda()
        self._primary = _primary_context(device)
        self._allocated: dict[int, Any] = {}

    @contextmanager
    def _context(self) -> Iterator[Any]:
        """Make a context current for PyCUDA, whose list of contexts is each thread's own."""
        if self._cuda.Context.get_current() is not None:
            yield self._cuda.Context
            return
        self._primary.push()
        try:
            yield self._cuda.Context
        finally:
            self._cuda.Context.pop()

    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes` new bytes; `pycuda.driver.MemoryError` if too many."""
        with self._context():
            allocation = self._cuda.mem_alloc(nbytes)
        self._allocated[int(allocation)] = allocation
        return int(allocation)

    def copy(self, address: int, array: Array) -> None:
        """Copy the elements of an array, in C order, to `address`; they are there on return."""
        with self._context() as context:
            # TensorRT works in a stream of its own, for which a copy waits no more than it for the
            # copy: before, it may still read the last batch; after, this one may be on its way.
            context.synchronize()
            self._cuda.memcpy_htod(address, np.ascontiguousarray(array))
            context.synchronize()

    def free(self, address: int) -> None:
        """Give back what `allocate` gave."""
        with self._context():
            self._allocated.pop(address).free()


@cache
def _primary_context(device: int) -> Any:
    """Return a device's primary context, one for the whole process.

    PyCUDA's objects for it must not just go out of use: that leaves the context on the driver's
    stack and calls a function which is not for primary contexts.
    """
    cuda = _pycuda()
    cuda.init()
    context = cuda.Device(device).retain_primary_context()
    atexit.register(context.detach)
    return context


def _pycuda() -> Any:
    try:
        return import_module("pycuda.driver")
    except ImportError as error:
        raise ImportError(
            f"a GPU's memory is reached with PyCUDA, which cannot be imported here ({error}); it "
            "needs `pip install pycuda`, the CUDA toolkit and an NVIDIA driver"
        ) from error
