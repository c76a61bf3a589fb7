"""Which way of several gives most labels right, with as few samples as show it."""

import numpy as np

from trtcal.check.ranking import rank

LABELS = np.random.default_rng(0).integers(0, 10, 600)
CHANCE = np.random.default_rng(1).random(600)


def ranking(shares, total=600, least=1, labels=LABELS):
    """Rank ways by name that get these shares of labels right; return trials and samples taken."""
    taken = {name: [] for name in shares}

    def answer(name, count):
        count = min(count, total)
        taken[name].append(count)
        right = LABELS[:count]
        return np.where(CHANCE[:count] < shares[name], right, (right + 1) % 10), labels[:count]

    return rank([*shares], answer, least), taken


def test_seven_points_are_distinguished_and_what_is_hopeless_is_left_out():
    trials, taken = ranking({"worse": 0.719, "better": 0.787, "hopeless": 0.1})
    assert [trial.way for trial in trials] == ["better", "worse", "hopeless"]
    assert taken["hopeless"] == [32]
    over = trials[0].over(trials[1])
    assert over.is_better
    assert over.counts == (0, trials[0].right - trials[1].right)
    assert trials[0].decides


def test_the_first_of_equals_stays_first_and_small_data_are_used_once():
    trials, taken = ranking({"usual": 0.8, "other": 0.8}, total=40)
    assert [trial.way for trial in trials] == ["usual", "other"]
    assert not trials[1].over(trials[0]).is_better
    assert taken == {"usual": [32, 40], "other": [32, 40]}


def test_a_right_first_way_is_found_right_by_few_samples():
    _, taken = ranking({"usual": 0.9, "other": 0.3, "another": 0.1})
    assert taken == {"usual": [32], "other": [32], "another": [32]}


def test_so_many_ways_are_compared_on_more_than_the_fewest_samples():
    trials, taken = ranking({"usual": 0.9, "other": 0.3, "another": 0.1}, least=2)
    assert [len(trial.labels) for trial in trials] == [128, 128, 32]
    assert taken["another"] == [32]


def test_labels_of_other_samples_decide_nothing_and_cost_few_samples():
    others = np.random.default_rng(5).permutation(LABELS)
    trials, taken = ranking({"usual": 0.9, "other": 0.5}, labels=others)
    assert not trials[0].decides
    assert max(taken["usual"]) <= 128
