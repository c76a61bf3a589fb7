"""The integer programme: which layers to put into INT8, by what they lose and what they cost.

A layer is a variable that is 1 for INT8. Casts are no separate choice: a tensor's storage in INT8 and
in float follows from who reads it and who makes it, and a kernel's time from what it reads and writes,
all as in `Costs`. Losses are taken to add up over layers, which holds for small errors that do not
depend on each other; what a plan really loses is measured afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from trtcal.evaluate.search.costs import Costs, Kernel, Terms, storage_rules
from trtcal.evaluate.search.limits import Plan

TRUST = 0.03  # relative error at which a measured plan counts as much as one layer's own figure


class Surrogate:
    """Shares of the loss by layer, none below 0."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.units = list(shares)
        given = np.array([max(one, 0.0) for one in shares.values()])
        least = float(given.sum()) * 1e-6 or 1e-12
        self.prior = np.maximum(given, least)
        self.shares: npt.NDArray[np.float64] = self.prior

    def learn(self, measured: Sequence[tuple[Collection[str], float]]) -> None:
        """Move the shares as little as measured plans ask: (layers in INT8, loss) each.

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
        wanted = np.concatenate([(losses - rows @ self.prior) * weights, np.zeros(len(self.units))])
        change = np.linalg.lstsq(system, wanted, rcond=None)[0]
        self.shares = self.prior * np.maximum(1.0 + change, 0.01)

    def by_unit(self) -> dict[str, float]:
        """Return each layer's share."""
        return dict(zip(self.units, self.shares.tolist(), strict=True))

    def loss(self, int8: Collection[str]) -> float:
        """Return what a plan will probably lose."""
        return float(sum(one for name, one in self.by_unit().items() if name in int8))


SOLVER_S = 10.0


class Programme:
    """Solves for plans of one network; layers in `always` are in INT8 in all of them.

    At least `int8_macs` multiply-accumulates are in INT8.
    """

    def __init__(
        self,
        units: Iterable[str],
        costs: Costs,
        always: Collection[str] = frozenset(),
        int8_macs: float = 0.0,
    ) -> None:
        self.units, self.costs, self.always = list(units), costs, always
        self.places: dict[str, int] = {}
        self.rows: list[tuple[Terms, float]] = []  # sum of terms >= number
        self.price: Terms = {}
        for name in self.units:
            self._place(f"x {name}")
        for kernel in costs.work.kernels:
            self._place(f"f {kernel.writes}"), self._place(f"i {kernel.writes}")
            for stored, decides, value in storage_rules(kernel):
                sign = -1.0 if value else 1.0
                terms = {} if decides is None else {decides: sign}
                self._least({stored: 1.0, **terms}, 0.0 if decides and value else 1.0)
        for name in costs.work.shown:
            self._least({f"f {name}": 1.0}, 1.0)
        self._cast()
        for kernel, moved in zip(costs.work.kernels, costs.moved_bytes, strict=True):
            self._time(kernel, *moved)
        if int8_macs:
            layers = [one for one in costs.work.kernels if one.unit]
            self._least({f"x {one.unit}": one.macs / int8_macs for one in layers}, 1.0)

    def _cast(self) -> None:
        """State that a tensor that is stored in both types is cast."""
        for name in self.costs.work.sizes:
            if f"i {name}" in self.places and f"f {name}" in self.places:
                self._least({f"b {name}": 1.0, f"i {name}": -1.0, f"f {name}": -1.0}, -1.0)
                self.price[f"b {name}"] = self.costs.cast_ms(name)

    def cheapest(
        self, losses: Mapping[str, float], most: float, but: Iterable[Plan] = ()
    ) -> Plan | None:
        """Return the cheapest plan that loses no more than `most`, None if there is none.

        Plans in `but` are left out.
        """
        terms = {f"x {name}": loss for name, loss in losses.items()}
        return self._solve(self.price, terms, most, but)

    def best(
        self, losses: Mapping[str, float], most_ms: float, but: Iterable[Plan] = ()
    ) -> Plan | None:
        """Return the plan of the least loss that takes no longer than `most_ms`."""
        terms = {f"x {name}": loss for name, loss in losses.items()}
        return self._solve(terms, self.price, most_ms, but)

    def _place(self, name: str) -> int:
        return self.places.setdefault(name, len(self.places))

    def _least(self, terms: Terms, number: float) -> None:
        for name in terms:
            self._place(name)
        self.rows.append((terms, number))

    def _time(self, kernel: Kernel, moved: Terms, fixed: float) -> None:
        """State that a kernel takes at least as long as its bytes, and as its multiplications."""
        if kernel.free:
            return
        time, costs = f"t {kernel.name}", self.costs
        self.price[time] = 1.0
        if kernel.unit in costs.times:
            int8_ms, float_ms = costs.times[str(kernel.unit)]
            self._slower(time, {f"x {kernel.unit}": int8_ms - float_ms}, float_ms)
            return
        terms = {name: costs.memory_ms(one) for name, one in moved.items()}
        self._slower(time, terms, costs.memory_ms(fixed))
        if kernel.macs:
            slow, quick = (costs.compute_ms(kernel, is_int8) for is_int8 in (False, True))
            self._slower(time, {f"x {kernel.unit}": quick - slow} if kernel.unit else {}, slow)

    def _slower(self, time: str, terms: Terms, fixed: float) -> None:
        self._least({time: 1.0, **{name: -one for name, one in terms.items()}}, fixed)

    def _solve(
        self, objective: Terms, bounded: Terms, most: float, but: Iterable[Plan]
    ) -> Plan | None:
        scale = max((abs(one) for one in bounded.values()), default=1.0) or 1.0
        rows = [*self.rows, ({n: -one / scale for n, one in bounded.items()}, -most / scale)]
        for plan in but:
            unlike = {f"x {name}": -1.0 if name in plan else 1.0 for name in self.units}
            rows.append((unlike, 1.0 - len(plan)))
        entries = [
            (i, self._place(n), one)
            for i, (terms, _) in enumerate(rows)
            for n, one in terms.items()
        ]
        at, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (at, columns)), shape=(len(rows), len(self.places)))
        weights = np.zeros(len(self.places))
        top = max(objective.values(), default=1.0) or 1.0
        for name, one in objective.items():
            weights[self._place(name)] = one / top
        whole = np.array([name.startswith("x ") for name in self.places], np.int64)
        lower = np.zeros(len(self.places))
        lower[[self.places[f"x {name}"] for name in self.always]] = 1.0
        upper = np.array([np.inf if name.startswith("t ") else 1.0 for name in self.places])
        found = milp(
            weights,
            integrality=whole,
            bounds=Bounds(lower, upper),
            constraints=LinearConstraint(matrix, [number for _, number in rows], np.inf),
            options={"time_limit": SOLVER_S},
        )
        if found.x is None:
            return None
        return frozenset(name for name in self.units if found.x[self.places[f"x {name}"]] > 0.5)
