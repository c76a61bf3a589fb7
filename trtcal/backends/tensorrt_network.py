"""What TensorRT up to 10 takes beside Q/DQ: ranges, precisions, calibrators; run with 8.6.0.

Every function gets the module `tensorrt` and asks it what it has: versions differ, and the numbers
behind its flags shift between them. Of TensorRT's objects `network`, `layer`, `tensor` bear these
names here, because `tests/tensorrt` finds by them what is touched, and checks it in real packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrators.device_memory import DeviceError, DeviceMemoryError
from calibrators.feeder import Feeds
from calibrators.range import FLOOR, LARGEST_AMAX, problem, scale_of, single
from calibrators.tensorrt_builder import (
    KINDS,
    BuilderCalibrator,
    NotCalibratedError,
    cache_object,
    calibrator_object,
)
from calibrators.tensorrt_cache import cache_of_ranges
from trtcal.backends.options import CACHE
from trtcal.config import ImagesConfig
from trtcal.data import open_dataset
from trtcal.errors import BackendError, InputError, ResourceError, TrtcalError, some
from trtcal.model import load_model

NAMES_SHOWN = 5
CONSTRAINTS = {"obey": "OBEY_PRECISION_CONSTRAINTS", "prefer": "PREFER_PRECISION_CONSTRAINTS"}
TYPES = {"int8": "INT8", "fp16": "HALF", "fp32": "FLOAT"}


@dataclass(frozen=True)
class Features:
    """What one version has; `calibrators` are kinds, `constraints` of obey and prefer."""

    version: str
    calibrators: tuple[str, ...]
    constraints: tuple[str, ...]
    dynamic_ranges: bool
    precisions: bool
    int8_flag: bool

    def check(self, route: str, kind: str) -> None:
        """`BackendError` if this version lacks what a route needs."""
        has = kind in self.calibrators if route in ("cache", "calibrator") else self.dynamic_ranges
        if not (has and self.int8_flag):
            what = f"TensorRT {self.version} has no route {route!r}, only qdq"
            raise BackendError(what, "quantize the model with Q/DQ, or use TensorRT 10 or earlier")


@dataclass(frozen=True)
class Ranged:
    """How ranges and a network's tensors agree; names in the network's order, then the ranges'.

    `given` have a range, `missing` are float tensors without one, `foreign` are ranges of no tensor,
    `rounded` those whose scale TensorRT gets one step of float32 off: it takes them as float32.
    """

    given: tuple[str, ...]
    missing: tuple[str, ...]
    foreign: tuple[str, ...]
    rounded: tuple[str, ...]


def api(trt: Any) -> Features:
    """Return what a version of TensorRT has, by its attributes."""
    return Features(
        str(trt.__version__),
        tuple(kind for kind in KINDS if hasattr(trt, KINDS[kind])),
        tuple(name for name in CONSTRAINTS if hasattr(trt.BuilderFlag, CONSTRAINTS[name])),
        hasattr(trt.ITensor, "set_dynamic_range"),
        hasattr(trt.ILayer, "precision"),
        hasattr(trt.BuilderFlag, "INT8"),
    )


def layers_of(network: Any) -> Iterator[Any]:
    """Yield a network's layers."""
    for number in range(network.num_layers):
        yield network.get_layer(number)


def float_tensors(trt: Any, network: Any) -> dict[str, Any]:
    """Return the tensors that INT8 can need a range for: inputs and layers' outputs, by name."""
    tensors = [network.get_input(number) for number in range(network.num_inputs)]
    for layer in layers_of(network):
        tensors += [layer.get_output(number) for number in range(layer.num_outputs)]
    floats = (trt.DataType.FLOAT, trt.DataType.HALF)
    return {
        tensor.name: tensor
        for tensor in tensors
        if tensor is not None and tensor.dtype in floats and not tensor.is_shape_tensor
    }


def match_ranges(trt: Any, network: Any, ranges: Mapping[str, float]) -> Ranged:
    """Compare ranges (amaxes) with a network's tensors and change nothing.

    `InputError` for a range that is none or of no name, and if no range is of the network.
    """
    wrong = [f"{name!r}: {why}" for name, amax in ranges.items() if (why := _wrong(name, amax))]
    if wrong:
        raise InputError(f"{len(wrong)} ranges are not valid: {shown(wrong)}", "calibrate again")
    tensors = float_tensors(trt, network)
    ranged = tuple(name for name in tensors if name in ranges)
    if not ranged:
        what = f"none of the {len(ranges)} ranges belongs to a tensor of the network"
        raise InputError(what, "give the calibration of this model")
    missing = tuple(name for name in tensors if name not in ranges)
    foreign = tuple(name for name in ranges if name not in tensors)
    rounded = tuple(n for n in ranged if scale_of(float(single(ranges[n]))) != scale_of(ranges[n]))
    return Ranged(ranged, missing, foreign, rounded)


def _wrong(name: str, amax: object) -> str | None:
    if not name:
        return "it has no name"
    number = isinstance(amax, (int, float)) and not isinstance(amax, bool)
    return problem(amax) if number else "it is not a number"  # type: ignore[arg-type]


MOVING = {"CAST", "IDENTITY", "SHUFFLE", "SQUEEZE", "UNSQUEEZE"}
"""Layers whose output has the values of their input, by TensorRT's names."""
PARTS = {"GATHER", "SLICE", "TOPK"}
"""Layers whose first output has a part of these values."""


def with_parser_tensors(trt: Any, network: Any, ranges: Mapping[str, float]) -> dict[str, float]:
    """Return ranges with those of the tensors that TensorRT's parser made, where they follow.

    A constant has its largest magnitude. What is moved has the range that it has before or after,
    a part that of the whole. A product has that of its sum with a bias: both are one kernel.
    """
    after, before, products = list[tuple[str, str]](), list[tuple[str, str]](), set[str]()
    known, floats = dict(ranges), float_tensors(trt, network)
    for layer in layers_of(network):
        kind, tensor = str(layer.type).rpartition(".")[2], layer.get_output(0)
        if kind == "CONSTANT" and tensor.name in floats:
            constant = layer
            constant.__class__ = trt.IConstantLayer  # the bindings' own way
            peaks = np.abs(np.asarray(constant.weights, np.float64))
            peak = np.max(peaks, initial=FLOOR, where=np.isfinite(peaks))
            known.setdefault(tensor.name, min(float(peak), LARGEST_AMAX))
        elif kind == "MATRIX_MULTIPLY":
            products.add(tensor.name)
        elif source := _first_input(layer):
            after += [(source, tensor.name)] if kind in MOVING | PARTS else []
            is_sum = kind == "ELEMENTWISE" and source in products
            before += [(tensor.name, source)] if kind in MOVING or is_sum else []
    for source, target in (*after, *reversed(before)):
        if source in known and target in floats:
            known.setdefault(target, known[source])
    return known


def set_dynamic_ranges(trt: Any, network: Any, ranges: Mapping[str, float]) -> Ranged:
    """Give every tensor its range, from -amax to amax; errors as `match_ranges`, before any is set.

    `BackendError` if TensorRT refuses one.
    """
    matched, tensors = match_ranges(trt, network, ranges), float_tensors(trt, network)
    for name in matched.given:
        tensor, amax = tensors[name], float(single(ranges[name]))
        if not tensor.set_dynamic_range(-amax, amax):
            raise BackendError(f"TensorRT refuses the range of tensor {name!r}, {amax:g}")
    return matched


def set_layer_precisions(
    trt: Any, network: Any, precisions: Mapping[str, str], constraints: str
) -> tuple[str, ...]:
    """Set the precision of each layer named (int8, fp16, fp32); return names that are of no layer.

    `InputError` for an unnamed layer or an unknown precision, and under "obey" for a name of no
    layer: nothing is set then.
    """
    for name, precision in precisions.items():
        if not name or precision not in TYPES:
            what = f"layer {name!r} cannot be requested in {precision!r}"
            raise InputError(what, "check the plan")
    layers = [layer for layer in layers_of(network) if layer.name in precisions]
    there = {layer.name for layer in layers}
    absent = tuple(name for name in precisions if name not in there)
    if absent and constraints == "obey":
        what = f"{len(absent)} layers of the plan are not in TensorRT's network: {shown(absent)}"
        raise InputError(what, "remove them from the plan, or use --constraints prefer")
    for layer in layers:
        layer.precision = getattr(trt.DataType, TYPES[precisions[layer.name]])
    return absent


def _first_input(layer: Any) -> str | None:
    tensor = layer.get_input(0)
    return None if tensor is None else str(tensor.name)


def calibrator_for(trt: Any, request: Mapping[str, Any]) -> Any:
    """Return the calibrator object of a request: with our ranges as its cache, or fed with data.

    `BackendError` if it cannot be made, for want of PyCUDA for example; `ResourceError` if the GPU's
    memory is full; `InputError` for the data.
    """
    batches = _batches(request) if request["route"] == "calibrator" else ()
    try:
        if request["route"] == "cache":
            return cache_object(request["kind"], request["ranges"], trt=trt)
        others = {name: kind for name, kind in request["types"].items() if kind != "float32"}
        return calibrator_object(
            request["kind"], batches, request["feeds"], types=others, leave_out_rest=True, trt=trt
        )
    except (ImportError, ValueError) as error:
        raise BackendError(str(error)) from error
    except DeviceError as error:
        raise _of_device(error) from error


def _of_device(error: DeviceError) -> TrtcalError:
    message = f"calibration inside TensorRT failed: {error}"
    if isinstance(error, DeviceMemoryError):
        hint = "end other programs that use the GPU, or calibrate with smaller batches"
        return ResourceError(message, hint)
    hint = "check `nvidia-smi` and the kernel's log for Xid messages, then build again"
    return BackendError(message, hint)


def _batches(request: Mapping[str, Any]) -> Iterator[Feeds]:
    """Open the data and return their batches in the types that a builder calibrates with."""
    images = ImagesConfig(**request["images"]) if request["images"] else None
    dataset = open_dataset(Path(request["data"]), load_model(Path(request["model"])), images)
    size = next(iter(request["feeds"].values()))[0]
    types = request["types"]
    return (
        {name: np.asarray(array, types[name]) for name, array in feeds.items() if name in types}
        for feeds in dataset.batches(size)
    )


def shown(names: Sequence[str]) -> str:
    """Return the first few names, on one line, and how many more there are."""
    return some((name if name.isprintable() else ascii(name) for name in names), NAMES_SHOWN)


Say = Callable[[str, str], None]
"""Takes a severity's letter and a message."""


@contextmanager
def routed(
    trt: Any, network: Any, request: Mapping[str, Any], say: Say
) -> Iterator[dict[str, Any]]:
    """Prepare a network for a request's route; yield what Polygraphy's `CreateConfig` needs for it.

    The end of the context raises what went wrong inside a calibrator, which TensorRT swallows, as a
    `BackendError` (`ResourceError` where the GPU's memory is full), and what is wrong with the data as
    an `InputError`.
    """
    features = api(trt)
    features.check(request["route"], request["kind"])
    settings = {"int8": True, **_constrain(trt, network, request, features, say)}
    if request["route"] != "calibrator":
        match_ranges(trt, network, request["ranges"])  # refuses those that are none
        request = {**request, "ranges": with_parser_tensors(trt, network, request["ranges"])}
    if request["route"] == "dynamic-ranges":
        _report(set_dynamic_ranges(trt, network, request["ranges"]), network, request, say)
        yield settings
        return
    if request["route"] == "cache":
        _report(match_ranges(trt, network, request["ranges"]), network, request, say)
        cache = cache_of_ranges(features.version, request["kind"], request["ranges"])
        Path(CACHE).write_bytes(cache)
    calibrator = calibrator_for(trt, request)
    with _calibrating(calibrator):
        yield {**settings, "calibrator": calibrator}
    served = calibrator.finish()
    say("I", f"TensorRT read {served.samples} calibration samples and left out {served.left_out}")
    if served.batches and served.cache:
        Path(CACHE).write_bytes(served.cache)


@contextmanager
def _calibrating(calibrator: BuilderCalibrator) -> Iterator[None]:
    """Say what went wrong inside a calibrator before anything that the builder then complains of."""
    try:
        with calibrator:
            yield
    except TrtcalError:
        raise
    except DeviceError as error:
        raise _of_device(error) from error
    except Exception as error:
        if error is calibrator.failures.first or isinstance(error, NotCalibratedError):
            raise BackendError(f"calibration inside TensorRT failed: {error}") from error
        raise


def _constrain(
    trt: Any, network: Any, request: Mapping[str, Any], features: Features, say: Say
) -> dict[str, Any]:
    """Set the precisions that the request's constraints hold TensorRT to, if there are any."""
    precisions, constraints = request["precisions"], request["constraints"]
    if constraints is None:
        return {}
    if not features.precisions or constraints not in features.constraints:
        raise BackendError(f"TensorRT {features.version} cannot {constraints} a plan", "use Q/DQ")
    absent = set_layer_precisions(trt, network, precisions, constraints)
    _warn(say, absent, "layers of the plan are not in TensorRT's network")
    return {"precision_constraints": constraints, "fp16": "fp16" in precisions.values()}


def _report(matched: Ranged, network: Any, request: Mapping[str, Any], say: Say) -> None:
    """Write to the log what has no range; `InputError` if obeying the plan needs one of them."""
    say("I", f"{len(matched.given)} tensors have the given range")
    _warn(say, matched.missing, "float tensors have no range")
    _warn(say, matched.foreign, "ranges belong to no tensor of TensorRT's network")
    if request["route"] == "dynamic-ranges":
        _warn(say, matched.rounded, "ranges are not float32 values: their scales are rounded")
    asked, missing = request["precisions"], set(matched.missing)
    narrow = (layer for layer in layers_of(network) if asked.get(layer.name) == "int8")
    lost = [layer.name for layer in narrow if _first_input(layer) in missing]
    _warn(say, lost, "layers requested in INT8 have an input without range")
    if lost and request["constraints"] == "obey":
        what = f"{len(lost)} layers that must run in INT8 have an input without range"
        hint = "calibrate those inputs, or use --constraints prefer"
        raise InputError(f"{what}: {shown(lost)}", hint)


def _warn(say: Say, names: Sequence[str], what: str) -> None:
    if names:
        say("W", f"{len(names)} {what}: {shown(names)}")
