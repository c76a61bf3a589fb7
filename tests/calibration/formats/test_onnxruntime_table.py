"""ONNX Runtime's own writer and reader are the other side of these tests."""

import contextlib
import json

import flatbuffers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization import CalibrationMethod, write_calibration_table
from onnxruntime.quantization.calibrate import TensorData, TensorsData

from tests.calibration.formats.tables import FLOAT32, NAMES, TABLES
from tests.fixtures.examples import examples
from tests.fixtures.fails import fails
from trtcal.calibration.formats.onnxruntime_table import (
    read_flatbuffers,
    read_table_json,
    read_table_text,
    to_flatbuffers,
    to_table_json,
    to_table_text,
)
from trtcal.errors import InputError

AMAXES = {"input": 2.5, "Output:0": 0.1, "a b": 1e-3, "(Unnamed Layer* 1) [Shuffle]_output": 7.0}
FORMS = [
    (to_flatbuffers, read_flatbuffers),
    (to_table_json, read_table_json),
    (to_table_text, read_table_text),
]


def amaxes_of(table):
    return {name: item.amax for name, item in table.ranges.items()}


def as_onnxruntime(amaxes):
    def data(amax):
        return TensorData(lowest=np.array(-amax, np.float32), highest=np.array(amax, np.float32))

    return TensorsData(CalibrationMethod.MinMax, {name: data(a) for name, a in amaxes.items()})


@examples(24)
@given(st.dictionaries(NAMES, FLOAT32, min_size=1, max_size=6))
def test_our_bytes_are_those_of_onnxruntime_and_we_read_its_files(tmp_path_factory, amaxes):
    folder = tmp_path_factory.mktemp("t")
    write_calibration_table(as_onnxruntime(amaxes), str(folder))
    assert to_flatbuffers(amaxes) == (folder / "calibration.flatbuffers").read_bytes()
    assert to_table_text(amaxes) == (folder / "calibration.cache").read_bytes()
    assert amaxes_of(read_flatbuffers(folder / "calibration.flatbuffers")) == amaxes
    assert amaxes_of(read_table_text(folder / "calibration.cache")) == amaxes
    assert amaxes_of(read_table_json(folder / "calibration.json")) == amaxes


@settings(deadline=None)
@given(TABLES)
def test_every_form_gives_back_what_was_written(tmp_path_factory, amaxes):
    folder = tmp_path_factory.mktemp("t")
    for write, read in FORMS:
        (folder / "t").write_bytes(write(amaxes))
        assert amaxes_of(read(folder / "t")) == amaxes


@pytest.mark.skipif(not hasattr(TensorsData, "from_dict"), reason="older ones read no JSON")
def test_onnxruntime_reads_our_json():
    read = TensorsData.from_dict(json.loads(to_table_json(AMAXES)))
    assert read.calibration_method == CalibrationMethod.MinMax
    for name, amax in AMAXES.items():
        low, high = read[name].range_value
        assert (low, high) == (-np.float32(amax), np.float32(amax))


@pytest.mark.parametrize(
    ("entry", "amax"),
    [
        ([-3.0, 1.0], 3.0),
        ({"lowest": -0.5, "highest": 0.25}, 0.5),
        ({"lowest": {"data": [-1, -9]}, "highest": {"data": [2, 3]}}, 9.0),
        ({"lowest": {"data": -4.0}, "highest": {"data": -2.0}, "CLS": "TensorData"}, 4.0),
    ],
)
def test_every_form_of_a_json_entry(tmp_path, entry, amax):
    (tmp_path / "t.json").write_text(json.dumps({"x": entry}))
    assert amaxes_of(read_table_json(tmp_path / "t.json")) == {"x": amax}


@pytest.mark.parametrize(
    "document",
    [[1], {"x": {}}, {"x": 1.0}, {"x": None}, {"x": []}, {"x": ["a", "b"]}, {"CLS": "TensorsData"}],
)
def test_json_that_is_no_table_is_refused(tmp_path, document):
    (tmp_path / "t.json").write_text(json.dumps(document))
    with pytest.raises(InputError):
        read_table_json(tmp_path / "t.json")


def test_unusable_values_are_findings(tmp_path):
    (tmp_path / "t").write_text("a 0.0\nb inf\nc nan\nd -1.0\ne 1e-42\nf 1.0\n")
    table = read_table_text(tmp_path / "t")
    assert set(table.unranged) == set("abcde")
    assert set(table.ranges) == {"f"}


@pytest.mark.parametrize(
    ("text", "name"), [("a 1\nb\n", "line 2"), ("a x", "line 1"), ("a 1\na 1", "a")]
)
def test_text_that_is_no_table_is_refused(tmp_path, text, name):
    (tmp_path / "t").write_text(text)
    with fails(InputError, name):
        read_table_text(tmp_path / "t")


@settings(deadline=None)
@given(st.data())
def test_a_table_cut_short_is_refused(tmp_path_factory, data):
    whole = to_flatbuffers(AMAXES)
    path = tmp_path_factory.mktemp("t") / "t"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 5))])
    with pytest.raises(InputError):
        read_flatbuffers(path)


@examples(120)
@given(st.integers(0, len(to_flatbuffers(AMAXES)) - 1), st.integers(0, 255))
def test_a_table_with_a_wrong_byte_is_read_or_refused(tmp_path_factory, at, byte):
    data = bytearray(to_flatbuffers(AMAXES))
    data[at] = byte
    path = tmp_path_factory.getbasetemp() / "wrong"
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        assert len(read_flatbuffers(path).ranges) <= len(AMAXES)


def test_strings_that_are_shared_cannot_fill_the_memory(tmp_path):
    builder = flatbuffers.Builder(1024)
    value = builder.CreateString("1" * 1000)
    pairs = []
    for number in range(100):
        key = builder.CreateString(f"tensor{number}")
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, key, 0)
        builder.PrependUOffsetTRelativeSlot(1, value, 0)
        pairs.append(builder.EndObject())
    builder.StartVector(4, len(pairs), 4)
    for pair in pairs:
        builder.PrependUOffsetTRelative(pair)
    entries = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, entries, 0)
    builder.Finish(builder.EndObject())
    (tmp_path / "t").write_bytes(builder.Output())
    with fails(InputError, "t", hint="calibration.flatbuffers"):
        read_flatbuffers(tmp_path / "t")


def test_names_that_no_table_can_hold_are_refused():
    for write, _ in FORMS[::2]:
        with fails(InputError, r"'a\nb'"):
            write({"a\nb": 1.0})
