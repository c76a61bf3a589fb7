"""The search against brute force, its answers where limits cannot be held, and its budget."""

import itertools
import math

import pytest

from tests.evaluate.search.nets import random_net
from tests.fixtures.slow import slow_but
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.search.exchange import Search
from trtcal.evaluate.search.limits import Limits, Point, pareto, reliefs
from trtcal.evaluate.search.milp import Surrogate
from trtcal.evaluate.search.plan_loss import Evaluator, Plans, Reference
from trtcal.evaluate.search.plan_time import Costs, work_of
from trtcal.evaluate.search.sensitivity import measure_sensitivities
from trtcal.evidence.gpus import Target
from trtcal.limits import BROKEN, HOLDS, UNDECIDED, parse_limits

SLOW = Target("slow memory", 0.01, 130, 65, 8.1)
"""A GPU on which the bytes of a small network take longer than its launches."""


class Table:
    """Every plan of a network, measured once."""

    def __init__(self, one):
        self.one, self.calls = one, 0
        seen = measure_sensitivities(one.prepared, one.calibration, one.dataset)
        self.shares = {layer.layer: layer.share("noise") for layer in seen.layers}
        work = work_of(one.prepared, one.units, next(one.dataset.batches(1)))
        self.costs = Costs(work, SLOW, "fp32")
        plans = Plans(one.prepared, one.calibration, one.units)
        with Reference(one.prepared, one.dataset, 24) as reference:
            evaluator = Evaluator(plans, reference, EvaluationCache(None, {}))
            self.losses = {
                frozenset(some): evaluator.loss(frozenset(some))
                for count in range(len(one.units) + 1)
                for some in itertools.combinations(one.units, count)
            }

    def evaluate(self, plan):
        self.calls += 1
        return self.losses[plan]

    def search(self, limits, **options):
        return Search(self.shares, self.costs, self.evaluate, "noise", limits, **options)

    def points(self):
        for plan, loss in self.losses.items():
            ms = self.costs.plan_ms(plan)
            macs = self.costs.work.coverage(plan).share
            yield Point(plan, loss, ms, self.costs.baseline.plan_ms(()) / ms, macs)


@pytest.mark.parametrize("seed", slow_but(range(2), 0))
def test_it_finds_what_brute_force_finds_within_a_layer(make, seed):
    table = Table(make(random_net, seed, 5))
    whole = table.losses[frozenset(table.one.units)]
    fastest = max(point.speedup for point in table.points())
    for limits in (
        Limits.of("int8_macs >= 80%"),
        Limits.of(f"sqnr_db >= {whole.sqnr_db + 5}"),
        Limits.of(f"speedup >= {0.9 * fastest}"),
        Limits(),
    ):
        table.calls = 0
        search = table.search(limits)
        found = search.run()
        holding = [point for point in table.points() if not search.limits.broken(point)]
        best = min(holding, key=search._key)
        assert abs(len(found.recommended.plan) - len(best.plan)) <= 1
        assert not search.limits.broken(found.recommended)
        assert table.calls == len(found.measured) < len(table.losses)
        assert found.recommended in found.front
        for point in {*found.front} - {found.recommended}:
            assert not any(
                other.loss.noise < point.loss.noise and other.cost_ms <= point.cost_ms
                for other in found.measured
            )


def test_a_limit_that_nothing_holds_is_answered_with_what_would_have_to_give(make):
    table = Table(make(random_net, 0, 4))
    fastest = max(point.speedup for point in table.points())
    best_of_fastest = max(p.loss.sqnr_db for p in table.points() if p.speedup == fastest)
    limits = Limits.of(f"sqnr_db >= {best_of_fastest + 1}", f"speedup >= {fastest}")
    found = table.search(limits).run()
    assert found.recommended is None
    given = {one.limit.metric: one for one in found.reliefs}
    assert set(given) == {"sqnr_db", "speedup"}
    assert given["sqnr_db"].needed == pytest.approx(best_of_fastest)
    assert given["sqnr_db"].by == pytest.approx(1)
    slower = given["speedup"].needed
    assert slower == max(  # the low end: with it as the limit, that plan holds for sure
        p.speedup_interval[0] for p in found.measured if p.loss.sqnr_db >= limits.bound("sqnr_db")
    )
    assert slower < fastest
    assert "sqnr" in str(given["sqnr_db"])


def test_it_stops_where_it_may_measure_no_more(make):
    table = Table(make(random_net, 1, 4))
    found = table.search(Limits(), evaluations=4).run()
    assert len(found.measured) == table.calls == 4
    assert not found.complete
    late = table.search(Limits(), may=lambda: False).run()
    assert len(late.measured) == 2


@pytest.mark.parametrize(
    "limits", [Limits(), Limits.of("sqnr_db >= 25"), Limits.of("speedup >= 1")]
)
def test_a_plan_whose_outputs_are_not_finite_is_measured_and_never_taken(make, limits):
    table = Table(make(random_net, 1, 4))
    broken = table.one.units[1]
    for plan in table.losses:
        if broken not in plan:
            table.losses[plan] = Loss(24, math.inf)
    found = table.search(limits).run()
    assert any(not point.loss.is_fit for point in found.measured)
    assert broken in found.recommended.plan
    assert all(broken in point.plan for point in found.front)


def test_where_all_of_int8_is_not_finite_another_plan_is_taken(make):
    table = Table(make(random_net, 1, 4))
    whole = frozenset(table.one.units)
    table.losses[whole] = Loss(24, math.inf)
    found = table.search(Limits.of("sqnr_db >= 1")).run()
    assert found.recommended.plan < whole
    assert "finite outputs" in found.reason


def test_the_surrogate_takes_up_what_was_measured():
    surrogate = Surrogate({"a": 1.0, "b": 1.0, "c": 0.0})
    assert surrogate.loss({"a", "b"}) == pytest.approx(2.0)
    surrogate.learn([({"a", "b"}, 4.0), ({"b"}, 1.0)])
    assert surrogate.loss({"a", "b"}) == pytest.approx(4.0, rel=0.05)
    assert surrogate.loss({"b"}) == pytest.approx(1.0, rel=0.05)
    assert surrogate.shares["a"] == pytest.approx(3.0, rel=0.05)
    assert min(surrogate.shares.values()) > 0


def point(name, noise, ms, drop=None):
    return Point(frozenset({name}), Loss(8, noise, top1_drop=drop), ms, 10 / ms)


def test_a_front_has_no_plan_that_another_beats():
    points = [point("a", 3, 1), point("b", 2, 2), point("c", 2.5, 2), point("d", 2, 3)]
    assert [next(iter(one.plan)) for one in pareto(points, "noise")] == ["a", "b"]


def test_reliefs_are_of_single_limits_only():
    points = [point("a", 0.1, 1, 5.0), point("b", 0.1, 4, 0.5)]
    asked = Limits.of("top1 >= -1", "speedup >= 5")
    found = reliefs(points, asked)
    assert [(one.limit.metric, one.needed) for one in found] == [("speedup", 2.5), ("top1", -5.0)]
    assert not reliefs([point("c", 0.1, 4, 5.0)], asked)


@each("limit", ["top1 >= 1", "kl <= 1", "speedup <= 2", "top1 >= -1%", "a: speedup >= 2"])
def test_limits_that_no_plan_can_be_searched_for_are_refused(limit):
    with pytest.raises(InputError, match="a search cannot use the limit"):
        Limits.of(limit)


def test_a_limit_on_a_device_is_searched_for_there_alone_and_open_until_it_was_measured():
    on_orin = parse_limits(["speedup@orin >= 2"])
    with pytest.raises(InputError, match="a search cannot use the limit"):
        Limits(on_orin, device="@nano")
    limits = Limits(on_orin, device="@orin")
    assert limits.bound("speedup") == 2
    fast = Point(frozenset(), None, 1.0, 2.5)
    assert [each.state for each in limits.judge(fast)] == [HOLDS]
    (judged,) = limits.judge(fast, is_measured=False)
    assert (judged.state, judged.reason) == (UNDECIDED, "the plan was not measured on @orin")


@each(
    "limit, state",
    [
        ("speedup >= 1.5", HOLDS), ("speedup >= 2", UNDECIDED), ("speedup >= 4", BROKEN),
        ("latency_p50 <= 3", HOLDS), ("latency_p50 <= 1", UNDECIDED), ("latency_p50 <= 0.4", BROKEN),
    ],
)  # fmt: skip
def test_a_limit_on_an_estimated_time_is_open_where_its_interval_has_it(limit, state):
    ends = {"cost_interval": (0.5, 2.0), "speedup_interval": (1.8, 3.2)}
    point = Point(frozenset(), None, 1.0, 2.5, **ends)
    limits = Limits.of(limit)
    (judged,) = limits.judge(point)
    assert judged.state == state
    assert bool(limits.broken(point)) == (state == BROKEN)  # what is open may be searched for
