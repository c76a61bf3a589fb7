"""What TensorRT up to 10 takes beside Q/DQ: ranges, precisions, calibrators. Not yet run on a GPU.

It is `trtcal/backends/tensorrt_network.py` for a device that has no trtcal.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
from array import array
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence

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
MOVING = {"CAST", "IDENTITY", "SHUFFLE", "SQUEEZE", "UNSQUEEZE"}
PARTS = {"GATHER", "SLICE", "TOPK"}
FLOOR, LEAST, LARGEST = 2.0**-20, 127 * 2.0**-126, 127 * 2.0**120
PRECISIONS = {"int8": "INT8", "fp16": "HALF", "fp32": "FLOAT"}


def version_of(trt: Any) -> tuple[int, ...]:
    """Return the version's first two numbers."""
    return tuple(int(part) for part in str(trt.__version__).split(".")[:2])


class Said:
    """What TensorRT says: into the job's log, its errors kept. Its `logger` must outlive all else."""

    def __init__(self, trt: Any, log: Callable[[str], None]) -> None:
        self.errors: list[str] = []
        said = self

        class Logger(trt.ILogger):  # type: ignore[misc]  # trt is imported at run time
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, level: Any, message: str) -> None:
                name = str(level).rpartition(".")[2]  # VERBOSE, INFO, ..., INTERNAL_ERROR
                said.add("E" if "ERROR" in name else name[:1], message)

        self.logger, self._log = Logger(), log

    def add(self, letter: str, message: str) -> None:
        """Write one message to the log, with its severity."""
        if letter == "E":
            self.errors.append(message)
        self._log(f"[{letter}] {message}")

    def warn(self, names: Sequence[str], what: str) -> None:
        """Say of how many names something is true, and of which, if there are any."""
        if names:
            self.add("W", f"{len(names)} {what}: {some(names)}")

    def fault(self, otherwise: str) -> Fault:
        """Return the last error of TensorRT, or what is said without one."""
        return Fault("backend", " ".join((self.errors or [otherwise])[-1].split()))


def lacks_option(trt: Any, what: str) -> Fault:
    """Return the error about what a version has not."""
    hint = "`trtcal device check` shows the versions there"
    return Fault("input", f"TensorRT {trt.__version__} on the device has {what}", hint)


def layers_of(network: Any) -> Iterable[Any]:
    """Yield a network's layers."""
    return (network.get_layer(number) for number in range(network.num_layers))


def set_layer_precisions(
    trt: Any, network: Any, precisions: Mapping[str, str], is_obeyed: bool
) -> list[str]:
    """Set the precision of layers by name; return the names that are of no layer."""
    layers = [layer for layer in layers_of(network) if layer.name in precisions]
    names = {layer.name for layer in layers}
    absent = [name for name in precisions if name not in names]
    if absent and is_obeyed:
        what = "%d layers of the plan are not in TensorRT's network: %s"
        hint = "remove them from the plan, or use --constraints prefer"
        raise Fault("input", what % (len(absent), some(absent)), hint)
    for layer in layers:
        layer.precision = getattr(trt.DataType, PRECISIONS[precisions[layer.name]])
    return absent


def some(names: Iterable[str]) -> str:
    """Return the first few names, on one line, and how many more there are."""
    shown = [name if name.isprintable() else ascii(name) for name in names]
    rest = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return ", ".join(shown[:5]) + rest


def float32(value: float) -> float:
    """Return the nearest number that float32 has."""
    return ctypes.c_float(value).value


def single(amax: float) -> float:
    """Return the float32 amax with the scale of this one: `calibrators.range.single`."""
    scale, near = float32(amax / 127.0), float32(amax)
    return near if float32(near / 127.0) == scale else float32(scale * 127.0)


def _is_rounded(amax: float) -> bool:
    return float32(single(amax) / 127.0) != float32(amax / 127.0)


def cache_of_ranges(version: str, kind: str, ranges: Mapping[str, float]) -> bytes:
    """Return the calibration cache with these amaxes: `calibrators.tensorrt_cache`."""
    major, minor, patch = [int(part) for part in version.split(".")[:3]]
    digits = major * (10_000 if major >= 10 else 1_000) + minor * 100 + patch
    bits = {name: ctypes.c_float(amax / 127.0) for name, amax in ranges.items()}
    lines = [f"{name}: {ctypes.c_uint32.from_buffer(b).value:x}" for name, b in bits.items()]
    text = "\n".join([f"TRT-{digits}-{CALIBRATORS[kind][5:].replace('or', 'ion')}", *lines, ""])
    return text.encode("utf-8", "surrogateescape")


def float_tensors(trt: Any, network: Any) -> dict[str, Any]:
    """Return the tensors that INT8 can need a range for, by name."""
    tensors = [network.get_input(number) for number in range(network.num_inputs)]
    for layer in layers_of(network):
        tensors += [layer.get_output(number) for number in range(layer.num_outputs)]
    floats = (trt.DataType.FLOAT, trt.DataType.HALF)
    return {
        tensor.name: tensor
        for tensor in tensors
        if tensor is not None and tensor.dtype in floats and not tensor.is_shape_tensor
    }


def with_parser_tensors(trt: Any, network: Any, ranges: Mapping[str, float]) -> dict[str, float]:
    """Return ranges with those of the tensors that TensorRT's parser made, where they follow."""
    after: list[tuple[str, str]] = []
    before: list[tuple[str, str]] = []
    known, products, floats = dict(ranges), set(), float_tensors(trt, network)
    for layer in layers_of(network):
        kind, tensor, source = (
            str(layer.type).rpartition(".")[2],
            layer.get_output(0),
            _source(layer),
        )
        if kind == "CONSTANT" and tensor.name in floats:
            constant = layer
            constant.__class__ = trt.IConstantLayer  # the bindings' own way
            known.setdefault(tensor.name, _peak(constant.weights))
        elif kind == "MATRIX_MULTIPLY":
            products.add(tensor.name)
        elif source:
            after += [(source, tensor.name)] if kind in MOVING | PARTS else []
            is_sum = kind == "ELEMENTWISE" and source in products
            before += [(tensor.name, source)] if kind in MOVING or is_sum else []
    for source, target in after + before[::-1]:
        if source in known and target in floats:
            known.setdefault(target, known[source])
    return known


def _source(layer: Any) -> str:
    tensor = layer.get_input(0)
    return "" if tensor is None else str(tensor.name)


def _peak(weights: Any) -> float:
    """Return the largest finite magnitude of weights, which TensorRT gives as a NumPy array."""
    numpy = importlib.import_module("numpy")
    peaks = numpy.abs(numpy.asarray(weights, "float64"))
    peak = numpy.max(peaks, initial=FLOOR, where=numpy.isfinite(peaks))
    return min(float(peak), LARGEST)


class Routed:
    """A network on a route beside Q/DQ; `cache` is what TensorRT took or made of the data."""

    def __init__(self, trt: Any, network: Any, said: Said) -> None:
        self._trt, self._network, self._said = trt, network, said
        self._feeder: Feeder | None = None
        self.cache, self.error = b"", ""

    def take(self, job: Job, resources: Resources) -> Any:
        """Give ranges, and return None; or a calibrator with them, or with the blob `data`."""
        request, trt, network = job.options, self._trt, self._network
        if request["route"] == "calibrator":
            self._feeder = Feeder(job.path("data"), request["feeds"], resources)
            return self._calibrator(request["kind"])
        tensors = float_tensors(trt, network)
        _check_ranges(request["ranges"], tensors)
        ranges = with_parser_tensors(trt, network, request["ranges"])
        self._report(ranges, tensors, request)
        if request["route"] == "dynamic-ranges":
            return _set_ranges(ranges, tensors)
        self.cache = cache_of_ranges(str(trt.__version__), request["kind"], ranges)
        return self._calibrator(request["kind"])

    def _report(
        self, ranges: Mapping[str, float], tensors: Mapping[str, Any], request: Mapping[str, Any]
    ) -> None:
        """Say what has no range, in the words of a build where trtcal runs."""
        warn, ranged = self._said.warn, [name for name in tensors if name in ranges]
        missing = [name for name in tensors if name not in ranges]
        self._said.add("I", f"{len(ranged)} tensors have the given range")
        warn(missing, "float tensors have no range")
        foreign = [name for name in ranges if name not in tensors]
        warn(foreign, "ranges belong to no tensor of TensorRT's network")
        if request["route"] == "dynamic-ranges":
            rounded = [name for name in ranged if _is_rounded(ranges[name])]
            warn(rounded, "ranges are not float32 values: their scales are rounded")
        precisions = request.get("precisions") or {}
        narrow = [n for n in layers_of(self._network) if precisions.get(n.name) == "int8"]
        absent = [layer.name for layer in narrow if _source(layer) in missing]
        warn(absent, "layers requested in INT8 have an input without range")
        if absent and request.get("constraints") == "obey":
            what = "%d layers that must run in INT8 have an input without range: %s"
            hint = "calibrate those inputs, or use --constraints prefer"
            raise Fault("input", what % (len(absent), some(absent)), hint)

    def _calibrator(self, kind: str) -> Any:
        trt, routed, feeder, own = self._trt, self, self._feeder, self.cache or None
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
                return own

            def write_calibration_cache(self, cache: Any) -> None:
                routed.cache = bytes(cache)

        return Calibrator()

    def check(self, is_built: bool) -> None:
        """Raise what went wrong in a calibrator: TensorRT swallows it, and goes on without data."""
        feeder, why = self._feeder, self.error
        if feeder and not feeder.ended:
            stopped = f"TensorRT stopped after batch {feeder.given} of the data"
            why = feeder.error or (stopped if is_built else "")
        if why:
            raise Fault("backend", f"calibration inside TensorRT failed: {why}")
        if feeder:
            samples = feeder.given * feeder.size
            self._said.add("I", f"TensorRT read {samples} calibration samples")


def _check_ranges(ranges: Mapping[str, float], tensors: Mapping[str, Any]) -> None:
    wrong = [name for name, amax in ranges.items() if not name or not LEAST <= amax <= LARGEST]
    if wrong:
        what = f"{len(wrong)} ranges are not valid: {some(wrong)}"
        raise Fault("input", what, "calibrate again")
    if not ranges.keys() & tensors.keys():
        what = f"none of the {len(ranges)} ranges belongs to a tensor of the network"
        raise Fault("input", what, "give the calibration of this model")


def _set_ranges(ranges: Mapping[str, float], tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        amax = single(ranges.get(name, 0.0))
        if amax and not tensor.set_dynamic_range(-amax, amax):
            raise Fault("backend", f"TensorRT refuses the range of {name!r}, {amax:g}")


class Feeder:
    """Batches of a file on the device: for each a line of JSON as `feeds` has it, then its arrays."""

    def __init__(
        self, path: str, shapes: Mapping[str, Sequence[int]], resources: Resources
    ) -> None:
        self._path, self._shapes, self._resources = path, shapes, resources
        self._offset, self._stream = 0, Stream(resources)
        self._buffers: dict[str, int] = {}
        self.size = next(iter(shapes.values()))[0]
        self.given, self.ended, self.error = 0, False, ""

    def next(self, names: Sequence[str]) -> list[int] | None:
        """Return the addresses of the next batch's arrays, None at the end or after an error."""
        try:
            tensors = self._read()
            self.ended = not tensors
            self.given += bool(tensors)
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
