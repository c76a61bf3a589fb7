"""The integer programme: which layers to quantize to what, by what they lose and what they cost.

A layer in a precision is a variable that is 1 or 0. Casts are no separate choice: how a tensor is
stored follows from who reads it and who makes it, and a kernel's time from what it reads and
writes, all as in `Costs`. Losses are taken to add up over layers, which holds for small errors that
do not depend on each other; what a plan really loses is measured afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from trtcal.evaluate.search.limits import FASTEST, SMALLEST, Plan, Unit, split, unit_of
from trtcal.evaluate.search.plan_time import (
    FILE_BYTES,
    FLOAT,
    Costs,
    Kernel,
    Terms,
    Variable,
    storage_rules,
)
from trtcal.evidence.times import memory_lines
from trtcal.formats import RANGED

UNFIT = 1e3
TRUST = 0.03  # relative error at which a measured plan counts as much as one layer's own figure


class Surrogate:
    """Shares of the loss by layer and precision, none below 0.

    One that is not finite counts as `UNFIT` times all that are, whose sum is `finite`.
    """

    def __init__(self, shares: Mapping[Unit, float]) -> None:
        self.units = list(shares)
        positive = np.array([max(share, 0.0) for share in shares.values()])
        self.finite = float(positive[np.isfinite(positive)].sum())
        positive[~np.isfinite(positive)] = UNFIT * self.finite or 1.0
        least = self.finite * 1e-6 or 1e-12
        self.prior = np.maximum(positive, least)
        self.shares = dict(zip(self.units, self.prior.tolist(), strict=True))

    def learn(self, measured: Sequence[tuple[Collection[Unit], float]]) -> None:
        """Move the shares as little as measured plans ask: (plan, loss) each.

        Least squares with relative weights: a layer's share may double as easily as another's.
        """
        known = [(plan, loss) for plan, loss in measured if plan]
        if not known:
            return
        rows = np.array([[name in plan for name in self.units] for plan, _ in known], np.float64)
        losses = np.array([loss for _, loss in known])
        weights = 1.0 / (TRUST * np.maximum(np.abs(losses), self.prior.min()))
        # shares = prior * (1 + change), change as near to 0 as the weighted rows allow
        system = np.vstack([rows * self.prior * weights[:, None], np.eye(len(self.units))])
        rest = (losses - rows @ self.prior) * weights
        targets = np.concatenate([rest, np.zeros(len(self.units))])
        change = np.linalg.lstsq(system, targets, rcond=None)[0]
        learned = self.prior * np.maximum(1.0 + change, 0.01)
        self.shares = dict(zip(self.units, learned.tolist(), strict=True))

    def loss(self, plan: Collection[Unit]) -> float:
        """Return what a plan will probably lose."""
        return float(sum(share for name, share in self.shares.items() if name in plan))


class Programme:
    """Solves for plans of one network, with at least `int8_macs` multiply-accumulates in INT8."""

    def __init__(self, units: Iterable[Unit], costs: Costs, int8_macs: float = 0.0) -> None:
        self.units, self.costs = list(units), costs
        self.known = set(self.units)
        self.places: dict[Variable, int] = {}
        self.rows: list[tuple[Terms, float]] = []  # sum of terms >= number
        self.price: Terms = {}
        for unit in self.units:
            self._place(("x", unit))
        for kernel in costs.work.kernels:
            for stored, decides, value in storage_rules(kernel, costs.precisions):
                terms = dict.fromkeys(decides, -1.0 if value else 1.0)
                self._least({stored: 1.0, **terms}, 0.0 if value else 1.0)
        for name in costs.work.shown:
            self._least({(FLOAT, name): 1.0}, 1.0)
        self._once()
        self._cast()
        for kernel, moved in zip(costs.work.kernels, costs.moved_bytes, strict=True):
            self._time(kernel, *moved)
        if int8_macs:
            layers = [kernel for kernel in costs.work.kernels if kernel.unit]
            self._least({("x", str(layer.unit)): layer.macs / int8_macs for layer in layers}, 1.0)
        self.size = dict(self._sizes())

    def _once(self) -> None:
        units: dict[str, list[Unit]] = {}
        for unit in self.units:
            units.setdefault(split(unit).layer, []).append(unit)
        for several in units.values():
            if len(several) > 1:
                self._least({("x", choice): -1.0 for choice in several}, -1.0)

    def _cast(self) -> None:
        """State that a tensor that is stored in several types is cast."""
        for name in self.costs.work.sizes:
            forms = [(form, name) for form in (FLOAT, *RANGED) if (form, name) in self.places]
            if len(forms) > 1:
                self._least({("cast", name): 1.0, **dict.fromkeys(forms, -1.0)}, -1.0)
                self.price["cast", name] = self.costs.cast_ms(name)

    def _sizes(self) -> Iterator[tuple[Variable, float]]:
        """Yield what each unit spares of the file, in 10^6 bytes."""
        weights = {k.unit: k.weights / 1e6 for k in self.costs.work.kernels if k.unit}
        for unit in self.units:
            layer, precision = split(unit)
            spared = FILE_BYTES[precision] - self.costs.float_bytes
            yield ("x", unit), weights.get(layer, 0.0) * spared

    def cheapest(
        self,
        losses: Mapping[Unit, float],
        most: float,
        but: Iterable[Plan] = (),
        goal: str = FASTEST,
    ) -> Plan | None:
        """Return the cheapest plan that loses no more than `most`, None if there is none.

        Plans in `but` are left out. With the goal `smallest` it is the one of the smallest file.
        """
        terms: Terms = {("x", unit): loss for unit, loss in losses.items()}
        return self._solve(self.size if goal == SMALLEST else self.price, terms, most, but)

    def best(
        self, losses: Mapping[Unit, float], most_ms: float, but: Iterable[Plan] = ()
    ) -> Plan | None:
        """Return the plan of the least loss that takes no longer than `most_ms`."""
        terms: Terms = {("x", unit): loss for unit, loss in losses.items()}
        return self._solve(terms, self.price, most_ms, but)

    def _place(self, name: Variable) -> int:
        return self.places.setdefault(name, len(self.places))

    def _least(self, terms: Terms, number: float) -> None:
        for name in terms:
            self._place(name)
        self.rows.append((terms, number))

    def _time(self, kernel: Kernel, moved: Terms, fixed: float) -> None:
        """State that a kernel takes at least as long as its bytes, and as its multiplications."""
        if kernel.free:
            return
        time, costs = ("time", kernel.name), self.costs
        unit, forms = kernel.unit, costs.precisions if kernel.unit else ()
        units: dict[str, Variable] = {form: ("x", unit_of(str(unit), form)) for form in forms}
        self.price[time] = 1.0
        if unit in costs.times:
            ms = costs.times[str(unit)]
            self._slower(time, {x: ms[form] - ms[FLOAT] for form, x in units.items()}, ms[FLOAT])
            return
        for slope, offset in memory_lines(costs.target):
            terms = {name: slope * size for name, size in moved.items()}
            self._slower(time, terms, costs.floor_ms + offset + slope * fixed)
        if kernel.macs:
            slow = costs.compute_ms(kernel, FLOAT)
            quicker = {x: costs.compute_ms(kernel, form) - slow for form, x in units.items()}
            self._slower(time, quicker, costs.floor_ms + slow)

    def _slower(self, time: Variable, terms: Terms, fixed: float) -> None:
        self._least({time: 1.0, **{name: -factor for name, factor in terms.items()}}, fixed)

    def _solve(
        self, objective: Terms, bounded: Terms, most: float, but: Iterable[Plan]
    ) -> Plan | None:
        scale = max((abs(factor) for factor in bounded.values()), default=1.0) or 1.0
        rows = [*self.rows, ({n: -factor / scale for n, factor in bounded.items()}, -most / scale)]
        for plan in but:
            unlike: Terms = {("x", unit): -1.0 if unit in plan else 1.0 for unit in self.units}
            rows.append((unlike, 1.0 - len(plan)))
        known = enumerate(terms for terms, _ in rows)
        entries = [(i, self._place(n), x) for i, terms in known for n, x in terms.items()]
        at, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (at, columns)), shape=(len(rows), len(self.places)))
        weights = np.zeros(len(self.places))
        top = max(map(abs, objective.values()), default=1.0) or 1.0
        for name, factor in objective.items():
            weights[self._place(name)] = factor / top
        whole = np.array([kind == "x" for kind, _ in self.places], np.int64)
        upper = np.array([self._most(*name) for name in self.places])
        solution = milp(
            weights,
            integrality=whole,
            bounds=Bounds(np.zeros(len(upper)), upper),
            constraints=LinearConstraint(matrix, [number for _, number in rows], np.inf),
            options={"time_limit": 10.0},
        )
        if solution.x is None:
            return None
        return frozenset(unit for unit in self.units if solution.x[self.places["x", unit]] > 0.5)

    def _most(self, kind: str, what: Unit) -> float:
        """Return the largest value of a variable: 0 of a layer in a precision that it cannot have."""
        if kind in ("time", "cast"):
            return np.inf
        return float(kind != "x" or what in self.known)
