"""Facts about real caches: NVIDIA's sampleINT8 README and public issues of TensorRT."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.range import amax_of, scale_of
from tests.calibration.formats.tables import AMAXES, FLOAT32, TABLES, calibration, float32_of
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.calibration.formats.tensorrt_cache import (
    ALGORITHMS,
    cache_of,
    header_version,
    is_unnamed,
    read_cache,
)
from trtcal.errors import InputError

SHUFFLE = "(Unnamed Layer* 64) [Shuffle]_output"
REAL = f"""TRT-8401-EntropyCalibration2
images: 3c010204
{SHUFFLE}: 0
366: 0
x: 4000890a
prob: 3c010a14
Output:0: 3b66eddc
"""


def text_cache(tmp_path, text):
    path = tmp_path / "model.cache"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_real_cache_keeps_the_bytes_of_all_ranges(tmp_path):
    cache = read_cache(text_cache(tmp_path, REAL))
    assert cache.parameters == {"version": "8401", "algorithm": "EntropyCalibration2"}
    again = cache_of(cache, "8401").decode().splitlines()
    assert again == [line for line in REAL.splitlines() if not line.endswith(": 0")]


def test_real_scales_mean_what_they_are_known_to_mean(tmp_path):
    table = read_cache(text_cache(tmp_path, REAL))
    assert table.ranges["images"].amax == 1.0  # images in [0, 1], minmax: 1/127
    unclipped = 2048.5 / 2048  # entropy's threshold where nothing is clipped
    assert table.ranges["prob"].amax == pytest.approx(unclipped, rel=1e-7)
    assert table.ranges["x"].amax == pytest.approx(255 * unclipped, rel=1e-7)
    assert "Output:0" in table.ranges


def test_the_cache_of_a_legacy_calibrator_has_its_parameters_for_a_header(tmp_path):
    text = "0 3ff0000000000000 3fefff2e48e8a71e\nimage: 3c010204\n"  # TensorRT 8.6.0: 1.0, 0.9999
    cache = read_cache(text_cache(tmp_path, text))
    assert cache.parameters == {"algorithm": "LegacyCalibration"}
    assert cache.ranges["image"].amax == 1.0


def test_a_zero_is_a_finding_with_its_name_and_no_range(tmp_path):
    cache = read_cache(text_cache(tmp_path, REAL))
    assert set(cache.unranged) == {SHUFFLE, "366"}
    assert SHUFFLE not in cache.ranges


@each(
    "digits, says",
    [
        ("0", "is 0"), ("7f800000", "infinite"), ("7fc00000", "not a number"),
        ("bc010204", "negative"), ("80000000", "is 0"), ("1", "denormal"), ("7fffff", "denormal"),
        ("7f7fffff", "too large"),
    ],
)  # fmt: skip
def test_unusable_scales_are_findings(tmp_path, digits, says):
    path = text_cache(tmp_path, f"TRT-8601-MinMaxCalibration\nx: {digits}\n")
    assert says in read_cache(path).unranged["x"]


@each("algorithm", ALGORITHMS)
@each(
    "version, header",
    [
        ("8.6.1", "8601"), ("8.6.1.6", "8601"), ("8.4.1", "8401"), ("8.5.10", "8510"),
        ("7.1.3", "7103"), ("7.0.0", "7000"), ("10.3.0", "100300"), ("10.16.1.11", "101601"),
        ("8.6", "8600"), ("8XXX", "8XXX"), ("8601", "8601"),
    ],
)  # fmt: skip
def test_headers_of_every_version_and_algorithm(tmp_path, version, header, algorithm):
    assert header_version(version) == header
    cache = cache_of(calibration({"images": 1.0}), version, algorithm)
    assert cache == f"TRT-{header}-{algorithm}\nimages: 3c010204\n".encode()
    read = read_cache(text_cache(tmp_path, cache))
    assert read.parameters == {"version": header, "algorithm": algorithm}
    assert cache_of(read, header, algorithm) == cache


@each("version", ["11.0.0", "12.1", "", "8", "eight", "8.6.1-rc", "8.-6.1", "\u0668.6.1"])
def test_a_version_without_caches_is_refused(version):
    with pytest.raises(InputError):
        header_version(version)


def test_an_unknown_algorithm_is_refused():
    with fails(InputError, "Magic"):
        cache_of(calibration({"x": 1.0}), "8.6.1", "Magic")


@each(
    "text, line",
    [
        ("", "line 1"),
        ("images: 3c010204\n", "line 1"),
        ("TRT-8601-MagicCalibration\n", "line 1"),
        ("TRT-8601-MinMaxCalibration\nx: 3c01020g\n", "line 2"),
        ("TRT-8601-MinMaxCalibration\nx: 1\n\ny\n", "line 4"),
        ("TRT-8601-MinMaxCalibration\nx: 0x3c\n", "line 2"),
        ("TRT-8601-MinMaxCalibration\nx: 123456789\n", "line 2"),
        ("TRT-8601-MinMaxCalibration\nx: -1\n", "line 2"),
        ("TRT-8601-MinMaxCalibration\nx: \u0663\n", "line 2"),
        ("TRT-8601-MinMaxCalibration\n: 3c\n", "line 2"),
        ("TRT-8601-MinMaxCalibration\nx: 1\nx: 2\n", "line 3"),
    ],
)
def test_a_line_that_is_none_is_named_by_its_number(tmp_path, text, line):
    with fails(InputError, "model.cache", line):
        read_cache(text_cache(tmp_path, text))


def test_windows_line_ends_and_names_that_are_not_utf_8(tmp_path):
    path = text_cache(tmp_path, b"TRT-8601-MinMaxCalibration\r\n\xff\xfe: 3c010204\r\n")
    cache = read_cache(path)
    assert [item.amax for item in cache.ranges.values()] == [1.0]
    again = cache_of(cache, "8601", "MinMaxCalibration")
    assert again == path.read_bytes().replace(b"\r", b"")


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800"])
def test_a_name_that_no_line_can_hold_is_refused(name):
    with fails(InputError, repr(name)):
        cache_of(calibration({name: 1.0}), "8.6.1")


def test_an_empty_calibration_is_not_written():
    with fails(InputError, hint="calibrate"):
        cache_of(calibration({}), "8.6.1")


def test_which_names_are_tensorrts_own():
    assert is_unnamed(SHUFFLE)
    assert is_unnamed("(Unnamed Layer* 3) [Matrix Multiply]_output_1")
    assert not is_unnamed("Output:0")


@settings(deadline=None)
@given(TABLES)
def test_write_read_write_gives_the_same_bytes_and_scales(tmp_path_factory, amaxes):
    written = cache_of(calibration(amaxes), "8.6.1")
    read = read_cache(text_cache(tmp_path_factory.mktemp("c"), written))
    assert list(read.ranges) == list(amaxes)
    assert cache_of(read, "8.6.1") == written


@given(st.integers(0x00800000, 0x7F7FFFFF))
def test_every_normal_scale_survives_to_the_bit(bits):
    scale = float32_of(bits)
    assert scale_of(amax_of(scale)) == scale


@given(FLOAT32)
def test_a_float32_amax_is_divided_as_tensorrt_does_and_comes_back(amax):
    scale = scale_of(amax)
    assert scale == np.float32(amax) / np.float32(127)
    if np.frexp(amax)[0] < 127 / 128:  # at or above it, two neighbours share a scale
        assert amax_of(scale) == amax


@given(AMAXES)
def test_the_text_is_the_bits_of_the_scale(amax):
    cache = cache_of(calibration({"x": amax}), "8.6.1").decode()
    digits = cache.splitlines()[1].removeprefix("x: ")
    assert digits == format(int(digits, 16), "x")
    assert float32_of(int(digits, 16)) == np.float32(amax / 127.0)
