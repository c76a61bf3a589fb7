"""Intervals against exact enumeration and known laws: coverage, zero differences, choices, samples."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.fixtures.tables import each
from trtcal.stats import (
    Interval,
    Moments,
    holm_levels,
    mcnemar,
    mcnemar_mid_p,
    one_sided,
    paired_difference,
    proportion,
    samples_needed,
    unseen,
)


@each("lost, won", [(0.05, 0.0), (0.1, 0.05), (0.3, 0.1), (0.2, 0.2)])
@each("level", [0.95, 0.995])
def test_paired_differences_cover_the_truth_by_exact_enumeration(lost, won, level):
    samples, covered, beyond = 20, 0.0, 0.0
    law = stats.multinomial(samples, [lost, won, 1 - lost - won])
    for a in range(samples + 1):
        for b in range(samples + 1 - a):
            found = paired_difference(a, b, samples, level)
            chance = law.pmf([a, b, samples - a - b])
            covered += chance * (found.low <= lost - won <= found.high)
            beyond += chance * (found.high < lost - won)
    assert covered >= level - 0.01
    assert beyond <= 1.2 * (1 - level) / 2  # this is what ships by mistake


@given(st.integers(1, 400), st.data())
def test_paired_differences_lie_in_the_possible_range_and_have_a_width(samples, data):
    lost = data.draw(st.integers(0, samples))
    won = data.draw(st.integers(0, samples - lost))
    found = paired_difference(lost, won, samples)
    assert -1.0 <= found.low <= found.value <= found.high <= 1.0
    assert found.high > found.low
    wider = paired_difference(lost, won, samples, 0.99)
    assert wider.low <= found.low + 1e-12
    assert wider.high >= found.high - 1e-12


@given(st.integers(1, 2000))
def test_no_difference_seen_leaves_the_exact_bound(samples):
    bound = 1 - 0.025 ** (1 / samples)
    assert unseen(samples) == pytest.approx(bound)
    assert proportion(0, samples).high == pytest.approx(bound)
    assert paired_difference(0, 0, samples) == Interval(0.0, -unseen(samples), unseen(samples))


@given(st.integers(1, 40))
def test_rare_equal_losses_have_the_exact_interval_of_a_poisson_count(events):
    values = np.zeros(10_000)
    values[:events] = 0.5
    found = Moments.of(values).interval(0.95, 0.0)
    exact = stats.chi2.isf(0.025, 2 * events + 2) / 2
    assert found.high * 10_000 / 0.5 == pytest.approx(exact, rel=0.01)


def test_means_without_skewness_have_students_interval():
    values = np.linspace(-1, 1, 101)
    found = Moments.of(values).interval(0.95, 0.0)
    low, high = stats.t.interval(0.95, 100, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)


def test_means_of_skewed_figures_are_covered():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(1000):
        values = rng.gamma(0.5, 1.0, 60)
        found = Moments.of(values).interval(0.95, 1.0)
        inside += found.low <= 0.5 <= found.high
    assert inside >= 940


@given(st.integers(0, 60), st.integers(0, 60))
def test_mid_p_is_the_exact_one_less_half_of_what_was_seen(lost, won):
    exact, mid = mcnemar(lost, won), mcnemar_mid_p(lost, won)
    assert 0.0 <= mid <= exact
    tail = stats.binom.cdf(won, lost + won, 0.5)
    assert mcnemar(lost, won, one_sided=True) == pytest.approx(tail, rel=1e-12)
    if lost != won:
        tail = stats.binom.cdf(min(lost, won), lost + won, 0.5)
        seen = stats.binom.pmf(won, lost + won, 0.5)
        assert mid == pytest.approx(2 * (tail - seen / 2))


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=8))
def test_levels_of_several_variants_accept_what_holm_does(ps):
    levels = holm_levels(lambda i, level: ps[i] <= 1 - level, len(ps))
    accepted = {i for i, level in enumerate(levels) if ps[i] <= 1 - level}
    order, expected = np.argsort(ps), set()
    for rank, i in enumerate(order.tolist()):
        if ps[i] > 0.05 / (len(ps) - rank) * (1 + 1e-12):
            break
        expected.add(i)
    assert accepted == expected


@each("count, threshold", [(10, 1.0), (10, 0.95), (2, 0.95), (3, 0.95)])
def test_the_best_of_many_at_the_limit_ships_no_more_often_than_one(count, threshold):
    """Also where those that fail, with a p-value above 0.95, are left out of their number."""
    rng = np.random.default_rng(0)
    shipped = 0
    for _ in range(2000):
        ps = rng.random(count)
        levels = holm_levels(
            lambda i, level, ps=ps: bool(ps[i] <= 1 - level),
            count,
            fails=lambda i, ps=ps: bool(ps[i] > threshold),
        )
        shipped += any(p <= 1 - level for p, level in zip(ps, levels, strict=True))
    assert shipped / 2000 <= 0.06  # two standard errors above 0.05


def test_variants_that_fail_leave_the_level_of_the_others_as_if_they_were_few():
    alone, *failing = holm_levels(lambda i, level: False, 4, fails=lambda i: i > 0)
    assert failing == [0.95] * 3
    assert 0.95 < alone < 0.953


def test_samples_needed_halve_the_interval_at_four_times_as_many():
    assert samples_needed((-0.5, -1.5, 0.5), -1.0, 100) == 400
    assert samples_needed((-1.0, -1.5, 0.5), -1.0, 100) is None
    assert samples_needed((-0.5, -np.inf, 0.5), -1.0, 100) is None


@each("truth", [0.005, 0.01, 0.05, 0.3])
@each("samples", [20, 200])
def test_each_end_of_the_share_lost_errs_as_seldom_as_its_level_says(samples, truth):
    chances = stats.binom.pmf(range(samples + 1), samples, truth)
    found = [proportion(lost, samples, one_sided(0.95)).scaled(-1.0) for lost in range(samples + 1)]
    too_high = sum(chance for chance, one in zip(chances, found, strict=True) if one.low > -truth)
    too_low = sum(chance for chance, one in zip(chances, found, strict=True) if one.high < -truth)
    assert max(too_high, too_low) <= 0.05


def test_two_of_24_lost_are_more_than_one_percent():
    assert proportion(2, 24, one_sided(0.95)).scaled(-1.0).high < -0.01
    found = proportion(0, 24, 0.9).scaled(-1.0)
    assert (found.value, found.high) == (0.0, 0.0)
    assert found.low == pytest.approx(-unseen(24, 0.9))


@each("won", [0, 9_000, 9_950, 10_000, 10_300])
def test_p_values_of_very_many_pairs_are_those_of_few(won, monkeypatch):
    lost = 20_000 - won
    ours = [mcnemar(lost, won), mcnemar(lost, won, one_sided=True), mcnemar_mid_p(lost, won)]
    monkeypatch.setattr("trtcal.stats.IN_INTEGERS", 20_000)
    exact = [mcnemar(lost, won), mcnemar(lost, won, one_sided=True), mcnemar_mid_p(lost, won)]
    assert ours == pytest.approx(exact, rel=1e-10, abs=0.0)


def test_pairs_are_not_gone_through_where_they_are_millions(monkeypatch):
    monkeypatch.setattr("trtcal.stats.range", pytest.fail, raising=False)
    assert mcnemar(500_500, 499_500) == pytest.approx(math.erfc(0.999 / 2**0.5), rel=1e-5)
