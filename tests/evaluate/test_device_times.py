"""Variants that are timed on a device: a stand-in of its transport, real models, real times."""

import pytest

from tests.fixtures.device_sessions import CPU_HARDWARE, on_device
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.quantized import calibrated
from trtcal.errors import InputError
from trtcal.evaluate.comparison import CompareSettings, Comparison, compare, warnings
from trtcal.evaluate.latency import ROUNDS
from trtcal.evaluate.target_times import speed_of
from trtcal.evaluate.variants import open_variant
from trtcal.quantization import quantize, write_quantized

ORIN = {
    "device": "@orin",
    "hardware": "NVIDIA Orin (sm87), TensorRT 10.3.0",
    "is_gpu": True,
    "energy_mj": 7.5,
    "clocks_mhz": (900.0, 900.0),
}


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


def test_a_throughput_is_that_of_the_device(scene):
    reference, variant, data = (on_device(scene[0]), on_device(scene[1]), scene[2])
    settings = CompareSettings(rounds=2, batch_sizes=(1, 4))
    result = compare(reference, [variant], data, (), settings)
    assert [rate.batch for rate in result.rows[1].latency.throughput] == [1, 4]


def test_rounds_are_added_until_the_interval_is_as_narrow_as_asked(scene):
    reference, variant, data = (on_device(scene[0]), on_device(scene[1]), scene[2])
    wide = compare(reference, [variant], data, (), CompareSettings(rounds=12, width=1e9))
    assert wide.rows[0].latency.runs == 12
