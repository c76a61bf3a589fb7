"""One limit against one variant: what its 95 % interval says.

A limit holds if the whole interval lies on its good side, fails if none of it does, and is undecided
in between, so that a small test set never passes by luck.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy import stats

from trtcal.evaluate.comparison import Gates, Row
from trtcal.reporting import text

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
LEVEL = 0.95
HOPELESS = 300.0  # half-widths from the limit beyond which no number of samples is named


@dataclass(frozen=True)
class Check:
    """One limit and what a variant's 95 % interval says to it.

    `measure` is what was measured (`drop of top-1`, in points; `speed-up over FP32`, a factor).
    `margin` is how far the deciding end of the interval lies on the good side of the limit.
    """

    measure: str
    unit: str
    value: float
    low: float
    high: float
    limit: float
    at_most: bool

    @property
    def margin(self) -> float:
        """Distance to the limit, negative where the limit may not hold."""
        return self.limit - self.high if self.at_most else self.low - self.limit

    @property
    def state(self) -> str:
        """`holds`, `fails` or `undecided`."""
        if self.at_most:
            good, bad = max(self.value, self.high) <= self.limit, self.low > self.limit
        else:
            good, bad = self.low >= self.limit, self.high < self.limit
        return HOLDS if good else FAILS if bad else UNDECIDED

    @property
    def excess(self) -> float:
        """How far the estimate lies beyond the limit; zero or less where it does not."""
        return self.value - self.limit if self.at_most else self.limit - self.value

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, with what follows from the numbers."""
        return {**asdict(self), "margin": self.margin, "state": self.state}


def overall(checks: Sequence[Check]) -> str:
    """Return the state of a variant; speed alone, without a check of accuracy, never holds."""
    states = {check.state for check in checks}
    if FAILS in states:
        return FAILS
    judged = any(check.at_most for check in checks)
    return HOLDS if judged and states == {HOLDS} else UNDECIDED


def check_limits(row: Row, gates: Gates) -> tuple[Check, ...]:
    """Hold a variant to the limits; without classes in its output, accuracy has no check."""
    checks = [_accuracy_check(row, gates.max_top1_drop)]
    if gates.min_speedup is not None:
        low, high = row.latency.speedup_interval
        measured = (row.latency.speedup, low, high, gates.min_speedup)
        checks.append(Check("speed-up over FP32", text.TIMES, *measured, at_most=False))
    return tuple(check for check in checks if check is not None)


def _accuracy_check(row: Row, limit: float) -> Check | None:
    accuracy = row.accuracy
    if accuracy.top1_drop is not None and accuracy.top1_drop_interval is not None:
        low, high = accuracy.top1_drop_interval
        return Check("drop of top-1", "points", accuracy.top1_drop, low, high, limit, at_most=True)
    if accuracy.agreement is None:
        return None
    lost = 100.0 - accuracy.agreement
    low, high = disagreement_interval(accuracy.agreement, accuracy.samples)
    return Check("answers unlike FP32's", "points", lost, low, high, limit, at_most=True)


def disagreement_interval(agreement: float, samples: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval (E. B. Wilson, JASA 22, 1927) of 100 - agreement, in points."""
    unlike = round((100.0 - agreement) / 100.0 * samples)
    interval = stats.binomtest(unlike, samples).proportion_ci(LEVEL, method="wilson")
    return 100.0 * float(interval.low), 100.0 * float(interval.high)


def samples_to_decide(check: Check, samples: int) -> int | None:
    """Return roughly how many samples put the whole interval on the estimate's side of the limit.

    The half-width shrinks with the square root of the number of samples. None where the estimate
    lies so near the limit that the answer would be a hundred thousand times the samples or more.
    """
    distance = abs(check.limit - check.value)
    half = check.high - check.value if check.value <= check.limit else check.value - check.low
    if distance <= 0 or half / distance > HOPELESS:
        return None
    needed = samples * (half / distance) ** 2
    unit = int(10 ** max(math.floor(math.log10(max(needed, 1.0))) - 1, 0))
    return math.ceil(needed / unit) * unit
