import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.listings import HOSTILE, described, tensor
from tests.fixtures.tables import each
from trtcal.documents import from_fields
from trtcal.errors import InputError
from trtcal.evidence.layers.inspector import read_inspector
from trtcal.evidence.layers.layer import Layer, TensorInfo, nodes_in_metadata, nodes_in_name
from trtcal.evidence.layers.listing import read_layer


@each("name", HOSTILE)
def test_a_hostile_node_name_is_read_back_and_misleads_nobody(name):
    layer = read_layer(described(name=f"{name}_myl0_1", nodes=(name, "other")))
    assert (layer.name, layer.nodes) == (f"{name}_myl0_1", (name, "other"))
    assert (layer.precision, layer.kind) == ("int8", "correlation")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x1e\x1f\r\n"), max_size=40))
def test_any_node_name_is_read_back(name):
    layer = read_layer(described(name=name + "_myl0_1", nodes=(name, "other")))
    assert layer.nodes == (name, "other")
    assert from_fields(Layer, json.loads(json.dumps(layer.to_document()))) == layer


@given(st.text(max_size=200))
def test_reading_a_layer_never_raises(text):
    for start in ("", "Name: ", "Name: x, LayerType: k, Inputs: [", "Layer(K): ", "Layer(K): a, "):
        read_layer(start + text)


def test_tensors_are_read_with_type_shape_and_format():
    layer = read_layer(described(inputs=(tensor("in, put", "Half", "-1,3"), tensor("b"))))
    assert layer.inputs[0] == TensorInfo("in, put", "fp16", (-1, 3), "(NHWC) Channel major format")
    assert layer.constants[0].dtype == "int8"
    assert layer.tactic == "__myelin_CASK_STUB"


def test_bytes_moved_are_those_of_all_tensors():
    layer = read_layer(described())
    assert layer.bytes_moved == 8 * 4 * 4 * (1 + 1 + 4)
    assert read_layer(described(inputs=(tensor(shape="-1,8,4,4"),))).bytes_moved == 8 * 4 * 4 * 6
    assert TensorInfo("t", "int4", (3,)).size_bytes == 2
    assert read_layer(described(inputs=(tensor(dtype="Odd"),))).bytes_moved is None


def test_a_layer_out_of_sequence_keeps_its_name_and_nodes():
    layer = read_layer("Name: odd, LayerType: new, Sideways: [], Metadata: [ONNX Layer: n]")
    assert layer == Layer(name="odd", kind="unknown", nodes=("n",))


@each(
    "kind, name, inputs, constants, precision",
    [
        ("correlation", "c", ("Int8",), ("Int8", "Float"), "int8"),
        ("correlation", "c", ("Float",), ("Float",), "fp32"),
        ("correlation", "c", ("Int8",), ("Half",), "fp16"),
        ("gemm", "m", ("Int8", "Int8"), (), "int8"),
        ("gemm", "m", ("Half", "Half"), (), "fp16"),
        ("runtime_fusion", "__myl_FcAdd_myl0_1", ("Int8",), ("Int8", "Float"), "int8"),
        ("runtime_fusion", "__myl_CastMulCastCastMulFc_myl0_1", ("Int8",), ("Int8",), "fp32"),
        ("runtime_fusion", "__myl_CastMulCastFc_myl0_1", ("Float",), ("Int8",), "fp32"),
        ("maxpool", "p", ("Int8",), ("Float",), "int8"),
        ("kgen", "k", (), ("Int8",), "unknown"),
    ],
)
def test_precision_is_what_the_product_is_taken_in(kind, name, inputs, constants, precision):
    sides = [tuple(tensor("t", dtype) for dtype in side) for side in (inputs, constants)]
    assert read_layer(described(name, kind, *sides)).precision == precision


@each(
    "kind, heavy",
    [
        ("correlation", True),
        ("deconv", True),
        ("CaskConvolution", True),
        ("CudaDepthwiseConvolution", True),
        ("FusedConvActConvolution", True),
        ("MatrixMultiply", True),
        ("runtime_fusion", True),
        ("fully_connected", True),
        ("kgen", False),
        ("Reformat", False),
        ("CaskPooling", False),
        ("NoOp", False),
    ],
)
def test_heavy_kinds(kind, heavy):
    assert Layer("x", kind).is_heavy is heavy


def test_layers_of_the_years_between():
    layer = read_layer(
        "Layer(CaskConvolution): w1 + Quant_2 + Conv_3 + PWN(Clip_4), Tactic: 0x0a0b, "
        "left, right (Int8[1,64:32,7,7]), res (Half[1,64,7,7]) -> out (Float[1,128,7,7])"
    )
    assert [t.name for t in layer.inputs] == ["left, right", "res"]
    assert layer.inputs[0].shape == (1, 64, 7, 7)
    assert layer.inputs[0].format == "vectors of 32 along axis 1"
    assert layer.outputs[0].dtype == "fp32"
    assert layer.nodes == ("w1", "Quant_2", "Conv_3", "Clip_4")
    assert layer.precision == "int8"


def test_layers_of_the_first_years():
    layer = read_layer(
        "Layer(scudnn): conv [a], Tactic: 1025026069226666066, "
        "x[Float(1,3,8,8)], y[Float(1,3,8,8)] -> z[Half(1,8,8,8)]"
    )
    assert layer.tactic == "1025026069226666066"
    assert [t.dtype for t in (*layer.inputs, *layer.outputs)] == ["fp32", "fp32", "fp16"]


def test_layers_without_an_input_or_a_listing():
    constant = read_layer("Layer(Constant): k, Tactic: 0x0,  -> k_out (Int32[])")
    assert constant.inputs == ()
    assert constant.outputs == (TensorInfo("k_out", "int32", (), "row major"),)
    subgraph = "Layer(Myelin): {ForeignNode[a...z]}, Tactic: 0x0, x (Int8[1]) -> y (Int8[1])"
    layer = read_layer(subgraph)
    assert layer.is_opaque
    assert (layer.precision, layer.nodes) == ("unknown", ("a", "z"))


def test_fused_names_are_taken_apart():
    assert nodes_in_name("a + PWN(PWN(sig), mul) || (Unnamed Layer* 3) [Shuffle]") == (
        "a",
        "sig",
        "mul",
        "(Unnamed Layer* 3) [Shuffle]",
    )
    assert nodes_in_name("Reformatting CopyNode for Input Tensor 0 to a + b") == ()


@pytest.mark.parametrize("mark", ["\x1f", "\x1e", ""])
def test_metadata_is_split_with_and_without_separators(mark):
    text = mark.join(["[ONNX Layer: a]", "[ONNX Layer: b]]", "[ONNX Layer: c [x] d]"])
    assert nodes_in_metadata(text) == ("a", "b]", "c [x] d")


def test_a_name_that_was_cut_at_a_separator_is_still_found():
    assert read_layer(described(nodes=("a][ONNX Layer: b",))).lists("a][ONNX Layer: b")
    assert Layer("x", "k", nodes=("a", "b", "c")).lists("b + c")
    assert not Layer("x", "k", nodes=("a", "b", "c")).lists("a + c")


OLD_JSON = {
    "Layers": [
        {
            "Name": "w + Conv_1",
            "LayerType": "CaskConvolution",
            "Inputs": [
                {
                    "Name": "x",
                    "Dimensions": [1, 4, 8, 8],
                    "Format/Datatype": "Four wide channel vectorized row major Int8 format",
                }
            ],
            "Outputs": [
                {"Name": "y", "Dimensions": [1, 8], "Format/Datatype": "Row major linear FP32"}
            ],
            "Weights": {"Type": "Int8", "Count": 288},
            "TacticName": "made_up_int8x4_kernel",
            "Metadata": "[ONNX Layer: Conv_1]\x1e[ONNX Layer: Relu_2]",
        },
        "only a name",
    ],
    "Bindings": ["x", "y"],
}


def test_inspector_json_of_the_old_form():
    first, second = read_inspector(json.dumps(OLD_JSON))
    assert first.precision == "int8"
    assert first.nodes == ("Conv_1", "Relu_2")
    assert [t.dtype for t in (*first.inputs, *first.outputs)] == ["int8", "fp32"]
    assert second == Layer("only a name", "unknown", nodes=("only a name",))


def test_inspector_json_of_the_new_form():
    x = {"Name": "x", "Dimensions": [2], "Format": "Row major", "Datatype": "Half"}
    (layer,) = read_inspector(
        {"Layers": [{"Name": "c", "LayerType": "Reformat", "Inputs": [x], "Origin": "QDQ"}]}
    )
    assert layer.inputs == (TensorInfo("x", "fp16", (2,), "Row major"),)
    assert layer.origin == "QDQ"
    assert layer.is_reformat


def test_weight_only_quantization_computes_in_the_type_of_its_input():
    fp16 = TensorInfo("x", "fp16", (1, 8), "")
    assert Layer("g", "CaskGemm", inputs=(fp16,), weights="int8").precision == "fp16"


@each("text", ["", "[", "[]", "{}", '{"Layers": 3}', '{"Layers": [3]}', "[" * 99999])
def test_what_is_no_inspector_json_is_an_input_error(text):
    with pytest.raises(InputError):
        read_inspector(text)
