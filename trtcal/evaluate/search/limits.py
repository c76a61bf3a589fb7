"""Limits that a plan must hold, and which of them would have to give where none holds all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from trtcal.documents.overview import Shown
from trtcal.errors import InputError
from trtcal.evaluate.metrics import Loss
from trtcal.limits import HOLDS, Figure, Judgement, Limit, parse_limits
from trtcal.metrics import INT8_MACS, SQNR, check_known

FASTEST, SMALLEST = "fastest", "smallest"


class Choice(NamedTuple):
    """A layer in another narrow precision than INT8."""

    layer: str
    precision: str


Unit = str | Choice
"""A layer in a narrow precision: in INT8 if only its name is given."""
Plan = frozenset[Unit]
"""The layers that are quantized, none twice; all others are in float."""


def unit_of(layer: str, precision: str) -> Unit:
    """Return what stands in a plan for a layer in a precision."""
    return layer if precision == "int8" else Choice(layer, precision)


def split(unit: Unit) -> Choice:
    """Return the layer and the precision of a unit."""
    return unit if isinstance(unit, Choice) else Choice(unit, "int8")


def with_unit(plan: Plan, unit: Unit) -> Plan:
    """Return the plan with a layer's choice changed to this one, or taken out if it is that already."""
    others = frozenset(other for other in plan if split(other).layer != split(unit).layer)
    return others if unit in plan else others | {unit}


@dataclass(frozen=True)
class Point(Shown):
    """A measured plan: its time (an estimate, or of measured layers) and its speed-up over FP32.

    Their intervals are those of the estimates; without them they are exact. `int8_macs` is the
    percentage of multiply-accumulates in INT8, None where none are known, `size_mb` what the weights
    of its layers take in a file, in 10^6 bytes.
    """

    plan: Plan
    loss: Loss
    cost_ms: float
    speedup: float
    int8_macs: float | None = None
    size_mb: float = math.nan
    cost_interval: tuple[float, float] | None = None
    speedup_interval: tuple[float, float] | None = None

    def price(self, goal: str) -> float:
        """Return what a goal wants small: the time, or the size of the file."""
        return self.size_mb if goal == SMALLEST else self.cost_ms


def _lost(lost: float | None) -> float:
    """Return points lost as a change; beyond every limit where they are not known."""
    return -math.inf if lost is None else -lost


FIGURES: Mapping[str, Callable[[Point], float]] = {
    "top1 >= -": lambda point: _lost(point.loss.top1_drop),
    "agreement >= -": lambda point: _lost(point.loss.disagreement),
    "sqnr_db >=": lambda point: point.loss.sqnr_db,
    "speedup >=": lambda point: point.speedup,
    "latency_p50 <=": lambda point: point.cost_ms,
    f"{INT8_MACS} >=": lambda point: -math.inf if point.int8_macs is None else point.int8_macs,
}
"""The limits that a search takes, without their bounds, and the figure of a plan that each is about."""
LIMIT_FORMS = (
    'limits of a search look like "top1 >= -0.5", "agreement >= -0.5", "sqnr_db >= 30", '
    '"speedup >= 2", "latency_p50 <= 3" or "int8_macs >= 80%"'
)


def _form(limit: Limit) -> str:
    return f"{limit.metric} {limit.relation}{' -' if limit.is_change else ''}"


@dataclass(frozen=True)
class Limits:
    """What the user asks of a plan; figures are those of the samples searched on, without intervals.

    With `tested`, the number of samples that the plan is tested on afterwards, a figure of the loss
    has to hold with a margin: so that a plan that loses as much passes that test in nine of ten cases.
    Limits on `device` are those on times, where the search measures on it.
    """

    asked: tuple[Limit, ...] = ()
    tested: int | None = None
    device: str = ""

    def __post_init__(self) -> None:
        check_known(limit.metric for limit in self.asked)
        for limit in self.asked:
            is_plain = not limit.is_relative and limit.variant is None
            if not is_searched(limit, self.device) or not is_plain:
                raise InputError(f"a search cannot use the limit {limit}", LIMIT_FORMS)

    @classmethod
    def of(cls, *texts: str) -> Limits:
        """Return the limits written like these."""
        return cls(parse_limits(texts))

    def bound(self, metric: str) -> float | None:
        """Return the bound of a metric, None if it has none."""
        return next((limit.bound for limit in self.asked if limit.metric == metric), None)

    @property
    def losses(self) -> Limits:
        """The limits on what is lost."""
        asked = tuple(limit for limit in self.asked if limit.metric not in COSTS)
        return replace(self, asked=asked)

    @property
    def on_loss(self) -> bool:
        """Whether the loss is limited."""
        return bool(self.losses.asked)

    def most_ms(self, float_ms: float) -> float:
        """Return the time that a plan may take."""
        speedup, budget = self.bound("speedup"), self.bound("latency_p50")
        by_speed = float_ms / speedup if speedup else math.inf
        return min(by_speed, math.inf if budget is None else budget)

    def judge(self, point: Point, is_measured: bool = True) -> tuple[Judgement, ...]:
        """Hold a plan to the limits; one on an estimated time is open where its interval has it.

        One on a device is open unless the times of the point were measured there.
        """
        return tuple(
            Judgement(each, "", self._figure(each, point))
            if is_measured or not each.device
            else Judgement(each, "", None, f"the plan was not measured on {each.device}")
            for each in self.asked
        )

    def _figure(self, limit: Limit, point: Point) -> Figure:
        figure = FIGURES[_form(limit)](point) - self.margin(limit.metric, point.loss)
        ends = {"speedup": point.speedup_interval, "latency_p50": point.cost_interval}
        low, high = ends.get(limit.metric) or (figure, figure)
        return Figure(figure, low, high)

    def sure(self, limit: Limit, point: Point) -> float:
        """Return the strictest bound that a plan holds: that end of an estimate, with the margin."""
        figure = self._figure(limit, point)
        return figure.low if limit.relation == ">=" else figure.high

    def margin(self, metric: str, loss: Loss | None = None) -> float:
        """Return by how much a figure of a plan should be better than its limit.

        Of decisions it follows from the share that changes, which is at least that of right answers
        that do; of SQNR from a noise that varies as much as it is large from sample to sample.
        """
        if self.tested is None or metric in COSTS:
            return 0.0
        if metric == SQNR:
            return 10 * math.log10(1 + POWERED / math.sqrt(self.tested))
        share = (loss.disagreement or 0.0) if loss else 0.0
        return 10 * POWERED * math.sqrt(share / self.tested)  # in points, of a share in percent

    def broken(self, point: Point) -> list[str]:
        """Return the metrics of the limits that a plan does not hold, estimates without intervals."""
        values = ((limit, self._figure(limit, point).value) for limit in self.asked)
        return [limit.metric for limit, value in values if limit.state(value, value) != HOLDS]


POWERED = 1.645 + 1.282
"""Standard errors: of a one-sided test at 5 %, and of a power of 90 %."""
COSTS = ("speedup", "latency_p50", INT8_MACS)


def is_searched(limit: Limit, device: str = "") -> bool:
    """Tell whether a limit is about what a search measures of a plan, here or on a device."""
    return limit.at in ("", device) and _form(limit) in FIGURES


@dataclass(frozen=True)
class Relief:
    """A limit that, given up to `needed`, makes a plan pass that holds all the others."""

    limit: Limit
    needed: float
    plan: Plan

    @property
    def by(self) -> float:
        """How far it would have to give, in its unit."""
        return abs(self.needed - self.limit.bound)

    def __str__(self) -> str:
        relaxed = replace(self.limit, bound=self.needed)
        return f"relax {self.limit} to {relaxed}"


def reliefs(points: Iterable[Point], limits: Limits) -> list[Relief]:
    """Return for each limit what it alone would have to become, the least change relative first."""
    points = list(points)
    possible = []
    for limit in limits.asked:
        others = [point for point in points if set(limits.broken(point)) <= {limit.metric}]
        if others:
            ends = {point.plan: limits.sure(limit, point) for point in others}
            plan = (max if limit.relation == ">=" else min)(ends, key=ends.__getitem__)
            possible.append(Relief(limit, ends[plan], plan))
    return sorted(possible, key=lambda relief: relief.by / max(abs(relief.limit.bound), 1e-9))


def pareto(points: Iterable[Point], measure: str, goal: str = FASTEST) -> list[Point]:
    """Return the plans that no other dominates, the cheapest first; of equal ones the first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.price(goal), point.loss.of(measure))):
        if not kept or point.loss.of(measure) < kept[-1].loss.of(measure):
            kept.append(point)
    return kept
