"""Q/DQ that no compiler takes: each is one error with the node's name and a hint."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.commands import run, shows
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.model.pairs import _scopes

FP8, INT4, FP4 = ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.float4_e2m1fn
ROWS, COLUMNS, BLOCK = 32, 8, 16
NODE = "weight/dequantize"


def product(values, scale, zero=None, opset=23, activation=None, **attributes):
    """A MatMul with dequantized weights, and a pair of this type on its activation if one is given."""
    constants = {"values": values, "scale": scale} | ({} if zero is None else {"zero": zero})
    dequantize = helper.make_node("DequantizeLinear", [*constants], ["w"], NODE, **attributes)
    nodes, read = [dequantize], "x"
    if activation is not None:
        constants |= {"x_scale": np.float32(0.1), "x_zero": np.zeros((), activation)}
        pair = ["x_scale", "x_zero"]
        nodes += [
            helper.make_node("QuantizeLinear", ["x", *pair], ["q"], "x/quantize"),
            helper.make_node("DequantizeLinear", ["q", *pair], ["d"], "x/dequantize"),
        ]
        read = "d"
    nodes.append(helper.make_node("MatMul", [read, "w"], ["y"], "product"))
    return model_of(nodes, constants, opset)


def model_of(nodes, constants, opset):
    initializers = [
        numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, ROWS])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, COLUMNS])]
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def ones(dtype, *shape):
    return np.ones(shape or (ROWS, COLUMNS)).astype(dtype)


def scales(*shape):
    return np.full(shape, 0.5, np.float32)


def coded(code):
    values = ones(FP8)
    values.view(np.uint8)[3, 4] = code
    return values


BLOCKS = {"axis": 0, "block_size": BLOCK}
FP8_WEIGHT, FP8_SCALE = ones(FP8), np.float32(0.5)
INT4_WEIGHT, INT4_SCALE = ones(INT4), scales(ROWS // BLOCK, COLUMNS)

GOOD = {
    "fp8 per tensor": product(FP8_WEIGHT, FP8_SCALE, np.zeros((), FP8), 19, FP8),
    "fp8 per channel": product(FP8_WEIGHT, scales(COLUMNS), np.zeros(COLUMNS, FP8), 19, axis=1),
    "fp8 with an axis from the end": product(FP8_WEIGHT, scales(COLUMNS), opset=19, axis=-1),
    "int4 blocks": product(INT4_WEIGHT, INT4_SCALE, opset=21, **BLOCKS),
    "int4 with one block larger than the axis": product(
        INT4_WEIGHT, scales(1, COLUMNS), opset=21, axis=0, block_size=128
    ),
    "fp4 blocks": product(ones(FP4), INT4_SCALE, **BLOCKS),
    "a subnormal float16": product(FP8_WEIGHT, np.float16(1e-7), opset=19),
    "int8 with a subnormal scale": product(ones(np.int8), np.float32(1e-42)),
    "the largest code of fp8": product(coded(0x7E), FP8_SCALE),
}
UNKNOWN = [
    helper.make_node("QuantizeLinear", ["x", "s"], ["q"], NODE, output_dtype=999),
    helper.make_node("DequantizeLinear", ["q", "s"], ["y"], "x/dequantize"),
]
UINT4 = ones(ml_dtypes.uint4)
BAD = {
    "fp8 under opset 19": (product(FP8_WEIGHT, FP8_SCALE, opset=18), "19", "18"),
    "int4 under opset 21": (product(INT4_WEIGHT, np.float32(0.5), opset=20), "int4", "21"),
    "fp4 under opset 23": (product(ones(FP4), INT4_SCALE, opset=22, **BLOCKS), "float4e2m1", "23"),
    "e5m2": (product(ones(ml_dtypes.float8_e5m2), FP8_SCALE), "float8e5m2"),
    "e4m3fnuz": (product(ones(ml_dtypes.float8_e4m3fnuz), FP8_SCALE), "float8e4m3fnuz", "float8e4m3fn"),
    "asymmetric uint4": (product(UINT4, INT4_SCALE, UINT4[:2], **BLOCKS), "uint4", "int4"),
    "an int4 zero point": (product(INT4_WEIGHT, INT4_SCALE, ones(INT4, 2, COLUMNS), **BLOCKS), "zero"),
    "an fp8 zero point": (product(FP8_WEIGHT, FP8_SCALE, np.ones((), FP8)), "0", "float8e4m3fn"),
    "blocks that do not divide": (
        product(INT4_WEIGHT, scales(2, COLUMNS), axis=0, block_size=20), "20", "32", "axis 0",
    ),
    "an unknown type": (model_of(UNKNOWN, {"s": np.float32(0)}, 23), "scale", "0"),
    "odd blocks": (product(INT4_WEIGHT, scales(2, COLUMNS), axis=0, block_size=15), "15", "64", "128"),
    "negative blocks": (product(INT4_WEIGHT, INT4_SCALE, axis=0, block_size=-16), "-16"),
    "no block size": (product(INT4_WEIGHT, INT4_SCALE, axis=0), "[2, 8]", "block_size"),
    "scales along another axis": (
        product(INT4_WEIGHT, scales(ROWS, 1), **BLOCKS), "[32, 1]", "[32, 8]", "16", "[2, 8]",
    ),
    "too few scales": (product(FP8_WEIGHT, scales(COLUMNS - 1), axis=1), "[7]", "axis"),
    "an axis outside": (product(FP8_WEIGHT, scales(COLUMNS), axis=2), "axis 2", "[32, 8]"),
    "zero points of another shape": (
        product(INT4_WEIGHT, INT4_SCALE, np.zeros(3, INT4), **BLOCKS), "[3]", "zero", "[2, 8]",
    ),
    "nan, 0x7f": (product(coded(0x7F), FP8_SCALE), "NaN", "1", "256", "448"),
    "nan, 0xff": (product(coded(0xFF), FP8_SCALE), "NaN", "1", "256", "values"),
}  # fmt: skip


def with_scale(kind, value):
    scale = INT4_SCALE.copy() if kind in (INT4, FP4) else scales(COLUMNS)
    scale.flat[-1] = value
    attributes = BLOCKS if kind in (INT4, FP4) else {"axis": 1}
    return product(ones(kind), scale, **attributes)


@each("name", GOOD)
def test_what_compilers_take_is_loaded(name):
    assert load_model(GOOD[name]).proto.graph.node


@each("name", BAD)
def test_what_no_compiler_takes_is_one_error_that_names_the_node(name, tmp_path, capsys):
    proto, *names = BAD[name]
    onnx.save(proto, tmp_path / "m.onnx")
    assert run(capsys, "prepare", tmp_path / "m.onnx", "-o", tmp_path / "p.onnx")[0] == 2
    assert not (tmp_path / "p.onnx").exists()
    with fails(InputError) as caught:
        load_model(proto)
    assert caught.value.hint
    shows(f"{caught.value.message} {caught.value.hint}", NODE, *names)


@each("kind", [FP8, INT4, FP4, np.int8])
@each(
    "value, said",
    [(0.0, "0"), (-0.5, "negative"), (np.nan, "not a number"), (np.inf, "infinite")],
)
def test_one_unusable_scale_among_many_is_an_error(kind, value, said):
    with fails(InputError, NODE, said, "scale", hint="positive scale"):
        load_model(with_scale(kind, value))


@pytest.mark.parametrize("kind", [FP8, INT4, FP4])
def test_a_subnormal_scale_of_a_narrow_type_is_an_error(kind):
    with fails(InputError, "scale", "1e-42"):
        load_model(with_scale(kind, 1e-42))


def test_pairs_on_activations_are_checked_too():
    proto = product(FP8_WEIGHT, FP8_SCALE, activation=FP8, opset=18)
    del proto.graph.node[0]
    proto.graph.node[-1].input[1] = "float"
    proto.graph.initializer.append(numpy_helper.from_array(ones(np.float32), "float"))
    with fails(InputError, "x/quantize"):
        load_model(proto)


def test_scales_that_are_dequantized_themselves_are_checked_by_their_own_shape():
    codes = ones(FP8, ROWS // BLOCK, COLUMNS)
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "step"], ["scale"], "steps"),
        helper.make_node("DequantizeLinear", ["values", "scale"], ["w"], NODE, **BLOCKS),
        helper.make_node("MatMul", ["x", "w"], ["y"], "product"),
    ]
    constants = {"codes": codes, "step": np.float32(0.5), "values": ones(FP4)}
    assert load_model(model_of(nodes, constants, 23))
    constants["codes"] = ones(FP8, ROWS // BLOCK, 4)
    with fails(InputError, "[2, 4]", "[32, 8]"):
        load_model(model_of(nodes, constants, 23))


def test_subgraphs_are_checked_with_the_constants_around_them():
    inner = [
        helper.make_node("DequantizeLinear", ["values", "scale"], ["w"], NODE),
        helper.make_node("MatMul", ["x", "w"], ["branch"], "product"),
    ]
    shape = helper.make_tensor_value_info("branch", TensorProto.FLOAT, [2, COLUMNS])
    branch = helper.make_graph(inner, "branch", [], [shape])
    node = helper.make_node("If", ["is"], ["y"], "either", then_branch=branch, else_branch=branch)
    constants = {"values": coded(0x7F), "scale": FP8_SCALE, "is": np.bool_(True)}
    with fails(InputError, NODE, "NaN"):
        load_model(model_of([node], constants, 23))


@pytest.mark.parametrize(("dtype", "cut"), [(FP8, 1), (INT4, 1), (FP4, 1)])
def test_narrow_values_that_are_cut_short_are_an_error(dtype, cut):
    proto = product(ones(dtype), scales())
    values = proto.graph.initializer[0]
    values.raw_data = values.raw_data[:-cut]
    with fails(InputError, "values"):
        load_model(proto)


def called(body, constants, passed=(), attributes=(), **given):
    """A model that calls a function: the constants `passed` are arguments, others lie in its body."""
    inner = [name for name in constants if name not in passed]
    held = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(constants[name]))
        for name in inner
    ]
    product = helper.make_node("MatMul", ["a", "w"], ["b"], "product")
    opsets = [helper.make_opsetid("", 18 if "old" in given else 23)]
    function = helper.make_function(
        "own", "Layer", ["a", *passed], ["b"], [*held, body, product], opsets, list(attributes)
    )
    given.pop("old", None)
    call = helper.make_node("Layer", ["x", *passed], ["y"], "call", domain="own", **given)
    proto = model_of([call], {name: constants[name] for name in passed}, 23)
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


@pytest.mark.parametrize("passed", [(), ("values",), ("values", "scale")])
def test_functions_are_checked_with_the_constants_of_their_calls(passed):
    body = helper.make_node("DequantizeLinear", ["values", "scale"], ["w"], NODE)
    constants = {"values": coded(0x7F), "scale": np.asarray(FP8_SCALE)}
    with fails(InputError, NODE, "Layer", "NaN"):
        load_model(called(body, constants, passed))
    assert load_model(called(body, constants | {"values": FP8_WEIGHT}, passed))


def test_functions_are_checked_under_their_own_opset():
    body = helper.make_node("DequantizeLinear", ["values", "scale"], ["w"], NODE)
    constants = {"values": FP8_WEIGHT, "scale": np.asarray(FP8_SCALE)}
    with fails(InputError, "Layer", "19", "18"):
        load_model(called(body, constants, old=True))


@pytest.mark.parametrize(("size", "is_good"), [(BLOCK, True), (BLOCK - 1, False)])
def test_functions_are_checked_with_the_attributes_of_their_calls(size, is_good):
    body = helper.make_node("DequantizeLinear", ["values", "scale"], ["w"], NODE, axis=0)
    reference = onnx.AttributeProto(name="block_size", ref_attr_name="size")
    reference.type = onnx.AttributeProto.INT
    body.attribute.append(reference)
    constants = {"values": INT4_WEIGHT, "scale": INT4_SCALE}
    proto = called(body, constants, attributes=["size"], size=size)
    if is_good:
        assert load_model(proto)
        return
    with fails(InputError, "weight/dequantize", "15"):
        load_model(proto)


def test_functions_that_call_others_are_each_checked_once_with_the_same_constants():
    body = helper.make_node("DequantizeLinear", ["values", "scale"], ["w"], NODE)
    proto = called(body, {"values": FP8_WEIGHT, "scale": np.asarray(FP8_SCALE)})
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("own", 1)]
    below = "Layer"
    for level in range(40):  # each calls the one below twice: 2 to the power of 40 calls
        twice = [
            helper.make_node(below, ["a"], ["b"], domain="own"),
            helper.make_node(below, ["a"], ["unused"], domain="own"),
        ]
        below = f"Level{level}"
        proto.functions.append(helper.make_function("own", below, ["a"], ["b"], twice, opsets))
    proto.graph.node[0].op_type = below
    assert len(list(_scopes(proto, 23))) == 2 + 40
