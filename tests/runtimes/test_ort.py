"""`trtcal export ort`: an engine as an ONNX model, as ONNX Runtime and its providers read it."""

import json

import onnx
import onnxruntime
import pytest

from tests.conftest import SAMPLES
from tests.fixtures.commands import answer, refused, run
from tests.fixtures.engines import made, needs_rtx
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.wings.runtimes.ep_context import export_context, open_engine

SCHEMA = {
    "main_context": 2, "embed_mode": 2, "ep_cache_context": 3, "source": 3, "ep_sdk_version": 3,
    "hardware_architecture": 3, "onnx_model_filename": 3, "partition_name": 3, "notes": 3,
}  # fmt: skip
"""The attributes of com.microsoft.EPContext in contrib_defs.cc, with ONNX's numbers of their types."""


@pytest.fixture
def engine(tmp_path):
    """A file that begins as an engine of TensorRT-RTX, and a model to go with it."""
    (tmp_path / "engine.plan").write_bytes(b"vtrt" + bytes(range(256)))
    conv_net(tmp_path / "net.onnx")
    return tmp_path / "engine.plan"


def attributes(path):
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    (node,) = proto.graph.node
    assert (node.op_type, node.domain) == ("EPContext", "com.microsoft")
    assert {item.domain for item in proto.opset_import} == {"", "com.microsoft"}
    assert {item.name: item.type for item in node.attribute}.items() <= SCHEMA.items()
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


@pytest.mark.parametrize("embed", [False, True])
def test_an_engine_goes_into_the_model_or_beside_it(engine, tmp_path, embed):
    output = tmp_path / "out" / "model_ctx.onnx"
    opened = open_engine(engine, tmp_path / "net.onnx")
    _, provider, beside = export_context(opened, output, embed)
    found = attributes(output)
    assert found["source"].decode() == provider == "NvTensorRTRTXExecutionProvider"
    assert (found["embed_mode"], found["main_context"]) == (int(embed), 1)
    data = found["ep_cache_context"] if embed else beside.read_bytes()
    assert data == engine.read_bytes()
    if not embed:  # a path that leads nowhere else
        assert (beside.parent, found["ep_cache_context"]) == (output.parent, b"model_ctx.engine")
    assert not {"hardware_architecture", "ep_sdk_version"} & found.keys()  # they are not known


def test_the_model_has_the_inputs_and_outputs_of_the_engine(engine, tmp_path):
    export_context(open_engine(engine, tmp_path / "net.onnx"), tmp_path / "c.onnx", embed=False)
    graph, known = onnx.load(tmp_path / "c.onnx").graph, load_model(tmp_path / "net.onnx")
    assert [*graph.input] == [*known.proto.graph.input]
    names = [[value.name for value in values] for values in (graph.input, graph.output)]
    assert [[*graph.node[0].input], [*graph.node[0].output]] == names


def test_onnx_runtime_reads_the_node_and_names_the_provider_that_it_lacks(engine, tmp_path):
    export_context(open_engine(engine, tmp_path / "net.onnx"), tmp_path / "c.onnx", embed=True)
    with pytest.raises(Exception, match="EPContext"):
        onnxruntime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])


def test_an_engine_of_tensorrt_is_for_its_provider(engine, tmp_path):
    engine.write_bytes(b"ftrt1234")
    opened = open_engine(engine, tmp_path / "net.onnx")
    assert export_context(opened, tmp_path / "c.onnx", False)[1] == "TensorrtExecutionProvider"


@each(
    "words, name",
    [
        (["nowhere"], "nowhere"),
        (["net.onnx", "--model", "net.onnx"], "net.onnx"),
        (["engine.plan"], "engine.plan"),
        (["empty", "--model", "net.onnx"], "empty"),
        (["engine.plan", "--model", "net.onnx", "-o", "c.engine"], "c.engine"),
    ],
)
def test_what_is_no_engine_is_one_error(engine, capsys, words, name):
    (engine.parent / "empty").mkdir(exist_ok=True)
    paths = [word if word.startswith("-") else str(engine.parent / word) for word in words]
    err = refused(capsys, "export", "ort", *paths)
    assert (name in err, "hint: " in err) == (True, True)


@needs_rtx
def test_a_build_is_exported_with_all_that_is_known_of_it(tmp_path, capsys):
    folder = tmp_path / "sm89"
    build = made(load_model(SAMPLES / "digits" / "digits.onnx"), "sm89", folder)
    for source in (folder, folder / "build.json", folder / build.engine_file):
        output = tmp_path / "model_ctx.onnx"
        facts = answer(capsys, "export", "ort", source, "-o", output)
        found = attributes(output)
        assert (facts["provider"], facts["loaded"]) == (found["source"].decode(), False)
        assert found["hardware_architecture"] == b"89"
        assert found["ep_sdk_version"].decode() == build.backend_version
        assert (tmp_path / facts["engine"]).read_bytes() == build.engine.read_bytes()
    _, out, err = run(capsys, "export", "ort", folder, "-o", output)
    assert ("model_ctx.engine" in out, "not loaded here" in err) == (True, True)
    build.engine.write_bytes(build.engine.read_bytes() + b"x")
    with fails(InputError, str(build.engine)):
        open_engine(folder, None)


def test_the_json_says_that_nothing_was_loaded(engine, capsys, monkeypatch):
    monkeypatch.chdir(engine.parent)
    document = answer(capsys, "export", "ort", "engine.plan", "--model", "net.onnx")
    assert json.dumps(document["engine"]) == '"model_ctx.engine"'
    assert document["loaded"] is False
