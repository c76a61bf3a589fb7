"""The evidence: what layer lists show, from real builds and from lists written by hand."""

import dataclasses
import json
import re

import pytest

from tests.evidence.fusion.graphs import GRAPHS, STORIES
from tests.fixtures.fails import fails
from tests.fixtures.slow import slow_but
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.errors import InputError
from trtcal.evidence.fusion.fusions import ON_REQUEST, check_fusions, fix_fusions
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.reading import Engine, read_engine

RTX = BACKENDS["tensorrt-rtx"].availability()
needs_rtx = pytest.mark.skipif(not RTX.works, reason=str(RTX.missing))

VERSION = "1.7.1"
"""The TensorRT-RTX of which what follows was seen; another may fuse more or less."""
SEPARATE = {
    "attention": {"qkv"}, "attention_masked": {"qkv"}, "attention_quantized": {"qkv"},
    "conv_bn": {"bn"}, "conv_bn_relu": {"act"}, "conv_bn_swish": {"mul"},
    "conv_hard_swish": {"h1"}, "conv_leaky": {"act"}, "conv_prelu": {"act"},
    "instance_norm_leaky": {"act"}, "inverted_residual": {"bn3"}, "residual_normed": {"bn"},
}  # fmt: skip
"""Whole by prediction, and several layers: graph -> roots."""
ACROSS = {
    "conv_dropout_relu": {"act"},
    "conv_transposes_relu": {"act"},
    "half_conv_casts_relu": {"act"},
    "layer_norm_identity_leaky": {"act"},
    "matmul_dropout_add_relu": {"act"},
    "matmul_identity_gelu": {"h1"},
    "residual_identity": {"act"},
    "story_batch_norm": {"act"},
    "story_layer_norm": {"act"},
}
"""Broken by prediction, and one layer all the same."""


def built(model, folder):
    build(model, BACKENDS["tensorrt-rtx"], BuildOptions("sm89"), folder)
    return check_fusions(model, layers=read_engine(folder))


@needs_rtx
@pytest.mark.parametrize("name", slow_but(GRAPHS, *sorted(GRAPHS)[::8]))
def test_the_layers_of_every_graph(name, tmp_path):
    """Counted a second time in the log; agreements and differences are those that are recorded."""
    found = built(GRAPHS[name].save(tmp_path), tmp_path / "build")
    lines = [
        line
        for line in (tmp_path / "build" / "build.log").read_text(errors="replace").splitlines()
        if "LayerType: " in line
    ]
    for match, seen in zip(found.matches, found.seen, strict=True):
        wanted = re.compile("|".join(rf"\[ONNX Layer: {re.escape(n)}\]" for n in match.nodes))
        assert len(seen.layers) == sum(bool(wanted.search(line)) for line in lines) > 0
    differing = {
        match.root: match.state
        for match, said in zip(found.matches, found.verdicts, strict=True)
        if said == "differs"
    }
    findings = [one.subject for one in found.findings if one.kind == "fusion_differs"]
    assert sorted(findings) == sorted(differing)
    if RTX.version.startswith(VERSION):
        expected = dict.fromkeys(SEPARATE.get(name, ()), "whole")
        assert differing == expected | dict.fromkeys(ACROSS.get(name, ()), "broken")


@needs_rtx
@pytest.mark.parametrize("name", slow_but(STORIES, *sorted(STORIES)[::8]))
def test_the_stories_are_one_layer_before_and_after_fixing(name, tmp_path):
    given = GRAPHS[name].save(tmp_path)
    before = built(given, tmp_path / "before")
    fixed = fix_fusions(given, before, ON_REQUEST).model
    after = built(fixed, tmp_path / "after")
    assert (before.matches[0].state, after.matches[0].state) == ("broken", "whole")
    if RTX.version.startswith(VERSION):
        assert (before.seen[0].state, after.seen[0].state) == ("one layer", "one layer")


def tensor(name, dtype="fp32"):
    return TensorInfo(name, dtype, (1, 8, 4, 4))


def layer(name, nodes, inputs=("a",), outputs=("b",), kind="kgen"):
    tensors = (tuple(map(tensor, names)) for names in (inputs, outputs))
    return Layer(name, kind, *tensors, nodes=tuple(nodes))


def checked(layers, folder, name="conv_relu"):
    model = GRAPHS[name].save(folder)
    return check_fusions(model, layers=Engine("by hand", tuple(layers)))


def test_layers_that_only_synchronize_and_compiled_subgraphs_do_not_count(tmp_path):
    wait = layer("wait", ["c", "act"], (), (), "wait")
    found = checked([layer("one", ["c", "act"]), wait], tmp_path)
    assert (found.seen[0].state, found.verdicts) == ("one layer", ("agrees",))
    found = checked([layer("{ForeignNode[c...act]}", ["c", "act"], kind="Myelin")], tmp_path)
    assert (found.seen[0].state, found.verdicts) == ("opaque", ("unknown",))


def test_several_layers_are_a_finding_with_what_they_pass_on(tmp_path):
    layers = [layer("one", ["c"], ["a"], ["b"]), layer("two", ["act"], ["b"], ["d"])]
    found = checked(layers, tmp_path)
    (finding,) = found.findings
    assert (finding.kind, finding.subject) == ("fusion_differs", "act")
    assert [one.place for one in finding.evidence] == ["one", "two"]
    assert finding.cost.moved_bytes == 2 * 8 * 4 * 4 * 4


def test_nodes_that_no_layer_lists_are_said_and_decide_nothing(tmp_path):
    found = checked([layer("one", ["c"])], tmp_path)
    assert (found.seen[0].unlisted, found.seen[0].state) == (("act",), "one layer")
    found = checked([layer("one", ["elsewhere"])], tmp_path)
    assert (found.seen[0].state, found.verdicts) == ("not listed", ("unknown",))
    assert found.findings == ()


def test_a_broken_fusion_that_the_engine_has_in_one_layer_costs_nothing(tmp_path):
    found = checked([layer("one", ["bn", "act"])], tmp_path, "story_batch_norm")
    assert {one.kind: one.cost.moved_bytes for one in found.findings} == {
        "broken_fusion": None,
        "fusion_differs": None,
    }


def test_names_that_the_list_cut_into_pieces_are_found(tmp_path):
    given = GRAPHS["conv_relu"].save(tmp_path)
    given.proto.graph.node[0].name = "a + c"
    whole = Engine("by hand", (layer("a + c + act", ["a", "c", "act"]),))
    seen = check_fusions(given, layers=whole).seen[0]
    assert (seen.state, seen.unlisted) == ("one layer", ())


INSPECTOR = {"Layers": [{"Name": "c + act", "LayerType": "CaskConvolution"}], "Bindings": []}


def test_the_forms_in_which_layers_come(tmp_path):
    (tmp_path / "inspected.json").write_text(json.dumps(INSPECTOR))
    (tmp_path / "build.log").write_text(
        "[V] Engine Layer Information:\n"
        "Layer(CaskConvolution): c + act, Tactic: 0x01, x[Float(1,8,12,12)] -> y[Float(1,8,12,12)]\n"
    )
    one = dataclasses.replace(layer("one", ["c", "act"]), tactic="t")
    (tmp_path / "log.json").write_text(json.dumps({"layers": [one.to_document()]}))
    for name in ("inspected.json", "build.log", "log.json"):
        assert read_engine(tmp_path / name).layers[0].nodes == ("c", "act"), name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", ["x.json", "JSON"]), ("[]", ["x.json"]), ("{}", ["Layers"]),
        ('{"Layers": []}', ["layers"]), ('{"layers": [3]}', ["field"]),
    ],
)  # fmt: skip
def test_what_holds_no_layers_is_refused(text, names, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with fails(InputError, *names):
        read_engine(tmp_path / "x.json")


def test_a_folder_without_a_build_is_refused(tmp_path):
    with fails(InputError, "build.json"):
        read_engine(tmp_path)
