"""Models of which the weights lie beside the graph; the limits are small, the code is that of 2 GiB."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, rng, save, weight
from trtcal.backends.sessions import open_session, run_session
from trtcal.documents import digest_file
from trtcal.errors import InputError, ResourceError
from trtcal.model import load_model
from trtcal.model.files import (
    MESSAGE,
    array_of,
    fits,
    is_weight,
    size_of,
    stand_in,
    weights_of,
    write_onnx,
)

IMAGES = {"x": rng(8).standard_normal((4, 3, 8, 8)).astype(np.float32)}


def external(tmp_path, one_file=True, **options):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    path = tmp_path / "external.onnx"
    onnx.save(
        proto,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=one_file,
        location="w.bin" if one_file else None,
        size_threshold=100,
        **options,
    )
    return path


def outputs(proto):
    return run_session(open_session(proto), None, IMAGES)[0]


def outside(model):
    return [one.name for one in model.proto.graph.initializer if uses_external_data(one)]


@pytest.mark.parametrize("one_file", [True, False])
def test_weights_left_in_their_files_are_those_of_the_model(tmp_path, one_file):
    path = external(tmp_path, one_file)
    whole, mapped = load_model(path), load_model(path, embedded=0)
    assert outside(whole) == []
    assert outside(mapped) == ["w2"]  # the others are small
    assert mapped.fingerprint == whole.fingerprint
    both = [weights_of(model.proto) for model in (whole, mapped)]
    np.testing.assert_array_equal(array_of(both[0]["w2"]), array_of(both[1]["w2"]))
    np.testing.assert_array_equal(outputs(mapped.proto), outputs(whole.proto))


def test_constant_nodes_can_stay_in_their_files_too(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    taken = next(one for one in proto.graph.initializer if one.name == "w2")
    value = numpy_helper.from_array(numpy_helper.to_array(taken), "inner")
    proto.graph.initializer.remove(taken)
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["w2"], value=value))
    onnx.save(proto, tmp_path / "external.onnx", save_as_external_data=True, location="w.bin",
              size_threshold=0, convert_attribute=True)  # fmt: skip
    mapped = load_model(tmp_path / "external.onnx", embedded=0)
    assert outside(mapped) == ["w2"]
    np.testing.assert_array_equal(outputs(mapped.proto), outputs(onnx.load(tmp_path / "net.onnx")))


def test_a_file_that_is_too_short_is_refused(tmp_path):
    path = external(tmp_path)
    data = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(data[:-1])
    for embedded in (0, 1 << 20):
        with fails(InputError, "external.onnx"):
            load_model(path, embedded)


def test_a_folder_that_a_file_names_is_not_gone_to(tmp_path):
    path = external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "w.bin").rename(tmp_path / "elsewhere" / "w.bin")
    for tensor in proto.graph.initializer:
        if uses_external_data(tensor):
            tensor.external_data.add(key="basepath", value=str(tmp_path / "elsewhere"))
    onnx.save(proto, path)
    for embedded in (0, 1 << 20):
        with pytest.raises(InputError):
            load_model(path, embedded)


def test_bytes_that_do_not_fit_a_shape_are_refused(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    tensor = next(one for one in proto.graph.initializer if one.name == "w2")
    tensor.raw_data = tensor.raw_data[:-4]
    onnx.save(proto, tmp_path / "bad.onnx")
    with fails(InputError, "w2", "2300", "2304"):
        load_model(tmp_path / "bad.onnx")


def test_a_stand_in_is_small_and_says_what_the_model_says(tmp_path):
    big = weight(64, 3, 8, 8)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
    path = save(tmp_path / "n.onnx", nodes, {"w": big}, {"x": ["n", 3, 8, 8]}, {"y": [1, 2, 3, 4]})
    proto = onnx.load(path)
    small = stand_in(proto)
    assert small.ByteSize() < 300 < big.nbytes < proto.ByteSize()
    assert [value.name for value in small.graph.input] == ["x", "w"]
    del small.graph.output[:], proto.graph.output[:]
    whole = (onnx.shape_inference.infer_shapes(one).graph.value_info for one in (proto, small))
    assert next(whole) == next(whole)


def test_a_model_of_ir_3_lists_its_weights_once(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    proto.ir_version = 3
    for one in proto.graph.initializer:
        value = helper.make_tensor_value_info(one.name, one.data_type, one.dims)
        proto.graph.input.append(value)
    names = [value.name for value in stand_in(proto).graph.input]
    assert len(names) == len(set(names)) == 7


@pytest.mark.parametrize("kind", ["float16", "float64", "int8", "uint16", "int64", "bool"])
def test_values_of_every_type_are_mapped(tmp_path, kind):
    values = rng().uniform(0, 100, (40, 30)).astype(kind)
    tensor = numpy_helper.from_array(values, "w")
    assert is_weight(tensor)
    assert size_of(tensor) == values.nbytes
    np.testing.assert_array_equal(array_of(tensor), values)
    (tmp_path / "w.bin").write_bytes(b"..." + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    where = {"location": "w.bin", "offset": "3", "basepath": str(tmp_path)}
    for key, value in where.items():
        tensor.external_data.add(key=key, value=value)
    mapped = array_of(tensor)
    assert isinstance(mapped, np.memmap)
    assert mapped.dtype == values.dtype
    np.testing.assert_array_equal(mapped, values)


def test_a_model_that_fits_is_written_into_one_file(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    assert fits(proto)
    digest = write_onnx(tmp_path / "out" / "net.onnx", proto).digest
    assert os.listdir(tmp_path / "out") == ["net.onnx"]
    data = (tmp_path / "out" / "net.onnx").read_bytes()
    assert data == proto.SerializeToString(deterministic=True)
    assert digest == digest_file(tmp_path / "out" / "net.onnx")


@pytest.mark.parametrize("mapped", [False, True])
def test_a_model_that_does_not_fit_has_its_weights_beside_it(tmp_path, mapped):
    proto = load_model(external(tmp_path), 0 if mapped else MESSAGE).proto
    path = tmp_path / "out" / "net.onnx"
    most = MESSAGE if mapped else 2000
    made = write_onnx(path, proto, most)
    beside, name = sorted(os.listdir(path.parent), reverse=True)
    assert (beside, name) == (made.weights, "net.onnx")
    assert path.stat().st_size < 2000
    onnx.checker.check_model(path, full_check=True)
    np.testing.assert_array_equal(outputs(onnx.load(path)), outputs(proto))
    np.testing.assert_array_equal(outputs(load_model(path, 0).proto), outputs(proto))
    assert write_onnx(path, proto, most).digest == made.digest == digest_file(path)


def test_other_weights_have_another_name_and_digest(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    first = write_onnx(tmp_path / "out" / "net.onnx", proto, most=0).digest
    tensor = next(one for one in proto.graph.initializer if one.name == "w2")
    tensor.raw_data = tensor.raw_data[:-1] + bytes([tensor.raw_data[-1] ^ 1])
    assert write_onnx(tmp_path / "out" / "net.onnx", proto, most=0).digest != first
    assert len(os.listdir(tmp_path / "out")) == 3


def test_nothing_half_written_is_left(tmp_path):
    model = load_model(external(tmp_path), embedded=0)
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises((OSError, ResourceError)):
        write_onnx(tmp_path / "out" / "net.onnx", model.proto)
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []
