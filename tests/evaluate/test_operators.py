"""Operators that few networks have: every command that runs a network takes them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.networks import rng, save, weight
from tests.fixtures.slow import slow_but
from trtcal import SearchOptions, calibrate, compare, load_model, quantize, search

PADS = np.array([0, 0, 1, 1, 0, 0, 1, 1])
HALF = np.array(0.5, np.float32)


def node(op, inputs, outputs=("m",), **attributes):
    return helper.make_node(op, inputs, outputs, f"{op}_{outputs[0]}", **attributes)


def held(name, array):
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array), name))


def body(nodes, name="so", state=False):
    kinds = [("turn", TensorProto.INT64, []), ("go", TensorProto.BOOL, [])]
    inputs = [("st", TensorProto.FLOAT, None)]
    outputs = [("stay", TensorProto.BOOL, [])] if state else []
    nodes = [*nodes, node("Identity", ["go"], ["stay"])] if state else nodes
    return helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(*one) for one in ((*kinds, *inputs) if state else ())],
        [
            helper.make_tensor_value_info(*one)
            for one in (*outputs, (name, TensorProto.FLOAT, None))
        ],
    )


CHOICE = {
    "then_branch": body([node("Conv", ["b", "inner"], ["so"], pads=[1] * 4)]),
    "else_branch": body([node("Identity", ["b"], ["so"])]),
}
LOOP = body([node("Conv", ["st", "inner"], ["so"], pads=[1] * 4)], state=True)
MIDDLES = {
    "pad": [node("Pad", ["b", "pads", "half"])],
    "pad_without_value": [node("Pad", ["b", "pads"])],
    "pad_of_constants": [held("ps", PADS), held("v", HALF), node("Pad", ["b", "ps", "v"])],
    "pad_of_a_computed_value": [
        node("ReduceMin", ["b"], ["low"], keepdims=0),
        node("Pad", ["b", "pads", "low"]),
    ],
    "pad_of_a_computed_width": [
        node("Shape", ["b"], ["s"]),
        node("Sub", ["s", "s"], ["none"]),
        node("Concat", ["none", "none"], ["nones"], axis=0),
        node("Add", ["nones", "pads"], ["wide"]),
        node("Pad", ["b", "wide", "half"]),
    ],
    "pad_by_reflection": [node("Pad", ["b", "pads", ""], mode="reflect")],
    "resize": [node("Resize", ["b", "", "scales"], mode="linear")],
    "einsum_of_three": [node("Einsum", ["b", "square", "square"], equation="nchw,cd,de->nehw")],
    "einsum_of_an_ellipsis": [
        node("Transpose", ["b"], ["t"], perm=[0, 2, 3, 1]),
        node("Einsum", ["t", "square"], ["u"], equation="...c,cd->...d"),
        node("Transpose", ["u"], perm=[0, 3, 1, 2]),
    ],
    "topk": [node("TopK", ["b", "four"], ["m", "places"], axis=3)],
    "nonzero": [
        node("NonZero", ["b"], ["places"]),
        node("Shape", ["places"], ["counted"]),
        node("ReduceMin", ["counted"], ["least"], keepdims=0),
        node("Cast", ["least"], ["float"], to=TensorProto.FLOAT),
        node("Sub", ["float", "float"], ["zero"]),
        node("Add", ["b", "zero"]),
    ],
    "if": [
        node("ReduceMax", ["b"], ["top"], keepdims=0),
        node("Greater", ["top", "half"], ["is"]),
        node("If", ["is"], **CHOICE),
    ],
    "loop": [node("Loop", ["thrice", "yes", "b"], body=LOOP)],
    "sequence": [
        node("SplitToSequence", ["b", "eight"], ["split"], axis=1),
        node("ConcatFromSequence", ["split"], axis=1),
    ],
    "optional": [node("Optional", ["b"], ["maybe"]), node("OptionalGetElement", ["maybe"])],
}
CONSTANTS = {
    "pads": PADS,
    "half": HALF,
    "scales": np.array([1, 1, 2, 2], np.float32),
    "square": weight(8, 8, seed=9),
    "inner": weight(8, 8, 3, 3, seed=12),
    "four": np.array([4]),
    "eight": np.array(8),
    "thrice": np.array(3),
    "yes": np.array(True),
}


def around(path, middle):
    """conv -> relu -> what is tried -> conv -> pool -> gemm."""
    nodes = [
        node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        *middle,
        node("Conv", ["m", "w2"], ["c"], pads=[1] * 4),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w3"], ["y"], transB=1),
    ]
    inner = [one for item in middle for part in item.attribute for one in part.g.node]
    read = {name for one in (*middle, *inner) for name in one.input}
    weights = {"w1": weight(8, 3, 3, 3), "w2": weight(8, 8, 3, 3), "w3": weight(5, 8)}
    weights |= {name: CONSTANTS[name] for name in sorted(read & set(CONSTANTS))}
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 5]})


@pytest.mark.parametrize("name", slow_but(MIDDLES, *sorted(MIDDLES)[::6]))
def test_every_operator_is_calibrated_compared_and_searched(tmp_path, name):
    model = load_model(around(tmp_path / "n.onnx", MIDDLES[name]))
    data = {"x": rng(9).standard_normal((24, 3, 8, 8)).astype(np.float32)}
    calibration = calibrate(model, data, "minmax")
    compared = compare(model, {"int8": quantize(model, calibration)}, data, rounds=2)
    assert compared.rows[1].accuracy.sqnr_db > 15
    options = SearchOptions(samples=8, evaluated=8, evaluations=3)
    found = search(model, calibration, data, options=options).found
    assert found.recommended is not None
    assert {"Conv_a", "Conv_c"} <= set.union(*(set(one.plan) for one in found.measured))
