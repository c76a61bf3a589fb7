"""Shifts in series: found soon, seldom where there is none, and at the right run."""

import numpy as np
import pytest

from trtcal.wings.fleet.series import FEWEST, TOGETHER, find_shifts

SERIES = 200
NOISE = 0.01


def noise(seed, runs=100, odd=False):
    rng = np.random.default_rng(seed)
    values = 1 + rng.normal(0, NOISE, runs)
    if odd:  # now and then a run on a busy machine
        values *= np.where(rng.random(runs) < 0.03, 1 + rng.exponential(0.08, runs), 1)
    return values


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("factor", [1.05, 0.95])
def test_a_shift_of_5_percent_is_found_within_three_runs(factor, odd):
    found = 0
    for seed in range(SERIES):
        values = noise(seed, 60, odd)
        values[40:] *= factor
        shifts = find_shifts(values[:43])
        found += bool(shifts) and shifts[-1].found <= 42 and shifts[-1].first >= 38
    assert found >= 0.95 * SERIES


@pytest.mark.parametrize("odd", [False, True])
def test_series_of_100_runs_without_a_shift_seldom_have_one(odd):
    assert sum(bool(find_shifts(noise(seed, odd=odd))) for seed in range(SERIES)) <= 0.01 * SERIES


def test_levels_and_the_first_run_are_reported():
    values = noise(3, 400)
    values[150:] *= 1.05
    values[300:] /= 1.05
    up, down = find_shifts(values)
    assert abs(up.first - 150) <= 1
    assert abs(down.first - 300) <= 1
    assert up.after / up.before == pytest.approx(1.05, abs=0.02)
    assert down.after == pytest.approx(1.0, abs=0.02)


def test_the_first_run_is_the_first_on_the_new_level():
    exact = 0
    for seed in range(SERIES):
        values = noise(seed, 60)
        values[40:] *= 1.05
        exact += [shift.first for shift in find_shifts(values)] == [40]
    assert exact >= 0.95 * SERIES


def test_one_odd_run_is_no_shift():
    values = noise(0, 50)
    values[30] = 3.0
    assert not find_shifts(values)


def test_a_constant_shifts_when_it_changes_by_more_than_nothing():
    steady = [98.6] * 20
    assert not find_shifts(steady)
    assert not find_shifts([0.0] * 30)
    (shift,) = find_shifts([*steady, *[98.0] * 5])
    assert (shift.first, shift.after) == (20, 98.0)
    assert shift.before == pytest.approx(98.6)
    (first,) = find_shifts([*[0.0] * 20, *[2.0] * 4])
    assert (first.before, first.after) == (0.0, 2.0)


def test_nothing_is_said_of_few_runs():
    few = [1.0] * FEWEST + [2.0] * (TOGETHER - 1)
    assert not find_shifts(few)
    assert not find_shifts([])


def test_many_runs_at_once_give_what_they_give_one_after_another():
    values = noise(11, 2600)
    values[1500:] *= 1.05
    (whole,) = find_shifts(values)
    assert whole == find_shifts(values[: whole.found + 1])[-1]
    assert not find_shifts(values[: whole.found])
