"""What TensorRT up to 10 takes beside Q/DQ: ranges, precisions, calibrators; run with 8.6.0.

Every function gets the module `tensorrt` and asks it what it has: versions differ, and the numbers
behind its flags shift between them. Of TensorRT's objects `network`, `layer`, `tensor` bear these
names here, because `tests/tensorrt` finds by them what is touched, and checks it in real packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrators.device_memory import DeviceError, DeviceMemoryError
from calibrators.feeder import Feeds
from calibrators.range import problem
from calibrators.tensorrt_builder import (
    KINDS,
    BuilderCalibrator,
    NotCalibratedError,
    cache_object,
    calibrator_object,
)
from calibrators.tensorrt_cache import cache_of_ranges
from trtcal.backends.options import CACHE
from trtcal.backends.tensorrt_objects import (
    Ranged,
    Say,
    matched,
    report,
    set_layer_precisions,
    set_ranges,
    shown,
    warn,
    with_parser_tensors,
)
from trtcal.config import ImagesConfig
from trtcal.data import open_dataset
from trtcal.errors import BackendError, InputError, ResourceError, TrtcalError
from trtcal.model import load_model

CONSTRAINTS = {"obey": "OBEY_PRECISION_CONSTRAINTS", "prefer": "PREFER_PRECISION_CONSTRAINTS"}


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


def match_ranges(trt: Any, network: Any, ranges: Mapping[str, float]) -> Ranged:
    """Compare ranges (amaxes) with a network's tensors and change nothing.

    `InputError` for a range that is none or of no name, and if no range is of the network.
    """
    wrong = [f"{name!r}: {why}" for name, amax in ranges.items() if (why := _wrong(name, amax))]
    if wrong:
        raise InputError(f"{len(wrong)} ranges are not valid: {shown(wrong)}", "calibrate again")
    return matched(trt, network, ranges)


def _wrong(name: str, amax: object) -> str | None:
    if not name:
        return "it has no name"
    number = isinstance(amax, (int, float)) and not isinstance(amax, bool)
    return problem(amax) if number else "it is not a number"  # type: ignore[arg-type]


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
        report(matched(trt, network, request["ranges"]), network, request, say)
    if request["route"] == "dynamic-ranges":
        set_ranges(trt, network, request["ranges"])
        yield settings
        return
    if request["route"] == "cache":
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
    warn(say, absent, "layers of the plan are not in TensorRT's network")
    return {"precision_constraints": constraints, "fp16": "fp16" in precisions.values()}
