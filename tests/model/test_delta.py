"""What changed between two graphs: its kind and the first node, over seeded changes and by hand."""

import dataclasses
import sys
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.fails import fails
from tests.fixtures.networks import weight
from tests.fixtures.tables import each
from tests.fixtures.zoo import ZOO
from tests.model.deltas import KINDS, changed
from tests.model.passes.graphs import branch, info, make
from trtcal.model import load_model
from trtcal.model.graph import import_graph, small_export
from trtcal.wings.forensics.delta import difference
from trtcal.wings.forensics.merkle import COLUMNS, table_of

node = helper.make_node
SEEDS = range(50)
PROTOS = [ZOO[name].make().proto() for name in sorted(ZOO)]


@each("kind", KINDS)
def test_kind_and_first_node_of_seeded_changes_are_right(kind):
    for seed in SEEDS:
        before, after, expected = changed(kind, PROTOS, seed)
        found = difference(before, after)
        assert found is not None
        assert (found.change, found.node) == expected, seed


def test_repeats_without_a_change_are_equal():
    for seed in range(200):
        proto = PROTOS[seed % len(PROTOS)]
        again = onnx.ModelProto.FromString(proto.SerializeToString())
        assert difference(proto, again) is None
        assert table_of(proto).digest == table_of(again).digest


BRANCHES = {"w": weight(4, 3, 1, 1), "c": np.bool_(True), "k": np.float32(2)}


def seen(before, after):
    """Return what changed, and in which node."""
    found = difference(before, after)
    return found.change, found.node


def net(*nodes, weights=BRANCHES, shape=("n", 3, 8, 8), **given):
    return make(list(nodes), weights, {"x": list(shape)}, {"y": ["n", 4, 8, 8]}, **given).proto


def conv(**attributes):
    return node("Conv", ["x", "w"], ["a"], "conv", **attributes)


RELU = node("Relu", ["a"], ["y"], "relu")


def test_attributes_are_a_kind_of_their_own():
    found = difference(net(conv(group=1), RELU), net(conv(group=1, strides=[1, 1]), RELU))
    assert (found.change, found.node, found.count) == ("attributes", "conv", 2)


def test_order_of_attributes_and_initializers_makes_no_difference():
    one = net(conv(group=1, strides=[1, 1]), RELU)
    other = onnx.ModelProto.FromString(one.SerializeToString())
    for held in (other.graph.initializer, other.graph.node[0].attribute):
        turned = list(held)[::-1]
        del held[:]
        held.extend(turned)
    assert difference(one, other) is None


def test_names_and_shapes_of_inputs_opsets_and_metadata_are_the_signature():
    plain = net(conv(), RELU)
    wide = net(conv(), RELU, shape=("n", 3, 16, 16))
    assert "input 0 is x: float[n, 3, 16, 16]" in difference(plain, wide).detail
    older = net(conv(), RELU, opset=16)
    assert "the opset of ai.onnx is 16" in difference(plain, older).detail
    tagged = net(conv(), RELU)
    tagged.metadata_props.add(key="labels", value="a,b")
    assert difference(plain, tagged).change == "signature"


def test_types_noted_within_the_graph_are_named_by_node():
    noted = net(conv(), RELU)
    noted.graph.value_info.append(info("a", ["n", 4, 8, 8]))
    assert seen(net(conv(), RELU), noted) == ("types", "conv")


def looped(factor="k", body="Mul"):
    inner = branch("t", [node(body, ["a", factor], ["yes"], "inside")], "yes")
    other = branch("e", [node("Identity", ["a"], ["no"], "else")], "no")
    return [conv(), node("If", ["c"], ["y"], "choice", then_branch=inner, else_branch=other)]


def test_a_change_inside_a_subgraph_names_the_node_there():
    assert seen(net(*looped()), net(*looped(body="Add"))) == ("structure", "choice > inside")
    values = {**BRANCHES, "k": np.float32(2.0000002)}
    assert seen(net(*looped()), net(*looped(), weights=values)) == ("constants", "choice > inside")


def test_what_a_subgraph_reads_from_outside_counts():
    assert seen(net(*looped()), net(conv(strides=[1, 1]), *looped()[1:])) == ("attributes", "conv")


def called(op, name="body"):
    opset = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "F", ["p"], ["q"], [node(op, ["p"], ["q"], name)], opset)
    call = node("F", ["a"], ["y"], "call", domain="own")
    return net(conv(), call, domains=["own"], functions=[function])


def test_a_function_is_its_body():
    assert difference(called("Relu"), called("Relu")) is None
    assert seen(called("Relu"), called("Sigmoid")) == ("structure", "function F > body")
    assert difference(called("Relu"), called("Relu", "renamed")).change == "renamed"


def test_of_two_equal_branches_the_changed_one_is_named():
    def both(second):
        last = node("Add", ["b", "c2"], ["y"], "sum")
        ops = [node("Relu", ["a"], ["b"], "one"), node(second, ["a"], ["c2"], "two")]
        return net(conv(), *ops, last)

    assert seen(both("Relu"), both("Sigmoid")) == ("structure", "two")


def test_reading_an_equal_value_of_another_node_is_structure():
    def wired(source):
        ops = [node("Relu", ["a"], [name], name) for name in ("p", "q")]
        ends = [node("Exp", ["p"], ["r"], "r"), node("Abs", [source], ["s"], "s")]
        return net(conv(), *ops, *ends, node("Add", ["r", "s"], ["y"], "sum"))

    assert difference(wired("p"), wired("q")).change == "structure"


def test_a_constant_counts_by_its_values_in_whichever_field_they_are():
    values = np.arange(12, dtype=np.float32).reshape(4, 3, 1, 1)
    listed = helper.make_tensor("w", TensorProto.FLOAT, values.shape, values.ravel())
    raw = numpy_helper.from_array(values, "w")
    one, other = (net(conv(), RELU, weights={**BRANCHES, "w": tensor}) for tensor in (listed, raw))
    assert difference(one, other) is None


def test_weights_outside_and_digests_in_their_place_are_the_same_graph(tmp_path):
    large = {"w": weight(64, 3, 5, 5)}
    proto = make([conv(), RELU], large, {"x": ["n", 3, 8, 8]}, {"y": ["n", 64, 4, 4]}).proto
    saved, beside = onnx.ModelProto.FromString(proto.SerializeToString()), tmp_path / "one.onnx"
    onnx.save(saved, beside, save_as_external_data=True, location="w.bin", size_threshold=0)
    outside = load_model(beside, embedded=0).proto
    assert outside.graph.initializer[0].external_data
    assert difference(proto, outside) is None
    small, weights = small_export(import_graph(proto))
    table = table_of(small, {name: one.digest for name, one in weights.items()})
    assert table.column("content") == table_of(proto).column("content")


def test_sparse_weights_count():
    def with_sparse(value):
        proto = net(node("MatMul", ["x", "w"], ["a"], "product"), RELU)
        proto.graph.node[0].input[1] = "s"
        values = helper.make_tensor("s", TensorProto.FLOAT, [1], [value])
        places = helper.make_tensor("at", TensorProto.INT64, [1], [3])
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [8, 8]))
        return proto

    assert seen(with_sparse(1.0), with_sparse(2.0)) == ("constants", "product")


def test_every_column_has_a_digest_a_node():
    table = table_of(net(conv(), RELU))
    assert all(len(table.column(name)) == 2 for name in COLUMNS)
    table.check()
    with fails(ValueError, "columns"):
        dataclasses.replace(table, uses="").check()


def test_the_work_is_in_proportion_to_the_nodes():
    """Counted in calls of functions, Python's own among them."""

    def calls(count):
        ops = [node("Relu", [f"t{i}"], [f"t{i + 1}"], f"n{i}") for i in range(count)]
        graph = helper.make_graph(ops, "chain", [info("t0", [1])], [info(f"t{count}", [1])])
        model, events = helper.make_model(graph), Counter()
        sys.setprofile(lambda frame, event, argument: events.update([event]))
        try:
            table_of(model)
        finally:
            sys.setprofile(None)
        return events.total()

    calls(10)
    assert calls(2000) < 11 * calls(200)


def graph_of(nodes, outputs, inputs=(), weights=()):
    return helper.make_graph(nodes, "g", list(inputs), list(outputs), list(weights))


def whole(nodes, inputs=("x",), weights=(), functions=()):
    """A model from `x`, and from typed inputs, to `y`."""
    given = [info(one, [2]) if isinstance(one, str) else one for one in inputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    graph = graph_of(nodes, [info("y", [2])], given, weights)
    return helper.make_model(graph, functions=list(functions), opset_imports=opsets)


CONDITION = helper.make_tensor_value_info("c", TensorProto.BOOL, [])


def branching(*branches):
    """An If whose branches stand in this order: (attribute, operator)."""
    made = node("If", ["c"], ["y"], "if")
    for name, operator in branches:
        body = graph_of([node(operator, ["x"], ["b"], operator)], [info("b", [2])])
        made.attribute.append(helper.make_attribute(name, body))
    return whole([made], ["x", CONDITION])


def test_branches_that_changed_places_are_a_change_and_their_order_in_the_file_is_none():
    plain = branching(("then_branch", "Relu"), ("else_branch", "Abs"))
    swapped = branching(("else_branch", "Relu"), ("then_branch", "Abs"))
    assert difference(plain, swapped).change == "structure"
    assert difference(plain, branching(("else_branch", "Abs"), ("then_branch", "Relu"))) is None


def function(operator, overload="", default=None):
    opsets, given = [helper.make_opsetid("", 17)], []
    if default is not None:
        given = [helper.make_attribute("alpha", default)]
    nodes = [node(operator, ["a"], ["b"], "inner")]
    made = helper.make_function("own", "F", ["a"], ["b"], nodes, opsets, [], given)
    if given:
        made.node[0].attribute.add(name="alpha", ref_attr_name="alpha", type=1)
    if overload:
        made.overload = overload
    return made


def call(source="x", target="y", overload=""):
    made = node("F", [source], [target], f"call{overload}", domain="own")
    if overload:
        made.overload = overload
    return made


def test_a_functions_default_is_seen_where_it_is_called():
    one, other = (
        whole([call()], functions=[function("LeakyRelu", default=alpha)]) for alpha in (0.1, 0.9)
    )
    assert seen(one, other) == ("attributes", "call")


@pytest.mark.skipif(not hasattr(onnx.FunctionProto(), "overload"), reason="ONNX before 1.16")
def test_each_overload_of_a_function_is_seen():
    nodes = [call("x", "m", "1"), call("m", "y", "2")]
    one, other = (
        whole(nodes, functions=[function(first, "1"), function("Abs", "2")])
        for first in ("Relu", "Tanh")
    )
    assert difference(one, other).change == "structure"


NUMBER = helper.make_tensor_value_info("i", TensorProto.INT64, [])
PAIRS = {
    "a function that nothing calls": [
        whole([node("Relu", ["x"], ["y"], "relu")], functions=[function(operator)])
        for operator in ("Relu", "Abs")
    ],
    "the type of a sequence's elements": [
        whole(
            [node("SequenceAt", ["s", "i"], ["y"], "at")],
            [helper.make_tensor_sequence_value_info("s", kind, None), NUMBER],
        )
        for kind in (TensorProto.FLOAT, TensorProto.INT8)
    ],
    "an output that no node makes": [
        whole([], weights=[numpy_helper.from_array(np.float32([value, 0]), "y")])
        for value in (1, 2)
    ],
}


@each("name, change", zip(PAIRS, ["structure", "signature", "signature"], strict=True))
def test_what_lies_outside_of_nodes_is_seen(name, change):
    assert difference(*PAIRS[name]).change == change


def test_which_output_of_a_node_is_read_is_structure_where_others_are_left_out():
    reader = node("Relu", ["a"], ["y"], "relu")
    one, other = (
        whole([node("Top", ["x"], names, "top", domain="own"), reader])
        for names in (["a", ""], ["", "a"])
    )
    assert seen(one, other) == ("structure", "relu")


def test_types_that_a_subgraph_notes_are_seen():
    def loop(kind):
        carried, made = (helper.make_tensor_value_info(name, kind, [2]) for name in ("v", "vo"))
        turn = helper.make_tensor_value_info("it", TensorProto.INT64, [])
        go, on = (helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("g", "go"))
        nodes = [node("Identity", ["g"], ["go"], "on"), node("Identity", ["v"], ["vo"], "same")]
        body = graph_of(nodes, [on, made], [turn, go, carried])
        return whole([node("Loop", ["", "c", "x"], ["y"], "loop", body=body)], ["x", CONDITION])

    assert seen(loop(TensorProto.FLOAT), loop(TensorProto.DOUBLE)) == ("types", "loop")
