import numpy as np
import pytest

from trtcal.evaluate import latency
from trtcal.evaluate.latency import MAX_WARM_UP, measure, throughput


def called(letters, count, **options):
    calls = []
    runs = [lambda name=name: calls.append(name) for name in letters]
    return calls, measure(runs, 4, count, **options)


def test_every_round_runs_each_in_an_order_and_back_and_the_order_turns():
    calls, results = called("abc", 12)
    rounds = [calls[start : start + 6] for start in range(len(calls) - 6 * 6, len(calls), 6)]
    assert all(one[:3] == one[:2:-1] and sorted(one[:3]) == ["a", "b", "c"] for one in rounds)
    assert {one[0] for one in rounds} == {"a", "b", "c"}
    assert [result.runs for result in results] == [12, 12, 12]
    assert (results[0].speedup, results[0].speedup_interval) == (1, (1, 1))


def test_it_warms_up_first_and_says_how_long():
    calls, results = called("ab", 12)
    assert len(calls) == 2 * results[0].warm_up + 24
    assert 10 <= results[0].warm_up <= MAX_WARM_UP


def test_too_few_runs_for_an_interval_are_reported():
    _, few = called("ab", 6)
    _, enough = called("ab", 12)
    warning = "too few for a 95 % interval"
    assert warning in " ".join(few[1].warnings)
    assert warning not in " ".join(enough[1].warnings)
    low, high = few[1].speedup_interval
    assert 0 < low <= few[1].speedup <= high < np.inf


def test_it_goes_on_until_the_interval_is_as_narrow_as_asked(monkeypatch):
    monkeypatch.setattr(latency, "MOST_ROUNDS", 48)
    assert called("ab", 12, width=1e-9)[1][0].runs == 96
    assert called("ab", 12, width=1e9)[1][0].runs == 12


def test_a_planted_slowdown_of_the_machine_is_flagged():
    times = np.ones((40, 2, 2))
    times[20:] *= 1.5
    times[5, 1] = 9.0
    found = latency._summary(latency._against_first(times, 10, True)[1], 8)
    assert found.drift == pytest.approx(0.5)
    assert "changed by +50 %" in " ".join(found.warnings)
    assert found.speedup == 1.0
    assert (
        latency._summary(latency._against_first(np.ones((40, 2, 2)), 10, True)[1], 8).warnings == ()
    )


def test_throughput_is_samples_over_the_median_time():
    found = throughput(measure([lambda: sum(range(2000)), lambda: sum(range(2000))], 8, 24))
    for one in found:
        assert one.samples_per_s == pytest.approx(8e3 / one.p50_ms)
