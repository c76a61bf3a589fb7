"""How fast a variant is on a target, measured there or estimated; whether it pays over FP16."""

from dataclasses import replace

import pytest

from tests.fixtures.tables import each
from tests.reporting.samples import accuracy, build, comparison, latency, row
from trtcal.evaluate.target_times import TargetTime
from trtcal.evaluate.variant_limits import judge_variants
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.times import TENSORRT, TENSORRT_RTX
from trtcal.limits import INCONCLUSIVE, parse_limits
from trtcal.reporting.verdict import judge, speeds_of, with_builds

GOOD = accuracy(2, 2)


def estimated(ms, **changes):
    """Return the estimate of a variant on sm89."""
    ends = (ms, 0.6 * ms, 1.5 * ms)
    time = TargetTime(*ends, 9, 0, "L4", TENSORRT, too_small=False, target="sm89", batch=8)
    return replace(time, **changes)


def measured(name, ms, **changes):
    """Return a build for sm89 with the time of its one layer."""
    tensors = (TensorInfo("x", "fp32", (-1, 10)),), (TensorInfo("y", "fp32", (-1, 1)),)
    layers = (Layer("copy", "kgen", *tensors, time_ms=ms),)
    model = f"sha256:{name}"
    return replace(build(name, {}), layers=layers, model=model, backend="tensorrt", **changes)


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
            "too small to estimate: 9 kernels, launch time decides.",
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
