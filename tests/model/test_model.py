import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, weight
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import showing
from trtcal.data.dataset import fixed_batch
from trtcal.errors import InputError
from trtcal.model import load_model, uniquely_named


def test_a_model_knows_its_inputs_and_outputs(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    assert [str(spec) for spec in model.inputs] == ["x: float32[n, 3, 8, 8]"]
    assert [str(spec) for spec in model.outputs] == ["y: float32[n, 5]"]
    assert model.opset == 17


@pytest.mark.parametrize("unknown", [-1, 0])
def test_sizes_that_exporters_write_for_unknown_ones(tmp_path, unknown):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = unknown
    onnx.save(proto, tmp_path / "other.onnx")
    model = load_model(tmp_path / "other.onnx")
    assert [spec.shape[0] for spec in (*model.inputs, *model.outputs)] == ["?0", "?0"]
    assert fixed_batch(model) is None


@pytest.mark.parametrize("content", [b"", b"not onnx", b"\x08\x08" * 400])
def test_corrupt_files_are_refused(tmp_path, content):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_model(path)


def test_a_truncated_model_is_refused(tmp_path):
    whole = conv_net(tmp_path / "net.onnx").read_bytes()
    (tmp_path / "half.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        load_model(tmp_path / "half.onnx")


def test_a_missing_model_is_refused(tmp_path):
    with fails(InputError, "none.onnx"):
        load_model(tmp_path / "none.onnx")
    with fails(InputError, "saved_model.pb"):
        load_model(tmp_path)


def external(tmp_path, location):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    convert_model_to_external_data(proto, location=location, size_threshold=0)
    onnx.save(proto, tmp_path / "external.onnx")
    return tmp_path / "external.onnx"


def test_external_data_count_in_the_fingerprint(tmp_path):
    path = external(tmp_path, "weights.bin")
    before = load_model(path).fingerprint
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[100] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    assert load_model(path).fingerprint != before


def test_external_data_outside_the_folder_are_refused(tmp_path):
    path = external(tmp_path, "weights.bin")
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.bin"
    (tmp_path / "sub").mkdir()
    onnx.save(proto, tmp_path / "sub" / "net.onnx")
    with pytest.raises(InputError):
        load_model(tmp_path / "sub" / "net.onnx")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes that lie in folders")
def test_external_data_are_no_pipe(tmp_path):
    path = external(tmp_path, "weights.bin")
    (tmp_path / "weights.bin").unlink()
    os.mkfifo(tmp_path / "weights.bin")
    with fails(InputError, "weights.bin"):
        load_model(path)


def test_external_data_of_constants_count_too(tmp_path):
    node = helper.make_node(
        "Constant", [], ["w"], value=numpy_helper.from_array(weight(4, 3, 3, 3))
    )
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    proto.graph.node.insert(0, node)
    onnx.save(proto, tmp_path / "external.onnx", save_as_external_data=True, location="w.bin",
              size_threshold=0, convert_attribute=True)  # fmt: skip
    before = load_model(tmp_path / "external.onnx").fingerprint
    data = bytearray((tmp_path / "w.bin").read_bytes())
    data = bytearray(value ^ 1 for value in data)
    (tmp_path / "w.bin").write_bytes(data)
    assert load_model(tmp_path / "external.onnx").fingerprint != before


def test_nameless_nodes_get_names_and_named_ones_keep_theirs(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    assert uniquely_named(model) is model
    for node in model.proto.graph.node:
        node.name = ""
    names = [node.name for node in uniquely_named(model).proto.graph.node]
    assert names[:2] == ["Conv_0", "Relu_1"]
    assert len(set(names)) == len(names)


def test_annotations_without_a_shape_are_left_out(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    proto.graph.value_info.add(name="a").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(proto, tmp_path / "old.onnx")
    for source in (tmp_path / "old.onnx", proto):
        assert not [one for one in load_model(source).proto.graph.value_info if one.name == "a"]
    assert [one.name for one in proto.graph.value_info] == ["a"]


def listed(path, ir_version):
    """A model of which every weight is an input of the graph too, as older exporters write it."""
    proto = onnx.load(conv_net(path))
    proto.ir_version = ir_version
    for one in proto.graph.initializer:
        value = helper.make_tensor_value_info(one.name, one.data_type, one.dims)
        proto.graph.input.append(value)
    onnx.save(proto, path)
    return proto


@pytest.mark.parametrize("ir_version", [3, 8])
def test_weights_that_are_listed_as_inputs_are_constants(tmp_path, ir_version):
    proto = listed(tmp_path / "net.onnx", ir_version)
    for source in (tmp_path / "net.onnx", proto):
        model = load_model(source)
        assert [one.name for one in model.proto.graph.input] == ["x"]
        assert bool(model.defaults) == (ir_version > 3)
        shown = showing(model.proto, ["a", "f"])
        feeds = {"x": np.zeros((2, 3, 8, 8), np.float32)}
        made = run_session(open_session(shown), ["a", "f"], feeds)
        assert [one.shape for one in made] == [(2, 8, 8, 8), (2, 8, 1, 1)]


def test_empty_names_at_the_end_of_a_nodes_inputs_are_cut(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    kept = [list(node.input) for node in proto.graph.node]
    for node in proto.graph.node:
        node.input.extend([""] * (node.op_type in ("Conv", "Clip", "Gemm")))
    assert any(node.input[-1] == "" for node in proto.graph.node)
    onnx.save(proto, tmp_path / "net.onnx")
    for source in (tmp_path / "net.onnx", proto):
        assert [list(node.input) for node in load_model(source).proto.graph.node] == kept
    assert any(node.input[-1] == "" for node in proto.graph.node)


def test_the_fingerprint_is_that_of_the_file_and_the_given_model_stays(tmp_path):
    proto = listed(tmp_path / "net.onnx", 3)
    before = proto.SerializeToString()
    assert load_model(proto).fingerprint == load_model(tmp_path / "net.onnx").fingerprint
    assert proto.SerializeToString() == before
    assert load_model(proto).fingerprint != load_model(conv_net(tmp_path / "o.onnx")).fingerprint


def test_a_weight_in_memory_with_too_few_bytes_is_refused(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    large = next(one for one in proto.graph.initializer if one.name == "w2")
    large.raw_data = large.raw_data[:-4]
    with fails(InputError, "w2", "2300", "2304"):
        load_model(proto)
