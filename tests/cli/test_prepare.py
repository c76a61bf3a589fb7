import json

import numpy as np
import onnx
import pytest

from tests.fixtures.commands import refused, run, succeed
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


def test_the_prepared_model_is_written_after_it_was_run(place, capsys):
    out = succeed(capsys, "prepare", "net.onnx", "--data", "data.npz", "-o", "out.onnx")
    assert "largest relative difference over 24 samples: " in out
    assert all(name in out for name in ALL)
    assert "Identity" not in operators("out.onnx")


def test_without_data_it_says_that_nothing_was_run(place, capsys):
    out = succeed(capsys, "prepare", "net.onnx", "-o", "out.onnx", "--skip-pass", "identities")
    assert "not run: give --data" in out
    assert "Identity" in operators("out.onnx")


def test_random_inputs_are_used_only_where_asked_and_said(place, capsys):
    status, out, err = run(capsys, "prepare", "net.onnx", "--random", 5, "-o", "out.onnx")
    assert status == 0
    assert "over 5 random samples" in out
    assert "random inputs show less" in err
    both = ("--random", 5, "--data", "data.npz")
    assert run(capsys, "prepare", "net.onnx", *both, "-o", "b.onnx")[0] == 2


def test_json_has_records_and_differences(place, capsys):
    _, out, _ = run(capsys, "prepare", "net.onnx", "--data", "data.npz", "-o", "out.onnx", "--json")
    document = json.loads(out)
    assert [one["name"] for one in document["passes"]] == ALL
    assert document["equality"]["samples"] == 24
    assert document["equality"]["largest"] <= document["equality"]["tolerance"]
    out = succeed(capsys, "prepare", "--list", "--json")
    assert {one["name"] for one in json.loads(out)["passes"]} == set(ALL)


def round_in_the_middle():
    """Put Casts to float16 and back in the place of the Identity."""
    proto, node = onnx.load("net.onnx"), onnx.helper.make_node
    del proto.graph.node[2]
    proto.graph.node.insert(2, node("Cast", ["b0"], ["h"], "down", to=onnx.TensorProto.FLOAT16))
    proto.graph.node.insert(3, node("Cast", ["h"], ["b"], "up", to=onnx.TensorProto.FLOAT))
    onnx.save(proto, "net.onnx")


def test_a_rounding_cast_that_was_asked_for_is_within_its_types_rounding(place, capsys):
    round_in_the_middle()
    arguments = ("prepare", "net.onnx", "--data", "data.npz", "-o", "out.onnx")
    assert run(capsys, *arguments)[0] == 0
    assert operators("out.onnx").count("Cast") == 2
    assert run(capsys, *arguments, "--add", "rounding-casts")[0] == 0
    assert "Cast" not in operators("out.onnx")


def test_a_difference_beyond_rounding_fails_and_writes_nothing(place, capsys):
    round_in_the_middle()  # of these data, what is too large for a float16
    np.savez("data.npz", x=np.load("data.npz")["x"] * np.float32(1e6))
    arguments = ("prepare", "net.onnx", "--data", "data.npz", "-o", "out.onnx")
    err = refused(capsys, *arguments, "--add", "rounding-casts", status=1)
    assert "error: the outputs of the prepared model differ ('y' by " in err
    assert not (place / "out.onnx").exists()
    assert run(capsys, *arguments)[0] == 0


@pytest.mark.parametrize("command", [
    ("calibrate", "net.onnx", "--data", "data.npz"), ("quantize", "net.onnx", "-o", "int8.onnx"),
])  # fmt: skip
def test_calibrate_and_quantize_take_the_same_names(place, capsys, command):
    assert run(capsys, "calibrate", "net.onnx", "--data", "data.npz")[0] == 0
    assert run(capsys, *command, "--skip-pass", "identities")[0] == 0
    status, _, err = run(capsys, *command, "--skip-pass", "identity")
    assert (status, "'identity' is not a preparation pass" in err) == (2, True)
    (place / "trtcal.toml").write_text('[prepare]\nskip = ["identity"]\n')
    status, _, err = run(capsys, *command)
    assert (status, "'identity' is not a preparation pass" in err) == (2, True)


def test_the_configuration_skips_passes(place, capsys):
    (place / "trtcal.toml").write_text('model = "net.onnx"\n[prepare]\nskip = ["identities"]\n')
    assert run(capsys, "prepare", "-o", "out.onnx")[0] == 0
    assert "Identity" in operators("out.onnx")
    assert run(capsys, "calibrate", "--data", "data.npz")[0] == 0
    assert run(capsys, "quantize", "-o", "int8.onnx")[0] == 0
    assert "Identity" in operators("int8.onnx")


def test_random_inputs_of_open_sizes_are_refused(place, capsys):
    proto = onnx.load("net.onnx")
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(proto, "net.onnx")
    err = refused(capsys, "prepare", "net.onnx", "--random", 2, "-o", "out.onnx")
    assert "x: float32[n, 3, height, 8]" in err


def test_drawn_inputs_are_the_same_each_time(place):
    from trtcal.data.feeds import draw_batches
    from trtcal.model import load_model

    model = load_model(place / "net.onnx")
    first, again = (list(draw_batches(model, 5, 2)) for _ in range(2))
    assert [len(feeds["x"]) for feeds in first] == [2, 2, 1]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])


def test_a_cut_keeps_what_the_outputs_need_and_carries_the_rest(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    detection_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz")
    given = "prepare", "net.onnx", "--outputs", "boxes,scores", "--data", "data.npz"
    out = succeed(capsys, *given, "-o", "body.onnx")
    assert "over 24 samples: 0 " in out
    assert "1 NonMaxSuppression" in out
    assert "NonMaxSuppression" not in operators("body.onnx")
    document = json.loads(run(capsys, *given, "-o", "body.onnx", "--json")[1])
    assert document["cut"]["at"] == ["boxes", "scores", "classes"]
    assert document["cut"]["outputs"] == ["y", "classes"]
    err = refused(capsys, "prepare", "net.onnx", "--outputs", "boxen", "-o", "b.onnx")
    assert "tensors with similar names: boxes" in err


def test_a_build_of_a_body_stands_beside_the_whole_model_and_the_body(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    detection_net(tmp_path / "net.onnx")
    samples(tmp_path / "labelled.npz")
    with np.load("labelled.npz") as labelled:
        np.savez("data.npz", x=labelled["x"])
    cut = run(capsys, "prepare", "net.onnx", "--outputs", "boxes,scores", "-o", "body.onnx")
    assert cut[0] == 0
    (tmp_path / "other.onnx").write_bytes((tmp_path / "body.onnx").read_bytes())
    assert run(capsys, "build", "other.onnx", "--target", "cpu", "-o", "built")[0] == 0
    for reference in ("net.onnx", "body.onnx"):
        words = "compare", reference, "built", "--data", "data.npz", "--rounds", "2"
        status, out, err = run(capsys, *words)
        assert status == 0, err
        assert "ONNX Runtime computes y after the cut" in out + err
