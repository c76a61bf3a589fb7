"""Paired tests against statsmodels and scipy, and their laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats import contingency_tables, multitest

from tests.fixtures.slow import SLOW
from trtcal.stats import compare_means, holm, mcnemar, paired_difference, ratio_of_blocks


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 500))
def test_mcnemar_is_that_of_statsmodels(lost, won, both):
    table = [[both, lost], [won, 3]]
    expected = contingency_tables.mcnemar(table, exact=True).pvalue if lost + won else 1.0
    assert mcnemar(lost, won) == pytest.approx(expected)


@SLOW  # statsmodels takes seconds to import
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_that_of_statsmodels(ps):
    assert holm(ps) == pytest.approx(multitest.multipletests(ps, method="holm")[1])


def test_answers_of_right_and_wrong_are_counted_not_resampled():
    before = np.array([1.0] * 80 + [0.0] * 20)
    after = before.copy()
    after[:10] = 0
    after[90:93] = 1
    found = compare_means(before, after)
    assert found.p == mcnemar(10, 3)
    assert found.difference == paired_difference(3, 10, 100)
    assert (found.baseline, found.candidate) == (0.8, pytest.approx(0.73))


@given(st.integers(0, 40), st.integers(0, 40))
def test_to_swap_both_turns_the_sign(lost, won):
    there, back = (paired_difference(*pair, 100) for pair in ((lost, won), (won, lost)))
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
    assert there.low <= there.value <= there.high


def test_the_same_figures_have_no_difference():
    figures = np.random.default_rng(1).normal(size=50)
    found = compare_means(figures, figures)
    reach = np.ptp(figures) * (1 - 0.025 ** (1 / 50))
    assert (found.difference.low, found.difference.high) == pytest.approx((-reach, reach))
    assert found.p == 1.0


def test_few_values_decide_nothing():
    found = compare_means(np.zeros(4), np.array([0.3, 0.2, 0.5, 0.1]))
    assert (found.difference.low, found.difference.high, found.p) == (-np.inf, np.inf, 1.0)
    assert ratio_of_blocks(np.ones(3), np.full(3, 2.0))[0].high == np.inf


def test_the_ratio_of_blocks_is_how_many_times_as_fast():
    rng = np.random.default_rng(0)
    drift = np.exp(np.cumsum(rng.normal(0, 0.02, 200)))
    before, after = drift * rng.lognormal(0, 0.02, 200), 0.5 * drift * rng.lognormal(0, 0.02, 200)
    ratio, p = ratio_of_blocks(before, after)
    assert ratio.low < 2.0 < ratio.high
    assert ratio.high / ratio.low < 1.02
    assert p < 1e-9


def test_speeds_within_one_percent_are_the_same():
    rng = np.random.default_rng(0)
    before = rng.lognormal(0, 0.001, 100)
    assert ratio_of_blocks(before, before * 1.005)[1] == 1.0
    assert ratio_of_blocks(before, before * 1.05)[1] < 1e-9
    assert ratio_of_blocks(before * 1.05, before)[1] < 1e-9
