"""Models that were cut: their variants are judged on the outputs of the whole model."""

import onnx
import pytest
from onnx import helper

from tests.fixtures.networks import conv_net, detection_net, rng
from trtcal import BuildOptions, ab_test, build, calibrate, compare, load_model, quantize, search
from trtcal.evaluate.variants import open_variant
from trtcal.model.cut import cut
from trtcal.model.files import write_onnx


def images(count, seed):
    return {"x": rng(seed).standard_normal((count, 3, 8, 8)).astype("float32")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("bodies")
    whole = load_model(detection_net(path / "whole.onnx"))
    write_onnx(path / "body.onnx", cut(whole, ["boxes", "scores"]).proto)
    body = load_model(path / "body.onnx")
    calibration = calibrate(body, images(24, 1), "minmax")
    calibration.write(path / "c.json")
    quantize(body, calibration, output=path / "int8.onnx")
    return path


def test_variants_of_a_body_have_the_outputs_of_the_whole(place):
    variant = open_variant(place / "int8.onnx")
    assert [spec.name for spec in variant.outputs] == ["y", "classes"]
    assert "ONNX Runtime computes y after the cut" in variant.cut
    for reference in ("whole.onnx", "body.onnx"):
        compared = compare(place / reference, [place / "int8.onnx"], images(20, 2), rounds=2)
        assert [one.name for one in compared.rows[1].outputs] == ["y", "classes"]
        assert compared.rows[1].cut == variant.cut
    made = build(place / "int8.onnx", place / "build", options=BuildOptions("cpu"))
    compared = compare(place / "body.onnx", {"engine": made}, images(20, 2), rounds=2)
    assert [one.name for one in compared.rows[1].outputs] == ["y", "classes"]


def test_an_ab_test_and_a_search_judge_the_whole(place):
    tested = ab_test(place / "whole.onnx", place / "int8.onnx", images(20, 2))
    assert set(tested.task.outputs) == {"y", "classes"}
    result = search(place / "body.onnx", place / "c.json", images(20, 2))
    assert result.tested is not None
    assert set(result.tested.task.outputs) == {"y", "classes"}


def test_a_rest_that_does_not_run_is_judged_at_the_cut(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    proto.graph.node[4].op_type, proto.graph.node[4].domain = "Magic", "mine"
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    write_onnx(tmp_path / "body.onnx", cut(load_model(proto), ["d"]).proto)
    body = load_model(tmp_path / "body.onnx")
    int8 = quantize(body, calibrate(body, images(24, 1), "minmax"))
    compared = compare(tmp_path / "body.onnx", {"int8": int8}, images(20, 2), rounds=2)
    assert [one.name for one in compared.rows[1].outputs] == ["d"]
    assert "judged at d" in compared.rows[1].cut
    verdict = ab_test(tmp_path / "body.onnx", int8, images(20, 2)).verdict
    assert any("judged at d" in warning for warning in verdict.warnings)
