"""`trtcal layers` from the command line."""

import json

import pytest

from tests.evidence.layers.engines import float_residual, int8_residual, write
from tests.fixtures.commands import answer, run, succeed
from tests.fixtures.networks import conv_net
from tests.fixtures.tables import each


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", float_residual())
    write(tmp_path / "b", int8_residual())
    return tmp_path


LAYERS, GPU = "layers", ("--gpu", "l4")


def test_show_prints_shares_layers_findings_and_sums(place, capsys):
    status, out, err = run(capsys, LAYERS, "show", "a", "--gpu", "a100-sxm4-40gb", "--top", 4)
    assert (status, "a/profile.json" in err) == (0, True)
    for text in (
        *("60.9 %", "share of time", "estimates for A100", "unfused_qdq: a quantize"),
        *("layer QuantizeLinear_2", "copies, origin QDQ: 3, 0.11 ms", "10 layers, 0.64 ms"),
        "2 more findings",
    ):
        assert text in out


def test_show_without_times_shares_bytes(place, capsys):
    status, out, err = run(capsys, LAYERS, "show", "a/graph.json")
    assert (status, err) == (0, "")
    assert "share of bytes" in out
    assert "no times" in out


def test_json_is_all_that_json_prints(place, capsys):
    status, out, err = run(capsys, LAYERS, "show", "a", "--json", "--gpu", "t4")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert len(document["layers"]) == 10
    assert sum(one["time_ms"] for one in document["by_precision"]) == pytest.approx(0.64)
    assert document["layers"][1]["estimate"]["bound"] == "launch"
    assert document["target"] == "T4"
    estimate = document["estimate"]
    assert estimate["low_ms"] < estimate["ms"] < estimate["high_ms"]
    assert (estimate["kernels"], estimate["compiler"]) == (9, "TensorRT")
    assert document["total_ms"] == pytest.approx(0.64)  # the measured time stands beside it


def test_a_measured_engine_shows_no_estimate_of_its_time(place, capsys):
    assert "estimate for" not in succeed(capsys, LAYERS, "show", "a", "--gpu", "t4")
    out = succeed(capsys, LAYERS, "show", "a/graph.json", "--gpu", "t4")
    assert "estimate for TensorRT on T4: " in out
    assert "9 kernels: too small to estimate well, launch time decides" in out


def dynamic(path):
    """Write an engine of TensorRT-RTX's, by its kernels, whose batch is known only at run time."""
    tensor = {"name": "x", "dtype": "fp32", "shape": [-1, 1000]}
    layer = {"name": "a", "kind": "correlation", "inputs": [tensor], "outputs": [tensor]}
    stub = {**layer, "tactic": "__myelin_CASK_STUB", "macs": 10**9}
    path.write_text(json.dumps({"layers": [layer | {"kind": "kgen"}, stub]}))


def test_the_sizes_of_a_dynamic_batch_are_said_and_may_be_given(place, capsys):
    dynamic(place / "rtx.json")
    document = answer(capsys, LAYERS, "show", "rtx.json", "--gpu", "t4")
    estimate = document["estimate"]
    assert estimate["compiler"] == "TensorRT-RTX"
    sizes = [(size["size"], size["batch"]) for size in estimate["sizes"]]
    assert sizes == [("least", 1), ("usual", 8), ("largest", 32)]
    assert estimate["ms"] == estimate["sizes"][1]["ms"]
    assert document["layers"][1]["macs"] == 8 * 10**9
    given = ("show", "rtx.json", "--gpu", "t4", "--shapes", "x=2x1000:4x1000:16x1000")
    out = succeed(capsys, LAYERS, *given)
    assert "at a batch of 2, " in out
    assert "at a batch of 16; 2 kernels" in out


def test_tables_say_their_batch_which_is_the_same_without_a_gpu(place, capsys):
    dynamic(place / "rtx.json")
    alone, beside = (answer(capsys, LAYERS, "show", "rtx.json", *more) for more in ((), GPU))
    assert alone["moved_bytes"] == beside["moved_bytes"] == 2 * 2 * 8 * 1000 * 4
    out = succeed(capsys, LAYERS, "show", "rtx.json", *GPU)
    assert "rtx.json, at a batch of 8; estimates for L4" in out
    assert "efficiency" not in out
    assert "estimate for TensorRT-RTX on L4, with TF32: " in out
    assert "TF32" not in succeed(capsys, LAYERS, "show", "rtx.json", "--gpu", "t4")


def test_of_a_model_the_layers_are_predicted(place, capsys):
    conv_net(place / "net.onnx")
    document = answer(capsys, LAYERS, "show", "net.onnx", "--gpu", "a100")
    kinds = [layer["kind"] for layer in document["layers"]]
    assert "Convolution" in kinds
    assert "predicted for TensorRT" in document["notes"][0]
    assert document["estimate"]["kernels"] == sum(kind != "NoOp" for kind in kinds)


def test_diff_explains_and_gives_the_records(place, capsys):
    out = succeed(capsys, LAYERS, "diff", "a", "b")
    assert "The total went from 0.640 ms to 0.340 ms" in out
    profiles = ("--profile-a", "a/profile.json", "--profile-b", "b/profile.json")
    document = answer(capsys, LAYERS, "diff", "a/graph.json", "b/graph.json", *profiles)
    assert document["unit"] == "ms"
    assert len(document["reformats_gone"]) == 3
    assert document["in_words"][0].startswith("The total went from")


@each(
    "line",
    [
        *("show none", "show .", "show a --profile none.json", "show a --gpu none"),
        *("show a --shapes x=1x3", "show a/graph.json --gpu t4 --shapes x=1:2"),
        *("show a/profile.json", "diff a none", "diff a b --profile-a a/graph.json"),
    ],
)
def test_what_is_wrong_is_said_with_status_2(place, capsys, line):
    status, out, err = run(capsys, LAYERS, *line.split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert "hint: " in err


def test_names_cannot_disturb_the_terminal(place, capsys):
    timed = float_residual()
    timed[2][0]["Name"] = "pool\x1b[31m\n\u202ered"
    write(place / "c", timed)
    out = succeed(capsys, LAYERS, "show", "c/graph.json")
    assert not {"\x1b", "\u202e"} & set(out)
