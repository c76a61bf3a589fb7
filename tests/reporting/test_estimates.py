"""How fast a variant is on a target, measured there or estimated; whether it pays over FP16."""

from dataclasses import replace

import pytest

from tests.fixtures.tables import each
from tests.reporting.samples import (
    accuracy,
    build,
    comparison,
    estimated,
    latency,
    measured,
    row,
    write_run,
)
from trtcal.evaluate.target_times import best_known
from trtcal.evaluate.variant_limits import judge_row, judge_variants
from trtcal.evidence.times import TENSORRT_RTX
from trtcal.limits import INCONCLUSIVE, parse_limits
from trtcal.reporting.advice import next_step
from trtcal.reporting.document import assemble
from trtcal.reporting.render import render
from trtcal.reporting.verdict import judge, speeds_of, with_builds

GOOD = accuracy(2, 2)


def compared(fp32, int8, fp16, *limits, of_fp16=None):
    """Return a comparison of INT8 with FP16 beside it, with their times on sm89."""
    beside = replace(row("fp16", of_fp16 or GOOD, latency(1.0, 3.0)), is_alternative=True)
    found = comparison(row("int8", GOOD), beside)
    times = [(time,) if time else () for time in (fp32, int8, fp16)]
    rows = [replace(one, times=own) for one, own in zip(found.rows, times, strict=True)]
    return replace(found, rows=tuple(rows), limits=(*found.limits, *parse_limits(limits)))


def speeds(found, builds=()):
    rows = with_builds(found, builds).rows
    return tuple(speeds_of(rows[1], [rows[0], *rows[2:]]))


def test_an_estimate_has_its_interval_and_says_what_it_is_for():
    first, second = speeds(compared(*map(estimated, (4.0, 1.0, 2.0))))
    assert (first.against, first.ratio, second.against, second.ratio) == ("digits", 4, "fp16", 2)
    assert first.low < 4 < first.high
    assert first.time.source == "estimated for TensorRT on the L4, batch of 8, not measured"
    assert replace(first.time, tf32=True).engine.endswith("batch of 8, with TF32")
    assert f"about 4 times the speed of digits ({first.low:.3g} to" in first.sentence


def test_a_measured_time_takes_the_place_of_the_estimate():
    found = compared(*map(estimated, (4.0, 1.0, 2.0)))
    builds = [measured("fp32", 6.0), measured("int8", 2.0), measured("fp16", 3.0)]
    first, second = speeds(found, builds)
    assert (first.low, first.ratio, first.high, second.ratio) == (3.0, 3.0, 3.0, 1.5)
    assert first.time.source.startswith("measured layer by layer")
    verdict = judge(with_builds(found, builds), builds)
    assert not any("was not measured" in reason for reason in verdict.reasons)
    half, _ = speeds(found, builds[1:2])
    assert half.low == pytest.approx(4.0 * 0.6 / 2.0)  # FP32 is an estimate still
    assert half.high == pytest.approx(4.0 * 1.5 / 2.0)


def test_of_models_that_are_not_there_the_lists_of_a_build_are_estimated_and_named():
    found = compared(None, None, None)
    builds = [measured(name, None) for name in ("fp32", "int8")]
    (one,) = speeds(found, [replace(each, backend="tensorrt-rtx") for each in builds])
    assert (one.time.compiler, one.time.batch, one.against) == (TENSORRT_RTX, 8, "digits")
    mixed = [builds[0], replace(builds[1], backend="tensorrt-rtx")]
    assert speeds(found, mixed) == ()
    assert speeds(found, [replace(each, target="sm121") for each in builds]) == ()


def test_fp16_is_no_candidate():
    found = compared(*map(estimated, (4.0, 1.0, 2.0)))
    assert list(judge_variants(found)) == ["int8"]
    assert judge(found).variant == "int8"


SMALL = {"too_small": True}
WORSE = replace(GOOD, sqnr_db=3.0)


@each(
    "int8, fp16, of_fp16, answer, words",
    [
        (estimated(1.0), estimated(4.0), GOOD, "int8", "int8 pays over FP16: about 4 times"),
        (estimated(1.0), estimated(1.1), GOOD, "device", "only the device decides"),
        (estimated(4.0), estimated(1.0), GOOD, "fp16", "ship models/fp16.onnx"),
        (estimated(4.0), estimated(1.0), WORSE, "int8", "which loses more accuracy"),
        (
            estimated(1.0, **SMALL),
            estimated(4.0, **SMALL),
            GOOD,
            "device",
            "only the device decides whether int8 is faster than FP16.",
        ),
    ],
)
def test_whether_int8_pays_is_answered_against_fp16(int8, fp16, of_fp16, answer, words):
    verdict = judge(compared(estimated(8.0), int8, fp16, of_fp16=of_fp16))
    (pays,) = verdict.pays
    assert (pays.target, pays.answer, pays.file) == (
        *("sm89", answer), "models/fp16.onnx" if answer == "fp16" else None
    )  # fmt: skip
    assert words in pays.sentence
    assert (pays.sentence in verdict.reasons) == (answer != "int8")
    assert not any("not worth it" in reason for reason in verdict.reasons)


def test_what_launches_decide_has_no_figure():
    slow, fast = (estimated(ms, too_small=True) for ms in (4.0, 1.0))
    (first, _) = speeds(compared(slow, fast, slow))
    assert "times the speed" not in first.sentence
    assert first.sentence == "too small to estimate: 9 kernels, launch time decides"


@each(
    "limit, state",
    [
        ("speedup >= 1.2", "holds"),
        ("speedup >= 4", "undecided"),
        ("speedup >= 9", "broken"),
        ("latency_p50 <= 2", "holds"),
        ("latency_p50 <= 1", "undecided"),
        ("latency_p50 <= 0.5", "broken"),
        ("latency_p50 <= -30%", "holds"),
        ("latency_p50 <= -75%", "undecided"),
        ("latency_p99 <= 100", "undecided"),
        ("latency_p50 <= +1", "undecided"),
    ],
)
def test_a_limit_on_speed_is_open_where_the_interval_of_the_estimate_has_it(limit, state):
    found = compared(*map(estimated, (4.0, 1.0, 2.0)), limit)
    judged = judge_variants(found)["int8"][-1]
    assert judged.state == state
    if state == "undecided":
        verdict = judge(found)
        assert verdict.word == INCONCLUSIVE
        assert "device" in verdict.sentence or "measure it on sm89" in verdict.sentence


FILES = {"folder": "out", "model": "net.onnx", "config": "trtcal.toml"}


def next_of(folder, found):
    """Return the next step of a report whose run built INT8 for sm89."""
    document = assemble(write_run(folder, found, replace(build("int8", {}), target="sm89")))
    document["measured"]["run"] = {"measured": {"files": FILES}}
    return next_step(document)


@each("int8, fp16, file", [(4.0, 1.0, "fp16"), (1.0, 4.0, "int8"), (1.0, 1.1, "int8")])
def test_the_next_step_is_to_measure_what_the_answer_recommends(tmp_path, int8, fp16, file):
    found = compared(estimated(8.0), estimated(int8), estimated(fp16))
    step = next_of(tmp_path, found)
    assert step.words[:2] == ("build", f"out/models/{file}.onnx")
    assert ("FP16, which does as well" in step.why) == (file == "fp16")


def test_where_an_estimate_leaves_a_limit_open_the_next_step_is_the_device(tmp_path):
    step = next_of(tmp_path, compared(*map(estimated, (4.0, 1.0, 2.0)), "speedup >= 4"))
    assert step.words[0] == "build"
    assert "--layer-times" in step.words


def test_the_page_shows_the_interval_and_the_chart_of_the_target(tmp_path):
    document = assemble(write_run(tmp_path, compared(*map(estimated, (4.0, 1.0, 2.0)))))
    page = render(document)
    for words in (
        "estimated latency on sm89 (ms)",
        "estimated for TensorRT on L4",
        "about 4.00 \u00d7 FP32",
    ):
        assert words in page
    small = [estimated(ms, too_small=True) for ms in (4.0, 1.0, 2.0)]
    result = replace(compared(*small), machine={"timed_on": "CPU"})
    page = render(assemble(write_run(tmp_path / "small", result)))
    assert "estimated latency" not in page
    assert "<dd>only a measurement there can tell</dd>" in page
    assert ">too small to estimate</span>" in page
    assert "fewer than two variants, because the network is too small to estimate" in page
    assert "Top-1 accuracy of each variant" in page
    assert "limit: FP32 \u2212 1 point" in page


def test_the_interval_of_an_estimate_is_not_widened_for_several_variants():
    found = compared(*map(estimated, (4.0, 1.0, 2.0)))
    limits = parse_limits(["speedup >= 4"])
    (judged,) = judge_row(limits, found.rows[1], found.rows[0], 0.99)
    assert judged.figure.level == 0.95


def test_the_targets_keep_their_order_and_a_measured_time_takes_the_place_of_its_estimate():
    estimates = [estimated(1.0, target=target) for target in ("sm89", "sm86")]
    listed, timed = (measured("a", ms, target=at) for ms, at in ((None, "sm80"), (3.0, "sm86")))
    times = best_known(estimates, [timed, listed])
    assert [(time.target, time.is_measured) for time in times] == [
        ("sm89", False), ("sm86", True), ("sm80", False),
    ]  # fmt: skip
    assert [time.ms for time in times[:2]] == [1.0, 3.0]
