"""A cache, Q/DQ and dynamic ranges hold the same scales: what goes round comes back byte for byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.range import scale_of, single
from tests.calibration.formats.tables import FLOAT32, TABLES, calibration
from tests.fixtures.networks import conv_net
from tests.tensorrt.stand_in import chain, module, ranges_of
from trtcal.backends.tensorrt_network import calibrator_for, match_ranges
from trtcal.backends.tensorrt_objects import set_ranges
from trtcal.calibration.formats.convert import import_calibration, read_ranges
from trtcal.calibration.formats.tensorrt_cache import cache_of, read_cache
from trtcal.model import load_model
from trtcal.quantization import prepare, quantize, write_quantized

TRT = module("8.6")
FROM_TENSORRT = (  # scales that real caches hold: minmax of [0, 1], unclipped entropy of 255 and of 1
    b"TRT-8600-EntropyCalibration2\nx: 3c010204\nb: 4000890a\ng: 3c010a14\n"
)


def amaxes_of(found):
    return {name: item.amax for name, item in found.ranges.items()}


def from_network(network):
    """Return the cache's bytes for the ranges a network has, with TensorRT's float32 division."""
    ranges = {name: high for name, (_, high) in ranges_of(network).items()}
    scales = {name: high / np.float32(127) for name, high in ranges.items()}
    assert all(scale.dtype == np.float32 for scale in scales.values())
    lines = [f"{name}: {int(scale.view(np.uint32)):x}\n" for name, scale in scales.items()]
    return ("TRT-8600-EntropyCalibration2\n" + "".join(lines)).encode("utf-8", "surrogateescape")


def match_and_set(network, amaxes):
    ranged = match_ranges(TRT, network, amaxes)
    set_ranges(TRT, network, amaxes)
    return ranged


def test_cache_to_qdq_to_cache_to_ranges_to_cache_keeps_every_byte(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    (tmp_path / "one.cache").write_bytes(FROM_TENSORRT)
    first = import_calibration(tmp_path / "one.cache", model)
    write_quantized(tmp_path / "int8.onnx", quantize(prepare(model), first))
    second = import_calibration(tmp_path / "int8.onnx", model)
    (tmp_path / "two.cache").write_bytes(cache_of(second, "8.6.0"))
    assert (tmp_path / "two.cache").read_bytes() == FROM_TENSORRT
    network = chain("x", "b", "g", "y")
    found = match_and_set(network, amaxes_of(read_ranges(tmp_path / "two.cache")))
    assert (found.missing, found.rounded) == (("y",), ())
    assert from_network(network) == FROM_TENSORRT


@given(st.dictionaries(st.sampled_from("abcdef"), FLOAT32, min_size=1))
def test_ranges_of_float32_reach_tensorrt_to_the_bit(amaxes):
    network = chain(*amaxes)
    assert match_and_set(network, amaxes).rounded == ()
    assert from_network(network) == cache_of(calibration(amaxes), "8.6.0")


@given(TABLES)
def test_a_calibrator_object_answers_with_the_bytes_of_the_cache_that_is_exported(amaxes):
    asked = {"route": "cache", "kind": "entropy2", "ranges": amaxes}
    answer = calibrator_for(TRT, asked).read_calibration_cache()
    assert answer == cache_of(calibration(amaxes), "8.6.0")


@given(st.floats(2.0**-100, 2.0**100))
def test_other_ranges_are_at_most_one_step_off_and_said_to_be(amax):
    scale, near = scale_of(amax), scale_of(float(single(amax)))
    assert near in (
        scale,
        np.nextafter(scale, np.float32(0)),
        np.nextafter(scale, np.float32(3e38)),
    )
    rounded = match_ranges(TRT, chain("x"), {"x": amax}).rounded
    assert (near != scale) == (rounded == ("x",))


def test_a_float32_range_with_the_same_scale_is_set_wherever_there_is_one():
    amaxes = {f"t{i}": float(amax) for i, amax in enumerate(2.0 ** np.linspace(0, 1, 2000))}
    near = {name: np.float32(amax) for name, amax in amaxes.items()}
    around = {
        n: (f, *(np.nextafter(f, np.float32(end)) for end in (0, 9))) for n, f in near.items()
    }
    reached = {n: {float(scale_of(float(f))) for f in around[n]} for n in amaxes}
    lost = {name for name, amax in amaxes.items() if float(scale_of(amax)) not in reached[name]}
    network = chain(*amaxes)
    assert set(match_and_set(network, amaxes).rounded) == lost
    changed = [name for name, (_, high) in ranges_of(network).items() if high != near[name]]
    assert 0 < len(lost) < 40
    assert changed


def test_some_scales_have_no_float32_range():
    """Of 128 neighbours one is no float32 amax / 127, whatever the amax."""
    bits = 0x3FC00000 + np.arange(128 * 64, dtype=np.uint32)
    scales = bits.view(np.float32)
    lost = [scale for scale in scales if scale_of(float(single(float(scale) * 127))) != scale]
    assert len(lost) == pytest.approx(64, abs=8)


def test_what_a_cache_holds_survives_being_read_as_ranges(tmp_path):
    (tmp_path / "one.cache").write_bytes(FROM_TENSORRT)
    cache = read_cache(tmp_path / "one.cache")
    asked = {"route": "cache", "kind": "entropy2", "ranges": amaxes_of(cache)}
    assert calibrator_for(TRT, asked).read_calibration_cache() == FROM_TENSORRT
