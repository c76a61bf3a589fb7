import numpy as np
import onnx
import pytest

from tests.fixtures.commands import answer, refused, run, succeed
from tests.fixtures.networks import conv_net, detection_net, samples
from tests.model.passes.graphs import ALL


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    proto.graph.node[1].output[0] = "b0"
    proto.graph.node.insert(2, onnx.helper.make_node("Identity", ["b0"], ["b"], "same"))
    onnx.save(proto, tmp_path / "net.onnx")
    samples(tmp_path / "data.npz")
    return tmp_path


def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]


PREPARE = ("prepare", "net.onnx", "-o", "out.onnx")
DATA = ("--data", "data.npz")


def test_the_prepared_model_is_written_after_it_was_run(place, capsys):
    out = succeed(capsys, *PREPARE, *DATA)
    assert "24 samples" in out
    assert all(name in out for name in ALL)
    assert "Identity" not in operators("out.onnx")


def test_without_data_it_says_that_nothing_was_run(place, capsys):
    assert "--data" in succeed(capsys, *PREPARE, "--skip-pass", "identities")
    assert "Identity" in operators("out.onnx")


def test_random_inputs_are_used_only_where_asked_and_said(place, capsys):
    status, out, err = run(capsys, *PREPARE, "--random", 5)
    assert (status, "5 random samples" in out, "random" in err) == (0, True, True)
    refused(capsys, *PREPARE, "--random", 5, *DATA)


def test_json_has_records_and_differences(place, capsys):
    document = answer(capsys, *PREPARE, *DATA)
    assert [one["name"] for one in document["passes"]] == ALL
    assert document["equality"]["samples"] == 24
    assert document["equality"]["largest"] <= document["equality"]["tolerance"]
    assert {one["name"] for one in answer(capsys, "prepare", "--list")["passes"]} == set(ALL)


def round_in_the_middle():
    """Put Casts to float16 and back in the place of the Identity."""
    proto, node = onnx.load("net.onnx"), onnx.helper.make_node
    del proto.graph.node[2]
    proto.graph.node.insert(2, node("Cast", ["b0"], ["h"], "down", to=onnx.TensorProto.FLOAT16))
    proto.graph.node.insert(3, node("Cast", ["h"], ["b"], "up", to=onnx.TensorProto.FLOAT))
    onnx.save(proto, "net.onnx")


def test_a_rounding_cast_that_was_asked_for_is_within_its_types_rounding(place, capsys):
    round_in_the_middle()
    succeed(capsys, *PREPARE, *DATA)
    assert operators("out.onnx").count("Cast") == 2
    succeed(capsys, *PREPARE, *DATA, "--add", "rounding-casts")
    assert "Cast" not in operators("out.onnx")


def test_a_difference_beyond_rounding_fails_and_writes_nothing(place, capsys):
    round_in_the_middle()  # of these data, what is too large for a float16
    np.savez("data.npz", x=np.load("data.npz")["x"] * np.float32(1e6))
    err = refused(capsys, *PREPARE, *DATA, "--add", "rounding-casts", status=1)
    assert "'y'" in err
    assert not (place / "out.onnx").exists()
    succeed(capsys, *PREPARE, *DATA)


@pytest.mark.parametrize("line", ["calibrate net.onnx --data data.npz", "quantize net.onnx -o q"])
def test_calibrate_and_quantize_take_the_same_names(place, capsys, line):
    command = line.split()
    succeed(capsys, "calibrate", "net.onnx", *DATA)
    succeed(capsys, *command, "--skip-pass", "identities")
    assert "'identity'" in refused(capsys, *command, "--skip-pass", "identity")
    (place / "trtcal.toml").write_text('[prepare]\nskip = ["identity"]\n')
    assert "'identity'" in refused(capsys, *command)


def test_the_configuration_skips_passes(place, capsys):
    (place / "trtcal.toml").write_text('model = "net.onnx"\n[prepare]\nskip = ["identities"]\n')
    succeed(capsys, "prepare", "-o", "out.onnx")
    assert "Identity" in operators("out.onnx")
    succeed(capsys, "calibrate", *DATA)
    succeed(capsys, "quantize", "-o", "int8.onnx")
    assert "Identity" in operators("int8.onnx")


def test_random_inputs_of_open_sizes_are_refused(place, capsys):
    proto = onnx.load("net.onnx")
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(proto, "net.onnx")
    assert "x: float32[n, 3, height, 8]" in refused(capsys, *PREPARE, "--random", 2)


def test_drawn_inputs_are_the_same_each_time(place):
    from trtcal.data.feeds import draw_batches
    from trtcal.model import load_model

    model = load_model(place / "net.onnx")
    first, again = (list(draw_batches(model, 5, 2)) for _ in range(2))
    assert [len(feeds["x"]) for feeds in first] == [2, 2, 1]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])


@pytest.fixture
def detector(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    detection_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz")
    return tmp_path


CUT = ("prepare", "net.onnx", "-o", "body.onnx", "--outputs")


def test_a_cut_keeps_what_the_outputs_need_and_carries_the_rest(detector, capsys):
    out = succeed(capsys, *CUT, "boxes,scores", *DATA)
    assert "24 samples: 0 " in out
    assert "1 NonMaxSuppression" in out
    assert "NonMaxSuppression" not in operators("body.onnx")
    cut = answer(capsys, *CUT, "boxes,scores", *DATA)["cut"]
    assert cut["at"] == ["boxes", "scores", "classes"]
    assert cut["outputs"] == ["y", "classes"]
    assert "names: boxes" in refused(capsys, *CUT, "boxen")


def test_a_build_of_a_body_stands_beside_the_whole_model_and_the_body(detector, capsys):
    with np.load("data.npz") as labelled:
        np.savez("plain.npz", x=labelled["x"])
    succeed(capsys, *CUT, "boxes,scores")
    (detector / "other.onnx").write_bytes((detector / "body.onnx").read_bytes())
    succeed(capsys, "build", "other.onnx", "--target", "cpu", "-o", "built")
    for reference in ("net.onnx", "body.onnx"):
        words = ("compare", reference, "built", "--data", "plain.npz", "--rounds", 2)
        status, out, err = run(capsys, *words)
        assert status == 0, err
        assert "ONNX Runtime computes y after the cut" in out + err
