"""What TensorRT up to 10 takes beside Q/DQ: ranges, precisions, calibrators. Not yet run on a GPU.

It is `trtcal/backends/tensorrt_network.py` without PyCUDA and, but for constants, NumPy.
"""

from __future__ import annotations

import ctypes
import json
import os
from array import array
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from trtcal.backends.tensorrt_objects import (
    LARGEST_AMAX,
    logger_of,
    matched,
    report,
    set_ranges,
    shown,
    with_parser_tensors,
)

from .cuda_driver import Resources, Stream
from .frames import Fault
from .runtimes import Tensor, nbytes_of

if TYPE_CHECKING:
    from .jobs import Job


CALIBRATORS = {
    "entropy": "IInt8EntropyCalibrator",
    "entropy2": "IInt8EntropyCalibrator2",
    "minmax": "IInt8MinMaxCalibrator",
}
LEAST_AMAX = 127 * 2.0**-126  # of `calibrators.range`


def version_of(trt: Any) -> tuple[int, ...]:
    """Return the version's first two numbers."""
    return tuple(int(part) for part in str(trt.__version__).split(".")[:2])


class Messages:
    """What TensorRT says: into the job's log, its errors kept. Its `logger` must outlive all else."""

    def __init__(self, trt: Any, log: Callable[[str], None]) -> None:
        self.errors: list[str] = []
        self.logger, self._log = logger_of(trt, self.add), log

    def add(self, letter: str, message: str) -> None:
        """Write one message to the log, with its severity."""
        if letter == "E":
            self.errors.append(message)
        self._log(f"[{letter}] {message}")

    def fault(self, otherwise: str) -> Fault:
        """Return the last error of TensorRT, or `otherwise` without one."""
        return Fault("backend", " ".join((self.errors or [otherwise])[-1].split()))


def lacks_option(trt: Any, what: str) -> Fault:
    """Return the error about what a version has not."""
    hint = "`trtcal device check` shows the versions there"
    return Fault("input", f"TensorRT {trt.__version__} on the device has {what}", hint)


def typing_of(request: Mapping[str, Any]) -> tuple[Any, Any, Mapping[str, str], str | None]:
    """Return whether INT8 and FP16 are allowed, the precisions of layers, and the constraints."""
    if request.get("route", "qdq") == "qdq":
        precisions = request.get("float32") or {}
        constraints = "prefer" if precisions else None
        return request.get("quantized"), request.get("fp16"), precisions, constraints
    precisions, constraints = request.get("precisions") or {}, request.get("constraints")
    return True, constraints and "fp16" in precisions.values(), precisions, constraints


def cache_of_ranges(version: str, kind: str, ranges: Mapping[str, float]) -> bytes:
    """Return the calibration cache with these amaxes: `calibrators.tensorrt_cache`."""
    major, minor, patch = [int(part) for part in version.split(".")[:3]]
    digits = major * (10_000 if major >= 10 else 1_000) + minor * 100 + patch
    bits = {name: ctypes.c_float(amax / 127.0) for name, amax in ranges.items()}
    lines = [f"{name}: {ctypes.c_uint32.from_buffer(b).value:x}" for name, b in bits.items()]
    text = "\n".join([f"TRT-{digits}-{CALIBRATORS[kind][5:].replace('or', 'ion')}", *lines, ""])
    return text.encode("utf-8", "surrogateescape")


class Routed:
    """A network on a route beside Q/DQ; `cache` is what TensorRT took or made of the data."""

    def __init__(self, trt: Any, network: Any, messages: Messages) -> None:
        self._trt, self._network, self._messages = trt, network, messages
        self._feeder: Feeder | None = None
        self.cache, self.error = b"", ""

    def take(self, job: Job, resources: Resources) -> Any:
        """Give ranges, and return None; or a calibrator with them, or with the blob `data`."""
        request, trt, network = job.options, self._trt, self._network
        if request["route"] == "calibrator":
            self._feeder = Feeder(job.path("data"), request["feeds"], resources)
            return self._calibrator(request["kind"])
        ranges = request["ranges"]
        wrong = [n for n, amax in ranges.items() if not n or not LEAST_AMAX <= amax <= LARGEST_AMAX]
        if wrong:
            what = f"{len(wrong)} ranges are not valid: {shown(wrong)}"
            raise Fault("input", what, "calibrate again")
        matched(trt, network, ranges)  # refuses those of another network
        ranges = with_parser_tensors(trt, network, ranges)
        report(matched(trt, network, ranges), network, request, self._messages.add)
        if request["route"] == "dynamic-ranges":
            return set_ranges(trt, network, ranges)
        self.cache = cache_of_ranges(str(trt.__version__), request["kind"], ranges)
        return self._calibrator(request["kind"])

    def _calibrator(self, kind: str) -> Any:
        trt, routed, feeder, cache = self._trt, self, self._feeder, self.cache or None
        if not hasattr(trt, CALIBRATORS[kind]):
            raise lacks_option(trt, "only the route qdq")
        base = getattr(trt, CALIBRATORS[kind])

        class Calibrator(base):  # type: ignore[misc,valid-type]  # trt is imported at run time
            def __init__(self) -> None:
                base.__init__(self)  # pybind11 insists on it

            def get_batch_size(self) -> int:
                return feeder.size if feeder else 1

            def get_batch(self, names: list[str]) -> list[int] | None:
                if feeder:
                    return feeder.next(names)
                routed.error = "TensorRT did not accept the ranges of its cache"
                return None

            def read_calibration_cache(self) -> bytes | None:
                return cache

            def write_calibration_cache(self, cache: Any) -> None:
                routed.cache = bytes(cache)

        return Calibrator()

    def check(self, is_built: bool) -> None:
        """Raise what went wrong in a calibrator: TensorRT swallows it, and goes on without data."""
        feeder, why = self._feeder, self.error
        if feeder and not feeder.ended:
            stopped = f"TensorRT stopped after batch {feeder.count} of the data"
            why = feeder.error or (stopped if is_built else "")
        if why:
            raise Fault("backend", f"calibration inside TensorRT failed: {why}")
        if feeder:
            samples = feeder.count * feeder.size
            self._messages.add("I", f"TensorRT read {samples} calibration samples")


class Feeder:
    """Batches of a file on the device: for each a line of JSON as `feeds` has it, then its arrays."""

    def __init__(
        self, path: str, shapes: Mapping[str, Sequence[int]], resources: Resources
    ) -> None:
        self._path, self._shapes, self._resources = path, shapes, resources
        self._offset, self._stream = 0, Stream(resources)
        self._buffers: dict[str, int] = {}
        self.size = next(iter(shapes.values()))[0]
        self.count, self.ended, self.error = 0, False, ""

    def next(self, names: Sequence[str]) -> list[int] | None:
        """Return the addresses of the next batch's arrays, None at the end or after an error."""
        try:
            tensors = self._read()
            self.ended = not tensors
            self.count += bool(tensors)
            return [self._put(name, tensors[name]) for name in names] if tensors else None
        except Exception as error:  # TensorRT would swallow it
            self.error = f"{type(error).__name__}: {error}"
            return None

    def _read(self) -> dict[str, bytes]:
        tensors = {}
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            for item in json.loads(file.readline() or b"[]"):
                if list(item["shape"]) != list(self._shapes[item["name"]]):
                    raise ValueError(f"a batch has the shape {item['shape']}")
                tensors[item["name"]] = file.read(nbytes_of(item["dtype"], item["shape"]))
            self._offset = file.tell()
        return tensors

    def _put(self, name: str, content: bytes) -> int:
        if name not in self._buffers:
            self._buffers[name] = self._resources.allocate(len(content))
        host = ctypes.create_string_buffer(content, len(content))
        self._stream.upload(self._buffers[name], ctypes.addressof(host), len(content))
        self._stream.wait()  # TensorRT reads it in a stream of its own
        return self._buffers[name]


def write_file(folder: str, name: str, content: Any) -> str:
    """Write a file of a job; return its path."""
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def converted(fed: Tensor, name: str, dtype: str | None) -> bytes:
    """Return the bytes of an input in the engine's type: TensorRT 8 makes int32 of int64."""
    if fed.dtype == dtype:
        return bytes(fed.data)
    if (fed.dtype, dtype) == ("int64", "int32"):
        try:
            return array("i", array("q", bytes(fed.data))).tobytes()
        except OverflowError:
            what = f"the input {name} has values that the engine's int32 cannot hold"
            raise Fault("input", what) from None
    what = f"the engine's input {name} is {dtype or 'not there'}, not {fed.dtype}"
    raise Fault("input", what, "feed its type")
