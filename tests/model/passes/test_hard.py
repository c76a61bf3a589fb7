"""Models as they come: each is prepared with no change of what it computes, or refused by node."""

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, parser
from onnx.external_data_helper import convert_model_to_external_data

from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import conv_net, rng, weight
from tests.fixtures.tables import each
from tests.model.passes.graphs import branch, changes, info, make, ops, prepared_alike, values
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.model.passes import prepare_with_record

node = helper.make_node
FLOAT, FP16, BRAIN = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
HOSTILE = ['a"b', "two\nlines", "\x1b[31m", "ünïcödé/名前", "x'; DROP", "", "same", "same", " "]
PARTS = ("gamma", "beta", "mean", "var")


def draw(*shape, seed=0):
    return rng(seed).standard_normal(shape).astype(np.float32)


def norm_weights():
    return {name: np.abs(draw(6, seed=ord(name[0]))) + np.float32(0.5) for name in PARTS}


IMAGE = {"x": ["n", 3, 8, 8]}
IMAGES = {"x": draw(2, 3, 8, 8)}


def test_names_may_be_anything():
    tensors = ["x", *(f"{name}{number}" for number, name in enumerate(HOSTILE)), "y"]
    kinds = [
        "Neg", "Identity", "Abs", "Transpose", "Transpose", "Identity", "Relu", "Neg", "Abs",
        "Neg",
    ]  # fmt: skip
    nodes = [
        node(kind, [before], [after], name)
        for kind, name, before, after in zip(
            kinds, [*HOSTILE, "end"], tensors[:-1], tensors[1:], strict=True
        )
    ]
    nodes.insert(0, node("Constant", [], ["k\n'\""], "same", value_float=2.0))
    nodes[-1].input.append("k\n'\"")
    nodes[-1].op_type = "Mul"
    prepared = prepared_alike(make(nodes, {}, {"x": ["n", 3]}, {"y": ["n", 3]}), {"x": draw(2, 3)})
    names = [one.name for one in prepared.model.proto.graph.node]
    assert len(set(names)) == len(names)
    assert all(names)
    assert ops(prepared) == ["Neg", "Abs", "Relu", "Neg", "Abs", "Mul"]


def inside(prepared):
    (node,) = (one for one in prepared.model.proto.graph.node if one.op_type == "If")
    return next(one.g.node for one in node.attribute if one.name == "then_branch")


def test_repeated_names_inside_subgraphs_become_unique():
    then = branch("then", [node("Neg", ["x"], ["t1"], "n"), node("Abs", ["t1"], ["t"], "n")], "t")
    other = branch("other", [node("Relu", ["x"], ["o"], "")], "o")
    nodes = [
        node("ReduceMax", ["x"], ["m"], "n", keepdims=0),
        node("Cast", ["m"], ["c"], "c", to=9),
        node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    prepared = prepare_with_record(make(nodes, {}, {"x": ["n", 3]}, {"y": ["n", 3]}))
    kept = inside(prepared)
    assert [one.op_type for one in kept] == ["Neg", "Abs"]
    assert len({"n", *(one.name for one in kept)}) == 3
    values(prepared.model.proto, {"x": draw(2, 3)}, [])


def test_parameters_that_two_norms_share_are_folded_into_both():
    nodes = as_nodes(
        "[c1] a = Conv(x, w)  [n1] b = BatchNormalization(a, gamma, beta, mean, var)  "
        "[c2] c = Conv(x, w)  [n2] d = BatchNormalization(c, gamma, beta, mean, var)  "
        "[m] e = Mul(d, gamma3)  [add] y = Add(b, e)"
    )
    weights = {"w": weight(6, 3, 3, 3), **norm_weights(), "gamma3": draw(6, 1, 1)}
    prepared = prepared_alike(make(nodes, weights, IMAGE, {"y": ["n", 6, 6, 6]}), IMAGES)
    assert ops(prepared) == ["Conv", "Conv", "Add"]


def test_a_new_weight_takes_no_name_that_is_there():
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv"),
        node("BatchNormalization", ["a", *PARTS], ["b"], "bn"),
        node("Mul", ["b", "bn/bias"], ["c"], "by"),
        node("Add", ["c", "w/bn"], ["y"], "add"),
    ]
    weights = {
        "w": weight(6, 3, 3, 3),
        **norm_weights(),
        "bn/bias": draw(6, 6),
        "w/bn": draw(6, 6, seed=1),
    }
    prepared = prepared_alike(make(nodes, weights, IMAGE, {"y": ["n", 6, 6, 6]}), IMAGES)
    assert ops(prepared) == ["Conv", "Mul", "Add"]


def test_computed_parameters_keep_their_norm_and_it_is_said():
    nodes = as_nodes(
        "[mean] m = ReduceMean<axes=[0, 2, 3], keepdims=0>(x)  [twice] mu = Concat<axis=0>(m, m)  "
        "[conv] a = Conv(x, w)  [bn] y = BatchNormalization(a, gamma, beta, mu, var)"
    )
    weights = {"w": weight(6, 3, 3, 3), **norm_weights()}
    prepared = prepared_alike(make(nodes, weights, IMAGE, {"y": ["n", 6, 6, 6]}), IMAGES)
    assert "BatchNormalization" in ops(prepared)
    assert prepared.notes == (
        "node 'bn': it is not folded: its parameters are computed, not constant",
    )


def test_parameters_computed_from_constants_are_folded():
    nodes = as_nodes(
        "[k] k = Constant<value_float=0.25>()  [add] v = Add(var, k)  [conv] a = Conv(x, w)  "
        "[bn] y = BatchNormalization(a, gamma, beta, mean, v)"
    )
    weights = {"w": weight(6, 3, 3, 3), **norm_weights()}
    prepared = prepared_alike(make(nodes, weights, IMAGE, {"y": ["n", 6, 6, 6]}), IMAGES)
    assert ops(prepared) == ["Conv"]


@pytest.mark.parametrize("var", [-1.0, 0.0, 1e30])
def test_a_norm_that_gives_no_finite_weights_stays(var):
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv"),
        node("BatchNormalization", ["a", *PARTS], ["y"], "bn", epsilon=0.0),
    ]
    weights = {"w": weight(6, 3, 3, 3), **norm_weights(), "var": np.full(6, var, np.float32)}
    prepared = prepared_alike(make(nodes, weights, IMAGE, {"y": ["n", 6, 6, 6]}), IMAGES)
    assert ("BatchNormalization" in ops(prepared)) == (var <= 0)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_initializers_that_are_inputs_too_are_constants(ir_version):
    nodes = as_nodes(
        "[conv] a = Conv(x, w)  [bn] y = BatchNormalization(a, gamma, beta, mean, var)"
    )
    weights = {"w": weight(6, 3, 3, 3), **norm_weights()}
    shapes = {name: list(array.shape) for name, array in weights.items()}
    made = make(nodes, weights, IMAGE | shapes, {"y": ["n", 6, 6, 6]}, 9, ir_version)
    prepared = prepared_alike(load_model(made.proto), IMAGES)
    assert ops(prepared) == ["Conv"]
    assert [one.name for one in prepared.model.proto.graph.input] == ["x"]
    assert ("its default value is used as a constant" in str(prepared.notes)) == (ir_version > 3)
    assert ir_version == 3 or "'w', 'gamma', 'beta' and 2 more" in prepared.notes[0]


def computed_if(then, other, *more, domains=()):
    nodes = [
        *more,
        node("ReduceMax", ["x"], ["m"], "max", keepdims=0),
        node("Cast", ["m"], ["c"], "cast", to=9),
        node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    weights = {"one": np.float32(1)}
    return make(nodes, weights, {"x": ["n", 3]}, {"y": ["n", 3]}, domains=domains)


def test_nodes_inside_an_if_are_left_alone_and_it_is_said():
    idle = as_nodes(
        "[i] t1 = Identity(a)  [m] t2 = Mul(t1, one)  [p] t3 = Transpose(t2)  [q] t = Transpose(t3)"
    )
    other = branch("other", [node("Add", ["b", "one"], ["o"], "o")], "o")
    outside = as_nodes("[a] a = Identity(x)  [neg] n = Neg(x)  [b] b = Identity(n)")
    model = computed_if(branch("then", idle, "t"), other, *outside)
    prepared = prepared_alike(model, {"x": draw(2, 3)})
    kept = inside(prepared)
    assert [one.op_type for one in kept] == [one.op_type for one in idle]
    assert [list(one.input) for one in kept] == [list(one.input) for one in idle]
    assert prepared.notes == ("node 'if': the nodes in its subgraphs are not changed",)


def test_a_norm_inside_a_branch_does_not_go_into_a_convolution_outside():
    norm = node("BatchNormalization", ["a", *PARTS], ["t"], "bn")
    other = branch(
        "other", [node("Neg", ["x"], ["o1"], "o1"), node("Conv", ["o1", "w"], ["o"], "o2")], "o"
    )
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv"),
        node("ReduceMax", ["x"], ["m"], "max", keepdims=0),
        node("Cast", ["m"], ["c"], "cast", to=9),
        node("If", ["c"], ["y"], "if", then_branch=branch("then", [norm], "t"), else_branch=other),
    ]
    weights = {"w": weight(6, 3, 3, 3), **norm_weights()}
    for sign in (1, -1):
        model = make(nodes, weights, IMAGE, {"y": ["n", 6, 6, 6]})
        prepared = prepared_alike(model, {"x": sign * np.abs(IMAGES["x"]) - (sign < 0)})
        assert changes(prepared).get("scales", 0) == 0


def test_a_subgraph_gets_no_copy_of_a_weight_that_the_graph_has():
    then = branch("then", [node("MatMul", ["x", "w"], ["t"], "t")], "t")
    other = branch("other", [node("Neg", ["x"], ["o"], "o")], "o")
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "product"),
        node("ReduceMax", ["a"], ["m"], "max", keepdims=0),
        node("Cast", ["m"], ["c"], "cast", to=9),
        node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    model = make(nodes, {"w": draw(20, 20)}, {"x": ["n", 20]}, {"y": ["n", 20]})
    proto = prepared_alike(model, {"x": draw(2, 20)}).model.proto
    assert [one.name for one in proto.graph.initializer] == ["w"]
    assert not any(one.g.initializer for one in proto.graph.node[-1].attribute)


def test_loops_and_scans_keep_their_bodies():
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"], "keep"), node("Add", ["sum", "a"], ["next"], "add")],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("sum", ["n", 3])],
        [info("go_on", [], TensorProto.BOOL), info("next", ["n", 3])],
    )
    step = helper.make_graph(
        as_nodes("[add] out = Add(state, row)  [copy] copy = Identity(out)"),
        "step",
        [info("state", [3]), info("row", [3])],
        [info("out", [3]), info("copy", [3])],
    )
    nodes = [
        node("Identity", ["x"], ["a"], "same"),
        node("Loop", ["times", "", "x"], ["l"], "loop", body=body),
        node("Identity", ["l"], ["l2"], "after"),
        node("Scan", ["zero", "l2"], ["last", "y"], "scan", body=step, num_scan_inputs=1),
    ]
    weights = {"times": np.array(3), "zero": np.zeros(3, np.float32)}
    prepared = prepared_alike(
        make(nodes, weights, {"x": ["n", 3]}, {"y": ["n", 3]}), {"x": draw(2, 3)}
    )
    assert ops(prepared) == ["Identity", "Loop", "Scan"]  # the body reads the first one
    assert prepared.notes == ("node 'loop', 'scan': the nodes in its subgraphs are not changed",)


def stored(kind, **arrays):
    return {
        name: helper.make_tensor(name, kind, one.shape, one.ravel()) for name, one in arrays.items()
    }


@pytest.mark.parametrize("kind", [FP16, BRAIN])
def test_half_and_bfloat_weights(kind):
    nodes = [
        node("Cast", ["x"], ["h"], "down", to=kind),
        *as_nodes(
            "[same] i = Identity(h)  [conv] a = Conv(i, w)  [by] b = Mul(a, one)  "
            "[bn] c = BatchNormalization(b, gamma, beta, mean, var)  [up] y = Cast<to=1>(c)"
        ),
    ]
    weights = stored(kind, w=weight(6, 3, 3, 3), one=np.ones(1, np.float32), **norm_weights())
    model = make(nodes, weights, IMAGE, {"y": ["n", 6, 6, 6]}, 22, 10)
    if kind == FP16:
        assert ops(prepared_alike(model, IMAGES, 1e-2)) == ["Cast", "Conv", "Cast"]
        return
    prepared = prepare_with_record(model)  # ONNX Runtime has no such convolution for a CPU
    assert ops(prepared) == ["Cast", "Conv", "BatchNormalization", "Cast"]
    given, after = (
        {one.name: one for one in proto.graph.initializer}
        for proto in (model.proto, prepared.model.proto)
    )
    for name in ("w", *PARTS):
        assert after[name].data_type == BRAIN
        wanted, found = (onnx.numpy_helper.to_array(side[name]) for side in (given, after))
        np.testing.assert_array_equal(found, wanted)


def test_weights_that_are_cast_from_bfloat_are_constants():
    nodes = as_nodes(
        "[wide] f = Cast<to=1>(w)  [turn] t = Transpose(f)  [product] y = MatMul(x, t)  "
        "[coarse] z = Neg(w)"
    )
    model = make(nodes, stored(BRAIN, w=draw(24, 24)), {"x": ["n", 24]}, {"y": ["n", 24]})
    model.proto.graph.output.append(info("z", [24, 24], BRAIN))
    prepared = prepare_with_record(model)
    assert sorted(ops(prepared)) == ["MatMul", "Neg"]
    x = draw(2, 24)
    given = onnx.numpy_helper.to_array(model.proto.graph.initializer[0]).astype(np.float32)
    del prepared.model.proto.graph.node[[*ops(prepared)].index("Neg")]
    del prepared.model.proto.graph.output[1]
    found = values(prepared.model.proto, {"x": x}, [])["y"]
    np.testing.assert_allclose(found, x @ given.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("perm", [[0, 0], [0, 2], [-1, 0]])
def test_axes_that_are_none_are_left_to_the_runtime(perm):
    nodes = [
        node("Transpose", ["w"], ["t"], "turn", perm=perm),
        node("MatMul", ["x", "t"], ["a"], "product"),
        node("Transpose", ["a"], ["y"], "again", perm=perm),
    ]
    model = make(nodes, {"w": draw(24, 24)}, {"x": ["n", 24]}, {"y": [None, None]})
    assert ops(prepare_with_record(model)) == ["Transpose", "MatMul", "Transpose"]


@pytest.mark.parametrize("wrong", ["w", "b", "gamma"])
def test_parameters_of_other_sizes_are_not_folded(wrong):
    nodes = [
        node("ConvTranspose", ["x", "w", "b"], ["a"], "conv"),
        node("BatchNormalization", ["a", *PARTS], ["y"], "bn"),
    ]
    weights = {"w": weight(3, 6, 3, 3), "b": draw(6), **norm_weights()}
    weights[wrong] = draw(4)
    model = make(nodes, weights, IMAGE, {"y": [None] * 4})
    assert len(ops(prepare_with_record(model))) == 2


def function(name, nodes, opset=17):
    return helper.make_function("own", name, ["a"], ["b"], nodes, [helper.make_opsetid("", opset)])


def test_custom_operators_are_kept_whatever_their_name():
    nodes = as_nodes(
        "[mine] a = own.Identity(x)  [relu] b = Relu(a)  [odd] c = own.Conv(w, w)  "
        "[same] d = Identity(b)  [add] y = Add(d, c)"
    )
    model = make(nodes, {"w": draw(3)}, {"x": ["n", 3]}, {"y": ["n", 3]}, domains=["own"])
    prepared = prepare_with_record(model)
    assert sorted(ops(prepared)) == ["Add", "Conv", "Identity", "Relu"]
    assert prepared.notes == (
        "node 'mine', 'odd': it is not an operator of ONNX, and is not changed",
    )


def as_function(text):
    """Return a function in ONNX's text form, of the domain "own"."""
    return parser.parse_function(f'<opset_import: ["" : 16, "own" : 1], domain: "own"> {text}')


NESTED = [
    as_function("Leak <slope> (a) => (b) { [leak] b = LeakyRelu<alpha: float = @slope>(a) }"),
    as_function("Twice (a) => (b) { [first] c = own.Leak<slope = 0.5>(a) [add] b = Add(c, a) }"),
]
CALLS = "[one] i = own.Twice(x)  [two] y = own.Leak<slope = 0.25>(i)"


def calling(text, functions, opset=17):
    sides = {"x": ["n", 3]}, {"y": ["n", 3]}
    return make(as_nodes(text), {}, *sides, opset, domains=["own"], functions=functions)


def test_functions_are_put_in_the_place_of_their_calls():
    prepared = prepared_alike(calling(CALLS, NESTED), {"x": draw(2, 3)})
    assert ops(prepared) == ["LeakyRelu", "Add", "LeakyRelu"]
    assert not prepared.model.proto.functions
    assert prepared.notes == ()
    assert changes(prepared)["functions"] == 2


@pytest.mark.parametrize("skip", [[], ["functions"]])
def test_functions_may_stand_beside_branches_that_call_them(skip):
    sides = {
        f"{side}_branch": branch(side, [node(op, ["x"], [side], f"call {op}", domain="own")], side)
        for side, op in (("then", "Twice"), ("else", "Leak"))
    }
    nodes = [*as_nodes("[cast] c = Cast<to = 9>(s)"), node("If", ["c"], ["y"], "if", **sides)]
    inputs = {"x": ["n", 3], "s": []}
    model = make(nodes, {}, inputs, {"y": ["n", 3]}, domains=["own"], functions=NESTED)
    prepared = prepare_with_record(model, skip=skip)
    assert bool(prepared.model.proto.functions) == bool(skip)


def test_functions_are_kept_on_request():
    prepared = prepare_with_record(calling(CALLS, NESTED), skip=["functions"])
    assert ops(prepared) == ["Twice", "Leak"]
    assert prepared.notes == (
        "node 'one', 'two': the nodes in the function that it calls are not changed",
    )


def test_functions_that_stand_for_too_many_nodes_are_kept(monkeypatch):
    monkeypatch.setattr("trtcal.model.passes.functions.MOST_NODES", 50)
    called = [
        as_function(f"F{i} (a) => (b) {{ c = own.F{i + 1}(a) b = own.F{i + 1}(c) }}")
        for i in range(6)
    ]
    prepared = prepare_with_record(
        calling("y = own.F0(x)", [*called, as_function("F6 (a) => (b) { b = Neg(a) }")])
    )
    assert ops(prepared) == ["F0"]
    assert "50 nodes" in next(r.skipped for r in prepared.records if r.name == "functions")


def test_functions_that_the_converter_would_lose_are_refused():
    same = function("Same", [node("Identity", ["a"], ["b"], "i")], 11)
    model = calling("[call] y = own.Same(x)", [same], 11)
    assert ops(prepare_with_record(model)) == ["Identity"]
    with fails(InputError, "11", "13", "functions", hint="functions"):
        prepare_with_record(model, skip=["functions"])
    kept = prepare_with_record(model, skip=["functions", "opset"])
    assert ops(kept) == ["Same"]
    assert kept.notes[-1] == "opset 11 stays as it is, and Q/DQ need 13"


def custom(name="odd\nname", **attributes):
    return node("Mine", ["x"], ["y"], name, domain="own", **attributes)


def with_attribute(kind, **fields):
    made = custom()
    made.attribute.append(
        AttributeProto(name="extra", type=getattr(AttributeProto, kind), **fields)
    )
    return made


ODD = (r"odd\nname", "Mine")


@each(
    "broken, names",
    [
        (custom(extra=b"\xff\xfe"), (*ODD, "extra", "UTF-8")),
        (with_attribute("INTS"), (*ODD, "extra", "empty list")),
        (with_attribute("TYPE_PROTO", tp=helper.make_tensor_type_proto(1, [1])), ["TYPE_PROTO"]),
        (with_attribute("TENSORS", tensors=[helper.make_tensor("t", 1, [1], [1.0])]), ["TENSORS"]),
        (custom("", extra=b"\xff"), ("node number", "Mine")),
    ],
)
def test_what_would_be_lost_is_refused_by_node(broken, names):
    model = make([broken], {}, {"x": ["n", 3]}, {"y": ["n", 3]}, domains=["own"])
    with fails(InputError, *names):
        prepare_with_record(model)
    inner = custom()
    inner.CopyFrom(broken)
    inner.output[0] = "t"
    other = branch("other", [node("Neg", ["x"], ["o"], "o")], "o")
    nested = computed_if(branch("then", [inner], "t"), other, domains=["own"])
    with fails(InputError, *names):
        prepare_with_record(nested)


def test_a_name_that_is_no_text_is_refused(tmp_path):
    data = make(
        [node("Relu", ["x"], ["y"], "ABCD")], {}, {"x": [1]}, {"y": [1]}
    ).proto.SerializeToString()
    (tmp_path / "net.onnx").write_bytes(data.replace(b"ABCD", b"\xff\xfe\x80\x81"))
    with fails(InputError, "Relu", "UTF-8"):
        prepare_with_record(load_model(tmp_path / "net.onnx"))


def test_an_attribute_of_no_value_is_no_list_in_a_constant():
    nodes = [node("Squeeze", ["x", "k"], ["y"], "squeeze")]
    constant = node("Constant", [], ["k"], "k")
    constant.attribute.append(AttributeProto(name="value_ints", type=AttributeProto.INTS))
    model = make([constant, *nodes], {}, {"x": ["n", 3]}, {"y": ["n", 3]})
    assert ops(prepare_with_record(model)) == ["Squeeze"]


@pytest.mark.parametrize("place", ["../w.bin", "{absolute}", "link.bin"])
def test_external_data_outside_the_folder_are_refused(tmp_path, place):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    convert_model_to_external_data(proto, location="w.bin", size_threshold=0)
    onnx.save(proto, tmp_path / "net.onnx")
    proto = onnx.load(tmp_path / "net.onnx", load_external_data=False)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.bin").symlink_to(tmp_path / "w.bin")
    for tensor in proto.graph.initializer:
        tensor.external_data[0].value = place.format(absolute=tmp_path / "w.bin")
    onnx.save(proto, tmp_path / "sub" / "net.onnx")
    with fails(InputError, str(tmp_path / "sub" / "net.onnx")) as caught:
        load_model(tmp_path / "sub" / "net.onnx")
    assert len(caught.value.message.splitlines()) == 1


def test_random_and_too_large_constants_are_left_to_the_runtime():
    nodes = as_nodes(
        "[random] r = RandomNormal<shape=[3]>()  [abs] s = Abs(r)  "
        "[like] u = RandomUniformLike(k)  [bomb] e = Expand(k, huge)  "
        "[max] f = ReduceMax<keepdims=0>(e)  [a] a = Add(x, s)  [b] b = Add(a, u)  "
        "[c] y = Add(b, f)"
    )
    weights = {"k": draw(3), "huge": np.array([3000, 50_000, 3])}
    prepared = prepare_with_record(make(nodes, weights, {"x": ["n", 3]}, {"y": ["n", 3]}))
    assert sorted(ops(prepared)) == sorted(one.op_type for one in nodes)
    assert prepared.notes == (
        "node 'bomb': it does not depend on an input and could not be computed",
    )


def test_a_node_that_cannot_be_computed_keeps_no_other_from_it():
    nodes = as_nodes(
        "[neg] m = Neg(k)  [by] w = Mul(m, k)  [beyond] g = Gather(k, far)  [a] a = Add(x, w)  "
        "[y] y = Add(a, g)"
    )
    model = make(nodes, {"k": draw(3), "far": np.array(7)}, {"x": ["n", 3]}, {"y": ["n", 3]})
    prepared = prepare_with_record(model)
    assert ops(prepared) == ["Gather", "Add", "Add"]
    assert prepared.notes == (
        "node 'beyond': it does not depend on an input and could not be computed",
    )


def test_sequences_are_kept():
    nodes = as_nodes(
        "[s] s = SequenceConstruct(k, k)  [same] s2 = Identity(s)  "
        "[c] c = ConcatFromSequence<axis=0>(s2)  [y] y = Add(x, c)"
    )
    model = make(nodes, {"k": draw(3)}, {"x": ["n", 6]}, {"y": ["n", 6]})
    assert ops(prepared_alike(model, {"x": draw(2, 6)})) == [
        "SequenceConstruct",
        "ConcatFromSequence",
        "Add",
    ]


def test_optional_values_are_kept():
    nodes = as_nodes(
        "[same] a = Identity(x)  [wrap] o = Optional(a)  [unwrap] y = OptionalGetElement(o)"
    )
    model = make(nodes, {}, {"x": ["n", 6]}, {"y": ["n", 6]})
    stated = model.proto.graph.value_info.add(name="o")
    stated.type.CopyFrom(
        helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    )
    assert ops(prepare_with_record(model)) == ["Optional", "OptionalGetElement"]


def test_optional_inputs_that_are_left_out():
    nodes = as_nodes(
        '[conv] a = Conv(x, w, "")  [bn] b = BatchNormalization(a, gamma, beta, mean, var)  '
        '[clip] c = Clip(b, "", one)  [drop] y = Dropout(c, "", no)'
    )
    weights = {
        "w": weight(6, 3, 3, 3),
        **norm_weights(),
        "one": np.float32(1),
        "no": np.array(False),
    }
    prepared = prepared_alike(make(nodes, weights, IMAGE, {"y": ["n", 6, 6, 6]}), IMAGES)
    assert ops(prepared) == ["Conv", "Clip"]


def test_a_model_of_constants_alone_is_refused():
    model = make([node("Neg", ["k"], ["y"], "neg")], {"k": draw(3)}, {"x": ["n"]}, {"y": [3]})
    with fails(InputError, "net.onnx"):
        prepare_with_record(model)
