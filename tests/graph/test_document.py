"""What a graph page shows: nodes and edges without Q/DQ, layers, copies, islands, cards, changes."""

import json
import re
from dataclasses import replace

import pytest
from onnx import helper

from tests.fixtures.networks import conv_net, save, weight
from tests.fixtures.quantized import calibrated
from trtcal.errors import InputError
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.model import load_model
from trtcal.quantization import Plan, quantize
from trtcal.quantization.qdq import write_quantized
from trtcal.reporting.render import changed_parts
from trtcal.wings.graph.figures import figured
from trtcal.wings.graph.page import graph_document, render

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m\"&'{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return a small network in INT8, with a Relu that is a float kernel between two convolutions."""
    folder = tmp_path_factory.mktemp("graph")
    prepared, calibration, _ = calibrated(conv_net(folder / "net.onnx"), folder)
    write_quantized(folder / "int8.onnx", quantize(prepared, calibration, Plan()))
    first = figured(folder / "int8.onnx")
    tensors = [TensorInfo(name, "int8", (1, 8, 8, 8)) for name in ("p", "q", "r", "s")]
    layers = (
        Layer("first", "conv", (TensorInfo("x", "int8"),), (tensors[0],), nodes=("first",)),
        Layer("relu", "kgen", (tensors[0],), (tensors[1],), nodes=("relu1",)),
        Layer("Reformatting CopyNode", "reformat", (tensors[1],), (tensors[2],)),
        Layer(
            "second + add", "conv", (tensors[2],), (tensors[3],), nodes=("second", "add", "relu2")
        ),
    )
    built = {name: "int8" if name in ("first", "second") else None for name in first.nodes}
    built["relu1"] = "fp32"
    nodes = {name: replace(node, built=built[name]) for name, node in first.nodes.items()}
    nodes["first"] = replace(nodes["first"], why="its input is float", findings=("it is slow",))
    return replace(first, nodes=nodes, layers=layers)


@pytest.fixture(scope="module")
def document(shown):
    return graph_document([shown])


def numbers(document):
    return {name: number for number, name in enumerate(document["nodes"]["name"])}


def test_nodes_are_without_constants_and_qdq(document):
    nodes = document["nodes"]
    own = ["first", "relu1", "second", "add", "relu2", "pool", "flatten", "gemm"]
    assert nodes["name"] == ["x", *own, "y"]
    assert (nodes["op"][0], nodes["op"][-1]) == ("Input", "Output")
    assert nodes["shape"][1:3] == ["nx8x8x8", "nx8x8x8"]


def test_edges_have_the_precision_that_crosses_them(document):
    at = numbers(document)
    edges = {(start, end): precision for start, end, _, precision in document["edges"]}
    assert all(start < end for start, end in edges)
    assert edges[at["x"], at["first"]] == edges[at["relu1"], at["second"]] == "int8"
    assert edges[at["first"], at["relu1"]] == edges[at["gemm"], at["y"]] == "fp32"


def test_layers_copies_and_islands_are_those_of_the_engine(document):
    at, (engine,) = numbers(document), document["engines"]
    (hull,) = engine["layers"]
    assert hull["nodes"] == [at["second"], at["add"], at["relu2"]]
    (copy,) = engine["copies"]
    assert (copy["from"], copy["to"]) == (at["relu1"], at["second"])
    assert engine["islands"] == [[at["relu1"]]]


def test_a_card_has_facts_reason_and_command(document):
    card = document["engines"][0]["cards"][numbers(document)["first"]]
    facts = dict(card["facts"])
    assert facts["Weights"].startswith("8x3x3x3 INT8")
    assert (facts["Reads"], facts["Finding"]) == ("x", "It is slow.")
    assert card["why"] == "Its input is float."
    assert "--keep-float first " in card["command"]
    assert document["engines"][0]["cards"][0] is None


def test_overlays_are_those_of_which_something_is_known(document):
    keys = [overlay["key"] for overlay in document["overlays"]]
    assert keys[:2] == ["built", "requested"]
    assert "share" not in keys


def test_what_differs_between_two_engines_is_said(shown):
    nodes = {
        **shown.nodes,
        "first": replace(shown.nodes["first"], built="fp32", ms=2.0, loss_db=30.0),
    }
    before = {**shown.nodes, "first": replace(shown.nodes["first"], ms=1.0, loss_db=20.0)}
    document = graph_document([replace(shown, nodes=before), replace(shown, nodes=nodes)])
    assert document["changes"] == {
        str(numbers(document)["first"]): [
            "Built in INT8 first, in FP32 second.",
            "1.00 ms first, 2.00 ms second.",
            "SQNR 20.0 dB first, 30.0 dB second.",
        ]
    }
    assert len(document["engines"]) == 2
    assert {precision for *_, precision in document["edges"]} == {"int8", "fp32"}


def test_edges_in_two_precisions_have_none(shown, tmp_path):
    other = figured(conv_net(tmp_path / "net.onnx"))
    document = graph_document([shown, other])
    assert {precision for *_, precision in document["edges"]} == {"", "fp32"}


def test_two_networks_are_refused(shown, tmp_path):
    nodes = [helper.make_node("Gemm", ["a", "w"], ["b"], "other")]
    path = save(tmp_path / "n.onnx", nodes, {"w": weight(4, 4)}, {"a": ["n", 4]}, {"b": ["n", 4]})
    with pytest.raises(InputError, match="0 nodes in common"):
        graph_document([shown, figured(path)])


def test_hostile_names_end_no_element_of_the_page(tmp_path):
    nodes = [
        helper.make_node("Relu", ["a"], ["b"], HOSTILE),
        helper.make_node("Neg", ["b"], [HOSTILE]),
    ]
    path = save(tmp_path / "n.onnx", nodes, {}, {"a": ["n", 4]}, {HOSTILE: ["n", 4]})
    page = render(graph_document([figured(path)]))
    assert changed_parts(page.encode(), "page") == []
    assert "<img" not in page
    assert not {"\u202e", "\x1b"} & {*page}
    data = re.search(r'id="graph">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(data)["nodes"]["name"][1].startswith("</script>")


def test_inputs_that_nobody_reads_and_states_of_loops_are_no_error(tmp_path):
    nodes = [helper.make_node("Identity", ["a"], ["b"], "same")]
    inputs = {"a": ["n", 4], "unread": ["n", 4]}
    path = save(tmp_path / "n.onnx", nodes, {}, inputs, {"b": ["n", 4]})
    assert graph_document([figured(path)])["nodes"]["name"] == ["a", "same", "b"]
    assert load_model(path).inputs[1].name == "unread"
