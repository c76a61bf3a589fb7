"""What plans cost, by hand and against the integer programme."""

import itertools

import numpy as np
import pytest

from tests.evaluate.search.nets import random_net
from tests.fixtures.networks import rng
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evaluate.search.limits import FASTEST, SMALLEST, Choice, split, unit_of
from trtcal.evaluate.search.milp import Programme
from trtcal.evaluate.search.plan_time import Costs, listed_times, measured_times, work_of
from trtcal.evidence.gpus import Target
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.reading import Engine
from trtcal.evidence.times import DEVICE, FP16, INT8, SpeedupEstimate, pays

SLOW = Target("slow memory", 1e-3, 1e6, 1e6, 1e6)  # 1 byte takes 1 us
KERNELS = ["first", "second", "pool", "flatten", "gemm"]


def costs(one, target=SLOW, precision="fp32"):
    feeds = next(one.dataset.batches(1))
    return Costs(work_of(one.prepared, one.units, feeds), target, precision)


def test_light_nodes_belong_to_the_kernel_before(residual):
    found = costs(residual).work
    assert [kernel.name for kernel in found.kernels] == KERNELS
    second = found.kernels[1]
    assert second.reads == (("b", "second"), ("b", "add"))
    assert (second.writes, second.macs, second.weights) == ("e", 8 * 8 * 8 * 8 * 9, 8 * 8 * 9)


def test_bytes_of_plans_counted_by_hand(residual):
    price = costs(residual)
    x, b, e, f, y = 3 * 64, 8 * 64, 8 * 64, 8, 5
    weights = 8 * 27, 8 * 72, 40

    def ms(*moved):
        return pytest.approx(sum(price.floor_ms + price.memory_ms(size) for size in moved))

    floats = x + b + weights[0], 2 * b + e + weights[1], e + f, f + y + weights[2]
    assert price.plan_ms(()) == ms(*(4 * size for size in floats))
    # all INT8: x is shown by no reader as float; y is float, and e, f are stored as INT8 only
    assert price.plan_ms(residual.units) == ms(*floats[:3], floats[3] + 3 * y)
    # only `second` in INT8: b is float for the Add and INT8 for it, a cast reads b once more
    first, second = 4 * floats[0] + b, b + 4 * b + weights[1] + 4 * e
    one = ms(first, second, 4 * floats[2], 4 * floats[3], 4 * b)
    assert price.plan_ms({"second"}) == one


def test_multiplications_bind_where_memory_is_quick(residual):
    price = costs(residual, Target("slow", 1e9, 2.0, 1.0, 0.5), "fp16")
    heavy = [kernel for kernel in price.work.kernels if kernel.macs]
    launches = 4 * price.floor_ms
    for plan, form in (((), "fp16"), (residual.units, "int8")):
        products = sum(price.compute_ms(kernel, form) for kernel in heavy)
        assert price.plan_ms(plan) == pytest.approx(launches + products)
    assert price.compute_ms(heavy[1], "int8") < price.compute_ms(heavy[1], "float")
    tf32 = costs(residual, Target("tf32", 1e9, 2.0, 1.0, 0.5, 5.0))
    assert tf32.baseline.plan_ms(()) < price.baseline.plan_ms(())  # TensorRT has it on by default
    assert tf32.baseline.plan_ms(()) == tf32.plan_ms(())


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("seed", range(3))
def test_the_programme_finds_what_trying_all_plans_finds(make, seed, precision):
    one = make(random_net, seed, 7)
    target = Target("both bind", 1.0, 2.0, 1.0, 0.5)
    price, draw = costs(one, target, precision), rng(seed)
    plans = [
        frozenset(some)
        for count in range(len(one.units) + 1)
        for some in itertools.combinations(one.units, count)
    ]
    losses = dict(zip(one.units, draw.random(len(one.units)) ** 3, strict=True))

    def loss(plan):
        return sum(losses[name] for name in plan)

    programme = Programme(one.units, price)
    for share in (0.2, 0.6):
        most = share * sum(losses.values())
        found = programme.cheapest(losses, most)
        assert loss(found) <= most * (1 + 1e-6)
        least = min(price.plan_ms(plan) for plan in plans if loss(plan) <= most)
        assert price.plan_ms(found) == pytest.approx(least, rel=1e-4)
    most_ms = (price.plan_ms(()) + price.plan_ms(one.units)) / 2
    found = programme.best(losses, most_ms)
    least = min(loss(plan) for plan in plans if price.plan_ms(plan) <= most_ms)
    assert loss(found) == pytest.approx(least, rel=1e-4)
    assert programme.best(losses, 0.0) is None


@pytest.mark.parametrize("goal", [FASTEST, SMALLEST])
@pytest.mark.parametrize("seed", range(3))
def test_the_programme_chooses_among_precisions_as_trying_all_plans_does(make, seed, goal):
    one, draw = make(random_net, seed, 4), rng(seed)
    target = Target("both bind", 1.0, 2.0, 1.0, 0.5, fp8_tflops=1.5)
    feeds = next(one.dataset.batches(1))
    work = work_of(one.prepared, one.units, feeds)
    price = Costs(work, target, precisions=("int8", "fp8", "int4"))
    choices = [[None, *(unit_of(name, p) for p in price.precisions)] for name in one.units]
    plans = [frozenset(filter(None, some)) for some in itertools.product(*choices)]
    losses = {unit: draw.random() ** 3 for some in choices for unit in some[1:]}

    def loss(plan):
        return sum(map(losses.get, plan))

    def cost(plan):
        return price.size_mb(plan) if goal == SMALLEST else price.plan_ms(plan)

    most = 0.2 * sum(losses.values())
    found = Programme(losses, price).cheapest(losses, most, goal=goal)
    assert loss(found) <= most * (1 + 1e-6)
    assert len({split(unit).layer for unit in found}) == len(found)
    assert cost(found) == pytest.approx(min(cost(p) for p in plans if loss(p) <= most), rel=1e-4)


def test_a_tensor_in_two_narrow_precisions_is_cast_twice(residual):
    feeds = next(residual.dataset.batches(1))
    work = work_of(residual.prepared, residual.units, feeds)
    price = Costs(work, SLOW, "fp32", precisions=("int8", "fp8"))
    both = {"second", Choice("add", "fp8")}
    stored = price.stored(both)
    assert {("int8", "b"), ("fp8", "b")} <= stored


def test_weights_in_four_bits_make_the_file_smaller_and_no_product_faster(residual):
    feeds = next(residual.dataset.batches(1))
    work = work_of(residual.prepared, residual.units, feeds)
    price = Costs(work, SLOW, "fp16", precisions=("int4", "nvfp4"))
    plain, gemm = price.plan_ms(()), 40
    int4, nvfp4 = ({Choice("gemm", one)} for one in price.precisions)
    assert price.size_mb(int4) == pytest.approx(price.size_mb(()) - gemm * (2 - 4.125 / 8) / 1e6)
    spared = price.memory_ms(gemm * (2 - 4.125 / 8))
    assert price.plan_ms(int4) == pytest.approx(plain - spared)
    assert price.plan_ms(nvfp4) > plain  # a kernel of its own writes them in float16 first


def test_times_that_are_given_take_the_place_of_estimates(residual):
    def engine(scale):
        names = ("first", "second", "gemm")
        layers = tuple(Layer(name, "conv", nodes=(name,), time_ms=scale) for name in names)
        return Engine("measured", layers, 3 * scale)

    times = measured_times(residual.units, engine(1.0), engine(3.0))
    assert times == {name: {"int8": 1.0, "float": 3.0} for name in ("first", "second", "gemm")}
    fast = Target("no memory cost", 1e9, 1e6, 1e6, 1e6)
    price = Costs(costs(residual).work, fast, "fp32", times)
    assert price.plan_ms({"first"}) == pytest.approx(7.0 + price.floor_ms, abs=1e-3)
    assert price.baseline.plan_ms(()) == pytest.approx(9.0 + price.floor_ms, abs=1e-3)
    whole = price.estimate({"first"})
    assert whole.low_ms == whole.ms == whole.high_ms
    losses = {"first": 3.0, "second": 1.0, "add": 1.0, "gemm": 2.0}
    assert Programme(residual.units, price).cheapest(losses, 3.5) >= {"second", "gemm"}
    with pytest.raises(InputError):
        measured_times(residual.units, Engine("untimed", ()), engine(1.0))


def test_layers_that_a_compiler_lists_count_with_what_it_did_not_fuse(residual):
    listed = [(("first",), 100), (("second/quantize",), 30), (("second", "add"), 50)]
    price = costs(residual)
    times = listed_times(price, {"int8": listed, "float": [(("first",), 400)]})
    floor = price.floor_ms
    moved = {"int8": 130, "float": 400}
    launches = {"int8": 2 * floor, "float": floor}
    expected = {form: launches[form] + price.memory_ms(moved[form]) for form in moved}
    assert times["first"] == pytest.approx(expected)
    assert times["second"]["int8"] == pytest.approx(floor + price.memory_ms(50))
    assert np.isclose(times["gemm"]["int8"], 0.0, atol=1e-6)


def test_an_estimate_counts_its_kernels_and_has_an_interval(residual):
    price = costs(residual)
    plain, cast = price.estimate(()), price.estimate({"second"})
    assert (plain.kernels, cast.kernels) == (4, 5)
    assert plain.low_ms < plain.ms == price.plan_ms(()) < plain.high_ms
    ratio = price.over(plain, residual.units)
    assert ratio.low < ratio.ratio == plain.ms / price.plan_ms(residual.units) < ratio.high


@each(
    "low, high, answer",
    [(1.03, 2.0, INT8), (1.01, 2.0, DEVICE), (0.5, 1.02, FP16), (0.5, 1.03, DEVICE)],
)
def test_whether_int8_pays_is_open_where_the_interval_has_the_bound(low, high, answer):
    assert pays(SpeedupEstimate((low + high) / 2, low, high)) == answer
