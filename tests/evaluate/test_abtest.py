"""From figures to a verdict: what each word needs."""

import numpy as np
import pytest

from trtcal.errors import InputError
from trtcal.evaluate.ab_rule import BACK, CARE, OPEN, SHIP, Rule, ask, decide


def right(samples, wrong):
    """Return figures of which the first `wrong` are wrong."""
    values = np.ones(samples)
    values[:wrong] = 0
    return values


def judged(before, after, rule=None, slices=None, times=None, **more):
    rule = rule or Rule()
    figures = {"top1": (before, after), **more}
    return decide(rule, ask(rule, figures, slices, times))


def test_the_same_answers_ship():
    verdict = judged(right(2000, 100), right(2000, 100))
    assert (verdict.word, verdict.is_good, verdict.warnings) == (SHIP, True, ())
    assert "limit -1" in verdict.sentence


def test_a_drop_beyond_the_margin_rolls_back():
    verdict = judged(right(10_000, 500), right(10_000, 900))
    assert verdict.word == BACK
    assert "top1 -4" in verdict.sentence


def test_a_real_drop_within_the_margin_ships_with_care():
    verdict = judged(right(20_000, 500), right(20_000, 560))
    assert verdict.word == CARE
    assert "top1 is lower by 0.3 points" in verdict.warnings[0]


def test_too_few_samples_are_inconclusive_and_say_how_many_would_do():
    verdict = judged(right(200, 20), np.roll(right(200, 20), 3))
    assert verdict.word == OPEN
    assert verdict.more_samples is not None
    more = 200 + verdict.more_samples
    enlarged = (
        np.tile(right(200, 20), 1 + more // 200),
        np.tile(np.roll(right(200, 20), 3), 1 + more // 200),
    )
    assert judged(*enlarged).word == SHIP
    assert f"{verdict.more_samples:,} more samples" in verdict.sentence


def test_speed_has_its_own_limit():
    rng = np.random.default_rng(0)
    before = rng.lognormal(0, 0.02, 80)
    for factor, word in ((2.0, SHIP), (1.3, OPEN), (1.05, BACK)):
        after = before / factor * rng.lognormal(0, 0.02, 80)
        verdict = judged(
            right(2000, 9), right(2000, 9), Rule(min_speedup=1.3), times=(before, after)
        )
        assert verdict.word == word, factor


def test_a_drop_in_one_slice_that_the_mean_hides_is_told():
    rng = np.random.default_rng(0)
    before = (rng.random(10_000) < 0.9).astype(float)
    after = before.copy()
    small = np.zeros(10_000, bool)
    small[:500] = True
    after[:50] = 0
    noise = rng.choice(np.arange(500, 10_000), 90, replace=False)
    after[noise[:45]], after[noise[45:]] = 0, 1  # both win and lose elsewhere
    slices = {"tier=low": small, "tier=high": ~small}
    verdict = judged(before, after, slices=slices)
    assert verdict.word == CARE
    assert any(text.startswith("top1 of tier=low is lower by") for text in verdict.warnings)
    strict = judged(before, after, Rule(max_slice_drop=3.0), slices)
    assert strict.word == BACK
    assert "tier=low" in strict.sentence


def test_slices_of_a_few_samples_are_shown_and_not_judged():
    few = np.zeros(2000, bool)
    few[:9] = True
    verdict = judged(right(2000, 9), right(2000, 12), Rule(max_slice_drop=1.0), {"rare": few})
    (answer,) = (one for one in verdict.answers if "rare" in one.name)
    assert (answer.state, answer.samples) == (None, 9)


def test_a_metric_that_is_not_there_is_named():
    with pytest.raises(InputError, match="'map'"):
        ask(Rule("map"), {"top1": (right(9, 1), right(9, 1))})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_limits_must_be_limits(value):
    for name in ("max_drop", "min_speedup", "max_slice_drop"):
        with pytest.raises(InputError, match=name):
            Rule(**{name: value})


def test_a_metric_of_which_less_is_better_is_no_warning():
    worse = {"kl": (np.full(200, 0.2), np.random.default_rng(0).uniform(0, 0.1, 200))}
    assert judged(right(3000, 3), right(3000, 3), **worse).word == SHIP
