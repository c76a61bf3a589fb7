from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reporting.samples import accuracy, build, comparison, latency, row, unlabelled
from trtcal.evaluate.comparison import Gates
from trtcal.reporting.limits import Check, check_limits, disagreement_interval, samples_to_decide
from trtcal.reporting.verdict import DO_NOT, INCONCLUSIVE, SHIP, WITH_CARE, judge

GOOD = accuracy(0.2, -0.3, 0.7)
OPEN = accuracy(0.6, -0.3, 1.5)
BAD = accuracy(6.2, 4.1, 8.3)
SPEED = Gates(1.0, 1.5)


def drop(value: float, low: float, high: float, limit: float = 1.0) -> Check:
    return Check("drop of top-1", "points", value, low, high, limit, at_most=True)


@pytest.mark.parametrize(
    ("figures", "speedup", "gates", "word"),
    [
        (GOOD, 2.0, SPEED, SHIP),
        (GOOD, 2.0, Gates(), WITH_CARE),  # speed is not judged, and that is a warning
        (OPEN, 2.0, SPEED, INCONCLUSIVE),
        (BAD, 2.0, SPEED, DO_NOT),
        (GOOD, 1.0, SPEED, DO_NOT),
        (GOOD, 1.5, SPEED, INCONCLUSIVE),
        (OPEN, 1.0, SPEED, DO_NOT),
        (accuracy(0.0, -0.4, 1.0), 2.0, SPEED, SHIP),  # an interval that ends on the limit holds it
        (accuracy(3.0, 1.0, 5.0), 2.0, SPEED, INCONCLUSIVE),  # one that begins there doesn't fail
        (unlabelled(100.0), 2.0, SPEED, SHIP),
        (unlabelled(99.2), 2.0, SPEED, INCONCLUSIVE),
        (unlabelled(80.0), 2.0, SPEED, DO_NOT),
        (unlabelled(None), 2.0, SPEED, INCONCLUSIVE),
    ],
)
def test_one_variant(figures, speedup, gates, word):
    compared = comparison(row("a", figures, latency(1.0, speedup)), gates=gates)
    verdict = judge(compared, [build("a", {"conv": "int8"})])
    assert verdict.word == word
    assert verdict.variant == "a"


def test_the_fastest_of_those_that_hold_is_taken_if_speed_is_judged():
    rows = [
        row("slow", GOOD, latency(1.0, 2.0)),
        row("fast", accuracy(0.4, 0.0, 0.9), latency(0.5, 4.0)),
    ]
    assert judge(comparison(*rows, gates=SPEED)).variant == "fast"
    assert judge(comparison(*rows)).variant == "slow"


def test_sqnr_decides_between_equal_drops():
    rows = [row("a", accuracy(0.2, -0.3, 0.7, sqnr_db=20.0)), row("b", GOOD)]
    assert judge(comparison(*rows)).variant == "b"
    exact = row("c", accuracy(0.2, -0.3, 0.7, sqnr_db=None))
    assert judge(comparison(*rows, exact)).variant == "c"


def test_one_that_holds_outweighs_any_that_fail():
    rows = [row("bad", BAD), row("open", OPEN), row("good", GOOD)]
    assert judge(comparison(*rows, gates=SPEED)).variant == "good"


def test_nothing_compared_is_inconclusive():
    verdict = judge(comparison())
    assert (verdict.word, verdict.variant) == (INCONCLUSIVE, None)


def test_fallbacks_of_the_variants_own_builds_are_warnings():
    compared = comparison(row("a", GOOD), gates=SPEED)
    lost = build("a", {"conv": "fp32", "gemm": "int8"})
    other = build("b", {"conv": "fp16"})
    verdict = judge(compared, [lost, other])
    assert verdict.word == WITH_CARE
    assert verdict.reasons == (
        "1 of 2 layers asked in INT8 run in float on sm89 (tensorrt-rtx): conv.",
    )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([build("a", {"conv": "unknown"})], "What 1 of 1 layer got on sm89"),
        ([build("a", {"conv": "int8"}, skipped={"up": "no rule for it"})], "1 layer could not be"),
        ([], "No engine was built"),
    ],
)
def test_what_is_not_known_is_a_caution_too(made, words):
    verdict = judge(comparison(row("a", GOOD), gates=SPEED), made)
    assert verdict.word == WITH_CARE
    assert verdict.reasons[0].startswith(words)


def test_a_failed_build_is_a_warning():
    compared = comparison(row("a", GOOD), gates=SPEED)
    verdict = judge(compared, [build("a", {"c": "int8"})], {"a for sm86": "no kernel"})
    assert verdict.word == WITH_CARE
    assert verdict.reasons == ("Could not be built: a for sm86 (no kernel).",)


def test_slower_than_fp32_is_said_where_speed_is_not_judged():
    verdict = judge(comparison(row("a", GOOD, latency(4.0, 0.5))), [build("a", {"c": "int8"})])
    assert verdict.reasons == (
        "Speed on sm89 was not measured here; on this machine it is slower than FP32.",
    )


def test_what_a_cpu_runs_in_float_is_no_caution_where_a_gpu_s_engine_is_known():
    on_cpu = build("a", {"c": "fp32"}, target="cpu", backend="onnxruntime")
    compared = comparison(row("a", GOOD), gates=SPEED)
    assert judge(compared, [build("a", {"c": "int8"}), on_cpu]).word == SHIP
    alone = judge(compared, [on_cpu])
    assert alone.word == WITH_CARE
    assert "run in float on cpu" in alone.reasons[0]


def test_an_engine_larger_than_fp32_s_is_a_warning():
    plain = build("fp32", {}, measured={"engine_bytes": 1_000_000})
    larger = build("a", {"c": "int8"}, measured={"engine_bytes": 1_500_000})
    (reason,) = judge(comparison(row("a", GOOD), gates=SPEED), [larger, plain]).reasons
    assert reason == "Its engine for sm89 is larger than FP32's: 1.5 MB, FP32's 1 MB."
    smaller = build("a", {"c": "int8"}, measured={"engine_bytes": 900_000})
    assert judge(comparison(row("a", GOOD), gates=SPEED), [smaller, plain]).reasons == ()


def test_do_not_ship_names_the_limit_and_by_how_much_the_nearest_misses_it():
    rows = [row("far", accuracy(40.0, 35.0, 45.0)), row("near", BAD)]
    verdict = judge(comparison(*rows, gates=SPEED))
    assert verdict.variant == "near"
    assert "6.20 points" in verdict.sentence
    assert "5.20 over the limit of 1.00" in verdict.sentence
    assert "missed by 7.30" in verdict.rule


def test_inconclusive_says_how_many_samples_would_do():
    verdict = judge(comparison(row("a", OPEN), gates=SPEED))
    assert "500 samples cannot tell" in verdict.sentence
    assert "Roughly 2,600 samples would" in verdict.sentence


def test_the_rule_gives_limit_and_margin():
    verdict = judge(comparison(row("a", GOOD), gates=SPEED))
    assert "at most 1.00 points (here 0.70, margin 0.30)" in verdict.rule
    assert "at least 1.50 (here 1.80, margin 0.30)" in verdict.rule


def test_agreement_interval_is_wilsons():
    low, high = disagreement_interval(98.0, 100)
    assert (low, high) == pytest.approx((0.550, 7.00), abs=0.01)


def test_a_variant_has_a_check_for_each_limit():
    assert [check.state for check in check_limits(row("a", GOOD), SPEED)] == ["holds", "holds"]
    assert [check.state for check in check_limits(row("a", GOOD), Gates())] == ["holds"]
    assert check_limits(row("a", unlabelled(None)), Gates()) == ()


def test_on_the_limit_no_number_of_samples_decides():
    assert samples_to_decide(drop(1.0, 0.0, 2.0), 500) is None


@given(
    value=st.floats(-5, 5),
    below=st.floats(0, 5),
    above=st.floats(0, 5),
    limit=st.floats(0, 5),
)
def test_a_check_is_in_exactly_one_state(value, below, above, limit):
    check = drop(value, value - below, value + above, limit)
    assert (check.state == "holds") == (value + above <= limit)
    assert (check.state == "fails") == (value - below > limit)
    if check.state == "undecided":
        needed = samples_to_decide(check, 500)
        assert needed is None or needed >= 500
