"""The histogram kernels on a GPU: the same digests as on the CPU, and their speed beside a plain copy.

    python -m benchmarks.cuda_histogram [--elements N] [--check]

Prints for each kind of data and type: the digest's first digits, whether a CPU counts the same, and
the GB/s that are read by `count_values`, by `count_nonzero`, and by a copy on the device (which also
writes as many). Each is the median of runs between two CUDA events. With `--check` only few elements
are counted, and nothing is timed: for NVIDIA's `compute-sanitizer`. Needs PyCUDA and `nvcc`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from calibrators.cuda_histogram import BLOCKS, ELEMENTS, THREADS, DeviceHistogram, PyCudaDevice
from calibrators.histogram import Histogram

RUNS, CHECKED = 20, 300_001
KINDS = ("normal", "uniform", "relu", "one value", "zeros", "all patterns")


def values(kind: str, elements: int) -> Any:
    """Return float32 values of a kind; `all patterns` has NaN, infinities and denormals too."""
    rng = np.random.default_rng(7)
    if kind == "normal":
        return rng.standard_normal(elements, np.float32)
    if kind == "uniform":
        return rng.random(elements, np.float32)
    if kind == "relu":
        return np.maximum(rng.standard_normal(elements, np.float32), 0)
    if kind == "all patterns":
        return rng.integers(0, 1 << 32, elements, np.uint32).view(np.float32)
    return np.full(elements, 1.5 if kind == "one value" else 0.0, np.float32)


def typed(kind: str, elements: int, dtype: str) -> Any:
    """Return values of a kind and type."""
    if kind == "all patterns" and dtype == "float16":
        rng = np.random.default_rng(7)
        return rng.integers(0, 1 << 16, elements, np.uint16).view(np.float16)
    return values(kind, elements).astype(dtype)


def times(cuda: Any, run: Callable[[], object]) -> float:
    """Return the median of runs in seconds, between two events."""
    first, last = cuda.Event(), cuda.Event()
    found = []
    for _ in range(RUNS):
        first.record()
        run()
        last.record()
        last.synchronize()
        found.append(first.time_till(last) / 1e3)
    return statistics.median(found[2:])


def count(device: PyCudaDevice, array: Any, parts: int) -> Histogram:
    """Return what the device counts of an array, given in parts that begin anywhere."""
    address = device.allocate(array.nbytes)
    device.copy(address, array)
    with DeviceHistogram(device) as counted:
        places = [array.size * part // parts for part in range(parts + 1)]
        for first, last in pairwise(places):
            counted.update(address + first * array.itemsize, last - first, array.dtype)
        made = counted.histogram()
    device.free(address)
    return made


def speeds(device: PyCudaDevice, array: Any) -> Iterator[float]:
    """Yield the bytes read per second of both kernels, and of a copy."""
    import pycuda.driver as cuda

    address, other = device.allocate(array.nbytes), device.allocate(array.nbytes)
    words = device.allocate(1 << 23)
    device.copy(address, array)
    fp16 = np.int32(array.dtype == np.float16)
    arguments = np.uint64(address), np.uint64(array.size), fp16, np.uint64(words)
    blocks = min(BLOCKS, -(-array.size // (THREADS * ELEMENTS)))
    with device._context("be timed"):
        for name in ("count_values", "count_nonzero"):
            kernel = device._compiled().get_function(name)
            run = partial(kernel, *arguments, block=(THREADS, 1, 1), grid=(blocks, 1))
            yield array.nbytes / times(cuda, run)
        copy = partial(cuda.memcpy_dtod_async, other, address, array.nbytes)
        yield array.nbytes / times(cuda, copy)
    for one in (address, other, words):
        device.free(one)


def main() -> int:
    """Print the table; return 1 if a digest differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=1 << 26)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    device = PyCudaDevice()
    elements, status = CHECKED if asked.check else asked.elements, 0
    print(
        f"{elements} elements\nkind          type     digest            same  GB/s: values nonzero copy"
    )
    for kind in KINDS:
        for dtype in ("float32", "float16"):
            array = typed(kind, elements, dtype)
            found, wanted = count(device, array, 7), Histogram()
            wanted.update(array)
            status |= found != wanted
            line = f"{kind:13} {dtype:8} {found.digest()[7:23]}  {found == wanted!s:5}"
            if not asked.check:
                line += "".join(f" {speed / 1e9:8.0f}" for speed in speeds(device, array))
            print(line, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
