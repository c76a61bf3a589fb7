from dataclasses import replace

import pytest

from tests.fixtures.tables import each
from tests.reporting.samples import accuracy, build, comparison, latency, row, unlabelled
from trtcal.data.issues import WARNING, DataIssue
from trtcal.evaluate.layerwise import LayerFigure, Layerwise
from trtcal.evaluate.target_times import TargetTime
from trtcal.evaluate.variant_limits import judge_row
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.evidence.times import TENSORRT
from trtcal.limits import Figure, Judgement, parse_limit, parse_limits
from trtcal.model.work import NodeWork, Work
from trtcal.quantization.coverage import cover
from trtcal.reporting.verdict import DO_NOT, INCONCLUSIVE, SHIP, WITH_CARE, judge, lowered

GOOD = accuracy(5, 1)
OPEN = accuracy(21, 9)
BAD = accuracy(134, 10)
DROP = ("top1 >= -1.0",)
SPEED = (*DROP, "speedup >= 1.5")
ALIKE = ("agreement >= -1.0", "speedup >= 1.5")


@each(
    "figures, speedup, limits, word",
    [
        (GOOD, 2.0, SPEED, SHIP),
        (GOOD, 2.0, DROP, WITH_CARE),  # speed is not judged, and that is a warning
        (OPEN, 2.0, SPEED, INCONCLUSIVE),
        (BAD, 2.0, SPEED, DO_NOT),
        (GOOD, 1.0, SPEED, DO_NOT),
        (GOOD, 1.5, SPEED, INCONCLUSIVE),
        (OPEN, 1.0, SPEED, DO_NOT),
        (unlabelled(100.0), 2.0, ALIKE, SHIP),
        (unlabelled(99.2), 2.0, ALIKE, INCONCLUSIVE),
        (unlabelled(80.0), 2.0, ALIKE, DO_NOT),
        (unlabelled(None), 2.0, ALIKE, INCONCLUSIVE),
    ],
)
def test_one_variant(figures, speedup, limits, word):
    compared = comparison(row("a", figures, latency(1.0, speedup)), limits=limits)
    verdict = judge(compared, [build("a", {"conv": "int8"})])
    assert verdict.word == word
    assert verdict.variant == "a"


def judged(*rows, builds=(), limits=SPEED):
    return judge(comparison(*rows, limits=limits), builds)


@each("figures, says", [(GOOD, True), (OPEN, False), (BAD, False)])
def test_fp16_is_named_where_it_holds_what_every_variant_breaks(figures, says):
    fp16 = replace(row("fp16", figures), is_alternative=True)
    verdict = judged(row("a", BAD), fp16, limits=DROP)
    assert verdict.word == DO_NOT
    assert verdict.sentence.endswith("FP16 (fp16) holds the limits.") == says


def test_the_fastest_of_those_that_hold_is_taken_if_speed_is_judged():
    slow = row("slow", GOOD, latency(1.0, 2.0))
    fast = row("fast", accuracy(10, 2), latency(0.5, 4.0))
    assert judged(slow, fast).variant == "fast"
    assert judged(slow, fast, limits=DROP).variant == "slow"


def test_sqnr_decides_between_equal_drops():
    rows = [row("a", accuracy(5, 1, sqnr_db=20.0)), row("b", GOOD)]
    assert judge(comparison(*rows)).variant == "b"
    exact = row("c", accuracy(5, 1, sqnr_db=None))
    assert judge(comparison(*rows, exact)).variant == "c"


def test_one_sample_does_not_choose_between_variants():
    lucky = row("lucky", accuracy(4, 1, agreement=99.0))
    close = row("close", accuracy(5, 1, agreement=99.6))
    assert judge(comparison(lucky, close)).variant == "close"
    worse = row("worse", accuracy(40, 1, agreement=99.9))
    assert judge(comparison(worse, lucky, limits=("top1 >= -5.0",))).variant == "lucky"


def test_a_speed_up_on_the_cpu_beats_no_estimate_for_the_gpu():
    times = [
        (TargetTime(ms, ms, ms, 9, 0, "L4", TENSORRT, too_small=False, target="sm89", batch=8),)
        for ms in (4.0, 1.0)
    ]
    on_cpu = row("on the CPU", GOOD, latency(0.1, 20.0))
    result = comparison(replace(row("on the GPU", GOOD), times=times[1]), on_cpu, limits=SPEED)
    first, *rows = result.rows
    result = replace(result, rows=(replace(first, times=times[0]), *rows))
    assert judge(result).variant == "on the GPU"


WRONG = DataIssue("zero_samples", "samples", "9 of 64 samples have nothing but zeros", {}, "look")


@each(
    "issue, word",
    [
        (WRONG, INCONCLUSIVE),
        (replace(WRONG, subject="labels"), WITH_CARE),  # no range is chosen by labels
        (replace(WRONG, severity=WARNING), WITH_CARE),
    ],
)
def test_calibration_data_that_do_not_work_forbid_to_ship(issue, word):
    verdict = judge(comparison(row("a", GOOD)), issues=[issue])
    assert verdict.word == word
    assert any(issue.sentence in reason for reason in verdict.reasons)
    assert (issue.sentence in verdict.sentence) == (word == INCONCLUSIVE)


@each(
    "issue, limit, word",
    [
        (WRONG, "top1 >= -1.0", INCONCLUSIVE),
        (WRONG, "agreement >= -1.0", INCONCLUSIVE),
        (replace(WRONG, subject="labels"), "top1 >= -1.0", INCONCLUSIVE),
        (replace(WRONG, subject="labels"), "agreement >= -1.0", DO_NOT),
    ],
)
def test_a_broken_limit_on_data_that_do_not_work_shows_nothing_unless_it_needs_none(
    issue, limit, word
):
    compared = comparison(row("a", accuracy(134, 10, agreement=90.0)), limits=(limit,))
    verdict = judge(replace(compared, issues=(issue,)))
    assert (verdict.word, issue.sentence in verdict.sentence) == (word, word == INCONCLUSIVE)


@each("dead, samples, is_said", [(20, 64, True), (4, 64, False), (20, 8, False)])
def test_dead_channels_are_said(dead, samples, is_said):
    figure = LayerFigure("relu1", False, (), 30.0, 30.0, 30.0, 1.0, 0.0, dead, 32)
    layers = Layerwise(samples, (figure,))
    verdict = judge(comparison(replace(row("a", GOOD), layers=layers)))
    assert any("20 of 32 channels of relu1" in reason for reason in verdict.reasons) == is_said


@each("method, far, is_said", [("minmax", 50, True), ("minmax", 12, False), ("mse", 50, False)])
def test_a_sample_that_stretches_the_ranges_of_minmax_is_said(method, far, is_said):
    reaches = [{"value": value, "index": 7, "name": None} for value in (far, 10.0)]
    tails = [{"tensors": {"a": reaches, "b": reaches}}]
    variant = replace(row("a", GOOD), quantization={"method": method})
    verdict = judge(comparison(variant), tails=tails)
    assert any("sample 7 stretches" in reason for reason in verdict.reasons) == is_said


def test_one_that_holds_outweighs_any_that_fail():
    assert judged(row("bad", BAD), row("open", OPEN), row("good", GOOD)).variant == "good"


def test_nothing_compared_is_inconclusive():
    verdict = judge(comparison())
    assert (verdict.word, verdict.variant) == (INCONCLUSIVE, None)


def test_fallbacks_of_the_variants_own_builds_are_warnings():
    builds = [build("a", {"conv": "fp32", "gemm": "int8"}), build("b", {"conv": "fp16"})]
    verdict = judged(row("a", GOOD), builds=builds)
    (reason,) = verdict.reasons
    assert verdict.word == WITH_CARE
    assert reason.startswith("1 of 2 layers requested in INT8 ")
    assert reason.endswith(" sm89 (tensorrt-rtx): conv.")


def counted(macs, is_built):
    """Return a coverage in which a convolution has so many of 100 multiply-accumulates."""
    work = (NodeWork("conv", "Conv", macs, 1, "conv"), NodeWork("l", "LSTM", 100 - macs, 1, "l"))
    return cover(Work(work, {}), {"conv": "int8"}, {}, is_built)


@pytest.mark.parametrize(("macs", "word"), [(49, WITH_CARE), (50, SHIP)])
def test_less_than_half_of_the_compute_in_int8_is_a_warning(macs, word):
    made = build("a", {"conv": "int8"}, coverage=counted(macs, True))
    verdict = judged(row("a", GOOD), builds=[made])
    said = f"On sm89 (tensorrt-rtx), only {macs} % of 100 MAC run in INT8; l: "
    assert verdict.word == word
    assert [one.startswith(said) for one in verdict.reasons] == [True] * (word == WITH_CARE)


def test_without_an_engine_the_plan_is_warned_of():
    verdict = judged(replace(row("a", GOOD), coverage=counted(3, False)))
    assert any("3 % of 100 MAC can run" in one for one in verdict.reasons)


@each(
    "made, words",
    [
        ([build("a", {"conv": "unknown"})], "The precision of 1 of 1 layer on sm89"),
        ([build("a", {"conv": "int8"}, skipped={"up": "no rule for it"})], "1 layer was not"),
        ([], "No engine was built"),
    ],
)
def test_what_is_not_known_is_a_caution_too(made, words):
    verdict = judged(row("a", GOOD), builds=made)
    assert verdict.word == WITH_CARE
    assert verdict.reasons[0].startswith(words)


def test_a_failed_build_is_a_warning():
    compared = comparison(row("a", GOOD), limits=SPEED)
    verdict = judge(compared, [build("a", {"c": "int8"})], {"a for sm86": "no kernel"})
    assert verdict.word == WITH_CARE
    assert verdict.reasons == ("No engine for sm86 from a: no kernel.",)


ON_GPU = build("a", {"c": "int8"})


def test_slower_than_fp32_is_said_where_no_gpu_is_built_for():
    slow = row("a", GOOD, latency(4.0, 0.5))
    (reason,) = judged(slow, builds=[ON_GPU], limits=DROP).reasons
    assert "speed on sm89" in reason
    on_cpu = build("a", {"c": "int8"}, target="cpu", backend="onnxruntime")
    assert "a is slower than FP32" in judged(slow, builds=[on_cpu], limits=DROP).reasons[0]


def test_what_a_cpu_runs_in_float_is_no_caution_where_a_gpu_s_engine_is_known():
    on_cpu = build("a", {"c": "fp32"}, target="cpu", backend="onnxruntime")
    assert judged(row("a", GOOD), builds=[ON_GPU, on_cpu]).word == SHIP
    alone = judged(row("a", GOOD), builds=[on_cpu])
    assert (alone.word, "cpu" in alone.reasons[0]) == (WITH_CARE, True)


@pytest.mark.parametrize(("size", "is_larger"), [(1_500_000, True), (900_000, False)])
def test_an_engine_larger_than_fp32_s_is_a_warning(size, is_larger):
    plain = build("fp32", {}, measured={"engine_bytes": 1_000_000})
    made = build("a", {"c": "int8"}, measured={"engine_bytes": size})
    reasons = judged(row("a", GOOD), builds=[made, plain]).reasons
    assert [one.endswith("FP32's: 1.5 MB against 1 MB.") for one in reasons] == [True] * is_larger


def test_do_not_ship_names_the_limit_and_by_how_much_the_nearest_misses_it():
    verdict = judged(row("far", accuracy(810, 10)), row("near", BAD))
    assert verdict.variant == "near"
    assert "6.2 points of top-1" in verdict.sentence
    assert "the limit is 1" in verdict.sentence
    assert "top1 >= -1.0 points;" in verdict.rule


def test_inconclusive_says_how_many_samples_would_do():
    verdict = judged(row("a", OPEN))
    assert verdict.sentence.startswith("a loses 0.6 points of top-1")
    assert "3,400 samples" in verdict.sentence


def test_the_rule_gives_the_limits_alone():
    rule = judged(row("a", GOOD)).rule
    assert "holds every limit: top1 >= -1.0 points; speedup >= 1.5 x. Of the" in rule
    assert "Holm" not in rule
    assert "Holm's correction" in judged(row("a", GOOD), row("b", BAD)).rule


def test_the_best_of_many_variants_needs_more_evidence_than_one():
    close = accuracy(14, 4)
    assert judged(row("a", close)).word == WITH_CARE
    assert judged(*(row(f"v{i}", OPEN if i else close) for i in range(10))).word == INCONCLUSIVE


def test_variants_that_plainly_break_a_limit_widen_no_other_s_interval():
    close = row("close", accuracy(14, 4))
    many = judged(close, *(row(f"v{i}", BAD) for i in range(9)))
    assert (many.word, many.variant) == (WITH_CARE, "close")
    (drop, *_), (alone, *_) = many.limits, judged(close).limits
    assert alone.figure.level < drop.figure.level < alone.figure.level + 0.01


def test_a_limit_on_something_not_measured_is_undecided_with_the_reason():
    verdict = judged(row("a", unlabelled(100.0)))
    assert verdict.word == INCONCLUSIVE
    assert "no labels" in verdict.sentence


def test_a_relative_limit_on_nothing_right_is_undecided_with_the_reason():
    none = row("a", accuracy(0, 0, top1=0.0))
    (judged,) = judge_row(parse_limits(["top1 >= -5%"]), none, none)
    assert (judged.figure, judged.reason) == (
        None, "it is 0 for FP32, of which nothing is a percentage",
    )  # fmt: skip


def test_on_the_limit_no_number_of_samples_decides():
    judgement = Judgement(parse_limit("top1 >= -1.0"), "", Figure(-1.0, -2.0, 0.0, 500))
    assert (judgement.state, judgement.samples_needed) == ("undecided", None)


def narrow(name, precision, got, is_built=True):
    """Return a row whose products are asked in a format, and its build that got another one."""
    work = Work((NodeWork("conv", "Conv", 100, 1, "conv"),), {})
    variant = replace(row(name, GOOD), coverage=cover(work, {"conv": precision}, {}))
    outcome = Outcome("conv", precision, got, "l")
    coverage = cover(work, {"conv": got}, {}, is_built)
    return variant, build(name, {}, outcomes=(outcome,), coverage=coverage)


@pytest.mark.parametrize(
    ("precision", "words"),
    [("fp8", "requested in FP8 run in float on"), ("int4", "have weights expanded to float on")],
)
def test_no_warning_of_another_format_names_int8(precision, words):
    variant, made = narrow("a", precision, "fp32")
    plain = build("fp32", {}, measured={"engine_bytes": 1})
    verdict = judge(comparison(variant), [made, plain])
    assert any(f"1 of 1 layer requested in {precision.upper()}" in one for one in verdict.reasons)
    assert any(words in one for one in verdict.reasons)
    assert any("The engine of a for sm89 is larger" in one for one in verdict.reasons)
    assert "INT8" not in " ".join((verdict.sentence, verdict.rule, *verdict.reasons))


@each(
    "why, shown",
    [
        (
            "[graph.cpp::validate::12] Error Code 2: (Assertion scales.size() == 1 failed.)",
            "internal error",
        ),
        ("a node has no kernel", "a node has no kernel."),
    ],
)
def test_a_failed_build_is_said_without_assertions_of_code(why, shown):
    verdict = judge(comparison(row("a", GOOD)), failed_builds={"a for sm89": why})
    reason = next(each for each in verdict.reasons if each.startswith("No engine for sm89"))
    assert shown in reason
    assert "Assertion" not in reason


CHANGES = {
    "run": {"label": "run 1 of a"},
    "since": "the baseline",
    "worse": ["SQNR of a fell from 30 to 20 dB."],
}
WORSE = "Worse since run 1 of a, the baseline: SQNR of a fell from 30 to 20 dB."


@each(
    "word, changes, lower, sentence, reasons",
    [
        (SHIP, None, SHIP, "s", ["r"]),
        (SHIP, CHANGES, WITH_CARE, "s", [WORSE, "r"]),
        (DO_NOT, CHANGES, DO_NOT, "s", [WORSE, "r"]),
        (WITH_CARE, CHANGES | {"failing": "f"}, INCONCLUSIVE, "f", ["r"]),
        (DO_NOT, CHANGES | {"failing": "f"}, DO_NOT, "s", ["f", "r"]),
    ],
)
def test_what_got_worse_lowers_the_verdict(word, changes, lower, sentence, reasons):
    verdict = lowered({"word": word, "sentence": "s", "reasons": ["r"]}, changes)
    assert verdict == {"word": lower, "sentence": sentence, "reasons": reasons}
