"""The whole search: values beyond float16, a limit of time at every stage, samples held back."""

import itertools
import math

import numpy as np
import onnx

from tests.evaluate.search.nets import far_net, random_net, vanishing_net
from tests.fixtures.networks import conv_net, linear_classifier, rng, samples
from trtcal.data import open_dataset
from trtcal.evaluate import ab
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.search import pipeline
from trtcal.evaluate.search.limits import Limits
from trtcal.evaluate.search.pipeline import (
    Compiled,
    SearchOptions,
    find_plans,
    samples_searched,
    whole_test,
)
from trtcal.evaluate.search.plan_loss import Plans


def find(one, cache=None, **settings):
    wanted = SearchOptions(**{"limits": Limits(), **settings})
    known = cache or EvaluationCache(None, {})
    return find_plans(one.prepared, one.calibration, one.dataset, wanted, known)


def test_layers_beyond_float16_are_named_and_stay_out_of_it(make):
    one = make(far_net)
    result = find(one)
    assert result.beyond == {"far1", "far2"}
    assert all(point.loss.is_fit for point in result.found.measured)
    alone = Plans(result.model, result.calibration, one.units, "fp16").quantized(frozenset())
    assert {"far1", "far2"}.isdisjoint(alone.fp16_subgraphs.nodes)
    assert alone.fp16_subgraphs.unknown == ()
    plain = find(one, precision="fp32")
    assert not plain.beyond
    assert all(point.loss.is_fit for point in plain.found.measured)
    assert plain.found.measured[1].loss.noise < 1e-6


def test_values_that_fit_float16_keep_no_layer_out_of_it(residual):
    assert not find(residual).beyond


def test_a_layer_whose_outputs_are_not_finite_is_left_in_float(make, tmp_path):
    one = make(vanishing_net)
    cache = EvaluationCache(tmp_path / "evaluations.jsonl", {})
    result = find(one, cache, precision="fp32")
    mixed, small = result.sensitivities.layers
    assert [small.alone.noise, small.share("noise"), small.share("kl")] == [math.inf] * 3
    assert mixed.alone.is_fit
    assert not result.sensitivities.whole.is_fit
    assert all("small" not in point.plan for point in result.found.front)
    rows = result.sensitivities.to_document({})["layers"]
    assert [row["share"] for row in rows] == [None, mixed.share(result.measure)]


def test_a_test_is_done_once_and_float16_is_looked_through_once(make, monkeypatch):
    one, tests, overflows = make(random_net, 1, 3), [], []
    monkeypatch.setattr(pipeline, "ab_test", counted(pipeline.ab_test, tests))
    monkeypatch.setattr(ab, "find_overflow", counted(ab.find_overflow, overflows))
    every = dict.fromkeys(one.units, ms(1.0, 2.0))
    settings = SearchOptions(times=every)
    searched = samples_searched(one.dataset, settings, one.prepared)
    whole_test(one.prepared, one.calibration, searched, settings)
    cache = EvaluationCache(None, {})
    result = find_plans(one.prepared, one.calibration, one.dataset, settings, cache)
    assert result.found.recommended.plan == {*one.units}
    assert len(tests) == 1
    slow = every | {one.units[0]: ms(4.0, 1.0)}
    mixed = find(one, times=slow, limits=Limits.of("speedup >= 1.1"))
    assert mixed.beside is not None
    assert [model is None for model, *_ in overflows] == [True, False, True]


def counted(function, calls):
    def call(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return call


class Clock:
    """A clock that goes on by one second whenever it is read."""

    def __init__(self):
        self.seconds = itertools.count()

    def __call__(self):
        return float(next(self.seconds))


def built(model):
    return Compiled(0, (((), len(model.proto.graph.node)),))


def test_a_limit_of_time_cuts_every_stage_and_says_so(make):
    one = make(random_net, 1, 6)
    none = find(one, time_limit_s=0.0, build=built, evaluated=12)
    count = len(none.found.front)
    assert none.missing == (
        "the sensitivities of 6 of 6 layers",
        "plans",
        f"builds of {count} of {count} plans",
    )
    assert len(none.found.measured) == 2
    assert "no time to build" in none.costs.source
    assert not none.builds
    some = find(one, time_limit_s=5.0, clock=Clock())
    assert some.missing == ("the sensitivities of 2 of 6 layers", "plans")
    everything = find(one, build=built, evaluated=12)
    assert everything.missing == ()
    assert len(everything.builds) >= len(everything.found.front)


def test_a_search_that_was_cut_short_goes_on(make):
    one, cache = make(random_net, 1, 6), EvaluationCache(None, {})
    find(one, cache, time_limit_s=4.0, clock=Clock())
    assert cache.measured > 0
    whole = find(one, cache)
    assert not whole.missing
    alone = EvaluationCache(None, {})
    assert find(one, alone).found.front == whole.found.front
    assert cache.measured == alone.measured


def test_a_plan_is_tested_on_samples_that_had_no_part(tmp_path, make):
    one = make(conv_net)
    one.dataset = open_dataset(samples(tmp_path / "more.npz", count=60), one.model)
    result = find(one, evaluated=40)
    assert (result.tested.samples, result.is_held_back) == (20, True)
    rest = find(one, evaluated=50)
    assert (rest.tested.samples, rest.is_held_back) == (50, False)


def test_where_the_batch_is_fixed_samples_come_in_whole_batches(tmp_path, make):
    def fixed(path):
        proto = onnx.load(conv_net(path))
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 8
        onnx.save(proto, path)
        return path

    one = make(fixed)
    one.dataset = open_dataset(samples(tmp_path / "more.npz", count=64), one.model)
    result = find(one, evaluated=36, samples=20, batch=8)
    assert result.sensitivities.whole.samples == 24
    assert {point.loss.samples for point in result.found.measured} == {40}
    assert (result.tested.samples, result.is_held_back) == (24, True)


def ms(int8, floats):
    return {"int8": int8, "float": floats}


def test_times_that_were_given_are_not_called_measured_on_the_device_of_the_search(residual):
    class Device:
        target, timed = "@orin", {}

        def settle(self, findings, *_):
            return findings

    every = dict.fromkeys(residual.units, ms(1.0, 2.0))
    result = find(residual, times=every, precision="fp32", device=Device())
    assert result.costs.source == "layer times as given"


def timed(one, **times):
    """Search where every layer takes the same, in INT8 and in float, unless its times are given."""
    every = dict.fromkeys(one.units, ms(1.0, 1.0))
    return find(one, times=every | times, precision="fp32").found


def test_where_int8_does_not_pay_it_is_said(make):
    one = make(conv_net)
    slow = timed(one, **dict.fromkeys(one.units, ms(2.0, 1.0)))
    assert slow.recommended.plan == frozenset()
    assert slow.reason.startswith("INT8 is not worth it: ")
    assert not slow.int8_pays
    fast = timed(one, **dict.fromkeys(one.units, ms(1.0, 1.05)))
    assert fast.recommended.plan
    assert fast.int8_pays
    assert "not worth it" not in fast.reason


LAUNCHES = "too small to estimate: 4 kernels, launch time decides"


def test_where_launches_decide_no_plan_is_recommended_by_its_speedup(make):
    one = make(conv_net)
    for limits in (Limits(), Limits.of("speedup >= 0.9")):
        found = find(one, gpu="l4", limits=limits).found
        assert found.recommended.plan == frozenset()
        assert found.reason == f"only the device decides whether INT8 pays: {LAUNCHES}"
        assert found.answer == "device"


def test_where_all_in_int8_is_slower_than_fp32_nothing_has_to_keep_a_speedup(make):
    one = make(conv_net)
    first, *others = one.units
    times = {**dict.fromkeys(others, ms(2.0, 1.0)), first: ms(0.5, 1.0)}
    found = timed(one, **times)
    assert (found.answer, found.recommended.plan) == ("int8", {first})
    assert "speed-up" not in found.reason


def test_limits_that_float_holds_alone_are_said_to(make):
    one = make(conv_net)
    every = dict.fromkeys(one.units, ms(1.0, 1.05))
    limits = Limits.of("sqnr_db >= 100")
    found = find(one, times=every, precision="fp32", limits=limits).found
    assert found.recommended.plan == frozenset()
    assert found.reason.startswith("no plan with INT8 is faster and holds the limits")


def test_the_only_layer_of_int8_is_never_left_in_float(make):
    one = make(single_net)
    slow = timed(one, head=ms(2.0, 1.0))
    assert slow.recommended is None
    assert slow.reason.startswith("INT8 is not worth it: ")
    fast = timed(one, head=ms(1.0, 1.01))
    assert fast.recommended.plan == {"head"}


def single_net(path):
    return linear_classifier(path, rng(1).standard_normal((5, 64)).astype(np.float32))


def test_a_layer_that_int8_slows_down_stays_in_float(make):
    one = make(conv_net)
    first, *others = one.units
    times = {**dict.fromkeys(others, ms(1.0, 2.0)), first: ms(2.0, 1.0)}
    limits = Limits.of("speedup >= 1.5")
    found = find(one, times=times, precision="fp32", limits=limits).found
    assert first not in found.recommended.plan
    assert "times as fast as FP32" in found.reason


def test_the_recommended_plan_is_tested_like_an_ab_test(make):
    one = make(conv_net)
    result = find(one, limits=Limits.of("agreement >= -60"), samples=8, evaluated=8)
    assert (result.tested.samples, result.is_held_back) == (16, True)
    assert [str(limit.limit) for limit in result.tested.verdict.limits] == [
        "agreement >= -60.0 points"
    ]
    assert result.tested.verdict.word in ("SHIP", "SHIP WITH CARE", "INCONCLUSIVE")
