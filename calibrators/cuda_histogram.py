"""Histograms of tensors in a GPU's memory, which stay there.

    device = PyCudaDevice()
    with DeviceHistogram(device) as counted:
        for ...:                                  # an inference that leaves a tensor at `address`
            counted.update(address, elements, "float16")
        histogram = counted.histogram()

The result equals, digest for digest, what `Histogram.update` makes of the same values. A tensor is
copied to the host only while there are no more than `VALUES_KEPT` finite values that are not zero:
the host keeps these exactly. From then on only counts, 4 MiB, go to the host: for `histogram()`, and
before they can overflow. The kernels are in `histogram.cu`.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from importlib import import_module
from importlib.resources import files
from shutil import which
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from calibrators.counting import BINS, SHIFT
from calibrators.device_memory import Array, Memory, PyCudaMemory
from calibrators.histogram import COUNT_LIMIT, SCALARS, Histogram

# The words that a kernel writes: the bins, the scalars, and these. `histogram.cu` has them too.
LOW = BINS + len(SCALARS)
HIGH, NONZERO, WORDS = LOW + 1, LOW + 2, LOW + 3

# Measured on an H200: `benchmarks/results/cuda_histogram_gpu.txt`.
THREADS = 1024
ELEMENTS = 16  # at least, for each thread before there are more blocks
BLOCKS = 528  # at most: each one adds up to 4096 counts of its own to those of all


class Device(Memory, Protocol):
    """A device that has the kernels of `histogram.cu` beside its memory."""

    def read(self, address: int, array: Array) -> None:
        """Copy from `address` into an array, which has its values on return."""

    def launch(
        self, kernel: str, blocks: int, values: int, elements: int, fp16: bool, words: int
    ) -> None:
        """Run a kernel over the elements at address `values`; on return, `words` are written."""


class PyCudaDevice(PyCudaMemory):
    """A GPU through PyCUDA, which compiles the kernels with `nvcc` when they are first run.

    Errors are those of `PyCudaMemory`, `ImportError` without `nvcc`,
    and `pycuda.driver.CompileError`.
    """

    def __init__(self, device: int = 0) -> None:
        super().__init__(device)
        self._module: Any = None

    def read(self, address: int, array: Array) -> None:
        """Copy from `address` into an array, which has its values on return."""
        with self._context(f"copy {array.nbytes} bytes from the GPU") as context:
            context.synchronize()
            self._cuda.memcpy_dtoh(array, address)

    def launch(
        self, kernel: str, blocks: int, values: int, elements: int, fp16: bool, words: int
    ) -> None:
        """Run a kernel over the elements at address `values`; on return, `words` are written."""
        arguments = np.uint64(values), np.uint64(elements), np.int32(fp16), np.uint64(words)
        with self._context(f"run {kernel}") as context:
            function = self._compiled().get_function(kernel)
            # What makes the tensor may run in another stream, for which the kernel would not wait,
            # nor it for the kernel with the next one.
            context.synchronize()
            function(*arguments, block=(THREADS, 1, 1), grid=(blocks, 1))
            context.synchronize()

    def close(self) -> None:
        """Give the compiled kernels back; the next launch would compile them again."""
        if self._module is not None and not self._primary.given_up:
            with self._context("unload the kernels"):
                self._module = None

    def _compiled(self) -> Any:
        if self._module is None:
            compiler = import_module("pycuda.compiler")
            if which("nvcc") is None:
                raise ImportError(
                    "counting on a GPU needs `nvcc`, which is not on PATH: install the CUDA toolkit"
                )
            self._module = compiler.SourceModule(kernel_source(), no_extern_c=True)
        return self._module


def kernel_source() -> str:
    """Return the kernels' CUDA C++, with the constants of `counting.py`."""
    source = files("calibrators").joinpath("histogram.cu").read_text(encoding="utf-8")
    return f"#define SHIFT {SHIFT}\n#define BINS {BINS}u\n{source}"


class DeviceHistogram:
    """The histogram of one tensor's values, counted where they lie.

    It takes 4 MiB of the device from its first large tensor on, which `close`, or the end of `with`,
    gives back; `histogram` can still be called then. Several can share a `device`.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._histogram = Histogram()
        self._many = False  # values, so that the histogram does not keep them
        self._words = 0  # the address, once there is one
        self._pending = 0  # elements whose counts are on the device only

    def update(self, address: int, elements: int, dtype: npt.DTypeLike, padding: int = 0) -> None:
        """Count the float32 or float16 elements at an address, which are no more needed on return.

        `padding` says how many of the zeros among them are none of the tensor's own. `TypeError` for
        other types, `ValueError` for an address between elements or fewer than no elements.
        """
        kind = np.dtype(dtype)
        if kind not in (np.float16, np.float32):
            raise TypeError(f"a histogram counts float32 or float16 values, not {kind}")
        if elements < 0 or address % kind.itemsize:
            raise ValueError(f"address {address:#x} does not have {elements} values of {kind}")
        for start in range(0, elements, COUNT_LIMIT):
            self._add(address + start * kind.itemsize, min(COUNT_LIMIT, elements - start), kind)
        self._histogram.zeros -= padding

    def histogram(self) -> Histogram:
        """Return the histogram of all values so far; it stays as it is when there are more."""
        self._fold()
        result = Histogram()
        result.merge(self._histogram)
        return result

    def _add(self, address: int, elements: int, kind: np.dtype[Any]) -> None:
        fp16 = kind == np.float16
        self._many = self._many or not self._keeps(address, elements, fp16)
        if self._many:
            self._count(address, elements, fp16)
        else:
            values = np.empty(elements, kind)
            self._device.read(address, values)
            self._histogram.update(values)

    def _keeps(self, address: int, elements: int, fp16: bool) -> bool:
        """Say whether the histogram keeps these values too."""
        if self._histogram.keeps(elements):
            return True
        number = np.zeros(1, np.uint32)
        place = self._counts() + NONZERO * number.itemsize
        self._device.copy(place, number)
        self._launch("count_nonzero", address, elements, fp16)
        self._device.read(place, number)
        return self._histogram.keeps(int(number[0]))

    def _count(self, address: int, elements: int, fp16: bool) -> None:
        if self._pending + elements > COUNT_LIMIT:
            self._fold()
        self._launch("count_values", address, elements, fp16)
        self._pending += elements

    def _launch(self, kernel: str, address: int, elements: int, fp16: bool) -> None:
        blocks = min(BLOCKS, -(-elements // (THREADS * ELEMENTS)))
        self._device.launch(kernel, blocks, address, elements, fp16, self._counts())

    def _counts(self) -> int:
        """Return the address of the counts, which are there from the first time on."""
        if not self._words:
            empty = _nothing()
            words = self._device.allocate(empty.nbytes)
            try:
                self._device.copy(words, empty)
            except BaseException:
                with suppress(Exception):
                    self._device.free(words)
                raise
            self._words = words
        return self._words

    def _fold(self) -> None:
        """Move the counts from the device to the histogram."""
        if not self._pending:
            return
        words = np.empty(WORDS, np.uint32)
        self._device.read(self._words, words)
        self._device.copy(self._words, _nothing())
        self._pending = 0
        low, high = words[LOW:NONZERO].view(np.int32).tolist()
        self._histogram.add_counts(words[:BINS], words[BINS:LOW].tolist(), low, high)

    def close(self) -> None:
        """Give the device's memory back, after the counts in it have gone to the host."""
        try:
            self._fold()
        finally:
            words, self._words, self._pending = self._words, 0, 0
            if words:
                self._device.free(words)

    def __enter__(self) -> DeviceHistogram:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        # What ended the block comes before what then fails in giving memory back.
        with suppress(Exception) if kind else nullcontext():
            self.close()


def _nothing() -> npt.NDArray[np.uint32]:
    """Return the words of no values, shape (WORDS,)."""
    words = np.zeros(WORDS, np.uint32)
    words[LOW : HIGH + 1] = 0x7FFFFFFF, 0x80000000
    return words
