"""From figures to a verdict: what each word needs."""

import numpy as np
import pytest

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evaluate.ab_rule import Rule, ask, decide, rule_for
from trtcal.limits import DO_NOT, INCONCLUSIVE, SHIP, WITH_CARE, parse_limits


def right(samples, wrong):
    """Return figures of which the first `wrong` are wrong."""
    values = np.ones(samples)
    values[:wrong] = 0
    return values


def rule_of(*limits, metric=None, alpha=0.05):
    return rule_for(parse_limits(limits), metric, {"top1"}, alpha)


def judged(before, after, rule=None, slices=None, times=None, **more):
    rule = rule or rule_of()
    figures = {"top1": (before, after), **more}
    return decide(rule, ask(rule, figures, slices, times))


def test_the_same_answers_ship():
    verdict = judged(right(2000, 100), right(2000, 100))
    assert (verdict.word, verdict.is_good, verdict.warnings) == (SHIP, True, ())
    assert "(limit >= -1.0 points)" in verdict.sentence


def test_a_drop_beyond_the_margin_rolls_back():
    verdict = judged(right(10_000, 500), right(10_000, 900))
    assert verdict.word == DO_NOT
    assert "B loses 4 points of top-1" in verdict.sentence


def test_a_real_drop_within_the_margin_ships_with_care():
    verdict = judged(right(20_000, 500), right(20_000, 560))
    assert verdict.word == WITH_CARE
    assert "top1 is lower by 0.3 points" in verdict.warnings[0]


def test_too_few_samples_are_inconclusive_and_say_how_many_would_do():
    verdict = judged(right(200, 20), np.roll(right(200, 20), 3))
    assert verdict.word == INCONCLUSIVE
    needed = verdict.samples_needed
    assert needed is not None
    both = right(200, 20), np.roll(right(200, 20), 3)
    enlarged = [np.tile(one, 1 + needed // 200) for one in both]
    assert judged(*enlarged).word == SHIP
    assert f"{needed:,} samples would settle it" in verdict.sentence


def test_speed_has_its_own_limit():
    rng = np.random.default_rng(0)
    before = rng.lognormal(0, 0.02, 80)
    for factor, word in ((2.0, SHIP), (1.3, INCONCLUSIVE), (1.05, DO_NOT)):
        after = before / factor * rng.lognormal(0, 0.02, 80)
        verdict = judged(
            right(2000, 9), right(2000, 9), rule_of("speedup >= 1.3"), times=(before, after)
        )
        assert verdict.word == word, factor


def test_a_drop_in_one_slice_that_the_mean_hides_is_reported():
    rng = np.random.default_rng(0)
    before = (rng.random(10_000) < 0.9).astype(float)
    after = before.copy()
    small = np.zeros(10_000, bool)
    small[:500] = True
    after[:44] = 0
    noise = rng.choice(np.arange(500, 10_000), 90, replace=False)
    after[noise[:45]], after[noise[45:]] = 0, 1  # both win and lose elsewhere
    slices = {"tier=low": small, "tier=high": ~small}
    verdict = judged(before, after, slices=slices)
    assert verdict.word == WITH_CARE
    assert any(text.startswith("top1 of tier=low is lower by") for text in verdict.warnings)
    strict = judged(before, after, rule_of("top1@slices >= -3"), slices)
    assert strict.word == DO_NOT
    assert "tier=low" in strict.sentence


def test_slices_of_a_few_samples_are_shown_and_named_as_not_tested():
    few = np.zeros(2000, bool)
    few[:9] = True
    rule = rule_of("top1@slices >= -1")
    verdict = judged(right(2000, 9), right(2000, 12), rule, {"rare": few})
    (answer,) = (one for one in verdict.answers if "rare" in one.name)
    assert answer.samples == 9
    assert (verdict.word, [one.limit.name for one in verdict.limits]) == (WITH_CARE, ["top1"])
    assert "slice rare has fewer than 30 samples" in verdict.warnings[-1]


def test_a_metric_that_is_not_there_is_named():
    with fails(InputError, "map"):
        ask(rule_of("map >= -1"), {"top1": (right(9, 1), right(9, 1))})


@each("alpha", [-1.0, 0.0, 0.5, float("nan"), float("inf")])
def test_error_rates_must_be_some(alpha):
    with fails(InputError, str(alpha)):
        Rule((), alpha=alpha)


@pytest.mark.parametrize("metric", ["cosine", "quality"])
def test_a_metric_without_a_limit_decides_nothing_and_names_the_option(metric):
    worse = {metric: (np.ones(500), np.full(500, 0.01))}
    rule = rule_of(metric=metric)
    assert rule.limits == ()
    verdict = judged(right(500, 3), right(500, 3), rule, **worse)
    assert (verdict.word, verdict.is_good) == (INCONCLUSIVE, False)
    assert f'--limit "{metric} >=' in verdict.sentence
    assert (
        judged(right(500, 3), right(500, 3), rule_of(f"{metric} >= -0.1"), **worse).word == DO_NOT
    )


def test_equal_samples_do_not_ship_what_may_be_beyond_the_limit():
    """20 samples without a difference leave room for 1 - 0.025 ** (1 / 20) = 17 % of others."""
    same = {"score": (np.full(20, 0.9), np.full(20, 0.9))}
    assert (
        judged(right(20, 2), right(20, 2), rule_of("score >= -0.03"), **same).word == INCONCLUSIVE
    )
    assert judged(right(20, 2), right(20, 2), rule_of("top1 >= -10")).word == INCONCLUSIVE
    assert judged(right(20, 2), right(20, 2), rule_of("top1 >= -17")).word == SHIP


def test_bounds_without_a_sign_are_about_b_itself():
    assert judged(right(2000, 100), right(2000, 100), rule_of("top1 >= 93")).word == SHIP
    assert judged(right(2000, 100), right(2000, 100), rule_of("top1 >= 95")).word == INCONCLUSIVE
    assert judged(right(2000, 100), right(2000, 100), rule_of("top1 >= 97")).word == DO_NOT
    assert judged(right(2000, 100), right(2000, 100), rule_of("top1 >= -2%")).word == SHIP


def test_a_metric_of_which_less_is_better_is_no_warning():
    worse = {"kl": (np.full(200, 0.2), np.random.default_rng(0).uniform(0, 0.1, 200))}
    assert judged(right(3000, 3), right(3000, 3), **worse).word == SHIP
