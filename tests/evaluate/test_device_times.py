"""Variants that are timed on a device: a stand-in of its transport, real models, real times."""

from dataclasses import replace

import pytest

from tests.fixtures.device_sessions import CPU_HARDWARE, ORIN, on_device
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.quantized import calibrated
from tests.fixtures.tables import each
from tests.reporting.samples import accuracy, row
from trtcal.errors import InputError
from trtcal.evaluate import latency
from trtcal.evaluate.ab import Question, ab_test
from trtcal.evaluate.comparison import CompareSettings, Comparison, compare, warnings
from trtcal.evaluate.latency import ROUNDS, Latency
from trtcal.evaluate.target_times import TargetTime, of_latency, speed_of
from trtcal.evaluate.variant_limits import judge_row
from trtcal.evaluate.variants import open_variant
from trtcal.limits import BROKEN, HOLDS, Judgement, parse_limits
from trtcal.quantization import quantize, write_quantized


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scene")
    path = conv_net(folder / "net.onnx")
    model, calibration, data = calibrated(path, folder)
    write_quantized(folder / "int8.onnx", quantize(model, calibration))
    return open_variant(path), open_variant(folder / "int8.onnx"), data


def compared(scene, rounds=12, **device):
    reference, variant, data = scene
    everyone = (on_device(each, **device) for each in (reference, variant))
    return compare(next(everyone), list(everyone), data, (), CompareSettings(rounds=rounds))


def test_what_runs_on_a_device_is_timed_there_and_its_rows_say_so(scene, tmp_path):
    result = compared(scene, **ORIN)
    reference, row = result.rows
    assert (row.latency.on, row.latency.hardware, row.latency.is_gpu) == (
        "@orin",
        ORIN["hardware"],
        True,
    )
    assert (row.latency.runs, row.latency.energy_mj, row.latency.clocks_mhz) == (
        12,
        7.5,
        (900, 900),
    )
    assert row.latency.compute_p50_ms == row.latency.p50_ms  # the stand-in has no transfers
    assert result.machine["timed_on"] == "@orin"
    (time,) = row.times
    assert (time.target, time.is_measured, time.ms) == ("@orin", True, row.latency.p50_ms)
    assert (time.low_ms, time.high_ms) == row.latency.p50_interval_ms
    speed = speed_of(time, reference.times[0], "net")
    assert (speed.ratio, (speed.low, speed.high)) == (
        row.latency.speedup,
        row.latency.speedup_interval,
    )
    result.write(tmp_path / "comparison.json")
    assert Comparison.read(tmp_path / "comparison.json") == result


def test_the_outputs_are_those_of_the_session_and_the_digest_knows_no_device(scene):
    reference, variant, data = scene
    here = compare(reference, [variant], data, (), CompareSettings(rounds=2))
    assert compared(scene).digest == here.digest
    assert here.rows[1].times == ()
    assert here.rows[1].latency.on == ""


def test_a_device_is_never_timed_in_passing(scene):
    assert compared(scene, rounds=None).rows[0].latency.runs == ROUNDS


def test_a_cpu_behind_a_device_is_called_a_cpu(scene):
    result = compared(scene)
    (time,) = result.rows[1].times
    assert time.gpu == f"CPU @here ({CPU_HARDWARE.removeprefix('CPU, ')})"
    said = " ".join(warnings(result))
    assert "the times are those of ONNX Runtime on the CPU of @here; a GPU has other times" in said


def test_what_disturbed_a_device_is_said(scene):
    result = compared(scene, warnings=("the GPU clock moved from 900 to 600 MHz",), **ORIN)
    assert "latency of net, int8 was disturbed: the GPU clock moved from" in " ".join(
        warnings(result)
    )


def test_variants_are_timed_on_one_machine(scene):
    reference, variant, data = scene
    with fails(
        InputError, "timed on different machines: net on this machine; int8 on @here"
    ) as error:
        compare(reference, [on_device(variant)], data, ())
    assert "`--on here`" in error.value.hint
    other = on_device(reference, device="@nano")
    with fails(InputError, "net on @nano; int8 on @here"):
        compare(other, [on_device(variant)], data, ())


@each("limit, state", [("speedup@here >= 0.0001", HOLDS), ("latency_p50@here <= 1e-6", BROKEN)])
def test_a_test_on_a_device_holds_the_limits_on_it(scene, limit, state):
    pair = [on_device(variant) for variant in scene[:2]]
    question = Question(parse_limits(["sqnr_db >= 1", limit]))
    assert ab_test(*pair, scene[2], question).verdict.limits[1].state == state


def test_a_test_here_says_nothing_of_a_device(scene):
    with fails(InputError, "@here", "speedup@here") as error:
        ab_test(*scene[:2], scene[2], Question(parse_limits(["speedup@here >= 1"])))
    assert "`trtcal ab ... --on here`" in error.value.hint


def test_a_throughput_is_that_of_the_device(scene):
    reference, variant, data = (on_device(scene[0]), on_device(scene[1]), scene[2])
    settings = CompareSettings(rounds=2, batch_sizes=(1, 4))
    result = compare(reference, [variant], data, (), settings)
    assert [rate.batch for rate in result.rows[1].latency.throughput] == [1, 4]


def test_rounds_are_added_until_the_interval_is_as_narrow_as_asked(scene, monkeypatch):
    monkeypatch.setattr(latency, "MOST_ROUNDS", 24)
    reference, variant, data = (on_device(scene[0]), on_device(scene[1]), scene[2])
    wide = compare(reference, [variant], data, (), CompareSettings(rounds=12, width=1e9))
    assert wide.rows[0].latency.runs == 12
    narrow = compare(reference, [variant], data, (), CompareSettings(rounds=12, width=1e-9))
    assert narrow.rows[0].latency.runs == 48


def timed_rows(energies=(10.0, 5.0), **changes):
    """Return a reference of 4 ms and a variant of 2 ms on @orin, of which an estimate is for sm89."""
    about = {"on": "@orin", "hardware": ORIN["hardware"], "is_gpu": True}
    times = []
    for ms, speedup, energy in zip((4.0, 2.0), (1.0, 2.0), energies, strict=True):
        ends = (speedup, speedup) if speedup == 1 else (1.8, 2.2)
        known = Latency(8, 60, ms, 3.0, 3.5, (0.9 * ms, 1.1 * ms), speedup, ends, **about)
        times.append(of_latency(replace(known, energy_mj=energy, **changes)))
    estimate = TargetTime(5.0, 3.0, 9.0, 9, 0, "L4", "TensorRT", False, target="sm89", batch=8)
    fp32, int8 = row("fp32", accuracy(0, 0)), row("int8", accuracy(1, 1))
    return replace(fp32, times=(times[0], estimate)), replace(int8, times=(times[1], estimate))


@each(
    "limit, state",
    [
        ("latency_p50@orin <= 2.3 ms", "holds"),
        ("latency_p50@orin <= 2 ms", "undecided"),
        ("latency_p50@orin <= 1.7 ms", "broken"),
        ("latency_p50@orin <= -40%", "holds"),
        ("latency_p50@orin <= -50%", "undecided"),
        ("latency_p50@orin <= -1 ms", "holds"),
        ("latency_p99@orin <= 3.5", "holds"),
        ("speedup@orin >= 1.7", "holds"),
        ("speedup@orin >= 2", "undecided"),
        ("speedup@orin >= 2.3", "broken"),
        ("energy@orin <= 5 mJ", "holds"),
        ("energy@orin <= 4 mJ", "broken"),
        ("energy@orin <= -50%", "holds"),
        ("latency_p50 <= 2.3", "holds"),
        ("energy <= 4", "broken"),
        ("latency_p50@sm89 <= 10", "holds"),
        ("latency_p50@sm89 <= 5", "undecided"),
        ("speedup@sm89 >= 0.1", "holds"),
    ],
)
def test_a_limit_on_a_device_is_held_to_what_was_measured_there(limit, state):
    fp32, int8 = timed_rows()
    (judged,) = judge_row(parse_limits([limit]), int8, fp32)
    assert judged.state == state
    assert Judgement.from_document(judged.to_document()) == judged


@each(
    "limit, change, reason",
    [
        ("latency_p50@nano <= 4", {}, "no time on @nano is known; `trtcal compare ... --on nano`"),
        ("energy@orin <= 4", {"energies": (None, None)}, "no energy is known of @orin"),
        ("energy@orin <= -1%", {"energies": (None, 4.0)}, "FP32 was not measured on @orin"),
        ("energy@sm89 <= 4", {}, "an estimate does not give it; measure it on sm89"),
    ],
)
def test_what_a_device_did_not_measure_is_undecided_and_says_what_measures_it(
    limit, change, reason
):
    fp32, int8 = timed_rows(**change)
    (judged,) = judge_row(parse_limits([limit]), int8, fp32)
    assert judged.state == "undecided"
    assert reason in judged.reason
    here = [replace(each, times=()) for each in (int8, fp32)]
    (unknown,) = judge_row(parse_limits([limit]), *here)
    assert unknown.state == "undecided"


def test_a_device_without_fp32_has_no_speed_up():
    fp32, int8 = timed_rows()
    alone = replace(fp32, times=fp32.times[1:])
    judged = judge_row(parse_limits(["speedup@orin >= 0.1", "latency_p50@orin <= 9"]), int8, alone)
    assert [each.state for each in judged] == ["undecided", "holds"]


def test_the_interval_of_several_variants_is_wider_on_a_device_than_alone():
    fp32, int8 = timed_rows()
    limits = parse_limits(["speedup@orin >= 1.8"])
    (alone,), (beside,) = (judge_row(limits, int8, fp32, level) for level in (0.95, 0.99))
    assert alone.figure.low == pytest.approx(1.8)
    assert beside.figure.low < 1.75
    assert beside.figure.level == 0.99
