from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.fixtures.networks import conv_net, samples
from tests.fixtures.quantized import calibrated
from tests.fixtures.zoo_net import Entry
from tests.fixtures.zoo_products import tokens
from tests.fixtures.zoo_scene import scene as zoo_scene
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import Inside
from trtcal.calibration import calibrate, observe
from trtcal.data import open_dataset
from trtcal.documents import from_fields
from trtcal.errors import NativeCrash
from trtcal.evaluate import layerwise
from trtcal.evaluate.layerwise import Layerwise, compare_layers
from trtcal.model import load_model
from trtcal.model.model import Overrides
from trtcal.ptq.equalization import equalize
from trtcal.quantization import Plan, prepare, quantize, write_quantized


@pytest.fixture
def scene(tmp_path):
    model, calibration, data = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    write_quantized(tmp_path / "int8.onnx", quantize(model, calibration))
    return load_model(tmp_path / "net.onnx"), load_model(tmp_path / "int8.onnx"), data


def coarser(model, tensor, factor):
    """Make the range of one tensor `factor` times as wide, in place."""
    for item in model.proto.graph.initializer:
        if item.name == f"{tensor}/scale":
            array = onnx.numpy_helper.to_array(item) * np.float32(factor)
            item.CopyFrom(onnx.numpy_helper.from_array(array, item.name))


def named(found):
    return {one.tensor: one for one in found.figures}


def values(model, tensor, data):
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    proto.graph.output.append(onnx.ValueInfoProto(name=tensor))
    feeds = next(data.batches(len(data)))
    return run_session(open_session(proto, as_it_is=True), [tensor], feeds)[0].astype(np.float64)


def decibels(signal, error):
    return 10 * np.log10(np.square(signal).sum() / np.square(error).sum())


def test_figures_are_those_of_numpy(scene):
    net, int8, data = scene
    found = named(compare_layers(net, [int8], data)[0])
    assert {name for name, one in found.items() if not one.is_weight} >= {"x", "b"}
    expected, got = values(net, "b", data), values(int8, "b", data)
    scales = {one.name: onnx.numpy_helper.to_array(one) for one in int8.proto.graph.initializer}
    scale = float(scales["b/scale"])
    steps = np.clip(np.rint(expected / scale), -128, 127)
    one = found["b"]
    assert one.arrives_db == pytest.approx(decibels(expected, got - expected), abs=0.01)
    assert one.own_db == pytest.approx(decibels(expected, steps * scale - expected), abs=0.01)
    assert one.clipped == 0
    assert found["x"].arrives_db is None
    assert found["x"].own_db == pytest.approx(found["x"].leaves_db)
    weight = next(one for one in found.values() if one.nodes[:1] == ("first",) and one.is_weight)
    assert 35 < weight.own_db < 60


def test_where_the_error_enters_is_found(scene):
    net, int8, data = scene
    before = named(compare_layers(net, [int8], data)[0])
    coarser(int8, "b", 20.0)
    found = compare_layers(net, [int8], data)[0]
    assert found.enters(1)[0].tensor == "b"
    assert replace(named(found)["x"], share=before["x"].share) == before["x"]
    assert named(found)["b"].arrives_db == before["b"].arrives_db
    assert named(found)["b"].own_db < before["b"].own_db - 20
    order = [one.tensor for one in found.figures if not one.is_weight]
    after = order[order.index("b") + 1]
    assert named(found)[after].arrives_db < before[after].arrives_db - 10
    grown = named(found)["b"].leaves_db - named(found)[after].arrives_db
    assert named(found)[after].growth_db == pytest.approx(grown, abs=1e-3)


def test_clipping_is_counted(scene):
    net, int8, data = scene
    coarser(int8, "x", 0.25)
    one = named(compare_layers(net, [int8], data)[0])["x"]
    images = next(data.batches(len(data)))["x"]
    steps = np.rint(images / (np.abs(images).max() / 127 / 4))
    assert one.clipped == pytest.approx(100 * np.mean((steps < -128) | (steps > 127)), abs=0.05)


def test_how_the_samples_are_batched_does_not_matter(scene, monkeypatch):
    net, int8, data = scene
    once = compare_layers(net, [int8], data)[0]
    monkeypatch.setattr(layerwise, "ROOM", 1)
    for one, other in zip(once.figures, compare_layers(net, [int8], data)[0].figures, strict=True):
        for key in ("arrives_db", "own_db", "leaves_db"):
            pair = [getattr(each, key) or 0.0 for each in (one, other)]
            assert pair[0] == pytest.approx(pair[1], rel=1e-3)


def test_tensors_of_another_model_are_counted_and_a_document_read_again(scene, tmp_path):
    net, int8, data = scene
    found = compare_layers(net, [int8], data)[0]
    assert found.unknown == 0
    document = {
        "samples": found.samples,
        "figures": [{**vars(one), "nodes": list(one.nodes)} for one in found.figures],
        "unknown": found.unknown,
    }
    assert from_fields(Layerwise, document) == found
    constants = {one.name for one in int8.proto.graph.initializer}
    for node in int8.proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [name if name in constants else f"other/{name}" for name in names]
    weights = tuple(replace(one, share=None) for one in found.figures if one.is_weight)
    unknown = len(found.figures) - len(weights)
    assert compare_layers(net, [int8], data)[0] == Layerwise(len(data), weights, unknown)
    for node in int8.proto.graph.node:
        node.name = f"other/{node.name}"
    assert compare_layers(net, [int8], data)[0] == Layerwise(len(data), (), len(found.figures))


def test_what_an_optimization_moved_is_left_out_and_counted(tmp_path):
    path = conv_net(tmp_path / "net.onnx")
    prepared, ranges, data = calibrated(path, tmp_path)
    moved = equalize(prepared, data, len(data))
    model = replace(
        prepared, proto=moved.of(prepared.proto), overrides=Overrides(moved=moved.moved)
    )
    again = calibrate(observe(model, data, list(ranges.ranges)), "minmax")
    whole, layers = quantize(prepared, ranges), quantize(model, again)
    write_quantized(tmp_path / "whole.onnx", whole)
    write_quantized(tmp_path / "moved.onnx", layers)
    plain, found = (
        compare_layers(load_model(path), [load_model(tmp_path / name)], data)[0]
        for name in ("whole.onnx", "moved.onnx")
    )
    left_out = set(named(plain)) - set(named(found))
    assert "b" in left_out
    assert found.unknown == len(left_out) == len(plain.figures) - len(found.figures)
    for name, one in named(found).items():
        assert one.own_db == pytest.approx(named(plain)[name].own_db, abs=0.01)


def test_a_weight_that_an_optimization_scaled_is_not_compared_with_the_original(tmp_path):
    path = conv_net(tmp_path / "net.onnx")
    prepared, ranges, _ = calibrated(path, tmp_path)
    sites = layerwise.SiteFinder(quantize(prepared, ranges).proto).sites
    site = next(each for each in sites if each.nodes[:1] == ("second",) and each.is_weight)
    weight = site.dequantized(site.stored)
    scales = np.linspace(0.25, 4, weight.shape[1]).astype(np.float32).reshape(1, -1, 1, 1)
    assert not site.is_rescaled(weight)
    assert not site.is_rescaled(weight + site.scale.reshape(-1, 1, 1, 1))  # rounded the other way
    assert site.is_rescaled(weight * scales)


def test_shares_are_those_of_the_layer_that_loses_most(scene):
    net, int8, data = scene
    plain = named(compare_layers(net, [int8], data)[0])
    assert sum(one.share for one in plain.values()) == pytest.approx(1)
    coarser(int8, "b", 30)
    found = named(compare_layers(net, [int8], data)[0])
    assert found["b"].share > 0.9 > plain["b"].share


def test_tensors_in_float16_are_compared_with_those_of_the_reference(tmp_path):
    model, ranges, data = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    write_quantized(tmp_path / "half.onnx", quantize(model, ranges, Plan(rest="fp16")))
    half = load_model(tmp_path / "half.onnx")
    found = named(compare_layers(load_model(tmp_path / "net.onnx"), [half], data)[0])
    assert found["b"].own_db > 20


def test_uint8_with_a_zero_point_by_another_tool_is_understood(tmp_path):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    path = conv_net(tmp_path / "net.onnx")
    net = load_model(path)
    data = open_dataset(samples(tmp_path / "data.npz"), net)

    class Reader(CalibrationDataReader):
        batches = data.batches(8)

        def get_next(self):
            return next(self.batches, None)

    quantize_static(path, tmp_path / "ort.onnx", Reader(), quant_format=QuantFormat.QDQ)
    found = compare_layers(net, [load_model(tmp_path / "ort.onnx")], data)[0]
    assert {"x", "b"} <= set(named(found))
    assert all(one.leaves_db > 20 for one in found.figures if not one.is_weight)
    assert any(one.is_weight and one.own_db > 30 for one in found.figures)


def products():
    net = tokens(size=128)
    return net.done(net.linear("one", "x", 128, 128))


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
@pytest.mark.parametrize("precision", ["fp8", "int4", "nvfp4"])
def test_weights_in_fp8_and_four_bits_have_the_error_that_onnx_gives_them(
    precision, rest, tmp_path
):
    made = zoo_scene(Entry("products", products, ()), tmp_path, 16)
    plan = Plan(precision, rest=rest)
    write_quantized(tmp_path / "q.onnx", quantize(prepare(made.given), made.calibration, plan))
    net, narrow = made.given, load_model(tmp_path / "q.onnx")
    found = compare_layers(net, [narrow], open_dataset(tmp_path / "samples.npz", net))[0]
    one = next(figure for figure in found.figures if figure.is_weight)
    stored = dequantized_by_onnx(narrow.proto, "one")
    (weight,) = (
        onnx.numpy_helper.to_array(item)
        for item in net.proto.graph.initializer
        if tuple(item.dims) == stored.shape
    )
    assert one.own_db == pytest.approx(decibels(weight, stored - weight), abs=0.02)
    assert 15 < one.own_db < 40


def dequantized_by_onnx(proto, node):
    """Return the weight of a node as ONNX's reference evaluator dequantizes it."""
    makers = {name: each for each in proto.graph.node for name in each.output}
    (reader,) = (each for each in proto.graph.node if each.name == node)
    value = onnx.ValueInfoProto(name=reader.input[1])
    nodes, wanted = [], [reader.input[1]]
    while wanted:
        if (made := makers.get(wanted.pop())) is not None:
            nodes.insert(0, made)
            wanted += made.input
    graph = onnx.GraphProto(name="w", node=nodes, initializer=proto.graph.initializer)
    graph.output.append(value)
    model = onnx.helper.make_model(graph, opset_imports=proto.opset_import)
    return ReferenceEvaluator(model).run(None, {})[0].astype(np.float32)


def test_the_reference_runs_once_for_all_variants(scene, monkeypatch):
    net, int8, data = scene
    coarse = replace(int8, proto=onnx.ModelProto.FromString(int8.proto.SerializeToString()))
    coarser(coarse, "b", 20.0)
    alone = [compare_layers(net, [each], data)[0] for each in (int8, coarse)]
    reads = []

    class Counted(Inside):
        def read(self, feeds):
            reads.append(len(self.session.get_outputs()))
            return super().read(feeds)

    monkeypatch.setattr(layerwise, "Inside", Counted)
    monkeypatch.setattr(layerwise, "MOST_SAMPLES", 8)
    batches = len(list(data.batches(8)))
    assert compare_layers(net, [int8, coarse], data) == alone
    assert len(reads) == 1 + 3 * batches  # a sample shows how large tensors are


def test_a_variant_that_crashes_has_no_figures_and_the_others_have(scene, monkeypatch):
    net, int8, data = scene
    crashing = replace(int8, proto=onnx.ModelProto.FromString(int8.proto.SerializeToString()))

    class Crashing(Inside):
        def __init__(self, proto, tensors):
            if proto is crashing.proto:
                raise NativeCrash("it crashes", "", "SIGSEGV", ())
            super().__init__(proto, tensors)

    monkeypatch.setattr(layerwise, "Inside", Crashing)
    with pytest.warns(RuntimeWarning, match="it crashes"):
        first, second = compare_layers(net, [crashing, int8], data)
    assert first is None
    assert second.samples == len(data)
