"""A network sent along its route to INT8 beside Q/DQ. Not run on a GPU yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibrators.tensorrt_builder import BuilderCalibrator, NotCalibratedError
from trtcal.backends.routes import CACHE
from trtcal.backends.tensorrt_network import (
    Features,
    Ranged,
    api,
    calibrator_for,
    match_ranges,
    set_dynamic_ranges,
    set_layer_precisions,
    shown,
    unranged_inputs,
)
from trtcal.errors import BackendError, InputError, TrtcalError

Say = Callable[[str, str], None]
"""Takes a severity's letter and a message."""


@contextmanager
def routed(
    trt: Any, network: Any, request: Mapping[str, Any], say: Say
) -> Iterator[dict[str, Any]]:
    """Prepare a network for a request's route; yield what Polygraphy's `CreateConfig` needs for it.

    The end of the context raises what went wrong inside a calibrator, which TensorRT swallows, as a
    `BackendError`, and what is wrong with the data as an `InputError`.
    """
    features = api(trt)
    features.check(request["route"], request["kind"])
    settings = {"int8": True, **_constrain(trt, network, request, features, say)}
    if request["route"] == "dynamic-ranges":
        _tell(set_dynamic_ranges(trt, network, request["ranges"]), network, request, say)
        yield settings
        return
    if request["route"] == "cache":
        _tell(match_ranges(trt, network, request["ranges"]), network, request, say)
    calibrator = calibrator_for(trt, request)
    with _calibrating(calibrator):
        yield {**settings, "calibrator": calibrator}
    served = calibrator.finish()
    say("I", f"TensorRT took {served.samples} samples of ours and left out {served.left_out}")
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
    except Exception as error:
        if error is calibrator.failures.first or isinstance(error, NotCalibratedError):
            raise BackendError(f"calibration inside TensorRT failed: {error}") from error
        raise


def _constrain(
    trt: Any, network: Any, request: Mapping[str, Any], features: Features, say: Say
) -> dict[str, Any]:
    """Set the precisions that the request's constraints hold TensorRT to, if there are any."""
    wanted, constraints = request["precisions"], request["constraints"]
    if constraints is None:
        return {}
    if not features.precisions or constraints not in features.constraints:
        raise BackendError(f"TensorRT {features.version} cannot {constraints} a plan", "use Q/DQ")
    absent = set_layer_precisions(trt, network, wanted, constraints)
    _warn(say, absent, "layers of the plan are not in TensorRT's network")
    return {"precision_constraints": constraints, "fp16": "fp16" in wanted.values()}


def _tell(matched: Ranged, network: Any, request: Mapping[str, Any], say: Say) -> None:
    """Write to the log what has no range; `InputError` if obeying the plan needs one of them."""
    say("I", f"{len(matched.given)} tensors have the range given")
    unnamed = f" ({matched.unnamed} of them made by TensorRT's parser)" if matched.unnamed else ""
    _warn(say, matched.missing, f"float tensors have no range{unnamed}")
    _warn(say, matched.foreign, "ranges are of no tensor in TensorRT's network")
    if request["route"] == "dynamic-ranges":
        _warn(say, matched.rounded, "ranges are no float32: their scales are one step off")
    lost = unranged_inputs(network, request["precisions"], matched.missing)
    _warn(say, lost, "layers asked in INT8 have an input without range")
    if lost and request["constraints"] == "obey":
        raise InputError(
            f"{len(lost)} layers that must run in INT8 have an input without range: {shown(lost)}",
            "calibrate those inputs, or use --constraints prefer",
        )


def _warn(say: Say, names: Sequence[str], what: str) -> None:
    if names:
        say("W", f"{len(names)} {what}: {shown(names)}")
