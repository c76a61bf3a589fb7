"""The figures of nodes: of a run, of one of its builds, of a model, and what has none."""

import pytest

from tests.graph.conftest import DIGITS, KERNELS
from trtcal.documents import write_json
from trtcal.errors import InputError
from trtcal.wings.graph.figures import figured


def test_a_run_gives_what_each_node_got_lost_and_takes(run):
    shown = figured(run)
    assert (shown.title, len(shown.layers)) == ("int8 for sm89", 3)
    assert set(shown.nodes) == {node.name for node in shown.model.proto.graph.node}
    conv = shown.nodes["stem/conv"]
    assert (conv.requested, conv.built, conv.why) == ("int8", "fp32", "its input is float")
    assert (conv.loss_db, conv.clipped, conv.layer) == (31.5, 0.75, KERNELS[0])
    assert (conv.ms, conv.is_measured, conv.bytes) == (0.5, True, 2000)
    relu, add = shown.nodes["stem/relu6"], shown.nodes["block1/add"]
    assert (relu.ms, relu.layer, relu.built) == (None, KERNELS[0], "fp32")
    assert (add.ms, add.bytes, add.built, add.loss_db) == (0.25, 500, "int8", None)
    assert sum(node.ms or 0 for node in shown.nodes.values()) == 0.875  # each kernel once


def test_a_build_of_a_run_has_the_figures_of_the_run(run):
    shown = figured(run / "builds" / "0")
    assert shown.nodes["stem/conv"].loss_db == 31.5


def test_measured_sensitivities_are_shares_of_the_loss(run):
    losses = {"whole": 0.5, "alone": 0.125, "left": 0.375}
    loss = {name: {"samples": 8, "noise": value} for name, value in losses.items()}
    rows = [{"layer": "head/gemm", "op": "Gemm", **loss}]
    write_json(
        run / "sensitivity.json", {"kind": "sensitivity", "measure": "noise", "layers": rows}
    )
    assert figured(run).nodes["head/gemm"].share == 0.25


def test_of_a_model_alone_the_layers_are_predicted():
    shown = figured(DIGITS / "digits.onnx", target="t4")
    assert (shown.title, shown.build) == ("digits, predicted for TensorRT on T4", None)
    conv = shown.nodes["stem/conv"]
    assert (conv.built, conv.is_measured) == ("fp32", False)
    assert conv.ms > 0
    assert conv.bytes > 0
    assert conv.macs > 0


def test_bad_input_says_what_there_is(run, lone_build, tmp_path):
    with pytest.raises(InputError, match="has no int4 for sm80") as error:
        figured(run, "int4", "sm80")
    assert error.value.hint == "it has int8 for sm89"
    with pytest.raises(InputError, match="has no model of what was built"):
        figured(lone_build)
    text = tmp_path / "model.txt"
    text.write_text("no model")
    with pytest.raises(InputError, match="neither a model nor a folder"):
        figured(text)
    with pytest.raises(InputError, match="neither a comparison nor a build"):
        figured(DIGITS.parent / "common")
