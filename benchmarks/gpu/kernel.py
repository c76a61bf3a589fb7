"""The histogram kernels by nvcc and the driver alone: their counts beside NumPy's, and their speed.

    python -m benchmarks.gpu.kernel [--elements N] [--check] [--image FILE]

Prints for each kind of data and type whether every count is NumPy's, and the GB/s read by both
kernels, by a copy on the device, and by NumPy on this CPU. FILE is the PTX for a machine without
`nvcc`. With `--check` only few elements are counted, and nothing is timed: for `compute-sanitizer`.
Needs NumPy. Status 1 if a count differs.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.cuda_histogram import CHECKED, KINDS, RUNS, typed
from benchmarks.gpu import worker
from calibrators.counting import BINS, SHIFT
from calibrators.cuda_histogram import (
    BLOCKS,
    ELEMENTS,
    LOW,
    NONZERO,
    THREADS,
    WORDS,
    _nothing,
    kernel_source,
)

KERNELS = ("count_values", "count_nonzero")
OFFSET = 3  # elements: the second launch starts where no vector of 16 bytes does


def expected(name: str, array: Any) -> Any:
    """Return the words that a kernel leaves, by NumPy."""
    words, values = _nothing(), array.astype(np.float32)
    finite = values[np.isfinite(values)]
    numbers = finite[finite != 0]
    if name == "count_nonzero":
        words[NONZERO] = numbers.size
        return words
    words[:BINS] = np.bincount(numbers.view(np.uint32) >> SHIFT, minlength=BINS)
    masks = values == 0, np.isnan(values), np.isposinf(values), np.isneginf(values)
    words[BINS:LOW] = [mask.sum() for mask in masks]
    patterns = (finite + np.float32(0)).view(np.int32)  # -0 is 0
    keys = np.where(patterns < 0, ~(patterns & 0x7FFFFFFF), patterns)
    if keys.size:
        words[LOW:NONZERO] = np.array([keys.min(), keys.max()], np.int32).view(np.uint32)
    return words


def compiled(kind: str, architecture: str, folder: Path) -> bytes:
    """Return what nvcc makes of the kernels, a `cubin` or `ptx`, for `sm90` or another."""
    (folder / "kernel.cu").write_text(kernel_source())
    command = ["nvcc", f"-{kind}", f"-arch={architecture.replace('sm', 'sm_')}", "kernel.cu"]
    subprocess.run([*command, "-o", "kernel"], check=True, cwd=folder)  # noqa: S603
    return (folder / "kernel").read_bytes()


class Kernels:
    """The kernels, loaded, and one stream for all that is done."""

    def __init__(self, driver: Any, image: bytes) -> None:
        self.driver, self.resources = driver, worker.module("cuda_driver").Resources(driver)
        self.stream = worker.module("cuda_driver").Stream(self.resources)
        self.events = self.resources.event(), self.resources.event()
        module, self.functions = ctypes.c_void_p(), {name: ctypes.c_void_p() for name in KERNELS}
        driver.call("cuModuleLoadDataEx", ctypes.byref(module), image + b"\0", 0, None, None)
        for name, function in self.functions.items():
            driver.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())

    def upload(self, array: Any) -> int:
        """Return the address of a copy of an array."""
        address: int = self.resources.allocate(array.nbytes)
        self.stream.upload(address, array.ctypes.data, array.nbytes)
        self.stream.wait()
        return address

    def launch(self, name: str, values: int, elements: int, fp16: bool, words: int) -> None:
        """Put a kernel into the stream."""
        packed = struct.pack("QQiQ", values, elements, int(fp16), words)
        buffer, size = ctypes.create_string_buffer(packed), ctypes.c_size_t(len(packed))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        sizes = min(BLOCKS, -(-elements // (THREADS * ELEMENTS))), 1, 1, THREADS, 1, 1, 0
        queue = ctypes.c_void_p(self.stream.handle)
        self.driver.call("cuLaunchKernel", self.functions[name], *sizes, queue, None, extra)

    def words(self, name: str, values: int, array: Any) -> Any:
        """Return what a kernel makes of an array that is there, in two launches."""
        result = np.empty(WORDS, np.uint32)
        words, fp16 = self.upload(_nothing()), array.dtype == np.float16
        self.launch(name, values, OFFSET, fp16, words)
        behind = values + OFFSET * array.itemsize
        self.launch(name, behind, array.size - OFFSET, fp16, words)
        self.stream.download(result.ctypes.data, words, result.nbytes)
        self.stream.wait()
        return result

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the median time of what is put into the stream."""
        times = []
        for _ in range(RUNS):
            self.stream.record(self.events[0])
            work()
            self.stream.record(self.events[1])
            self.stream.wait()
            times.append(self.stream.elapsed_ms(*self.events) / 1e3)
        return statistics.median(times[2:])

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Put a copy on the device into the stream."""
        places = ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(nbytes)
        self.driver.call("cuMemcpyDtoDAsync_v2", *places, ctypes.c_void_p(self.stream.handle))


def row(kernels: Kernels, array: Any, timed: bool) -> tuple[bool, str]:
    """Return whether an array's counts are NumPy's, and the speeds."""
    values = kernels.upload(array)
    begin = time.perf_counter()
    right = {name: expected(name, array) for name in KERNELS}
    cpu_s = (time.perf_counter() - begin) / len(KERNELS)
    same = all(np.array_equal(kernels.words(name, values, array), right[name]) for name in KERNELS)
    if not timed:
        return same, ""
    words, other = kernels.upload(_nothing()), kernels.resources.allocate(array.nbytes)
    rest = values, array.size, array.dtype == np.float16, words
    times = [kernels.seconds(lambda name=name: kernels.launch(name, *rest)) for name in KERNELS]  # type: ignore[misc]  # of the lambda's default
    times += [kernels.seconds(lambda: kernels.copy(other, values, array.nbytes)), cpu_s]
    return same, "".join(f" {array.nbytes / max(one, 1e-9) / 1e9:8.1f}" for one in times)


def energy(kernels: Kernels, array: Any) -> str:
    """Return the energy of counting an array, as NVML counts it."""
    values, words = kernels.upload(array), kernels.upload(_nothing())

    def once() -> None:
        kernels.launch("count_values", values, array.size, False, words)
        kernels.stream.wait()

    meter = worker.module("power").open_meter()
    mj = meter.energy_per_run(once)
    meter.close()
    return "not known: NVML does not tell" if mj is None else f"{mj:.3f} mJ"


def show(elements: int, check: bool, image: Path | None) -> bool:
    """Print the table; return whether all counts are right."""
    driver = worker.module("cuda_driver").Driver()
    about = driver.describe()
    with TemporaryDirectory() as folder:
        here = shutil.which("nvcc") is not None
        kind = f"compiled by nvcc for {about['capability']}" if here else f"from {image}"
        code = compiled("cubin", about["capability"], Path(folder)) if here else _read(image)
    print(f"{about['name']} ({about['capability']}), CUDA {about['cuda']}, kernels {kind}")
    print(
        f"{elements} elements; GB/s read\n"
        "kind          type     same    values  nonzero     copy    NumPy"
    )
    everything = True
    for array_kind in KINDS:
        for dtype in ("float32", "float16"):
            kernels = Kernels(driver, code)
            same, speeds = row(kernels, typed(array_kind, elements, dtype), not check)
            everything &= same
            print(f"{array_kind:13} {dtype:8} {'yes' if same else 'NO':4}{speeds}", flush=True)
            kernels.resources.close()
    if not check:
        kernels = Kernels(driver, code)
        mj = energy(kernels, typed("normal", elements, "float32"))
        print(f"energy of count_values, normal float32: {mj}")
        kernels.resources.close()
    driver.close()
    return everything


def _read(image: Path | None) -> bytes:
    if image is None or not image.exists():
        raise OSError("there is no nvcc here, and no kernel.ptx was carried along")
    return image.read_bytes()


def main() -> int:
    """Print the table; return the status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=1 << 26)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--image", type=Path)
    options = parser.parse_args()
    try:
        right = show(CHECKED if options.check else options.elements, options.check, options.image)
    except (OSError, subprocess.CalledProcessError, worker.module("frames").Fault) as error:
        print(f"error: {error}")
        return 3
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
