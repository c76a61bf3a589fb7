"""The runtimes: what builds, opens and times engines on a device, one module for each.

`NAME_runtime.py` beside this file is the runtime NAME. Importing it needs the standard library alone
and never fails; what it needs besides it imports inside its functions. It has:

    version() -> str | None
        Its version, None where it is not installed. Never raises and never ends the process.
    lacks() -> list[dict]                                                           (optional)
        [{"what": "...", "command": "..."}]: what is missing, and the command that brings it.
    build(job, folder, log) -> dict
        Builds `job.path("model")` with `job.options` inside `folder` (empty, removed afterwards).
        `log(text)` adds lines to the job's log, as do file descriptors 1 and 2.
        -> {"files": {"engine": path, "layers"?, "layer_times"?, "optimized"?: path}, "plugins": [..]};
        the paths become blobs, and seconds, version and hardware are added.
    open(path, options) -> Engine
    time(paths, feeds, job, folder, log) -> dict                                    (optional)
        The whole job "measurement", for a runtime that cannot launch one inference (see `timing.py`).

An Engine has

    inputs, outputs: list[dict]    [{"name", "dtype" (as NumPy names it), "shape" (-1: open)}]
    metadata: dict[str, str]
    run(feeds, names) -> dict[str, Tensor]      names None: all outputs; keys in the order of `names`
    prepare(feeds) -> None                      puts one batch where `launch` takes it
    launch() -> (ms, compute_ms | None)         one inference, with and without transfers
    close() -> None                             frees it

Feeds are {name: Tensor}; a Tensor is dtype, shape and the bytes (C order, little endian), so that no
runtime needs NumPy. Errors are `Fault("input" | "backend" | "resource", message, hint)`. A program
that a job starts runs by `jobs.run_program`, which ties it to the job's locks.
"""

from __future__ import annotations

import functools
import importlib
import operator
from typing import Any, NamedTuple, Sequence

from .frames import DATA_BYTES, Fault

RUNTIMES = ("tensorrt", "trtexec", "onnxruntime")
SIZES = {"bool": 1, "int4": 1, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


class Tensor(NamedTuple):
    """One array: its type as NumPy names it, its shape, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: Any

    @property
    def fields(self) -> dict[str, Any]:
        """Return type and shape as JSON has them."""
        return {"dtype": self.dtype, "shape": list(self.shape)}


def runtime(name: Any) -> Any:
    """Return the module of a runtime, installed or not."""
    if name not in RUNTIMES:
        raise Fault("input", f"the worker has no runtime {name!r}")
    return importlib.import_module(f".{name}_runtime", __package__)


def versions() -> dict[str, str]:
    """Return the version of each runtime that is installed."""
    every = {name: runtime(name).version() for name in RUNTIMES}
    return {name: version for name, version in every.items() if version}


def lacks() -> list[dict[str, str]]:
    """Return what each runtime lacks."""
    return [item for name in RUNTIMES for item in getattr(runtime(name), "lacks", list)()]


def nbytes_of(dtype: Any, shape: Sequence[int]) -> int:
    """Return the bytes of an array."""
    bits = str(dtype).lstrip("uintfloa")
    if dtype not in SIZES and bits not in ("8", "16", "32", "64"):
        raise Fault("input", f"the worker does not know the type {dtype!r}")
    return functools.reduce(operator.mul, shape, SIZES.get(dtype) or int(bits) // 8)


def unpack(described: Sequence[dict[str, Any]], data: bytes) -> dict[str, Tensor]:
    """Return the arrays of [{name, dtype, shape}] whose bytes follow each other in `data`."""
    view, tensors = memoryview(data), {}
    for item in described:
        shape = tuple(item["shape"])
        if any(type(size) is not int or not 0 <= size <= DATA_BYTES for size in shape):
            raise Fault("input", f"the shape {shape!r} has sizes that are not whole numbers")
        size = nbytes_of(item["dtype"], shape)
        tensors[item["name"]] = Tensor(item["dtype"], shape, view[:size])
        if len(view) < size:
            raise Fault("input", "the array {!r} is cut off".format(item["name"]))
        view = view[size:]
    return tensors
