"""Choose a range for every observed tensor by a calibrator: no network is run."""

from __future__ import annotations

import dataclasses

import calibrators
from calibrators import EmptyHistogramError, Histogram, UnknownCalibratorError
from trtcal.calibration import Observation
from trtcal.errors import InputError
from trtcal.ranges import Calibration, Parameters, TensorRange


def calibrate(
    observation: Observation, method: str, parameters: Parameters | None = None
) -> Calibration:
    """Choose a range for every observed tensor; no network is run.

    `InputError` for an unknown method or parameters that it does not take.
    """
    chosen = dict(parameters or {})
    calibrator = create_calibrator(method, chosen)
    ranges: dict[str, TensorRange] = {}
    unranged: dict[str, str] = {}
    for name, histogram in observation.histograms.items():
        try:
            ranges[name] = _choose(calibrator, histogram)
        except EmptyHistogramError as error:
            unranged[name] = str(error)
    return Calibration(
        method,
        _all_parameters(calibrator, chosen),
        observation.model,
        observation.dataset,
        observation.samples,
        observation.digest,
        ranges,
        unranged,
    )


def create_calibrator(method: str, parameters: Parameters) -> calibrators.Calibrator:
    """Return the calibrator of this name; `InputError` if none has it or takes these parameters."""
    try:
        return calibrators.create(method, **parameters)
    except UnknownCalibratorError:
        known = ", ".join(calibrators.names())
        raise InputError(f"unknown method {method!r}", f"choose one of: {known}") from None
    except ValueError as error:
        raise InputError(str(error), "see `trtcal calibrate --help`") from error


def _all_parameters(
    calibrator: calibrators.Calibrator, given: dict[str, int | float | str]
) -> dict[str, int | float | str]:
    """Return the parameters in force, defaults included where the calibrator is a dataclass."""
    if dataclasses.is_dataclass(calibrator) and not isinstance(calibrator, type):
        return dataclasses.asdict(calibrator)
    return given


def _choose(calibrator: calibrators.Calibrator, histogram: Histogram) -> TensorRange:
    chosen = calibrator(histogram)
    notes = [chosen.note] if chosen.note else []
    infinite = histogram.positive_inf + histogram.negative_inf
    if infinite:
        notes.append(f"{infinite} infinite values were left out")
    low, high, counts = histogram.magnitudes()
    outside = int(counts[(low >= chosen.amax) & (high > chosen.amax)].sum())
    return TensorRange(
        chosen.amax, histogram.amax, outside / histogram.count, "; ".join(notes) or None
    )
