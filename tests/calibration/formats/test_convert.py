from typing import get_args

import numpy as np
import pytest
from onnx import helper

from calibrators.range import scale_of
from tests.calibration.formats.tables import calibration
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, save, weight
from trtcal.calibration.formats import convert
from trtcal.calibration.formats.aimet import AIMET, AIMET_1, AIMET_FP8
from trtcal.calibration.formats.convert import (
    READABLE,
    WRITABLE,
    compare_names,
    export_calibration,
    import_calibration,
    read_ranges,
)
from trtcal.cli import ranges as cli
from trtcal.errors import InputError
from trtcal.model import load_model

AMAXES = {"x": 2.7, "b": 1.3, "g": 0.9}
UNNAMED = "(Unnamed Layer* 3) [Shuffle]_output"


@pytest.fixture
def model(tmp_path):
    return load_model(conv_net(tmp_path / "net.onnx"))


def cache(tmp_path, *lines):
    (tmp_path / "model.cache").write_text("\n".join(["TRT-8601-MinMaxCalibration", *lines, ""]))
    return tmp_path / "model.cache"


def test_the_command_line_and_the_library_know_the_same_formats():
    assert get_args(cli.Readable) == READABLE
    assert set(get_args(cli.Writable)) == set(WRITABLE)
    assert set(WRITABLE) == {"tensorrt-cache", *convert.WRITERS}


@pytest.mark.parametrize("form", sorted({*WRITABLE} - {AIMET_FP8}))
def test_every_format_is_found_out_and_keeps_every_scale(tmp_path, model, form):
    export_calibration(tmp_path / "t", calibration(AMAXES), form, tensorrt="8.6.1")
    found = import_calibration(tmp_path / "t", model)
    assert found.method == f"imported:{AIMET if form == AIMET_1 else form}"
    assert (found.model, found.dataset, found.samples) == (model.fingerprint, "unknown", 0)
    assert {name: scale_of(item.amax) for name, item in found.ranges.items()} == {
        name: scale_of(amax) for name, amax in AMAXES.items()
    }


def test_what_is_imported_can_be_written_read_and_names_its_header(tmp_path, model):
    path = cache(
        tmp_path, "x: 3c010204", "b: 3c010204", "g: 3c010204", f"{UNNAMED}: 3c010204", "y: 0"
    )
    found = import_calibration(path, model, dataset="sha256:data")
    assert found.parameters == {"version": "8601", "algorithm": "MinMaxCalibration"}
    assert UNNAMED in found.ranges
    assert "is 0" in found.unranged["y"]
    found.write(tmp_path / "calibration.json")
    assert read_ranges(tmp_path / "calibration.json") == found


def test_a_file_of_another_model_is_refused_with_what_differs(tmp_path, model):
    path = cache(tmp_path, *(f"other{i}: 3c010204" for i in range(7)), "x: 3c010204")
    others = "other0, other1, other2, other3, other4"
    with fails(InputError, "7 tensors", others, "2 more", "2 of the 3", "b, g"):
        import_calibration(path, model)


def test_made_up_names_and_copies_are_no_difference(model):
    compare_names(["x", "b", "g", "a", "w1", "b copy", UNNAMED], model).check(model.path)
    with fails(InputError, "1", "z copy"):
        compare_names(["x", "b", "g", "z copy"], model).check(model.path)


def test_what_fits_is_taken_if_asked(tmp_path, model):
    found = import_calibration(cache(tmp_path, "x: 3c010204", "z: 3c010204"), model, partial=True)
    assert set(found.ranges) == {"x"}
    assert found.unranged == dict.fromkeys("bg", "model.cache has no range for it")
    with fails(InputError, "3"):
        import_calibration(cache(tmp_path, "z: 3c010204"), model, partial=True)


def test_a_range_that_follows_names_the_tensor_that_the_file_has(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "act"),
        helper.make_node("Flatten", ["a"], ["b"], "flat"),
        helper.make_node("Reshape", ["a", "size"], ["c"], "shape"),
        helper.make_node("MatMul", ["b", "w"], ["y"], "first"),
        helper.make_node("MatMul", ["c", "w"], ["z"], "second"),
    ]
    weights = {"w": weight(8, 4), "size": np.array([-1, 8])}
    net = save(tmp_path / "net.onnx", nodes, weights, {"x": [2, 8]}, {"y": [2, 4], "z": [2, 4]})
    found = import_calibration(cache(tmp_path, "c: 3c010204"), load_model(net))
    assert found.ranges["b"].note == "it has the range of 'c'"


def test_a_calibration_of_another_model_or_dataset_is_refused(tmp_path, model):
    path = tmp_path / "calibration.json"
    calibration(AMAXES).write(path)
    with fails(InputError, "calibration.json"):
        import_calibration(path, model)
    ours = calibration(AMAXES, model=model.fingerprint)
    ours.write(path)
    assert import_calibration(path, model) == ours
    with fails(InputError, "calibration.json", "dataset"):
        import_calibration(path, model, dataset="sha256:other")


def test_only_the_tensors_asked_for_are_written(tmp_path):
    ranges = calibration(AMAXES, unranged={"dead": "no finite values were observed"})
    export_calibration(tmp_path / "t", ranges, "text", ["g"])
    assert (tmp_path / "t").read_text() == "g 0.9\n"
    with fails(InputError, "z", "dead"):
        export_calibration(tmp_path / "t", ranges, "text", ["g", "z", "dead"])


def test_a_cache_needs_the_version_that_will_read_it(tmp_path):
    with fails(InputError, "TensorRT"):
        export_calibration(tmp_path / "t", calibration(AMAXES), "tensorrt-cache")
    with fails(InputError, "qdq"):
        export_calibration(tmp_path / "t", calibration(AMAXES), "qdq")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"\x89PNG\r\n\0", b"{", b'{"a": 1}', b"hello\n"])
def test_a_file_of_no_format_is_refused(tmp_path, data):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(InputError):
        export_calibration(tmp_path / "out", read_ranges(tmp_path / "t"), "text")


def test_a_format_that_the_file_has_not_is_refused(tmp_path):
    path = cache(tmp_path, "x: 3c010204")
    for form in READABLE:
        if form != "tensorrt-cache":
            with pytest.raises(InputError):
                read_ranges(path, form)
    with fails(InputError, "magic"):
        read_ranges(path, "magic")
    with fails(InputError, "none"):
        read_ranges(tmp_path / "none")
