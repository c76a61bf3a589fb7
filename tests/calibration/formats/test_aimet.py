"""AIMET's encodings as aimet-onnx 2.42 writes them: JSON of versions 0.6.1, 1.0.0 and 2.0.0."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.range import scale_of
from tests.calibration.formats.tables import FLOAT32, calibration
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from trtcal.calibration.formats.aimet import AIMET, AIMET_1, AIMET_FP8
from trtcal.calibration.formats.convert import (
    detect,
    export_calibration,
    import_calibration,
    read_ranges,
)
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.quantization import Plan, Rule, prepare, quantize

PER_TENSOR = {"dtype": "INT", "bw": 8, "enc_type": "PER_TENSOR"}
OLD = {
    "version": "1.0.0",
    "producer": {"package": "aimet-onnx", "version": "2.42.0"},
    "activation_encodings": [
        {"name": "x", **PER_TENSOR, "is_sym": True, "scale": [0.5], "offset": [-128.0]},
        {"name": "b", **PER_TENSOR, "is_sym": False, "scale": [0.5], "offset": [0.0]},
        {"name": "g", **PER_TENSOR, "is_sym": False, "scale": [0.5], "offset": [-200.0]},
        {"name": "c", "dtype": "INT", "bw": 16, "enc_type": "PER_TENSOR", "is_sym": True,
         "scale": [0.5], "offset": [-32768.0]},
        {"name": "h", "dtype": "FLOAT", "bw": 16, "enc_type": "PER_TENSOR"},
    ],
    "param_encodings": [
        {"name": "w1", "dtype": "INT", "bw": 8, "is_sym": True, "enc_type": "PER_CHANNEL",
         "scale": [0.1, 0.2], "offset": [-128.0, -128.0]},
        {"name": "w3", "dtype": "INT", "bw": 4, "is_sym": True, "enc_type": "PER_BLOCK",
         "block_size": 64, "scale": [0.1], "offset": [-8.0]},
    ],
    "quantizer_args": {"activation_bitwidth": 8},
}  # fmt: skip
NEW = {
    "version": "2.0.0",
    "encodings": [
        {"name": "x", "output_dtype": "int8", "y_scale": 0.5},
        {"name": "b", "output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 0},
        {"name": "g", "output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 200},
        {"name": "c", "output_dtype": "int16", "y_scale": 0.5},
        {"name": "f", "output_dtype": "float8e4m3fn", "y_scale": 0.25},
        {"name": "h", "output_dtype": "float8e5m2", "y_scale": 0.25},
        {"name": "w1", "output_dtype": "int8", "y_scale": [0.1, 0.2], "axis": 0},
        {"name": "w3", "output_dtype": "int4", "y_scale": [[0.1]], "axis": 1, "block_size": 64},
    ],
}

OLDEST = {
    "version": "0.6.1",
    **{
        part: {
            entry["name"]: [
                {
                    "bitwidth": entry["bw"],
                    "dtype": entry["dtype"].lower(),
                    "is_symmetric": str(entry.get("is_sym", False)),
                    **{key: entry[key][place] for key in ("scale", "offset") if key in entry},
                }
                for place in range(len(entry.get("scale", [0])))
            ]
            for entry in OLD[part]
        }
        for part in ("activation_encodings", "param_encodings")
    },
}
"""The first document, in the form that aimet-onnx 2.42 still writes with encoding_version 0.6.1."""


def written(path, document):
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("document", [OLDEST, OLD, NEW], ids=["0.6.1", "1.0.0", "2.0.0"])
def test_ranges_are_what_the_integers_can_stand_for(tmp_path, document):
    found = read_ranges(written(tmp_path / "m.encodings", document))
    assert found.method == "imported:aimet"
    assert found.parameters == {"version": document["version"]}
    amaxes = {"x": 63.5, "b": 127.5, "g": 100.0, "c": 0.5 * 32767}
    assert {name: found.ranges[name].amax for name in amaxes} == amaxes
    assert found.ranges["x"].note is None
    assert "[-100, 27.5]" in found.ranges["g"].note


@pytest.mark.parametrize("document", [OLD, NEW], ids=["1.0.0", "2.0.0"])
def test_what_is_no_range_is_named_with_its_type(tmp_path, document):
    unranged = read_ranges(written(tmp_path / "m.encodings", document)).unranged
    assert set(unranged) == {"h", "w1", "w3"}
    assert "float" in unranged["h"]
    assert "a weight in" in unranged["w1"]
    assert "int4" in unranged["w3"]


def test_a_range_in_fp8_is_for_fp8_alone(tmp_path):
    found = read_ranges(written(tmp_path / "m.encodings", NEW)).ranges
    assert found["f"].scale_in("fp8") == 0.25
    assert not found["f"].is_for_int8
    assert found["x"].is_for_int8
    both = {"version": "2.0.0", "encodings": [
        {"name": "x", "output_dtype": "int8", "y_scale": 0.5},
        {"name": "x", "output_dtype": "float8e4m3fn", "y_scale": 0.25},
    ]}  # fmt: skip
    found = read_ranges(written(tmp_path / "both.json", both)).ranges["x"]
    assert (found.amax, found.fp8_amax, found.is_for_int8) == (63.5, 112.0, True)


def test_int8_takes_no_range_that_is_for_fp8_alone(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    encodings = [
        {"name": name, "output_dtype": "float8e4m3fn", "y_scale": 0.25} for name in ("x", "b", "g")
    ]
    path = written(tmp_path / "e.json", {"version": "2.0.0", "encodings": encodings})
    found = import_calibration(path, model)
    made = quantize(prepare(model), found)
    assert "for FP8 alone" in made.skipped["first"]
    made = quantize(prepare(model), found, Plan("fp8", rules=(Rule("fp8", op="Conv"),)))
    assert made.asked["first"] == "fp8"
    with fails(InputError, "x, b, g", hint="--format aimet-fp8"):
        export_calibration(tmp_path / "out.json", found, AIMET)


@given(
    amaxes=st.dictionaries(st.text(min_size=1), FLOAT32, min_size=1),
    form=st.sampled_from([AIMET, AIMET_1]),
)
def test_what_is_written_is_read_again_with_the_same_scales(tmp_path_factory, amaxes, form):
    path = tmp_path_factory.mktemp("aimet") / "e.json"
    export_calibration(path, calibration(amaxes), form)
    assert detect(path) == AIMET
    found = read_ranges(path)
    assert {name: scale_of(one.amax) for name, one in found.ranges.items()} == {
        name: scale_of(amax) for name, amax in amaxes.items()
    }


def test_fp8_is_written_and_read_again(tmp_path):
    export_calibration(tmp_path / "e.json", calibration({"x": 3.0}), AIMET_FP8)
    found = read_ranges(tmp_path / "e.json").ranges["x"]
    assert np.float32(found.scale_in("fp8")) == np.float32(3.0 / 448)


INT8 = {"name": "x", "output_dtype": "int8", "y_scale": 0.5}


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"version": "0.4.0", "activation_encodings": {}, "param_encodings": {}}, "0.4.0"),
        ({"version": "2.0.0", "encodings": 3}, "encodings"),
        ({"version": "2.0.0", "encodings": [3]}, "encodings[0]"),
        ({"version": "2.0.0", "encodings": [{**INT8, "name": 3}]}, "encodings[0]"),
        ({"version": "2.0.0", "encodings": [{**INT8, "y_scale": "a"}]}, "y_scale"),
        ({"version": "2.0.0", "encodings": [{**INT8, "y_scale": [1, 2]}]}, "y_scale"),
        ({"version": "2.0.0", "encodings": [INT8, INT8]}, "x"),
    ],
)
def test_bad_encodings_are_one_error(tmp_path, document, name):
    with fails(InputError, name) as caught:
        read_ranges(written(tmp_path / "m.json", document))
    assert caught.value.hint


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-42])
def test_unusable_scales_are_findings(tmp_path, scale):
    document = {"version": "2.0.0", "encodings": [{**INT8, "y_scale": scale}]}
    assert "scale" in read_ranges(written(tmp_path / "m.json", document)).unranged["x"]
