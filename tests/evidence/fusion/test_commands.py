"""`trtcal layers fusions MODEL [LAYERS]` and `trtcal layers fusions diff A B`."""

import json

import numpy as np
import onnx
import pytest

from tests.evidence.fusion.graphs import GRAPHS, image
from tests.fixtures import commands
from tests.fixtures.commands import shows
from tests.fixtures.tables import each

LAYERS = {"Layers": [{"Name": name, "LayerType": "kgen"} for name in ("bn", "act")]}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("story_batch_norm", "story_layer_norm", "conv_relu"):
        GRAPHS[name].save(tmp_path)
    samples = np.random.default_rng(0).standard_normal((30, 12, 16)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=samples)
    (tmp_path / "layers.json").write_text(json.dumps(LAYERS))
    return tmp_path


def run(capsys, *arguments):
    return commands.run(capsys, "layers", "fusions", *arguments)


def test_it_says_what_breaks_a_pattern_and_what_was_built(place, capsys):
    status, out, _ = run(capsys, "story_batch_norm.onnx", "layers.json")
    assert status == 0
    shows(
        out,
        *("Identity", "same", "prediction: 1", "0 complete", "1 broken"),
        *("evidence: 2", "1 agrees", "0 differs", "0 unknown"),
    )


def test_what_is_broken_is_shown_where_not_all_is(place, capsys):
    net = image()
    a = "x"
    for number in range(130):
        a = net.act(net.conv3(f"c{number}", a), f"act{number}")
    onnx.save(net.done(net.act(net.same(net.conv3("c", a)), "last")).proto(), "long.onnx")
    status, out, _ = run(capsys, "long.onnx")
    assert status == 0
    shows(out, "Identity", "same", "31 more")


def test_options_may_come_first(place, capsys):
    status, out, _ = run(capsys, "--json", "story_batch_norm.onnx")
    assert status == 0
    document = json.loads(out)
    (match,) = document["matches"]
    assert (match["prediction"], match["evidence"], match["verdict"]) == ("broken", None, "unknown")
    assert document["findings"][0]["subject"] == "same"


def test_the_document_is_the_same_wherever_it_is_written(place, capsys):
    _, out, _ = run(capsys, "story_batch_norm.onnx", "layers.json", "--json", "-o", "a.json")
    assert json.loads(out) == json.loads((place / "a.json").read_text())
    assert str(place) not in out


def test_a_gate_fails_with_the_count(place, capsys):
    status, _, err = run(capsys, "story_batch_norm.onnx", "--fail-on-broken")
    assert (status, err.splitlines()[0]) == (1, "error: 1 of 1 patterns are broken")
    assert run(capsys, "conv_relu.onnx", "--fail-on-broken")[0] == 0


def test_an_identity_is_fixed_and_run(place, capsys):
    status, out, _ = run(capsys, "story_batch_norm.onnx", "--fix", "--random", 3, "-o", "b.onnx")
    assert status == 0
    shows(out, "fixed: norm+activation", "act", "same", "3 samples: 0")
    operators = [node.op_type for node in onnx.load("b.onnx").graph.node]
    assert operators == ["MaxPool", "BatchNormalization", "LeakyRelu"]


def test_without_data_it_says_that_nothing_was_run(place, capsys):
    out = run(capsys, "story_batch_norm.onnx", "--fix", "-o", "b.onnx")[1]
    shows(out, "--data")


def test_a_pair_goes_on_request_on_data_and_within_a_step(place, capsys):
    pair = ("story_layer_norm.onnx", "--fix", "--add", "inner-pairs", "-o", "b.onnx")
    assert run(capsys, *pair)[0] == 2
    assert run(capsys, *pair, "--random", 3)[0] == 2
    assert not (place / "b.onnx").exists()
    status, out, _ = run(capsys, *pair, "--data", "data.npz", "--json")
    assert status == 0
    document = json.loads(out)
    assert [one["root"] for one in document["fixed"]] == ["act"]
    assert document["left"]["matches"][0]["prediction"] == "whole"
    equality = document["equality"]
    assert 0 < equality["largest"] * equality["magnitudes"]["afterd:out"] < 0.051


def test_what_moves_further_than_a_step_is_not_written(place, capsys):
    proto = onnx.load("story_layer_norm.onnx")
    far = onnx.numpy_helper.from_array(np.float32(0.005), "small")  # values beyond 0.64 are cut
    proto.graph.initializer.append(far)
    for node in proto.graph.node:
        if node.name.startswith("middle"):
            node.input[1] = "small"
    onnx.save(proto, "cut.onnx")
    arguments = ("cut.onnx", "--fix", "--add", "inner-pairs", "--data", "data.npz", "-o", "b.onnx")
    status, _, err = run(capsys, *arguments)
    assert status == 1
    shows(err, "nothing was written")
    assert not (place / "b.onnx").exists()


def test_nothing_to_fix_writes_nothing(place, capsys):
    status, _, err = run(capsys, "conv_relu.onnx", "--fix", "-o", "b.onnx")
    assert (status, err.splitlines()[1]) == (1, "hint: no pattern is broken")
    assert not (place / "b.onnx").exists()


@each(
    "arguments, name",
    [
        (["none.onnx"], "none.onnx"),
        (["layers.json"], "layers.json"),
        (["conv_relu.onnx", "none.log"], "none.log"),
        (["conv_relu.onnx", "conv_relu.onnx"], "an ONNX model"),
        (["conv_relu.onnx", "--add", "inner-pairs"], "--fix"),
        (["conv_relu.onnx", "--patterns", "none.toml"], "none.toml"),
        (["diff", "conv_relu.onnx", "layers.json"], "layers.json"),
        (["diff", "conv_relu.onnx"], "missing argument"),
    ],
)
def test_errors_are_one_line_and_status_2(arguments, name, place, capsys):
    status, out, err = run(capsys, *arguments)
    assert status == 2
    shows(err, name)
    assert not out
    assert [line.split(":")[0] for line in err.splitlines()][:2] == ["error", "hint"]
    assert len(err.splitlines()) <= 3


def test_hostile_names_disturb_nothing(place, capsys):
    proto = onnx.load("story_batch_norm.onnx")
    names = {"bn": "[red]\x1b[31m\n", "same": "\u202e, a + b\r", "act": "'; DROP \x00"}
    for node in proto.graph.node:
        node.name = names.get(node.name, node.name)
    onnx.save(proto, "hostile.onnx")
    status, out, err = run(capsys, "hostile.onnx")
    assert status == 0
    assert not {"\x1b", "\u202e", "\r", "\x00"} & set(out + err)
    status, out, _ = run(capsys, "hostile.onnx", "--json", "-o", "a.json")
    assert json.loads(out)["findings"][0]["subject"] == names["same"]
    assert run(capsys, "diff", "hostile.onnx", "a.json")[0] == 0


def test_diff_says_what_was_made_in_the_prediction(place, capsys):
    run(capsys, "story_batch_norm.onnx", "--fix", "-o", "b.onnx")
    status, out, _ = run(capsys, "diff", "story_batch_norm.onnx", "b.onnx", "--json")
    assert status == 0
    (change,) = json.loads(out)["changes"]
    assert (change["kind"], change["what"], change["subject"]) == ("better", "prediction", "act")
    (change,) = json.loads(run(capsys, "diff", "b.onnx", "story_batch_norm.onnx", "--json")[1])[
        "changes"
    ]
    assert (change["kind"], change["before"]) == ("worse", "norm+activation whole")
    assert change["after"] == "norm+activation broken: Identity 'same' is in between"


def test_diff_says_what_was_broken_in_the_evidence(place, capsys):
    together = {"Layers": [{"Name": "bn + act", "LayerType": "kgen"}]}
    (place / "together.json").write_text(json.dumps(together))
    run(capsys, "story_batch_norm.onnx", "together.json", "-o", "a.json")
    run(capsys, "story_batch_norm.onnx", "layers.json", "-o", "b.json")
    (change,) = json.loads(run(capsys, "diff", "a.json", "b.json", "--json")[1])["changes"]
    assert (change["kind"], change["what"]) == ("worse", "evidence")
    assert (change["before"], change["after"]) == ("1 layer", "2 layers")
    out = run(capsys, "diff", "a.json", "a.json")[1]
    shows(out, "0 worse", "0 better", "0 changed", "0 gone", "0 new", "1 unchanged")


def test_diff_says_which_matches_are_gone_or_new(place, capsys):
    out = run(capsys, "diff", "conv_relu.onnx", "story_layer_norm.onnx", "--json")[1]
    assert [one["subject"] for one in json.loads(out)["changes"]] == ["act"]  # the name is one
    proto = onnx.load("conv_relu.onnx")
    proto.graph.node[1].name = "other"
    onnx.save(proto, "other.onnx")
    out = run(capsys, "diff", "conv_relu.onnx", "other.onnx", "--json")[1]
    kinds = {one["subject"]: one["kind"] for one in json.loads(out)["changes"]}
    assert kinds == {"act": "gone", "other": "new"}


def test_an_altered_document_is_refused(place, capsys):
    run(capsys, "story_batch_norm.onnx", "-o", "a.json")
    text = (place / "a.json").read_text().replace('"broken"', '"whole"')
    (place / "a.json").write_text(text)
    status, _, err = run(capsys, "diff", "a.json", "a.json")
    assert status == 2
    shows(err, "was changed after it was written")
