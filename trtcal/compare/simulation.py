"""INT8 as this machine's integer kernels do it, held against the same Q/DQ executed in float.

The simulation runs every Q and DQ of the file one by one and all else in float, as a GPU may be
expected to but for its rounding. Integer kernels differ by how they round the bias and the products;
a value that comes to lie on the other side of a step changes others, so outputs are never quite the
same, and no more than noise should separate the two accuracies.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtcal.compare.metrics import Accuracy, rounded

POINTS = 0.2
DECIBELS = 1.0


@dataclass(frozen=True)
class Simulation:
    """What the simulation reaches, and how the integer kernels differ from it.

    `gap` is their figure minus the simulation's: top-1, without labels agreement with the reference
    (both in points), without classes SQNR (dB); `gap_interval` is 95 %, paired, of top-1 alone. `same`
    is the percentage of samples that both give one class, `sqnr_db` the integer outputs' against the
    simulation's, None where there is no error.
    """

    accuracy: Accuracy
    measure: str
    gap: float
    gap_interval: tuple[float, float] | None
    same: float | None
    sqnr_db: float | None

    @property
    def differs(self) -> bool:
        """Whether the difference is to be told of."""
        return abs(self.gap) > (DECIBELS if self.measure == "SQNR" else POINTS)

    @property
    def may_be_chance(self) -> bool:
        """Whether so few samples differ that their number may be chance; False where not known."""
        return self.gap_interval is not None and self.gap_interval[0] <= 0 <= self.gap_interval[1]


def hold_against(integer: Accuracy, literal: Accuracy, apart: Accuracy) -> Simulation:
    """Return the difference of two modes; `apart` is of the integer outputs against the literal."""
    interval = None
    if apart.top1_drop is not None and apart.top1_drop_interval is not None:
        low, high = apart.top1_drop_interval
        measure, gap, interval = "top-1", 0.0 - apart.top1_drop, (-high, -low)
    elif integer.agreement is not None and literal.agreement is not None:
        measure, gap = "agreement", integer.agreement - literal.agreement
    else:
        measure, gap = "SQNR", (integer.sqnr_db or 0.0) - (literal.sqnr_db or 0.0)
    return Simulation(literal, measure, rounded(gap), interval, apart.agreement, apart.sqnr_db)
