"""FP8, INT4 and NVFP4 on the compiler: asked against got, and what a target has not."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.zoo_net import Entry, Net
from tests.fixtures.zoo_products import tokens
from tests.fixtures.zoo_scene import scene
from trtcal.backends.building import build
from trtcal.backends.capabilities import check_precisions, has
from trtcal.backends.lowering import lower
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS
from trtcal.backends.sessions import open_session, run_session
from trtcal.cli.main import run_command
from trtcal.config import Config
from trtcal.errors import BackendError, InputError
from trtcal.evidence.diagnosis.build_diagnosis import check_build, check_engine
from trtcal.evidence.layers.reading import Engine
from trtcal.evidence.log.reader import events_of_file
from trtcal.model import load_model
from trtcal.quantization import Plan, Rule, prepare, quantize, write_quantized

RTX = BACKENDS["tensorrt-rtx"]
needs_rtx = pytest.mark.skipif(not RTX.availability().works, reason="TensorRT-RTX is missing")


def products():
    """Two matrices: of two blocks of 64 or one of 128, and of two of 128."""
    net = tokens(size=128)
    return net.done(net.linear("two", net.relu(net.linear("one", "x", 128, 256)), 256, 128))


def convolutions():
    net = Net(x=["n", 3, 16, 16])
    a = net.relu(net.conv("wide", "x", (16, 3, 7, 7)))
    a = net.relu(net.conv("narrow", a, (16, 16, 3, 3)))
    return net.done(net.up("up", a, (16, 8, 2, 2)))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    made = {}
    for make in (products, convolutions):
        folder = tmp_path_factory.mktemp(make.__name__)
        made[make.__name__] = scene(Entry(make.__name__, make, ()), folder, 16)
    return made


def quantized(made, plan, folder):
    found = quantize(prepare(made.given), made.calibration, plan)
    write_quantized(folder / "model.onnx", found)
    return found, load_model(folder / "model.onnx")


def built(made, plan, target, folder):
    model = quantized(made, plan, folder)[1]
    return build(model, RTX, BuildOptions(target), folder / "build")


def got(engine):
    return {one.node: one.got for one in engine.outcomes}


@needs_rtx
def test_fp8_products_read_fp8_and_the_coverage_says_so(scenes, tmp_path):
    engine = built(scenes["products"], Plan("fp8"), "sm89", tmp_path)
    assert got(engine) == {"one": "fp8", "two": "fp8"}
    assert engine.coverage.proportion.endswith("run in FP8")
    assert "100 %" in engine.coverage.proportion
    assert not engine.coverage.is_low
    assert not {"no_int8", "silent_fallback"} & kinds(engine)


def kinds(engine):
    return {one.kind for one in check_build(engine, Config()).findings}


def test_onnx_runtime_does_not_round_what_int4_weights_multiply(scenes, tmp_path):
    model = quantized(scenes["products"], Plan("int4"), tmp_path)[1]
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 12, 128)).astype(np.float32)}
    names = [one.name for one in model.outputs]
    (exact,) = run_session(open_session(model.proto, as_it_is=True), names, feeds)
    (found,) = run_session(open_session(lower(model.proto)), names, feeds)
    assert np.abs(found - exact).max() < 1e-4 * np.abs(exact).max()


@needs_rtx
@pytest.mark.parametrize("target", ["sm80", "sm120"])
def test_int4_products_read_int4_because_every_matrix_has_two_blocks(scenes, target, tmp_path):
    engine = built(scenes["products"], Plan("int4"), target, tmp_path)
    assert got(engine) == {"one": "int4", "two": "int4"}
    assert "weights in INT4" in engine.coverage.proportion


@needs_rtx
def test_a_matrix_of_one_block_is_expanded_and_the_finding_says_what_to_do(scenes, tmp_path):
    model = quantized(scenes["products"], Plan("int4"), tmp_path)[1]
    for name in ("one", "two"):
        _join_blocks(model.proto, name)
    engine = build(model, RTX, BuildOptions("sm89"), tmp_path / "build")
    assert set(got(engine).values()) == {"fp32"}
    found = [one for one in check_build(engine, Config()).findings if one.subject == "one"]
    assert [one.kind for one in found] == ["weights_expanded"]
    assert "one block a column" in found[0].what
    assert "block size below" in found[0].fix


def _join_blocks(proto, name):
    """Give the matrix of a node one block a column."""
    graph = proto.graph
    weight = next(one for one in graph.node if one.name == name).input[1]
    dequantize = next(one for one in graph.node if one.output[0] == weight)
    stored = {one.name: one for one in graph.initializer}
    values, scales = (stored[one] for one in dequantize.input[:2])
    blocks, columns = scales.dims
    scales.raw_data = scales.raw_data[: len(scales.raw_data) // blocks]
    scales.dims[:] = [1, columns]
    size = next(one for one in dequantize.attribute if one.name == "block_size")
    size.i = values.dims[0]


@needs_rtx
def test_nvfp4_is_stored_but_the_product_is_one_of_floats(scenes, tmp_path):
    engine = built(scenes["products"], Plan("nvfp4"), "sm120", tmp_path)
    assert got(engine) == {"one": "fp32", "two": "fp32"}
    assert all("product is no faster" in one.reason for one in engine.outcomes)
    assert "weights_expanded" in kinds(engine)


@needs_rtx
def test_fp8_stays_off_wide_filters_and_transposed_convolutions(scenes, tmp_path):
    made = scenes["convolutions"]
    found, model = quantized(made, Plan("fp8", rules=(Rule("fp8", op="Conv"),)), tmp_path)
    assert "32 taps" in found.skipped["wide"]
    assert "ConvTranspose" in found.skipped["up"]
    engine = build(model, RTX, BuildOptions("sm89"), tmp_path / "build")
    assert got(engine)["narrow"] == "fp8"


@needs_rtx
def test_the_compiler_raises_a_wide_filter_in_fp8_to_float(scenes, tmp_path, monkeypatch):
    monkeypatch.setattr("trtcal.quantization.weighted_ops.FLOATING_TAPS", 49)
    engine = built(
        scenes["convolutions"], Plan("fp8", rules=(Rule("fp8", op="Conv"),)), "sm120", tmp_path
    )
    outcome = next(one for one in engine.outcomes if one.node == "wide")
    assert (outcome.asked, outcome.got) == ("fp8", "fp32")
    assert "expands its FP8 weights" in outcome.reason
    assert "silent_fallback" in kinds(engine)


@needs_rtx
@pytest.mark.parametrize(
    ("precision", "target"), [("fp8", "sm86"), ("int4", "sm75"), ("nvfp4", "sm89")]
)
def test_what_is_refused_before_the_build_is_what_the_compiler_refuses(
    scenes, precision, target, tmp_path
):
    with fails(InputError, target, precision, "sm120"):
        check_precisions({precision}, [target])
    model = quantized(scenes["products"], Plan(precision), tmp_path)[1]
    with fails(BackendError, "HW-specific datatypes"):
        build(model, RTX, BuildOptions(target), tmp_path / "build")
    events = events_of_file(tmp_path / "build" / "build.log")
    assert "lacks_type" in {one.rule.name for one in events if one.rule}


def one_matrix(weight, scale, code, **of_weight):
    """Return a product in float16 whose weight alone has a DequantizeLinear."""
    rows, columns = of_weight.pop("shape")
    half = TensorProto.FLOAT16
    stored = onnx.helper.make_tensor("w", weight, [rows, columns], code, raw=True)
    scales = onnx.numpy_helper.from_array(np.full(scale, 0.5, np.float16), "scale")
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["w", "scale"], ["dq"], "weight", **of_weight),
        onnx.helper.make_node("MatMul", ["x", "dq"], ["y"], "product"),
    ]
    sides = [
        [onnx.helper.make_tensor_value_info(name, half, ["n", size])]
        for name, size in (("x", rows), ("y", columns))
    ]
    graph = onnx.helper.make_graph(nodes, "one", *sides, [stored, scales])
    opset = onnx.helper.make_opsetid("", 21)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)


@needs_rtx
def test_a_product_asked_in_fp8_that_gets_fp16_is_found(tmp_path):
    code = np.arange(256 * 64, dtype=np.uint8).reshape(-1) % 64
    proto = one_matrix(TensorProto.FLOAT8E4M3FN, (), code.tobytes(), shape=(256, 64))
    onnx.save(proto, tmp_path / "model.onnx")
    engine = build(
        load_model(tmp_path / "model.onnx"), RTX, BuildOptions("sm89"), tmp_path / "build"
    )
    (outcome,) = engine.outcomes
    assert (outcome.asked, outcome.got, outcome.cause) == ("fp8", "fp16", "one_sided")
    found = {one.kind: one for one in check_build(engine, Config()).findings}
    assert found["no_fp8"].what == "no layer of this engine runs in FP8"
    assert "'product' was requested in fp8" in found["silent_fallback"].what
    assert "no_int8" not in found


@needs_rtx
def test_a_weight_of_one_block_in_total_is_refused_and_the_log_says_why(tmp_path):
    proto = one_matrix(TensorProto.INT4, (1, 1), bytes(32), shape=(64, 1), axis=0, block_size=64)
    onnx.save(proto, tmp_path / "model.onnx")
    model = load_model(tmp_path / "model.onnx")
    with fails(BackendError, "weight: ScaleMode is illegal", hint="--keep-float"):
        build(model, RTX, BuildOptions("sm120"), tmp_path / "build")
    events = [one for one in events_of_file(tmp_path / "build" / "build.log") if one.rule]
    (event, *_) = (one for one in events if one.rule.name == "single_scale")
    assert event.subject == "weight"


@needs_rtx
def test_an_engine_of_a_plan_that_quantized_nothing_says_so(scenes, tmp_path):
    plan = Plan("fp32", rules=(Rule("int4", "narrow"),))
    engine = built(scenes["convolutions"], plan, "sm89", tmp_path)
    assert engine.coverage.proportion.endswith("run in a narrow format")
    assert "no_narrow" in kinds(engine)
    assert "no_int8" not in kinds(engine)


@needs_rtx
def test_layers_in_fp8_alone_are_no_engine_without_int8(scenes, tmp_path):
    engine = built(scenes["products"], Plan("fp8"), "sm89", tmp_path)
    found = check_engine(Engine("", engine.layers), Config())
    assert found.coverage.proportion.endswith("run in FP8")
    assert not {"no_int8", "no_fp8"} & {one.kind for one in found.findings}


def test_a_run_refuses_a_plan_that_a_default_target_lacks(tmp_path, capsys):
    digits = Path("samples/digits").resolve()
    (tmp_path / "trtcal.toml").write_text(
        f'model = "{digits}/digits.onnx"\noutput = "out"\n'
        f'[calibration]\ndata = "{digits}/calibration.npz"\nmethods = ["minmax"]\n'
        f'[evaluation]\ndata = "{digits}/test.npz"\n[plans.narrow]\ndefault = "nvfp4"\n'
    )
    assert run_command(["run", str(tmp_path / "trtcal.toml")]) == 2
    message = capsys.readouterr().err
    shows(message, "sm89", "l4, l40", "nvfp4", "sm100")
    assert not (tmp_path / "out").exists()


def test_a_target_of_several_has_what_all_of_them_have():
    assert has("sm89,sm120", "fp8")
    assert not has("sm86,sm120", "fp8")
    assert not has("portable", "fp8")
    assert has("portable", "int4")
    assert has("cpu", "nvfp4")


def test_build_and_quantize_refuse_a_target_by_the_name_given(scenes, tmp_path, capsys):
    quantized(scenes["products"], Plan("fp8"), tmp_path)
    model, build_to = str(tmp_path / "model.onnx"), str(tmp_path / "to")
    assert run_command(["build", model, "--target", "rtx3090", "-o", build_to]) == 2
    shows(capsys.readouterr().err, "sm86", "rtx3090", "fp8", "sm89")
    output = tmp_path / "fp8.onnx"
    words = ["quantize", model, "--precision", "fp8", "--target", "sm86", "-o", str(output)]
    assert run_command([*words, "--calibration", str(tmp_path / "none.json")]) == 2
    shows(capsys.readouterr().err, "fp8")
    assert not output.exists()
