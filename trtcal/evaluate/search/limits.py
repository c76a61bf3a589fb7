"""Limits that a plan must hold, and which of them would have to give where none holds all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from trtcal.errors import InputError
from trtcal.evaluate.metrics import Loss

Plan = frozenset[str]
"""The layers that are in INT8."""


@dataclass(frozen=True)
class Point:
    """A measured plan: its time (an estimate, or of measured layers) and its speed-up over FP32."""

    int8: Plan
    loss: Loss
    cost_ms: float
    speedup: float

    def dominates(self, other: Point, measure: str) -> bool:
        """Tell whether it is no worse in both and better in one."""
        mine = self.loss.of(measure), self.cost_ms
        theirs = other.loss.of(measure), other.cost_ms
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


@dataclass(frozen=True)
class Limits:
    """What the user asks: None is not asked.

    `max_drop` is in points of top-1 (of agreement with the float model, without labels), `sqnr` in dB
    of the outputs, `min_speedup` over FP32, `budget_ms` of one batch.
    """

    max_drop: float | None = None
    sqnr: float | None = None
    min_speedup: float | None = None
    budget_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"the limit {name} is {value}", "give a number from 0 up")

    @property
    def on_loss(self) -> bool:
        """Whether the loss is limited."""
        return self.max_drop is not None or self.sqnr is not None

    @property
    def on_cost(self) -> bool:
        """Whether the time is limited."""
        return self.min_speedup is not None or self.budget_ms is not None

    def most_ms(self, float_ms: float) -> float:
        """Return the time that a plan may take."""
        by_speed = float_ms / self.min_speedup if self.min_speedup else math.inf
        return min(by_speed, math.inf if self.budget_ms is None else self.budget_ms)

    def broken(self, point: Point) -> list[str]:
        """Return the names of the limits that a plan does not hold."""
        return [
            name
            for name, limit in asdict(self).items()
            if limit is not None and not GATES[name].holds(point, limit)
        ]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class Gate:
    """One kind of limit: what it looks at, and whether more is better."""

    of: Callable[[Point], float]
    more: bool
    unit: str

    def holds(self, point: Point, limit: float) -> bool:
        """Tell whether a plan holds a limit."""
        value = self.of(point)
        return value >= limit if self.more else value <= limit


def _drop(point: Point) -> float:
    return math.inf if point.loss.drop is None else point.loss.drop


GATES = {
    "max_drop": Gate(_drop, False, "points"),
    "sqnr": Gate(lambda point: point.loss.sqnr_db, True, "dB"),
    "min_speedup": Gate(lambda point: point.speedup, True, "times"),
    "budget_ms": Gate(lambda point: point.cost_ms, False, "ms"),
}


@dataclass(frozen=True)
class Relief:
    """A limit that, given up to `needed`, makes a plan pass that holds all the others."""

    limit: str
    asked: float
    needed: float
    unit: str
    int8: Plan

    @property
    def by(self) -> float:
        """How far it would have to give, in its unit."""
        return abs(self.needed - self.asked)

    def __str__(self) -> str:
        return (
            f"{self.limit} {self.asked:.4g} would have to become {self.needed:.4g} "
            f"(by {self.by:.4g} {self.unit})"
        )


def reliefs(points: Iterable[Point], limits: Limits) -> list[Relief]:
    """Return for each limit what it alone would have to become, the least change relative first."""
    points = list(points)
    found = []
    for name, asked in asdict(limits).items():
        gate = GATES[name]
        others = [one for one in points if asked is not None and set(limits.broken(one)) <= {name}]
        if others:
            best = (max if gate.more else min)(others, key=gate.of)
            found.append(Relief(name, asked, gate.of(best), gate.unit, best.int8))
    return sorted(found, key=lambda one: one.by / max(one.asked, 1e-9))


def pareto(points: Iterable[Point], measure: str) -> list[Point]:
    """Return the plans that no other dominates, the cheapest first; of equal ones the first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda one: (one.cost_ms, one.loss.of(measure))):
        if not kept or point.loss.of(measure) < kept[-1].loss.of(measure):
            kept.append(point)
    return kept
