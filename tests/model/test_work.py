"""Multiply-accumulates and bytes, against counts written out by hand and shapes that really come."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.graphs import as_nodes
from tests.fixtures.tables import each
from tests.fixtures.zoo import ZOO
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import showing
from trtcal.model import Model, load_model
from trtcal.model.shapes import Inference, Tensor
from trtcal.model.work import count_work

FLOAT = TensorProto.FLOAT
OPSETS = {"": 23, "com.microsoft": 1, "plug.in": 1, "own": 1}


def model(nodes, inputs, outputs, weights=None, opset=17, functions=()):
    kept = {name: np.zeros(shape, np.float32) for name, shape in (weights or {}).items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in kept.items()],
    )
    imports = [helper.make_opsetid(*one) for one in {**OPSETS, "": opset}.items()]
    proto = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)
    return Model(Path("g.onnx"), proto, "")


def one(op, inputs, weights=None, opset=17, domain="", outputs=("y",), **attributes):
    """Count a network of a single node."""
    names = [*inputs, *(weights or {})]
    node = helper.make_node(op, names, outputs, "node", domain=domain, **attributes)
    found = count_work(model([node], inputs, outputs, weights, opset))
    return found.nodes[0]


@each(
    "op, inputs, weights, attributes, by_hand",
    [
        # batch 2, 16 maps of 6 x 6 places, each a sum over 8 maps and 3 x 3
        ("Conv", {"x": (2, 8, 8, 8)}, {"w": (16, 8, 3, 3)}, {}, 2 * 16 * 36 * 8 * 9),
        # in 4 groups each map sees 2 maps
        ("Conv", {"x": (1, 8, 8)}, {"w": (8, 2, 3)}, {"group": 4}, 8 * 6 * 2 * 3),
        # every input value meets every weight of its channel
        ("ConvTranspose", {"x": (2, 8, 5, 5)}, {"w": (8, 4, 2, 2)}, {}, 2 * 8 * 25 * 4 * 4),
        ("Gemm", {"x": (6, 10)}, {"w": (7, 10)}, {"transB": 1}, 6 * 7 * 10),
        ("Gemm", {"x": (10, 6)}, {"w": (10, 7)}, {"transA": 1}, 6 * 7 * 10),
        ("MatMul", {"x": (5, 4, 10)}, {"w": (10, 7)}, {}, 5 * 4 * 7 * 10),
        ("MatMul", {"x": (3, 1, 4, 10), "z": (2, 10, 7)}, {}, {}, 3 * 2 * 4 * 7 * 10),
        ("MatMul", {"x": (10,), "z": (10,)}, {}, {}, 10),
        ("Einsum", {"x": (2, 3, 4), "z": (2, 4, 5)}, {}, {"equation": "bij,bjk->bik"}, 120),
        ("Einsum", {"x": (2, 3, 4), "z": (4, 5)}, {}, {"equation": "...j,jk->...k"}, 120),
        ("Einsum", {"x": (2, 3)}, {}, {"equation": "ij->ji"}, 0),
        # three operands, from left to right: (3, 4) x (4, 5), then (3, 5) x (5, 6)
        (
            "Einsum",
            {"x": (3, 4), "z": (4, 5), "t": (5, 6)},
            {},
            {"equation": "ij,jk,kl->il"},
            3 * 4 * 5 + 3 * 5 * 6,
        ),
        # 9 steps of 2 samples, 4 gates of 32 units, each a sum over 16 inputs and 32 states
        (
            "LSTM",
            {"x": (9, 2, 16)},
            {"w": (1, 128, 16), "r": (1, 128, 32)},
            {"hidden_size": 32},
            9 * 2 * 128 * (16 + 32),
        ),
        # two directions, (batch, steps, input)
        (
            "GRU",
            {"x": (2, 9, 16)},
            {"w": (2, 96, 16), "r": (2, 96, 32)},
            {"hidden_size": 32, "direction": "bidirectional", "layout": 1},
            2 * 2 * 9 * 96 * (16 + 32),
        ),
        (
            "RNN",
            {"x": (9, 2, 16)},
            {"w": (1, 32, 16), "r": (1, 32, 32)},
            {"hidden_size": 32},
            9 * 2 * 32 * 48,
        ),
        # the convolution, whose places are moved by offsets
        (
            "DeformConv",
            {"x": (1, 4, 8, 8)},
            {"w": (6, 4, 3, 3), "offset": (1, 18, 6, 6)},
            {},
            6 * 36 * 4 * 9,
        ),
        ("Relu", {"x": (1, 4, 8, 8)}, {}, {}, 0),
        ("MaxPool", {"x": (1, 4, 8, 8)}, {}, {"kernel_shape": [2, 2]}, 0),
    ],
)
def test_counts_as_by_hand(op, inputs, weights, attributes, by_hand):
    assert one(op, inputs, weights, 22, **attributes).macs == by_hand


def test_peepholes_multiply_too():
    inputs = ["x", "w", "r", "", "", "", "", "p"]
    node = helper.make_node("LSTM", inputs, ["y"], hidden_size=8)
    weights = {"w": (1, 32, 4), "r": (1, 32, 8), "p": (1, 24)}
    found = count_work(model([node], {"x": (5, 1, 4)}, ["y"], weights))
    assert found.macs == 5 * (32 * 4 + 32 * 8 + 24)


@each(
    "op, inputs, weights, attributes, by_hand",
    [
        # projection of 12 tokens from 16 to 3 x 16, scores 12 x 12 and their sums, over 16
        (
            "Attention",
            {"x": (2, 12, 16)},
            {"w": (16, 48), "b": (48,)},
            {"num_heads": 4},
            2 * (12 * 16 * 48 + 12 * 12 * 16 + 12 * 12 * 16),
        ),
        # 5 queries over 7 keys: 24 wide, values 8 wide
        (
            "MultiHeadAttention",
            {"q": (2, 5, 24), "k": (2, 7, 24), "v": (2, 7, 8)},
            {},
            {"num_heads": 4},
            2 * 5 * 7 * (24 + 8),
        ),
        # 2 heads of keys serve 4 of queries, each 8 wide
        (
            "GroupQueryAttention",
            {"q": (1, 6, 32), "k": (1, 6, 16), "v": (1, 6, 16)},
            {},
            {"num_heads": 4, "kv_num_heads": 2},
            6 * 6 * (32 + 32),
        ),
        ("FusedMatMul", {"x": (3, 4, 10), "z": (3, 7, 10)}, {}, {"transB": 1}, 3 * 4 * 7 * 10),
        ("FusedConv", {"x": (1, 8, 8, 8)}, {"w": (16, 8, 3, 3)}, {}, 16 * 36 * 8 * 9),
    ],
)
def test_counts_what_onnx_runtime_adds(op, inputs, weights, attributes, by_hand):
    assert one(op, inputs, weights, domain="com.microsoft", **attributes).macs == by_hand


def test_counts_the_attention_of_onnx():
    inputs = {"q": (2, 4, 6, 8), "k": (2, 4, 9, 8), "v": (2, 4, 9, 16)}
    assert one("Attention", inputs, opset=23).macs == 2 * 4 * 6 * 9 * (8 + 16)
    flat = {"q": (2, 6, 32), "k": (2, 9, 32), "v": (2, 9, 64)}
    found = one("Attention", flat, opset=23, q_num_heads=4, kv_num_heads=4)
    assert found.macs == 2 * 6 * 9 * (32 + 64)


def test_bytes_are_what_is_read_and_written():
    found = one("Conv", {"x": (1, 8, 8, 8)}, {"w": (16, 8, 1, 1)})
    assert found.moved_bytes == 4 * (8 * 64 + 16 * 8 + 16 * 64)


def test_what_only_has_another_shape_moves_nothing():
    nodes = [helper.make_node("Flatten", ["x"], ["y"])]
    assert count_work(model(nodes, {"x": (1, 8, 8)}, ["y"])).nodes[0].moved_bytes == 0


@each("kind", [None, TensorProto.UNDEFINED])
def test_a_quantized_type_that_is_not_given_is_that_of_the_zero_point(kind):
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], output_dtype=kind)
    inputs = [Tensor(TensorProto.FLOAT, (2, 3)), Tensor(1, ()), Tensor(TensorProto.INT8, ())]
    assert Inference({"": 21}, 10).outputs(node, inputs) == [Tensor(TensorProto.INT8, (2, 3))]


def test_a_plug_in_is_unknown_and_its_bytes_count():
    found = one("EfficientThing", {"x": (1, 8, 16)}, domain="plug.in")
    assert (found.macs, found.op) == (None, "plug.in::EfficientThing")
    assert found.moved_bytes == 2 * 4 * 8 * 16


def test_behind_a_plug_in_shapes_go_on_as_an_assumption_that_is_said():
    nodes = as_nodes("[odd] a = plug.in.Odd(x)  [product] y = MatMul(a, w)")
    found = count_work(model(nodes, {"x": (2, 8, 16)}, ["y"], {"w": (16, 32)}))
    assert found.nodes[1].macs == 2 * 8 * 16 * 32
    assert found.assumed == ("'a', made by plug.in::Odd, has its input's shape",)


def test_what_the_model_states_goes_before_an_assumption():
    nodes = as_nodes("[odd] a = plug.in.Odd(x)  [product] y = MatMul(a, w)")
    given = model(nodes, {"x": ("n", "tokens", 4)}, ["y"], {"w": (16, 32)})
    stated = helper.make_tensor_value_info("a", FLOAT, ("n", "tokens", 16))
    given.proto.graph.value_info.append(stated)
    found = count_work(given, {"x": (3, 5, 4)})
    assert found.nodes[1].macs == 3 * 5 * 16 * 32
    assert not found.assumed


def test_open_sizes_are_those_given_else_batch_one_and_said():
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
    given = model(nodes, {"x": ("n", 3, "height", "width")}, ["y"], {"w": (4, 3, 1, 1)})
    assert count_work(given, {"x": (2, 3, 10, 20)}).macs == 2 * 12 * 200
    found = count_work(given)
    assert (found.macs, found.inputs["x"]) == (12 * 64 * 64, (1, 3, 64, 64))
    assert found.assumed == (
        "height is unknown and counted as 64",
        "width is unknown and counted as 64",
    )


def test_an_input_without_an_axis_for_samples_takes_the_sizes_of_one():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    found = count_work(model(nodes, {"x": ("steps", 4)}, ["y"], {"w": (4, 3)}), {"x": (1, 7, 4)})
    assert (found.macs, found.assumed) == (7 * 4 * 3, ())


def test_shapes_that_the_graph_computes_are_followed():
    """Shape, Gather, Unsqueeze and Concat give a Reshape its sizes, as old exports write it."""
    constant = numpy_helper.from_array
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Constant", [], ["zero"], value=constant(np.array(0))),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n"], ["n1"], axes=[0]),
        helper.make_node("Constant", [], ["rest"], value=constant(np.array([-1, 8]))),
        helper.make_node("Concat", ["n1", "rest"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["x", "sizes"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    found = count_work(model(nodes, {"x": ("n", 4, 16)}, ["y"], {"w": (8, 3)}, opset=11))
    assert found.macs == 8 * 8 * 3
    assert not found.assumed


def body(nodes, inputs, outputs, weights=None):
    kinds = {"i": (TensorProto.INT64, ()), "c": (TensorProto.BOOL, ()), "d": (TensorProto.BOOL, ())}
    values = [
        [helper.make_tensor_value_info(name, *kinds.get(name, (FLOAT, None))) for name in names]
        for names in (inputs, outputs)
    ]
    kept = [numpy_helper.from_array(np.zeros(s, np.float32), n) for n, s in (weights or {}).items()]
    return helper.make_graph(nodes, "body", *values, kept)


def looped(nodes, outputs, trips=None, inputs=("i", "c", "a")):
    """A product in a loop over the state `a`, which is (2, 8)."""
    steps = [helper.make_node("MatMul", ["a", "w"], ["b"], "product"), *nodes]
    given = ["" if trips is None else "trips", "", "x"]
    loop = helper.make_node(
        "Loop", given, ["y"], "loop", body=body(steps, inputs, outputs, {"w": (8, 8)})
    )
    made = model([loop], {"x": (2, 8)}, ["y"])
    made.proto.graph.initializer.append(numpy_helper.from_array(np.array(trips or 0), "trips"))
    return count_work(made)


def test_a_loop_counts_for_each_of_its_iterations():
    same = helper.make_node("Identity", ["c"], ["d"])
    found = looped([same], ["d", "b"], 6)
    product = next(one for one in found.nodes if one.macs)
    assert product.macs == 6 * 2 * 8 * 8
    assert (product.node, product.body, product.times) == ("loop/product", "Loop 'loop'", 6)
    assert not found.assumed


def test_a_loop_that_values_end_counts_once_and_says_so():
    nodes = as_nodes(
        "m = ReduceMax<keepdims=0>(b)  one = Constant<value_float=1.0>()  d = Less(m, one)"
    )
    for trips in (None, 6):
        found = looped(nodes, ["d", "b"], trips)
        assert found.macs == 2 * 8 * 8
        assert found.assumed == (
            "the number of runs of 'loop' depends on values, and it is counted once",
        )


@each("length, most, trips", [(7, None, 7), (7, 5, 5), (1, None, 1), (300, 900, 300)])
def test_a_loop_that_counts_up_to_a_size_is_followed(length, most, trips):
    """`while (t < T)`, as TensorFlow writes its recurrent networks: T is a size of the input."""
    number = {"i": TensorProto.INT64, "c": TensorProto.BOOL, "t": TensorProto.INT64}
    steps = as_nodes("[product] b = MatMul(a, w)  t1 = Add(t, one)  d = Less(t1, T)")
    value = helper.make_tensor_value_info
    inner = helper.make_graph(
        steps,
        "body",
        [*(value(name, kind, ()) for name, kind in number.items()), value("a", FLOAT, None)],
        [
            value("d", TensorProto.BOOL, ()),
            value("t1", TensorProto.INT64, ()),
            value("b", FLOAT, None),
        ],
        [
            numpy_helper.from_array(np.zeros((8, 8), np.float32), "w"),
            numpy_helper.from_array(np.array(1), "one"),
        ],
    )
    nodes = [
        helper.make_node("Shape", ["s"], ["sizes"]),
        helper.make_node("Constant", [], ["first"], value_int=1),
        helper.make_node("Gather", ["sizes", "first"], ["T"]),
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Constant", [], ["most"], value_int=most or 2**63 - 1),
        helper.make_node("Less", ["zero", "T"], ["begins"]),
        helper.make_node("Loop", ["most", "begins", "zero", "x"], ["n", "y"], "loop", body=inner),
    ]
    found = count_work(model(nodes, {"x": (2, 8), "s": (1, length)}, ["y"]))
    assert found.macs == trips * 2 * 8 * 8
    assert not found.assumed


def test_a_scan_counts_for_each_slice_and_stacks_what_it_makes():
    steps = as_nodes("[product] b = MatMul(a, w)  state = Add(b, slice)  out = Identity(state)")
    inner = body(steps, ["a", "slice"], ["state", "out"], {"w": (8, 8)})
    nodes = [
        helper.make_node(
            "Scan", ["start", "x"], ["last", "all"], "scan", body=inner, num_scan_inputs=1
        ),
        helper.make_node("MatMul", ["all", "v"], ["y"], "after"),
    ]
    found = count_work(model(nodes, {"start": (2, 8), "x": (5, 2, 8)}, ["y"], {"v": (8, 3)}))
    macs = {one.node: one.macs for one in found.nodes if one.macs}
    assert macs == {"scan/product": 5 * 2 * 8 * 8, "after": 5 * 2 * 8 * 3}


def branches(condition):
    small = body([helper.make_node("MatMul", ["x", "u"], ["p"], "small")], [], ["p"])
    large = body(as_nodes("[large] q0 = MatMul(x, w)  [again] q = MatMul(q0, w)"), [], ["q"])
    nodes = [
        *condition,
        helper.make_node("If", ["c"], ["y"], "if", then_branch=small, else_branch=large),
    ]
    return count_work(model(nodes, {"x": (2, 8)}, ["y"], {"u": (8, 8), "w": (8, 8)}))


def test_an_if_counts_the_branch_that_runs_or_else_the_larger():
    chosen = helper.make_node("Constant", [], ["t"], value_int=1)
    known = branches([chosen, helper.make_node("Cast", ["t"], ["c"], to=TensorProto.BOOL)])
    assert known.macs == 2 * 8 * 8
    total = helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0)
    unknown = branches([total, helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL)])
    assert unknown.macs == 2 * 2 * 8 * 8


def test_a_function_counts_what_its_body_does():
    steps = [helper.make_node("Gemm", ["a", "b"], ["c"], "product")]
    turned = onnx.AttributeProto(
        name="transB", ref_attr_name="turned", type=onnx.AttributeProto.INT
    )
    steps[0].attribute.append(turned)
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Dense", ["a", "b"], ["c"], steps, imports, ["turned"])
    call = helper.make_node("Dense", ["x", "w"], ["y"], "call", domain="own", turned=1)
    found = count_work(model([call], {"x": (4, 8)}, ["y"], {"w": (5, 8)}, functions=[function]))
    assert [(one.node, one.macs, one.body) for one in found.nodes] == [
        ("call/product", 4 * 5 * 8, "function 'call'")
    ]


def test_functions_that_call_others_without_end_are_not_followed_for_ever():
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def calls(name, inner):
        nodes = [helper.make_node(inner, ["a"], ["a1"], domain="own")]
        nodes += [
            helper.make_node(inner, [f"a{i}"], [f"a{i + 1}"], domain="own") for i in range(1, 10)
        ]
        return helper.make_function("own", name, ["a"], ["a10"], nodes, imports)

    last = helper.make_function(
        "own", "F9", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports[:1]
    )
    functions = [last, *(calls(f"F{i}", f"F{i + 1}") for i in range(9))]
    node = helper.make_node("F0", ["x"], ["y"], "call", domain="own")
    found = count_work(model([node], {"x": (4, 8)}, ["y"], functions=functions))
    assert any(one.macs is None for one in found.nodes)


def test_what_does_not_fit_is_unknown_and_no_traceback():
    found = count_work(
        model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (2, 8)}, ["y"], {"w": (9, 3)})
    )
    assert found.nodes[0].macs is None


@each("name", sorted(ZOO))
def test_shapes_are_those_of_a_run(name, monkeypatch):
    """What is inferred for every tensor of the zoo is what ONNX Runtime then makes."""
    net = ZOO[name].make()
    batch = next(iter(net.inputs.values()))[0]
    proto, feeds = net.proto(), net.samples(batch if isinstance(batch, int) else 2)
    given = load_model(proto)
    known, infer = {}, Inference.outputs

    def noted(self, node, inputs):
        found = infer(self, node, inputs)
        known.update(zip(node.output, (one.shape for one in found), strict=True))
        return found

    monkeypatch.setattr(Inference, "outputs", noted)
    count_work(given, {name: array.shape for name, array in feeds.items()})
    names = [name for name in known if name]
    arrays = run_session(open_session(showing(proto, names), as_it_is=True), names, feeds)
    assert {n: known[n] for n in names} == {n: a.shape for n, a in zip(names, arrays, strict=True)}
