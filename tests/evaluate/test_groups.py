import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.data.slices import Attribute, classes_of, read_attributes, read_slices
from trtcal.errors import InputError
from trtcal.evaluate.accuracy import AccuracyMeter
from trtcal.evaluate.groups import GROUPS_LISTED, SUSPECT, TOO_FEW, WORSE, GroupAccumulator, Worst
from trtcal.evaluate.tasks import find_task

SAMPLES = 2000


def attribute(name, codes):
    values = [f"{name}={code}" for code in range(codes.max() + 1)]
    return Attribute(name, tuple(values), codes.astype(np.int32))


def broken_down(attributes, reference, variant, figure="top1", split=7):
    accumulator, start = GroupAccumulator(attributes), 0
    pieces = (np.array_split(one.astype(float), split) for one in (reference, variant))
    for a, b in zip(*pieces, strict=True):
        accumulator.add(start + np.arange(len(a)), {figure: (a, b)})
        start += len(a)
    return accumulator.result("slices")[0]


def noisy(rng, share=0.01):
    """Return right and wrong of a reference and of a variant that differs by chance alone."""
    right = rng.random(SAMPLES) < 0.8
    return right, right ^ (rng.random(SAMPLES) < share * np.where(right, 0.25, 1.0))


@each("seed", range(20))
def test_a_drop_of_ten_points_in_a_slice_of_five_percent_is_reported(seed):
    rng = np.random.default_rng(seed)
    tier = attribute("tier", rng.permutation(np.repeat([0, 1, 2], [1000, 900, 100])))
    source = attribute("source", rng.integers(0, 12, SAMPLES))
    right, made = noisy(rng)
    hit = np.flatnonzero((tier.codes == 2) & right & made)
    made[rng.choice(hit, 10, replace=False)] = False
    assert right.mean() - made.mean() < 0.01
    found = broken_down([tier, source], right, made)
    assert found.groups[0].name == "tier=2"
    assert found.groups[0].rank == WORSE
    assert found.groups[0].interval[0] > 0


def test_where_everything_drops_only_the_slice_that_drops_more_is_reported():
    rng = np.random.default_rng(0)
    group = attribute("g", rng.permutation(np.repeat(np.arange(8), 250)))
    right = rng.random(SAMPLES) < 0.9
    made = right & (rng.random(SAMPLES) > 0.05)
    assert broken_down([group], right, made).ranked(WORSE) == ()
    made &= (group.codes != 5) | (rng.random(SAMPLES) > 0.15)
    assert [one.name for one in broken_down([group], right, made).ranked(WORSE)] == ["g=5"]
    everything = attribute("all", np.zeros(SAMPLES, int))
    assert broken_down([everything], right, made).groups[0].p == 1.0


def test_without_a_drop_alarms_are_as_rare_as_agreed():
    rng, alarms, trials = np.random.default_rng(0), 0, 200
    for _ in range(trials):
        found = broken_down([attribute("source", rng.integers(0, 12, SAMPLES))], *noisy(rng, 0.05))
        alarms += bool(found.ranked(WORSE))
    assert alarms <= 0.08 * trials


@given(st.integers(0, 1000), st.integers(1, 30))
def test_figures_are_those_of_numpy_whatever_the_batches(seed, split):
    rng = np.random.default_rng(seed)
    group = attribute("g", rng.integers(0, 5, SAMPLES))
    right, made = noisy(rng)
    for one in broken_down([group], right, made, split=split).groups:
        where = group.codes == int(one.name[2:])
        assert one.samples == where.sum()
        assert one.reference == pytest.approx(100 * right[where].mean(), rel=1e-5)
        assert one.drop == pytest.approx(100 * (right[where].mean() - made[where].mean()), abs=1e-4)
        assert one.interval[0] <= one.drop <= one.interval[1]


def test_without_labels_a_group_is_held_against_the_others():
    rng = np.random.default_rng(0)
    group = attribute("g", rng.permutation(np.repeat([0, 1], [1900, 100])))
    same = rng.random(SAMPLES) < np.where(group.codes == 1, 0.85, 0.97)
    found = broken_down([group], np.ones(SAMPLES), same, "agreement")
    worst = found.groups[0]
    assert (worst.name, worst.rank, found.unit) == ("g=1", WORSE, "points")
    assert worst.reference == pytest.approx(100 * same[group.codes == 0].mean(), rel=1e-5)
    assert found.groups[1].rank not in (WORSE, SUSPECT)
    alone = attribute("all", np.zeros(SAMPLES, int))
    assert broken_down([alone], np.ones(SAMPLES), same, "agreement").groups[0].p == 1.0


def test_a_metric_of_any_values_is_tested_by_its_differences():
    rng = np.random.default_rng(0)
    group = attribute("g", rng.integers(0, 8, SAMPLES))
    before = rng.normal(5.0, 1.0, SAMPLES)
    after = before + rng.normal(0, 0.2, SAMPLES) - np.where(group.codes == 3, 0.2, 0.0)
    found = broken_down([group], before, after, "iou")
    assert [one.name for one in found.ranked(WORSE)] == ["g=3"]
    assert found.groups[0].drop == pytest.approx(
        (before - after)[group.codes == 3].mean(), rel=1e-5
    )
    assert found.unit == ""


def test_no_more_groups_are_kept_than_agreed_and_the_rest_counted():
    codes = np.arange(SAMPLES) % 500
    found = broken_down([attribute("g", codes)], np.ones(SAMPLES), codes != 7)
    assert (len(found.groups), found.rest) == (GROUPS_LISTED, 500 - GROUPS_LISTED)
    assert found.groups[0].name == "g=7"
    assert all(one.rank == TOO_FEW and one.p is None for one in found.groups)


def test_labels_are_an_attribute():
    found = classes_of(np.array([4, 2, 4]))
    assert (found.slices, found.codes.tolist()) == (("class=2", "class=4"), [1, 0, 1])


def test_rows_that_name_their_file_may_come_in_any_order(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("file,label,tier\nb.png,1,low\na.png,0,high\n")
    files = ["a.png", "b.png"]
    slices = read_slices(path, 2, files)
    assert {name: where.tolist() for name, where in slices.items()} == {
        "tier=low": [False, True],
        "tier=high": [True, False],
    }
    assert read_attributes(path, 2)[0].codes.tolist() == [0, 1]
    with fails(InputError, "c.png"):
        read_slices(path, 2, ["a.png", "c.png"])
    path.write_text("file,tier\na.png,low\na.png,high\n")
    with fails(InputError, "labels.csv"):
        read_slices(path, 2, files)


def test_what_is_kept_does_not_grow_with_the_samples():
    sizes = []
    task = find_task(
        {"y": np.random.default_rng(0).standard_normal((16, 8))}, 16, tasks="classification"
    )
    for batches in (20, 400):
        accumulator, meter, worst = GroupAccumulator([]), AccuracyMeter(task), Worst(None)
        rng = np.random.default_rng(0)
        for number in range(batches):
            expected, made = rng.standard_normal((2, 16, 8))
            found = meter.update([expected], [made], rng.integers(0, 8, 16))
            numbers = 16 * number + np.arange(16)
            accumulator.add(numbers, {"top1": (found["top1"], found["agreement"])})
            worst.add(numbers, found, ([expected], [made]), None)
        sizes.append(len(pickle.dumps((accumulator, meter, worst))))
    assert sizes[1] <= 1.05 * sizes[0]
