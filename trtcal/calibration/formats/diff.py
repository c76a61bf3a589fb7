"""What moved between two calibrations."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from trtcal.calibration.formats.table import scales_of
from trtcal.documents import Document, seal
from trtcal.ranges import Calibration

KIND = "calibration-diff"


@dataclass(frozen=True)
class Movement:
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
class Difference:
    """Ranges that moved, largest movement first; `only_*` says why the other side has no such range.

    `same` counts the tensors that both give the same float32 scale.
    """

    before: Side
    after: Side
    moved: tuple[Movement, ...]
    same: int
    only_before: dict[str, str]
    only_after: dict[str, str]

    def to_document(self) -> Document:
        """Return the difference as a sealed document."""
        return seal({"kind": KIND, "schema_version": 1, **dataclasses.asdict(self)})


def diff(a: Calibration, b: Calibration) -> Difference:
    """Return what moved from `a` to `b`; a range moved if its float32 scale, amax / 127, did.

    `InputError` if a side has no range.
    """
    before, after = scales_of(a), scales_of(b)
    common = [name for name in before if name in after]
    changed = [name for name in common if before[name] != after[name]]
    moved = [_movement(name, a.ranges[name].amax, b.ranges[name].amax) for name in changed]
    moved.sort(key=lambda item: (-abs(item.db), item.tensor))
    same = len(common) - len(changed)
    return Difference(_side(a), _side(b), tuple(moved), same, _only(a, b), _only(b, a))


def _movement(tensor: str, before: float, after: float) -> Movement:
    ratio = after / before
    percent = 100.0 * (after - before) / before
    return Movement(tensor, before, after, ratio, percent, 20.0 * math.log10(ratio))


def _side(calibration: Calibration) -> Side:
    return Side(calibration.method, calibration.model, calibration.dataset, calibration.digest)


def _only(here: Calibration, there: Calibration) -> dict[str, str]:
    return {
        name: there.unranged.get(name, "it is not there")
        for name in here.ranges
        if name not in there.ranges
    }
