"""`trtcal export`: node data for Model Explorer, a model with metadata for Netron."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.fixtures import commands
from tests.graph.conftest import DIGITS
from trtcal.errors import InputError
from trtcal.wings.graph.figures import figured
from trtcal.wings.graph.viewers import export_model_explorer, export_netron


def test_node_data_are_values_and_colors_by_graph_and_node(run, tmp_path):
    shown = figured(run)
    (tmp_path / "share-of-loss.json").write_text("{}")  # of an export that knew more
    model, *files = export_model_explorer(shown, tmp_path)
    proto = onnx.load(model)
    known = {path.stem: json.loads(path.read_text()) for path in files}
    assert known.keys() == {path.stem for path in tmp_path.glob("*.json")}
    assert known.keys() >= {"precision-built", "precision-requested", "sqnr-db", "ms-measured"}
    names = {node.name for node in proto.graph.node}
    for document in known.values():
        (data,) = document.values()
        assert [*document] == [proto.graph.name]
        assert data["results"].keys() <= names
    requested = known["precision-requested"][proto.graph.name]["results"]["stem/conv"]
    assert requested == {"value": "int8, missed: fp32", "bgColor": "#a4262c"}
    sqnr = known["sqnr-db"][proto.graph.name]
    assert sqnr["results"]["stem/conv"] == {"value": 31.5}
    assert [(stop["stop"], stop["bgColor"]) for stop in sqnr["gradient"]] == [
        (0, "#0b5cad"),  # low is bad, and dark
        (1, "#eef2f6"),
    ]


def test_netron_has_the_figures_as_metadata_and_the_network_computes_the_same(run, tmp_path):
    shown = figured(run)
    export_netron(shown, tmp_path / "shown.onnx")
    again = figured(tmp_path / "shown.onnx")
    export_netron(again, tmp_path / "again.onnx")  # nothing twice
    for name, built in (("shown", "fp32"), ("again", "int8")):
        proto = onnx.load(tmp_path / f"{name}.onnx")
        onnx.checker.check_model(proto)
        (conv,) = (node for node in proto.graph.node if node.name == "stem/conv")
        keys = [item.key for item in conv.metadata_props]
        assert len(keys) == len(set(keys))
        facts = {item.key: item.value for item in conv.metadata_props}
        assert (facts["trtcal.requested"], facts["trtcal.built"]) == ("int8", built)
    image = np.load(DIGITS / "test.npz")["image"][:8].astype(np.float32)
    paths = (shown.model.path, tmp_path / "again.onnx")
    before, after = (
        onnxruntime.InferenceSession(path).run(None, {"image": image}) for path in paths
    )
    np.testing.assert_array_equal(before[0], after[0])


def test_the_model_itself_is_not_overwritten(quantized):
    with pytest.raises(InputError, match="is the model itself"):
        export_netron(figured(quantized), quantized)


def test_nodes_without_names_get_some_and_the_model_is_written_with_them(tmp_path):
    proto = onnx.load(DIGITS / "digits.onnx")
    for node in proto.graph.node:
        node.name = ""
    onnx.save(proto, tmp_path / "bare.onnx")
    model, *files = export_model_explorer(figured(tmp_path / "bare.onnx"), tmp_path / "out")
    names = [node.name for node in onnx.load(model).graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    assert {*json.loads(files[-1].read_text())[proto.graph.name]["results"]} <= {*names}


def test_the_commands_say_what_they_wrote_and_how_to_open_it(run, tmp_path, capsys):
    status, out, err = commands.run(capsys, "export", "model-explorer", run, "-o", tmp_path / "out")
    assert (status, out.count("files of node data")) == (0, 1)
    commands.shows(err, "exported: int8 for sm89", "--extensions=model_explorer_onnx")
    file = tmp_path / "netron.onnx"
    document = commands.answer(capsys, "export", "netron", run, "-o", file)
    assert (document["output"], document["title"]) == (str(file), "int8 for sm89")
    commands.refused(capsys, "export", "netron", run, "--variant", "none")
