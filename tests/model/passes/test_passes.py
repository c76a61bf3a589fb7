"""Each pass on generated models: every tensor that keeps its name keeps its values."""

import contextlib
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.examples import examples
from tests.fixtures.networks import rng, weight
from tests.fixtures.tables import each
from tests.model.passes.graphs import alone, branch, changes, make, ops, prepared_alike
from trtcal.model.passes import prepare_with_record

few = examples(10)
node = helper.make_node
FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
FP16, BRAIN = TensorProto.FLOAT16, TensorProto.BFLOAT16


def draw(*shape, seed=0):
    return rng(seed).standard_normal(shape).astype(np.float32)


def chain(steps, first="x", last="y"):
    """Return nodes in a row, each reading the tensor before it; a step is (op, more inputs, attrs)."""
    names = [first, *(f"t{number}" for number in range(1, len(steps))), last]
    return [
        node(op, [names[number], *more], [names[number + 1]], f"n{number}", **attributes)
        for number, (op, more, attributes) in enumerate(steps)
    ]


@few
@given(st.lists(st.sampled_from(["Identity", "Dropout", "Relu", "Neg"]), min_size=1, max_size=7),
       st.sets(st.integers(1, 6)))  # fmt: skip
def test_identities(kinds, shown):
    nodes = chain([(kind, [], {}) for kind in kinds])
    outputs = {"y": ["n", 3]} | {f"t{one}": ["n", 3] for one in shown if one < len(kinds)}
    model = make(nodes, {}, {"x": ["n", 3]}, outputs)
    prepared = prepared_alike(model, {"x": draw(2, 3)}, skip=alone("identities"))
    kept = [kind for kind in kinds if kind in ("Relu", "Neg")]
    assert [op for op in ops(prepared) if op in ("Relu", "Neg")] == kept
    if kept and not any(one < len(kinds) for one in shown):
        assert ops(prepared) == kept


@each("shape", [(), (1,)])
@each("left_out", [False, True])
def test_scalars(left_out, shape):
    """Without a zero point, QuantizeLinear makes unsigned bytes, and DequantizeLinear takes any."""
    constants = {"s": np.full(shape, 0.1, np.float32), "z": np.full(shape, 0, np.int8)}
    known = ["s", "z"]
    nodes = [
        node("QuantizeLinear", ["x", *known], ["q"], "q"),
        node("DequantizeLinear", ["q", *known[: 1 if left_out else 2]], ["a"], "d"),
        node("QuantizeLinear", ["a", *known[: 1 if left_out else 2]], ["r"], "q2"),
        node("DequantizeLinear", ["r", *known[: 1 if left_out else 2]], ["y"], "d2"),
    ]
    model = make(nodes, constants, {"x": ["n", 3]}, {"y": ["n", 3]})
    prepared = prepared_alike(model, {"x": draw(2, 3)}, skip=alone("scalars"))
    values = {
        item.name: numpy_helper.to_array(item) for item in prepared.model.proto.graph.initializer
    }
    for one in prepared.model.proto.graph.node:
        assert [values[name].shape for name in one.input[1:]] == [(), ()], one.name
    expected = np.uint8 if left_out else np.int8
    assert values[prepared.model.proto.graph.node[-1].input[2]].dtype == expected


def test_an_identity_between_an_input_and_an_output_stays():
    model = make([node("Identity", ["x"], ["y"], "i")], {}, {"x": ["n", 3]}, {"y": ["n", 3]})
    assert ops(prepared_alike(model, {"x": draw(2, 3)})) == ["Identity"]


def test_two_outputs_of_one_tensor_are_both_there():
    nodes = [node("Relu", ["x"], ["a"], "r")]
    nodes += [node("Identity", ["a"], [name], name) for name in ("y", "z")]
    model = make(nodes, {}, {"x": ["n", 3]}, {"y": ["n", 3], "z": ["n", 3]})
    assert ops(prepared_alike(model, {"x": draw(2, 3)})) == ["Relu", "Identity"]


SHAPES = [(), (1,), (3,), (2, 3), (1, 1), (4, 1, 1), (2, 1)]


def fitting():
    """Yield all pairs of shapes that broadcast, by their places, and the shape that they give."""
    for i, j in itertools.product(range(len(SHAPES)), repeat=2):
        with contextlib.suppress(ValueError):
            yield i, j, np.broadcast_shapes(SHAPES[i], SHAPES[j])


@each("dynamic", [False, True])
@each("left", [False, True])
@each("op, value", [("Mul", 1), ("Div", 1), ("Add", 0), ("Sub", 0)])
def test_neutral(op, value, left, dynamic):
    """One path for each pair of shapes: a neutral node goes if the shape is sure to stay the same."""
    nodes = [node("Neg", [f"x{i}"], [f"a{i}"], f"neg{i}") for i in range(len(SHAPES))]
    for i, j, _ in fitting():
        operands = [f"k{j}", f"a{i}"] if left else [f"a{i}", f"k{j}"]
        nodes += [node(op, operands, [f"b{i}.{j}"], f"op{i}.{j}"),
                  node("Relu", [f"b{i}.{j}"], [f"y{i}.{j}"], f"relu{i}.{j}")]  # fmt: skip
    weights = {f"k{j}": np.full(shape, value, np.float32) for j, shape in enumerate(SHAPES)}
    inputs = {f"x{i}": [f"d{i}.{axis}" if dynamic else size for axis, size in enumerate(shape)]
              for i, shape in enumerate(SHAPES)}  # fmt: skip
    outputs = {f"y{i}.{j}": [None] * len(result) for i, j, result in fitting()}
    feeds = {f"x{i}": np.abs(draw(*shape)) + np.float32(0.5) for i, shape in enumerate(SHAPES)}
    prepared = prepared_alike(make(nodes, weights, inputs, outputs), feeds, skip=["scales"])
    kept = {one.name for one in prepared.model.proto.graph.node}
    gone = {(i, j) for i, j, _ in fitting() if f"op{i}.{j}" not in kept}
    if left and op in ("Div", "Sub"):
        assert not gone
        return
    same = {(i, j) for i, j, result in fitting() if result == SHAPES[i]}
    assert gone == {(i, j) for i, j in same if not dynamic or set(SHAPES[j]) <= {1}}


@each("op, values", [
    ("Mul", [1, 1, 2]), ("Div", [1, 1, 0.5]), ("Add", [0, 0, 1]), ("Sub", [1, 0, 0]),
])  # fmt: skip
def test_what_changes_one_value_is_not_neutral(op, values):
    nodes = chain([("Neg", [], {}), (op, ["k"], {}), ("Abs", [], {})])
    model = make(nodes, {"k": np.array(values, np.float32)}, {"x": [2, 3]}, {"y": [2, 3]})
    assert ops(prepared_alike(model, {"x": draw(2, 3)})) == ["Neg", op, "Abs"]


KINDS = [FLOAT, DOUBLE, FP16, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16,
         TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL]  # fmt: skip


def test_every_pair_of_casts():
    pairs = list(itertools.product(KINDS, KINDS))
    nodes = []
    for number, (there, over) in enumerate(pairs):
        names = ["x", *(f"{letter}{number}" for letter in "abcy")]
        for place, kind in enumerate([there, over, there, FLOAT]):
            made = node("Cast", [names[place]], [names[place + 1]], f"{names[place + 1]}", to=kind)
            nodes.append(made)
    outputs = {f"y{number}": ["n"] for number in range(len(pairs))}
    x = np.array([0, 1, -3, 0.1, 100.7, 300, 70_000, -70_000, 2.0**24 + 2, 1e9, 1 / 3], np.float32)
    model = make(nodes, {}, {"x": ["n"]}, outputs)
    prepared = prepared_alike(model, {"x": x}, tolerance=0, skip=["fp16-opset"])
    kept = {one.name for one in prepared.model.proto.graph.node}
    to_numpy = helper.tensor_dtype_to_np_dtype
    for number, (there, over) in enumerate(pairs):
        safe = np.can_cast(to_numpy(there), to_numpy(over)) and there != TensorProto.INT64
        assert f"c{number}" in kept or there == over or safe, (there, over)


@few
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
def test_casts(kinds):
    model = around([*kinds, FLOAT])
    x = np.array([0, 1, 2, 3, 0.1, 100.7, 63.5, 1e-6, 1 / 3], np.float32)
    prepared = prepared_alike(model, {"x": x}, tolerance=0, skip=["fp16-opset"])
    if set(kinds) <= {FLOAT, DOUBLE}:
        assert ops(prepared) == ["Neg", "Abs"]


def around(kinds):
    steps = [("Neg", [], {}), *(("Cast", [], {"to": kind}) for kind in kinds), ("Abs", [], {})]
    return make(chain(steps), {}, {"x": ["n"]}, {"y": ["n"]})


@each("kinds, left", [
    ([DOUBLE, FLOAT], 0), ([FLOAT], 0), ([FP16, FLOAT], 2), ([DOUBLE, FP16, DOUBLE, FLOAT], 4),
    ([FP16, DOUBLE, FP16, FLOAT], 2), ([TensorProto.INT32, FLOAT], 2),
])  # fmt: skip
def test_casts_that_round_stay_unless_asked(kinds, left):
    x = {"x": draw(9) * np.float32(100)}
    prepared = prepared_alike(around(kinds), x, tolerance=0, skip=["fp16-opset"])
    assert ops(prepared).count("Cast") == left
    asked = prepared_alike(around(kinds), x, 1e-3, skip=["fp16-opset"], add=["rounding-casts"])
    assert ops(asked).count("Cast") == (2 if TensorProto.INT32 in kinds else 0)


def test_a_cast_whose_rounding_is_read_elsewhere_stays_for_that_reader():
    nodes = [node("Neg", ["x"], ["a"], "neg"), node("Cast", ["a"], ["b"], "wide", to=DOUBLE),
             node("Cast", ["b"], ["c"], "back", to=FLOAT), node("Abs", ["c"], ["y"], "abs"),
             node("Sqrt", ["b"], ["d"], "sqrt"),
             node("Cast", ["d"], ["z"], "out", to=FLOAT)]  # fmt: skip
    model = make(nodes, {}, {"x": ["n"]}, {"y": ["n"], "z": ["n"]})
    prepared = prepared_alike(model, {"x": -np.abs(draw(5))})
    assert sorted(ops(prepared)) == ["Abs", "Cast", "Cast", "Neg", "Sqrt"]


@few
@given(st.lists(st.one_of(st.none(), st.permutations(range(3))), min_size=1, max_size=6))
def test_transposes(perms):
    steps = [("Transpose", [], {} if perm is None else {"perm": perm}) for perm in perms]
    model = make(chain([("Neg", [], {}), *steps, ("Abs", [], {})]), {}, {"x": [2, 3, 4]},
                 {"y": [None] * 3})  # fmt: skip
    prepared = prepared_alike(model, {"x": draw(2, 3, 4)}, skip=["constants"])
    order = np.arange(3)
    for perm in perms:
        order = order[list(perm) if perm is not None else [2, 1, 0]]
    if (order == np.arange(3)).all():
        assert ops(prepared) == ["Neg", "Abs"]


def test_default_transposes_undo_each_other_at_any_rank():
    steps = [
        ("Foo", [], {"domain": "own"}),
        ("Transpose", [], {}),
        ("Transpose", [], {}),
        ("Abs", [], {}),
    ]
    model = make(chain(steps), {}, {"x": [2, 3]}, {"y": [2, 3]}, domains=["own"])
    assert ops(prepare_with_record(model)) == ["Foo", "Abs"]


SCALES = st.lists(
    st.tuples(st.sampled_from(["BatchNormalization", "Mul", "Add", "Relu"]),
              st.sampled_from([(), (1,), (6, 1, 1), (1, 6, 1, 1), (4, 4), (1, 1, 4, 1)])),
    min_size=1, max_size=4,
)  # fmt: skip


@few
@given(SCALES, st.sampled_from(["Conv", "ConvTranspose"]), st.sampled_from([1, 2]), st.booleans(),
       st.booleans())  # fmt: skip
def test_scales(kinds, conv, group, bias, shared):
    w = weight(6, 4 // group, 1, 1) if conv == "Conv" else weight(4, 6 // group, 1, 1)
    weights = {"w": w, "b": draw(6, seed=2)}
    steps = [(conv, ["w", "b"][: 1 + bias], {"group": group})]
    for number, (op, shape) in enumerate(kinds):
        mark = "" if shared else str(number)
        more = []
        if op == "BatchNormalization":
            more = [f"{part}{mark}" for part in ("gamma", "beta", "mean", "var")]
            weights |= {name: np.abs(draw(6, seed=3)) + np.float32(0.5) for name in more}
        elif op != "Relu":
            more = [f"k{number}"]
            weights[f"k{number}"] = draw(*shape, seed=number + 5)
        steps.append((op, more, {}))
    model = make(chain(steps), weights, {"x": ["n", 4, 4, 4]}, {"y": ["n", 6, 4, 4]})
    prepared = prepared_alike(model, {"x": draw(2, 4, 4, 4)})
    fitting = [(), (1,), (6, 1, 1), (1, 6, 1, 1)]
    folds = [
        op == "BatchNormalization" or (op != "Relu" and shape in fitting) for op, shape in kinds
    ]
    count = folds.index(False) if False in folds else len(folds)
    grouped = conv == "ConvTranspose" and group > 1
    assert changes(prepared).get("scales", 0) == (0 if grouped else count)


@few
@given(st.lists(st.sampled_from(["Neg", "Transpose", "Reshape", "Add", "Shape"]), max_size=5),
       st.sampled_from(["Constant", "initializer"]))  # fmt: skip
def test_constants(kinds, source):
    k = draw(4, 4, seed=1)
    weights, nodes = {"four": np.array([4, 4]), "k2": draw(4, 4)}, []
    if source == "Constant":
        nodes.append(node("Constant", [], ["k"], "k", value=_tensor(k)))
    else:
        weights["k"] = k
    more = {"Reshape": ["four"], "Add": ["k2"]}
    steps = [(kind, more.get(kind, []), {}) for kind in kinds if kind != "Shape"]
    nodes += chain([*steps, ("Neg", [], {})], "k", "folded")
    if "Shape" in kinds:
        nodes += [node("Shape", ["x"], ["s"], "shape", start=1),
                  node("Cast", ["s"], ["f"], "f", to=FLOAT),
                  node("Mul", ["folded", "f"], ["w"], "by")]  # fmt: skip
    else:
        nodes.append(node("Identity", ["folded"], ["w"], "same"))
    nodes.append(node("MatMul", ["x", "w"], ["y"], "product"))
    model = make(nodes, weights, {"x": ["n", 4]}, {"y": ["n", 4]})
    prepared = prepared_alike(model, {"x": draw(2, 4)})
    assert ops(prepared) == ["MatMul"]


def _tensor(array):
    return numpy_helper.from_array(array)


@each("attribute", [{"value_float": 1.5}, {"value_int": 3},
    {"value_floats": [1.0, 2.0, 3.0, 4.0]}, {"value_ints": [1, 2, 3, 4]}])  # fmt: skip
def test_constants_of_plain_numbers_get_their_type(attribute):
    nodes = [node("Constant", [], ["k"], "k", **attribute), node("Cast", ["k"], ["f"], "f", to=FLOAT),
             node("Mul", ["x", "f"], ["y"], "mul"), node("CastLike", ["x", "k"], ["z"], "like"),
             node("Cast", ["z"], ["v"], "out", to=FLOAT)]  # fmt: skip
    model = make(nodes, {}, {"x": ["n", 4]}, {"y": ["n", 4], "v": ["n", 4]})
    prepared_alike(model, {"x": draw(2, 4) * np.float32(5)})


def test_shapes_are_not_rounded_in_whole_numbers():
    """Halving a size in float, as exporters do, must not become a product by the integer 0."""
    nodes = [node("Shape", ["x"], ["s"], "s"), node("Cast", ["s"], ["f"], "f", to=FLOAT),
             node("Neg", ["minus"], ["half"], "half"), node("Mul", ["f", "half"], ["h"], "h"),
             node("Cast", ["h"], ["i"], "i", to=7),
             node("ConstantOfShape", ["i"], ["y"], "y")]  # fmt: skip
    model = make(nodes, {"minus": np.float32(-0.5)}, {"x": ["n", 4]}, {"y": [None, None]})
    prepared_alike(model, {"x": draw(6, 4)})


@each("places", [1, [1, -1], [[2], [1]], 0])
def test_fixed_sizes_of_a_shape_are_constants(places):
    nodes = [node("Shape", ["x"], ["s"], "s"), node("Gather", ["s", "p"], ["g"], "g"),
             node("Cast", ["g"], ["f"], "f", to=FLOAT),
             node("ReduceMax", ["f"], ["m"], "m", keepdims=0),
             node("Mul", ["x", "m"], ["y"], "y")]  # fmt: skip
    model = make(nodes, {"p": np.array(places)}, {"x": ["n", 3, 4]}, {"y": ["n", 3, 4]})
    prepared = prepared_alike(model, {"x": draw(2, 3, 4)})
    assert ("Gather" in ops(prepared)) == (places == 0)


@each("chosen", [True, False])
@each("clash", [True, False])
def test_branches(chosen, clash):
    inner = "side/a" if clash else "a"
    then = branch(
        "then", [node("Neg", ["x"], [inner], "n1"), node("Relu", [inner], ["t"], "")], "t"
    )
    other = branch(
        "other", [node("Abs", ["x"], ["a2"], "n2"), node("Add", ["a2", "k"], ["o"], "add")], "o"
    )
    side = branch(
        "side", [node("Neg", ["x"], ["side/a"], "q"), node("Abs", ["side/a"], ["s"], "r")], "s"
    )
    side2 = branch("side2", [node("Neg", ["x"], ["s2"], "q")], "s2")
    nodes = [node("Not", ["c"], ["d"], "not"),
             node("If", ["d"], ["i"], "if", then_branch=other, else_branch=then),
             node("ReduceMax", ["x"], ["m"], "max", keepdims=0), node("Cast", ["m"], ["b"], "n", to=9),
             node("If", ["b"], ["j"], "if2", then_branch=side, else_branch=side2),
             node("Add", ["i", "j"], ["y"], "add")]  # fmt: skip
    weights = {"c": np.array(chosen), "k": np.float32(3)}
    prepared = prepared_alike(
        make(nodes, weights, {"x": ["n", 4]}, {"y": ["n", 4]}), {"x": draw(2, 4)}
    )
    taken = not (clash and chosen)  # a name that another subgraph has too can't come out
    assert ops(prepared).count("If") == (1 if taken else 2)
    names = [one.name for one in prepared.model.proto.graph.node]
    assert len(set(names)) == len(names)


@each("opset", range(9, 25))
def test_opsets(opset):
    old = opset < 13
    nodes = [
        node("Conv", ["x", "w"], ["t1"], ""),
        node("BatchNormalization", ["t1", *"gbmv"], ["t2"], ""),
        node("Dropout", ["t2"], ["t3"], "twice"),
        node("GlobalAveragePool", ["t3"], ["t4"], "twice"),
        node("Squeeze", ["t4"], ["t5"], "", axes=[2, 3]) if old
        else node("Squeeze", ["t4", "23"], ["t5"], ""),
        node("Softmax", ["t5"], ["t6"], "", axis=1),
        node("Clip", ["t6"], ["y"], "", min=0.1, max=0.9) if opset < 11
        else node("Clip", ["t6", "lo", "hi"], ["y"], ""),
    ]  # fmt: skip
    weights = {
        "w": weight(6, 3, 3, 3),
        "23": np.array([2, 3]),
        "lo": np.float32(0.1),
        "hi": np.float32(0.9),
    }
    weights |= {name: np.abs(draw(6, seed=ord(name))) + np.float32(0.5) for name in "gbmv"}
    model = make(nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6]}, opset)
    prepared = prepared_alike(model, {"x": draw(2, 3, 8, 8)})
    assert prepared.model.opset == max(opset, 13)
    assert {"BatchNormalization", "Dropout", "Constant"}.isdisjoint(ops(prepared))


def test_types_are_those_that_come_out():
    nodes = chain([("Neg", [], {}), ("Transpose", [], {"perm": [1, 0]}), ("Relu", [], {})])
    model = make(nodes, {}, {"x": [2, 3]}, {"y": [None, None]})
    proto = prepared_alike(model, {"x": draw(2, 3)}, skip=alone("types")).model.proto
    stated = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim]
              for one in (*proto.graph.value_info, *proto.graph.output)}  # fmt: skip
    assert stated == {"t1": [2, 3], "t2": [3, 2], "y": [3, 2]}
