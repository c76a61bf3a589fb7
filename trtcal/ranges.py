"""The table of ranges that a calibrator chose from an observation: `calibration.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrators.scale import LEAST, MOST
from trtcal.documents import Sealed

KIND = "calibration"
Parameters = Mapping[str, int | float | str]


@dataclass(frozen=True)
class TensorRange:
    """One tensor's range, with what was seen of its values.

    `amax` and `observed_amax` are in the tensor's own unit, `clipped` is the share (0 to 1) of its
    finite values that lies outside the range, `note` what a user should know of it.
    """

    amax: float
    observed_amax: float
    clipped: float
    note: str | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.amax, (int, float)) and not isinstance(self.amax, bool)
        if not (number and LEAST <= self.amax <= MOST):
            raise ValueError(f"amax must be from {LEAST:.3g} to {MOST:.3g}, not {self.amax!r}")


@dataclass(frozen=True)
class Calibration(Sealed, kind=KIND, command="trtcal calibrate"):
    """Ranges for one model from one dataset by one method; `unranged` says why a tensor has none."""

    method: str
    parameters: dict[str, int | float | str]
    model: str
    dataset: str
    samples: int
    histograms: str
    ranges: dict[str, TensorRange]
    unranged: dict[str, str]


def most_stretched(calibrations: Sequence[Calibration], count: int) -> list[str]:
    """Return the tensors of which the narrowest range leaves the largest part of the values' reach."""
    left: dict[str, float] = {}
    for calibration in calibrations:
        for name, one in calibration.ranges.items():
            share = one.amax / one.observed_amax if one.observed_amax else 1.0
            left[name] = min(share, left.get(name, 1.0))
    return sorted((name for name in left if left[name] < 1.0), key=lambda name: left[name])[:count]
