"""The prediction, against graphs with known answers, and what a graph may hold besides."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.evidence.fusion.graphs import GRAPHS, Answer, has, image, tokens
from trtcal.evidence.fusion.fusions import check_fusions
from trtcal.evidence.fusion.matching import find_matches
from trtcal.evidence.fusion.patterns import read_patterns
from trtcal.model import load_model
from trtcal.model.tensors import View


def answers(found):
    return {
        Answer(
            match.pattern,
            frozenset(match.nodes),
            frozenset(name for one in match.breakers for name in one.nodes),
        )
        for match in found.matches
    }


def checked(net, folder):
    onnx.save(net if isinstance(net, onnx.ModelProto) else net.proto(), folder / "net.onnx")
    return check_fusions(load_model(folder / "net.onnx"))


def test_there_are_forty_graphs_of_every_kind():
    assert len(GRAPHS) >= 40
    given = [one for graph in GRAPHS.values() for one in graph.answers]
    assert {one.pattern for one in given} == {one.name for one in read_patterns().patterns}
    assert sum(bool(one.breakers) for one in given) >= 15


@pytest.mark.parametrize("name", GRAPHS)
def test_every_pattern_is_found_and_nothing_else(name, tmp_path):
    """Precision and recall are 1.0 on every graph: the sets are equal, breaking nodes included."""
    found = check_fusions(GRAPHS[name].save(tmp_path))
    assert answers(found) == set(GRAPHS[name].answers)
    assert len(found.matches) == len(GRAPHS[name].answers)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_broken_pattern_is_a_finding_that_names_its_node_and_its_bytes(name, tmp_path):
    graph = GRAPHS[name]
    findings = check_fusions(graph.save(tmp_path)).findings
    broken = [one for one in graph.answers if one.breakers]
    assert [one.kind for one in findings] == ["broken_fusion"] * len(broken)
    for finding in findings:
        assert any(finding.subject in one.breakers for one in broken)
        assert f"'{finding.subject}'" in finding.what
        assert finding.fix
        assert finding.cost.moved_bytes > 0


def test_what_a_break_costs(tmp_path):
    whole = GRAPHS["story_batch_norm"].save(tmp_path)
    assert check_fusions(whole).findings[0].cost.moved_bytes == 2 * 8 * 6 * 6 * 4
    kept = GRAPHS["conv_is_output"].save(tmp_path)
    assert check_fusions(kept).findings[0].cost.moved_bytes == 8 * 12 * 12 * 4  # only read again


def test_roles_and_what_is_around(tmp_path):
    found = check_fusions(GRAPHS["layer_norm_inside_pairs"].save(tmp_path)).matches[0]
    assert found.roles == (("norm", ("norm",)), ("activation", ("act",)))
    assert found.around == ("befored", "afterq")
    assert found.root == "act"


def test_dropout_that_trains_breaks_and_cannot_be_fixed(tmp_path):
    net = image()
    drop = [net.value(0.5), net.value(True, np.bool_)]
    net.done(net.act(net.add("Dropout", net.conv3("c", "x"), *drop, name="drop")))
    (match,) = checked(net, tmp_path).matches
    assert [(one.kind, one.nodes, one.fix) for one in match.breakers] == [
        ("dropout", ("drop",), None)
    ]


def test_pairs_with_two_scales_cannot_be_fixed(tmp_path):
    net = image()
    zero = net.value(0, np.int8)
    q = net.add("QuantizeLinear", net.conv3("c", "x"), net.value(0.1), zero, name="q")
    net.done(net.act(net.add("DequantizeLinear", q, net.value(0.2), zero, name="d")))
    (match,) = checked(net, tmp_path).matches
    assert match.breakers[0].nodes == ("q", "d")
    assert match.breakers[0].fix is None


def test_other_domains_are_other_operators(tmp_path):
    net = image()
    net.done(net.act(net.conv3("c", "x")))
    proto = net.proto()
    proto.graph.node[1].domain = "mine"
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert checked(proto, tmp_path).matches == ()


def test_nodes_without_names_get_those_of_a_build(tmp_path):
    net = image()
    net.done(net.act(net.same(net.conv3("c", "x"))))
    proto = net.proto()
    for node in proto.graph.node:
        node.name = ""
    assert answers(checked(proto, tmp_path)) == {
        has("conv+activation", "Conv_0 Relu_2", "Identity_1")
    }


def with_subgraph(net, inner):
    """Add an If whose branches hold nodes, and read the tensor `inner` from outside."""
    proto = net.proto()
    branches = {}
    for branch in ("then_branch", "else_branch"):
        out = f"{branch}_out"
        nodes = [
            helper.make_node("Relu", [inner], [f"{branch}_a"]),
            helper.make_node("Neg", [f"{branch}_a"], [out]),
        ]
        value = helper.make_tensor_value_info(out, TensorProto.FLOAT, None)
        value.type.tensor_type.shape.SetInParent()
        branches[branch] = helper.make_graph(nodes, branch, [], [value])
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node.append(helper.make_node("If", ["yes"], ["chosen"], "if", **branches))
    proto.graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.FLOAT, ["n"]))
    return proto


def test_subgraphs_are_counted_not_checked_and_what_they_read_stays(tmp_path):
    net = image()
    net.done(net.act(net.conv3("c", "x")))
    found = checked(with_subgraph(net, "c:out"), tmp_path)
    assert found.inner == 4
    (match,) = found.matches
    assert [one.kind for one in match.breakers] == ["subgraph"]
    assert checked(with_subgraph(net, "act:out"), tmp_path).matches[0].state == "whole"


def test_the_operands_of_sums_and_products_may_be_turned(tmp_path):
    net = tokens()
    product = net.add("MatMul", "x", net.weight(16, 16), name="mm")
    a = net.add("Add", net.vector(16), product, name="bias")
    grown = net.add("Add", net.value(1), net.add("Erf", net.add("Div", a, net.value(2**0.5))))
    net.done(net.add("Mul", net.value(0.5), net.add("Mul", grown, a)))
    (match,) = checked(net, tmp_path).matches
    assert match.pattern == "matmul+add+activation"
    assert match.state == "whole"
    assert len(match.nodes) == 7


@pytest.mark.parametrize("op", ["Mul", "Identity", "Relu"])
def test_work_grows_with_the_number_of_nodes(op, tmp_path, monkeypatch):
    """Chains that a search could go back over again and again: counted, not timed."""
    steps = []
    original = View.maker
    monkeypatch.setattr(View, "maker", lambda *given: steps.append(1) or original(*given))

    def count(size):
        net = image()
        a = "x"
        for number in range(size):
            a = net.add(op, *([a, a] if op == "Mul" else [a]), name=f"n{number}")
        onnx.save(net.done(a).proto(), tmp_path / "net.onnx")
        steps.clear()
        find_matches(View(load_model(tmp_path / "net.onnx")), read_patterns())
        return len(steps)

    assert count(800) <= 2.2 * count(400) + 100
