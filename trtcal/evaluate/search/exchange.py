"""Find the plans worth having: by integer programme, measured, and improved by local exchange."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trtcal.documents.overview import Shown
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.search.limits import (
    FASTEST,
    SMALLEST,
    Limits,
    Plan,
    Point,
    Relief,
    Unit,
    pareto,
    reliefs,
    split,
    with_unit,
)
from trtcal.evaluate.search.milp import Programme, Surrogate
from trtcal.evaluate.search.plan_time import Costs
from trtcal.evidence.times import DEVICE, INT8, TOO_SMALL, SpeedupEstimate, pays
from trtcal.limits import HOLDS
from trtcal.metrics import INT8_MACS

SWEEP = (0.7, 0.5, 1 / 3, 0.25, 0.15, 0.1, 0.05, 0.02)  # of the all-INT8 loss
NONE_HOLDS = "no plan holds all limits"
KEPT_SPEEDUP = 0.9  # of the all-INT8 plan, where the user sets no limit
EVALUATIONS = 48
ROUNDS = 8  # of solving for the limits, each after learning from the one before
SLACKS = (1.05, 1.3, 1.7)  # by which a loss may be foreseen too high


@dataclass(frozen=True)
class Found(Shown):
    """The front, cheapest first, all plans measured, the recommended one, and why it is that.

    Where no plan holds the limits, none is recommended, and `reliefs` are the limits that would have
    to be relaxed. `int8_pays` if a quantized plan costs less than the float one, and `over_float`
    how many times as fast the fastest of them is; `answer` is that of `times.pays`, None without one.
    """

    front: tuple[Point, ...]
    measured: tuple[Point, ...]
    recommended: Point | None
    reason: str
    reliefs: tuple[Relief, ...]
    complete: bool
    int8_pays: bool
    over_float: SpeedupEstimate | None = None
    answer: str | None = None


class Search:
    """One search; `evaluate` measures the loss of a plan, `shares` foresee it by its units.

    The `goal` is what limits of loss leave free: the shortest time or the smallest file. `mixed` is a
    plan with the layers in float that must not be quantized, None where there are none.
    """

    def __init__(
        self,
        shares: Mapping[Unit, float],
        costs: Costs,
        evaluate: Callable[[Plan], Loss],
        measure: str,
        limits: Limits,
        evaluations: int = EVALUATIONS,
        may: Callable[[], bool] = lambda: True,
        goal: str = FASTEST,
        mixed: Plan | None = None,
    ) -> None:
        self.units, self.goal, self.mixed = list(shares), goal, mixed
        self.wholes: dict[str, set[Unit]] = {}
        for unit in self.units:
            self.wholes.setdefault(split(unit).precision, set()).add(unit)
        self.word = "INT8" if set(self.wholes) == {"int8"} else "quantization"
        self.costs, self.evaluate, self.measure, self.limits = costs, evaluate, measure, limits
        least = (limits.bound(INT8_MACS) or 0.0) / 100 * costs.work.coverage(()).macs
        self.programme = Programme(self.units, costs, least)
        self.surrogate = Surrogate(shares)
        self.points: dict[Plan, Point] = {}
        self.left, self.may = evaluations, may
        self.baseline = costs.baseline.estimate(())
        self.asked, whole = bool(limits.asked), costs.estimate(next(iter(self.wholes.values())))
        is_small = whole.too_small and self.baseline.too_small
        self.too_small = TOO_SMALL.format(whole.kernels) if is_small else ""
        self.is_fast = whole.ms < self.baseline.ms and not is_small
        self.is_single = len({split(unit).layer for unit in self.units}) == 1

    def run(self) -> Found:
        """Do all there is time and leave for; the extremes are always measured."""
        whole, *_ = [self.point_of(frozenset(units)) for units in self.wholes.values()]
        self.point_of(frozenset())
        kept = whole if self.mixed is None else self.point_of(self.mixed)
        if not self.asked and self.is_fast:
            self.limits = Limits.of(f"speedup >= {KEPT_SPEEDUP * kept.speedup!r}")
        self._sweep(whole)
        self._aim()
        best = self._exchange()
        front = pareto(self._fit, self.measure, self.goal)
        if best is not None and best not in front:  # what a limit asks for may cost both
            front = sorted([*front, best], key=lambda point: point.price(self.goal))
        reason = self._reason(best, whole)
        relief = () if best else tuple(reliefs(self._fit, self.limits))
        measured = tuple(self.points.values())
        known = tuple(front), measured, best, reason, relief, self._may
        return Found(*known, self._pays(self._fit), self._over_float(), self._answer)

    @property
    def _may(self) -> bool:
        return self.left > 0 and self.may()

    @property
    def _fit(self) -> list[Point]:
        return [point for point in self.points.values() if point.loss.is_fit]

    def point_of(self, plan: Plan) -> Point:
        """Return a plan with its loss and its time, measured or estimated once."""
        if plan not in self.points:
            self.left -= 1
            macs, ratio = self.costs.work.coverage(plan).share, self.costs.over(self.baseline, plan)
            mine = self.costs.estimate(plan)
            ends = (mine.low_ms, mine.high_ms), (ratio.low, ratio.high)
            loss, size = self.evaluate(plan), self.costs.size_mb(plan)
            self.points[plan] = Point(plan, loss, mine.ms, ratio.ratio, macs, size, *ends)
            self.surrogate.learn([(point.plan, point.loss.of(self.measure)) for point in self._fit])
        return self.points[plan]

    def _try(self, plan: Plan | None) -> Point | None:
        may = plan is not None and (plan in self.points or self._may)
        return self.point_of(plan) if plan is not None and may else None

    def _sweep(self, whole: Point) -> None:
        """Measure the cheapest plan for each of several losses, so that the front is known roughly."""
        lost = whole.loss.of(self.measure) if whole.loss.is_fit else self.surrogate.finite
        for share in SWEEP:
            shares = self.surrogate.shares
            self._try(self.programme.cheapest(shares, share * lost, goal=self.goal))

    def _aim(self) -> None:
        """Solve for the limits, again with what each plan taught, while there is one to hope for.

        Then once more for plans of which more loss is foreseen, as what is foreseen can be too much.
        """
        for slack in SLACKS:
            for _ in range(ROUNDS):
                plan = self._hoped(slack)
                if plan is None or self._try(plan) is None:
                    break

    def _hoped(self, slack: float) -> Plan | None:
        """Return the best plan not measured yet, by what is known; None if it would be no better."""
        shares, best = self.surrogate.shares, self._best()
        if self.limits.on_loss:
            most = slack * self._most_loss()
            plan = self.programme.cheapest(shares, most, self.points, self.goal)
            small = None if plan is None else self._price(plan)
        else:
            most_ms = self.limits.most_ms(self.baseline.ms)
            plan = self.programme.best(shares, most_ms, self.points)
            small = None if plan is None else self.surrogate.loss(plan)
        if small is None or (best is not None and small >= self._key(best)[0]):
            return None
        return plan

    def _most_loss(self) -> float:
        """Return the loss to solve for: that of the limit, or between plans that hold it and do not."""
        sqnr_db = self.limits.bound("sqnr_db")
        limited = {limit.metric for limit in self.limits.asked}
        if sqnr_db is not None and limited.isdisjoint({"top1", "agreement"}):
            return float(10 ** (-(sqnr_db + self.limits.margin("sqnr_db")) / 10))
        return sum(self._bracket()) / 2

    def _bracket(self) -> tuple[float, float]:
        """Return the largest loss that held the limits, and the least above it that did not."""
        losses = self.limits.losses
        holding = [p.loss.of(self.measure) for p in self._fit if not losses.broken(p)]
        low = max(holding, default=0.0)
        failing = [p.loss.of(self.measure) for p in self._fit if losses.broken(p)]
        return low, min((loss for loss in failing if loss > low), default=low)

    def _key(self, point: Point) -> tuple[float, float]:
        """Return what is to be small: the cost under a limit of loss, else the loss."""
        pair = point.price(self.goal), point.loss.of(self.measure)
        return pair if self.limits.on_loss else pair[::-1]

    def _price(self, plan: Plan) -> float:
        return self.costs.size_mb(plan) if self.goal == SMALLEST else self.costs.plan_ms(plan)

    def _best(self) -> Point | None:
        """Return the best plan that holds the limits.

        One all in float stands back where nothing was asked and quantizing is faster, and where it
        would leave the only layer that can be quantized in float.
        """
        holding = [point for point in self._fit if not self.limits.broken(point)]
        faster = [point for point in holding if self._pays([point])]
        is_worth = faster and not self.asked and (self.is_fast or self._answer == INT8)
        if self.is_single or is_worth:
            holding = faster
        return min(holding, key=self._key, default=None)

    def _pays(self, points: Iterable[Point]) -> bool:
        """Tell whether one of some plans quantizes and costs less than the network in float."""
        plain = self.points[frozenset()]
        most = plain.price(self.goal) if plain.loss.is_fit else float("inf")
        return any(point.plan and point.price(self.goal) < most for point in points)

    def _over_float(self) -> SpeedupEstimate | None:
        """Return how many times as fast as the float plan the fastest quantized one is."""
        quantized = [point for point in self._fit if point.plan]
        fastest = min(quantized, key=lambda point: point.cost_ms, default=None)
        plain = self.costs.estimate(())
        return None if fastest is None else self.costs.over(plain, fastest.plan)

    @property
    def _answer(self) -> str | None:
        ratio = self._over_float()
        return None if ratio is None else DEVICE if self.too_small else pays(ratio)

    def _exchange(self) -> Point | None:
        """Change one layer, or swap two, while that gives a better plan that holds the limits."""
        best = self._best()
        while best is not None and self._may:
            for plan in self._neighbours(best):
                point = self._try(plan)
                if point is None or point is self._best():
                    break
            after = self._best()
            if after is best:
                break
            best = after
        return best

    def _neighbours(self, best: Point) -> list[Plan]:
        """Return plans not measured that are cheaper, or lose less, as far as can be foreseen."""
        neighbours = []
        high = max(self._bracket())
        most_ms = self.limits.most_ms(self.baseline.ms)
        now = max(self.surrogate.loss(best.plan), best.loss.of(self.measure))
        for plan in _changed(best.plan, self.units):
            loss = self.surrogate.loss(plan)
            is_low = loss <= 1.5 * high if self.limits.on_loss else loss < 1.1 * now
            if plan in self.points or not is_low:
                continue
            cost = self._price(plan) if self.limits.on_loss else self.costs.plan_ms(plan)
            better = cost < best.price(self.goal) if self.limits.on_loss else cost <= most_ms
            if better:
                neighbours.append((loss, cost, plan))
        return [plan for *_, plan in sorted(neighbours, key=lambda row: row[:2])][: len(self.units)]

    def _reason(self, best: Point | None, whole: Point) -> str:
        plain, count = self.points[frozenset()], len(self.points)
        if best is None and (not self.is_single or self.limits.broken(plain)):
            return NONE_HOLDS
        if best is None or not best.plan:
            return self._no_int8()
        cheap = "the smallest file" if self.goal == SMALLEST else "the shortest time"
        what = cheap if self.limits.on_loss else "the smallest loss"
        narrow = next(iter(self.wholes)).upper()
        kept = f"keep {KEPT_SPEEDUP:.0%} of the {narrow} speed-up"
        kept += " beside layers that must not be quantized" * (self.mixed is not None)
        kept = kept if self.is_fast else f"have layers in {narrow}"
        margin = f" with a margin for the test on {self.limits.tested} samples"
        held = "hold the limits" + margin * bool(self.limits.tested)
        among = f"{what} of the {count} measured plans that {held if self.asked else kept}"
        low, high = best.speedup_interval or (best.speedup, best.speedup)
        every = f"{low:.3g} to {high:.3g}; " * (low != high)
        every += f"{whole.speedup:.3g} with all in {narrow}"
        speed = self.too_small or f"{best.speedup:.3g} times as fast as FP32 ({every})"
        lost, mine = whole.loss.of(self.measure), best.loss.of(self.measure)
        share = (
            f"{mine / lost if lost else 0.0:.0%} of the loss of all in {narrow} ({self.measure})"
        )
        unfit = f"finite outputs, which all layers in {narrow} do not give"
        return f"{among}: {speed}, with {share if whole.loss.is_fit else unfit}"

    def _no_int8(self) -> str:
        plain, word = self.points[frozenset()], self.word
        ms = f"the network takes {plain.cost_ms:.4g} ms in {self.costs.precision} without {word}"
        quantized = [point for point in self._fit if point.plan]
        if not quantized:
            return f"{word} is not worth it: no plan with it gives finite outputs; {ms}"
        if self.too_small:
            return f"only the device decides whether {word} pays: {self.too_small}"
        ms += f" and {min(point.cost_ms for point in quantized):.4g} ms with {word} at best"
        is_held = self.asked and all(each.state == HOLDS for each in self.limits.judge(plain))
        ratio = self._over_float()
        if ratio and pays(ratio) == DEVICE and not (is_held and self._pays(quantized)):
            ends = f"{ratio.ratio:.3g} times as fast, {ratio.low:.3g} to {ratio.high:.3g}"
            return f"only the device decides whether {word} pays: {ms} ({ends})"
        if not (self.asked and self._pays(quantized)):
            return f"{word} is not worth it: {ms}"
        if not any(self._pays([point]) and not self.limits.broken(point) for point in quantized):
            return f"no plan with {word} is faster and holds the limits: {ms}"
        return f"{word} is not worth it under these limits, which hold without it too: {ms}"


def _changed(plan: Plan, units: Sequence[Unit]) -> Iterator[Plan]:
    """Yield the plans in which one layer changes, or one goes to float and another one changes."""
    inside = [unit for unit in units if unit in plan]
    outside = [unit for unit in units if unit not in plan]
    yield from (with_unit(plan, unit) for unit in units)
    for first, second in itertools.product(inside, outside):
        if split(first).layer != split(second).layer:
            yield with_unit(plan - {first}, second)
