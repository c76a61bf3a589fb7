"""The table of ranges that a calibrator chose from an observation, `calibration.json`, and its diff."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from calibrators.range import LARGEST_AMAX, LEAST_AMAX, scale_of
from trtcal.documents import Sealed
from trtcal.documents.overview import Columns, Overview, Shown
from trtcal.errors import InputError
from trtcal.formats import FORMATS

CALIBRATION_KIND = "calibration"
COMMAND = "trtcal calibrate MODEL.onnx --data DATA"
FP8_ONLY = "for FP8 alone"
"""What the note of a range says that came from FP8: of one for INT8 it says nothing."""
Parameters = Mapping[str, int | float | str]
COLUMNS: Columns = {
    "tensor": "{0}",
    "amax": "{1.amax:.6g}",
    "max |x|": "{1.observed_amax:.6g}",
    "clipped": "{1.clipped:.4%}",
    "note": "{1.note}",
}
"""The table of a calibration's ranges, for pairs of a tensor and its range."""


@dataclass(frozen=True)
class TensorRange(Shown):
    """One tensor's range, with what was seen of its values.

    `amax` and `observed_amax` are in the tensor's own unit, `clipped` is the share (0 to 1) of its
    finite values that lies outside the range, `note` what a user should know of it. `fp8_amax` is the
    range for FP8, None where no histogram was there to choose it from.
    """

    amax: float
    observed_amax: float
    clipped: float
    note: str | None = None
    fp8_amax: float | None = None

    @property
    def is_for_int8(self) -> bool:
        """Whether INT8 may take it: tools choose scales in FP8 that reach far beyond all values."""
        return FP8_ONLY not in (self.note or "")

    def scale_in(self, precision: str) -> float:
        """Return the scale of activations, amax / the largest value of a precision.

        Floats take the range for FP8, without one that of the largest value seen.
        """
        form = FORMATS[precision]
        floating = self.fp8_amax or self.observed_amax or self.amax
        return (floating if form.is_float else self.amax) / form.top

    def __post_init__(self) -> None:
        number = isinstance(self.amax, (int, float)) and not isinstance(self.amax, bool)
        if not (number and LEAST_AMAX <= self.amax <= LARGEST_AMAX):
            ends = f"from {LEAST_AMAX:.3g} to {LARGEST_AMAX:.3g}"
            raise ValueError(f"amax must be {ends}, not {self.amax!r}")


@dataclass(frozen=True)
class Calibration(Sealed, kind=CALIBRATION_KIND, command=COMMAND, measured=("peaks",)):
    """Ranges for one model from one dataset by one method; `unranged` has the tensors without one.

    `sizes` are the smallest, median and largest sizes of a sample, for inputs with a dynamic size.
    `sample_digests` are those of up to 4,096 samples (`trtcal.data.overlap`), "" where not known.
    `peaks` are the largest magnitudes of all float32 tensors, if float16 was asked for.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> calibration = calibrate(digits, data)
    >>> calibration.write("calibration.json")["digest"] == Calibration.read("calibration.json").digest
    True
    >>> calibrate(digits, data, "minmax")
    Calibration by minmax on 512 samples
      8 tensors have a range; none clips an observed value
      0 tensors have no range
    """

    method: str
    parameters: dict[str, int | float | str]
    model: str
    dataset: str
    samples: int
    histograms: str
    ranges: dict[str, TensorRange]
    unranged: dict[str, str]
    sizes: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = field(
        default_factory=dict
    )
    sample_digests: str = ""
    peaks: dict[str, float] = field(default_factory=dict)

    def overview(self) -> Overview:
        """Return the table of ranges, and how many clip observed values."""
        how = "".join(f", {name} {value}" for name, value in self.parameters.items())
        title = f"Calibration by {self.method}{how} on {self.samples:,} samples"
        facts = (self.clipping, f"{len(self.unranged)} tensors have no range")
        return Overview(title, facts, things=self.ranges.items(), columns=COLUMNS)

    @property
    def clipping(self) -> str:
        """How many ranges clip observed values, and which clips most of its own."""
        every = f"{len(self.ranges)} tensors have a range"
        clipped = {name: 100 * row.clipped for name, row in self.ranges.items() if row.clipped > 0}
        if not clipped:
            return f"{every}; none clips an observed value"
        worst = max(clipped, key=lambda name: clipped[name])
        usual = f"{median(clipped.values()):.2g} % of their values at the median"
        return f"{every}; {len(clipped)} clip, {usual} and at most {clipped[worst]:.2g} % ({worst})"


def most_stretched(calibrations: Sequence[Calibration], count: int) -> list[str]:
    """Return the tensors of which the narrowest range leaves the largest part of the values' reach."""
    left: dict[str, float] = {}
    for calibration in calibrations:
        for name, entry in calibration.ranges.items():
            share = entry.amax / entry.observed_amax if entry.observed_amax else 1.0
            left[name] = min(share, left.get(name, 1.0))
    return sorted((name for name in left if left[name] < 1.0), key=lambda name: left[name])[:count]


def scales_of(calibration: Calibration) -> dict[str, np.float32]:
    """Return the scale of every range; `InputError` if there is none."""
    if not calibration.ranges:
        hint = "calibrate again, with data that reach the model's layers"
        raise InputError("the calibration has no range", hint)
    return {name: scale_of(item.amax) for name, item in calibration.ranges.items()}


@dataclass(frozen=True)
class RangeChange:
    """One tensor's range in both: `ratio` is after / before, also in percent and in dB (20 log10)."""

    tensor: str
    before: float
    after: float
    ratio: float
    percent: float
    db: float


@dataclass(frozen=True)
class Side:
    """Which calibration one side of a difference is."""

    method: str
    model: str
    dataset: str
    digest: str


@dataclass(frozen=True)
class CalibrationDiff(Sealed, kind="calibration-diff", command="trtcal ranges diff"):
    """Ranges that moved, largest change first; `only_*` says why the other side has no such range.

    `same` counts the tensors that both give the same float32 scale.
    """

    before: Side
    after: Side
    moved: tuple[RangeChange, ...]
    same: int
    only_before: dict[str, str]
    only_after: dict[str, str]


def diff(a: Calibration, b: Calibration) -> CalibrationDiff:
    """Return what moved from `a` to `b`; a range moved if its float32 scale, amax / 127, did.

    `InputError` if a side has no range.
    """
    before, after = scales_of(a), scales_of(b)
    common = [name for name in before if name in after]
    changed = [name for name in common if before[name] != after[name]]
    moved = [_change(name, a.ranges[name].amax, b.ranges[name].amax) for name in changed]
    moved.sort(key=lambda item: (-abs(item.db), item.tensor))
    same = len(common) - len(changed)
    return CalibrationDiff(_side(a), _side(b), tuple(moved), same, _only(a, b), _only(b, a))


def _change(tensor: str, before: float, after: float) -> RangeChange:
    ratio = after / before
    percent = 100.0 * (after - before) / before
    return RangeChange(tensor, before, after, ratio, percent, 20.0 * math.log10(ratio))


def _side(calibration: Calibration) -> Side:
    return Side(calibration.method, calibration.model, calibration.dataset, calibration.digest)


def _only(here: Calibration, there: Calibration) -> dict[str, str]:
    return {
        name: there.unranged.get(name, "the other file has no entry for it")
        for name in here.ranges
        if name not in there.ranges
    }
