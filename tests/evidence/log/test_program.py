"""The text inside an engine: what TensorRT-RTX writes, and what an attacker might."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.fixtures.engines import needs_rtx
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from tests.fixtures.zoo import ZOO
from tests.fixtures.zoo_scene import scene
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions, parse_profiles
from trtcal.backends.registry import BACKENDS
from trtcal.errors import InputError
from trtcal.evidence.layers.rtx_engine import read_engine_layers
from trtcal.evidence.log.reader import parse_file
from trtcal.model import load_model

TEXT = r"""header {
  region = { name=work size=8 constant=false }
  inputs={ "x.1" "size.1" }
  outputs={ "y.1" }
  accelerators={sm89 }
}
descriptors {
  tensor={ dims={ "n" 8 4 4 } name="x.1" region="" stride_order={ 3 2 1 0 } type=float }
  tensor={ dims={ "n" 8 4 4 } name="a\"b" region="work" stride_order={ 3 0 2 1 } type=int8 }
  tensor={ const_payload_size=576 dims={ 8 8 3 3 } name="w" stride_order={ 3 0 2 1 } type=int8 }
  tensor={ dims={ "n" 8 4 4 } name="y.1" region="" stride_order={ 0 2 1 3 } type=half }
  sub_tensor={ base="a\"b" dims={ "n" 128 } name="a^deref" stride_order={ 1 0 } type=int8 }
}
main {
 label bb1:
  function={ name=__myl_Mul fqn=__myl_Mul_0x1 args={ "x.1" "n" "a\"b" } input_args={ "x.1" "n" }
    shape_args_count=1 output_args={ "a\"b" } grid = { 72 1 } cond_fqn = { binary = 0 }
    layers="[ONNX Layer: x/quantize]" }
  corrltn={ name="c} {" output={"y.1" } input={"a\"b" "w" } stream=0 kernel=STUB
    layers="[ONNX Layer: c} {][ONNX Layer: back\\slash]" }
  novelty={ name="n" output={} input={"a^deref" } layers="" }
}
shape_main {
  copy={ name="hidden" output={"y.1" } input={"x.1" } }
}
"""


def engine(*texts, magic=b"vtrt", length=None):
    """Return an engine's bytes around programs."""
    parts = [magic, bytes(60)]
    for text in texts:
        data = text.encode()
        size = len(data) if length is None else length
        parts += [b"junk NLYM", bytes(4), size.to_bytes(4, "little"), bytes(4), data, b"\0kernels"]
    return b"".join(parts)


@pytest.fixture
def read(tmp_path):
    def reading(data):
        (tmp_path / "engine.plan").write_bytes(data)
        return read_engine_layers(tmp_path / "engine.plan")

    return reading


def test_a_program_is_read_as_the_listing_tells_it(read):
    quantize, conv, novelty = read(engine(TEXT))
    assert (quantize.name, quantize.kind) == ("__myl_Mul_myl0_0", "kgen")
    assert [(t.name, t.dtype, t.shape) for t in quantize.inputs] == [("x", "fp32", (-1, 8, 4, 4))]
    assert quantize.tactic == "__myl_Mul_0x1"
    assert (conv.name, conv.kind, conv.precision) == ("c} {_myl0_1", "correlation", "int8")
    assert conv.nodes == ("c} {", "back\\slash")
    assert [t.name for t in conv.constants] == ["w_myl0"]
    assert conv.inputs[0].name == 'a"b_myl0'
    assert conv.inputs[0].format == "(NHWC) Channel major format"
    assert (conv.outputs[0].name, conv.outputs[0].dtype) == ("y", "fp16")
    assert conv.macs == 8 * 16 * 8 * 9
    assert novelty.kind == "novelty"
    assert (novelty.inputs[0].name, novelty.inputs[0].shape) == ('a"b_myl0', (-1, 128))


def test_what_a_runtime_fusion_is_compiled_from_is_not_read_as_layers(read):
    call = 'runtime_fusion={ name=__myl_Fc input_args={ "x.1" "w" "n" } output_args={ "y.1" } }'
    fused = TEXT.replace("novelty={", f"{call}\n  novelty={{")
    layers = read(engine(fused, TEXT, TEXT))
    assert [layer.name for layer in layers[2:5]] == [
        "__myl_Fc_myl0_2",
        "n_myl0_3",
        "__myl_Mul_myl1_0",
    ]
    assert len(layers) == 4 + 3
    assert [tensor.name for tensor in layers[2].inputs] == ["x"]
    assert [tensor.name for tensor in layers[2].constants] == ["w_myl0"]


def test_several_programs_are_numbered(read):
    layers = read(engine(TEXT, TEXT))
    assert [layer.name for layer in layers[2:5]] == ["n_myl0_2", "__myl_Mul_myl1_0", "c} {_myl1_1"]


def test_a_program_in_a_name_is_none(read):
    inner = "NLYM\0\0\0\0\x05\0\0\0\0\0\0\0header {\n"
    layers = read(engine(TEXT.replace("x/quantize", inner)))
    assert len(layers) == 3
    assert layers[0].nodes == (inner,)


@each(
    "data",
    [
        b"",
        b"vtrt",
        b"ftrt" + bytes(100),
        engine(TEXT, magic=b"ptrt"),
        engine(TEXT, length=1 << 30),
        engine(TEXT, length=len(TEXT) - 100),
        engine("header {\n}}"),
        engine("header {\n" + "a={ " * 1000),
        engine('header {\n a="'),
        engine("header {\n}\n"),
    ],
)
def test_what_cannot_be_read_is_an_input_error(read, data):
    with pytest.raises(InputError):
        read(data)


def test_a_missing_file_is_an_input_error(tmp_path):
    with fails(InputError, "none.plan"):
        read_engine_layers(tmp_path / "none.plan")


PIECES = [
    "{", "}", "=", '"', "\\", " ", "a", "main {", "tensor={ name=", 'dims={ "', "\n", "9" * 30,
    "é",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_no_text_makes_the_reader_fail_otherwise(tmp_path_factory, pieces):
    path = tmp_path_factory.getbasetemp() / "any.plan"
    path.write_bytes(engine("header {\n" + "".join(pieces)))
    try:
        read_engine_layers(path)
    except InputError:
        return


def described(layer, names):
    """Return what both readers must agree on; the program may have renamed an output."""
    sides = (layer.inputs, layer.constants, layer.outputs)
    tensors = [[(t.name if names else "", t.dtype, t.shape) for t in side] for side in sides]
    return layer.name, layer.kind, layer.nodes, layer.tactic, layer.precision, layer.macs, tensors


@needs_rtx
@each("form", ["int8", "float"])
@each("name", ["residual", "unet", "encoder_layer", "perceptron"])
def test_an_engine_tells_the_layers_of_its_own_listing(name, form, tmp_path):
    entry = ZOO[name]
    made = scene(entry, tmp_path, 32)
    model = made.model if form == "int8" else made.given
    made = build(
        model, BACKENDS["tensorrt-rtx"], BuildOptions("sm89", entry.shapes), tmp_path / "b"
    )
    listed = parse_file(made.log).layers
    inside = read_engine_layers(made.engine)
    assert len(listed) > 3
    for names, last in ((False, None), (True, -1)):
        sides = ([described(one, names) for one in side[:last]] for side in (inside, listed))
        assert next(sides) == next(sides)


@needs_rtx
def test_hostile_names_come_out_of_an_engine_as_they_went_in(tmp_path):
    names = ['a"b}c{', "back\\slash", "new\nline", 'x } main {\n corrltn={ name="f" }', "naïve 層"]
    weight = numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), "w")
    nodes = [
        helper.make_node("Conv", [f"t{i}", "w"], [f"t{i + 1}"], name, pads=[1] * 4)
        for i, name in enumerate(names)
    ]
    ends = [helper.make_tensor_value_info(t, 1, [1, 8, 8, 8]) for t in ("t0", f"t{len(names)}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    options = BuildOptions("sm89", parse_profiles(())[0])
    made = build(load_model(tmp_path / "m.onnx"), BACKENDS["tensorrt-rtx"], options, tmp_path / "b")
    heavy = [layer.nodes for layer in read_engine_layers(made.engine) if layer.is_heavy]
    assert heavy == [(name,) for name in names]


def test_a_program_may_not_be_too_large(read, monkeypatch):
    monkeypatch.setattr(
        "trtcal.evidence.layers.rtx_engine.MAX_PROGRAM_BYTES", len(TEXT.encode()) - 1
    )
    with fails(InputError, "length"):
        read(engine(TEXT))
