"""What a run of the passes records, what can be skipped, and what a broken pass is answered with."""

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import rng, weight
from tests.fixtures.tables import each
from tests.model.passes.graphs import ALL, alone, changes, make, ops
from trtcal.errors import InputError
from trtcal.evaluate.equality import check_equal, tolerance_of
from trtcal.model.passes import PASSES, BrokenPassError, prepare, prepare_with_record
from trtcal.model.passes.base import NotApplicable, Pass

node = helper.make_node
CHAIN = as_nodes(
    "[conv] a = Conv(x, w)  [same] b = Identity(a)  [by1] c = Mul(b, one)  "
    "[there] d = Transpose(c)  [back] e = Transpose(d)  [wide] f = Cast<to=11>(e)  "
    "[narrow] g = Cast<to=1>(f)  [narrow] h = Cast<to=10>(g)  [whole] i = Cast<to=1>(h)  "
    "[shift] j = Add(i, k)  [relu] y = Relu(j)"
)
WEIGHTS = {"w": weight(6, 3, 3, 3), "one": np.float32(1), "k": np.float32(2)}
IMAGES = {"x": rng().standard_normal((2, 3, 8, 8)).astype(np.float32)}


@pytest.fixture
def model():
    return make(CHAIN, WEIGHTS, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 6, 6]})


def test_every_pass_is_recorded_with_what_it_did(model):
    prepared = prepare_with_record(model, skip=["fp16-opset"])
    assert [record.name for record in prepared.records] == ALL
    assert {"identities": 1, "neutral": 1, "transposes": 1, "casts": 1}.items() <= changes(
        prepared
    ).items()
    assert ops(prepared) == ["Conv", "Cast", "Cast", "Add", "Relu"]
    before = prepared.records[0].before
    for record in prepared.records:
        assert record.before == before
        assert (record.after == before) == (record.changes == 0)
        before = record.after
    assert prepared.model.fingerprint == model.fingerprint


def test_fingerprints_are_of_the_content(model):
    first, again = (prepare_with_record(model).records for _ in range(2))
    assert first == again
    other = make(CHAIN, {**WEIGHTS, "w": WEIGHTS["w"] * np.float32(1.5)}, {"x": ["n", 3, 8, 8]},
                 {"y": ["n", 6, 6, 6]})  # fmt: skip
    assert prepare_with_record(other).records[0].before != first[0].before


@each("name", sorted(one.name for one in PASSES if not one.on_request))
def test_a_skipped_pass_does_nothing(model, name):
    records = prepare_with_record(model, skip=[name]).records
    skipped = [record for record in records if record.name == name]
    assert all(record.skipped == "skipped on request" and record.changes == 0 for record in skipped)
    assert ops(prepare_with_record(model, skip=ALL)) == [one.op_type for one in CHAIN]


def test_what_does_not_apply_says_why(model):
    skipped = {record.name: record.skipped for record in prepare_with_record(model).records}
    assert skipped["opset"] == "its opset is 17 already"
    assert skipped["rounding-casts"] == "only on request"
    old = make([node("Identity", ["x"], ["a"], "i"), node("Relu", ["a"], ["y"], "r")], {}, {"x": [1]},
               {"y": [1]}, 8)  # fmt: skip
    skipped = {
        one.name: one.skipped for one in prepare_with_record(old, alone("identities")).records
    }
    assert skipped["identities"] == "its opset is 8, and the pass needs 9"


def test_what_rounds_is_taken_out_on_request_only(model):
    assert "Cast" not in ops(prepare_with_record(model, add=["rounding-casts"]))


@pytest.mark.parametrize("where", ["skip", "add"])
def test_an_unknown_pass_is_named(model, where):
    with fails(InputError, "scale") as caught:
        prepare(model, **{where: ["scale"]})
    assert caught.value.hint == "did you mean 'scales'?"


def negate(graph):
    """Change what the graph computes, and say so."""
    graph.nodes[-1].op = "Neg"
    return 1


def rename(graph):
    graph.outputs[0].name = "z"
    return 1


def cut(graph):
    graph.nodes[1].inputs[0].inputs.clear()
    return 1


def hide(graph):
    negate(graph)
    return 0


def flinch(graph):
    negate(graph)
    raise NotApplicable("no")


@pytest.mark.parametrize(("apply", "name"), [
    (rename, "output"), (cut, "a"), (hide, "no change"), (flinch, "skip"),
    (lambda graph: 0, "redundant"),
])  # fmt: skip
def test_a_pass_that_breaks_its_word_is_a_defect(model, apply, name):
    broken = [
        dataclasses.replace(one, apply=apply) if one.name == "identities" else one for one in PASSES
    ]
    with fails(BrokenPassError, "identities", name):
        prepare_with_record(model, passes=broken)


def test_a_pass_of_a_script_that_changes_an_array_in_place_is_seen(model):
    def changing(index):
        def apply(graph):
            graph.nodes[0].inputs[1].values[...] = index
            graph.nodes[0].name += "x" * index
            return index

        return Pass(f"own{index}", "", apply, script="own.py")

    with fails(InputError, "own0", "no change"):
        prepare_with_record(model, passes=[changing(1), changing(0)])


def test_a_pass_that_changes_the_values_is_found_by_running(model):
    broken = [
        dataclasses.replace(one, apply=negate) if one.name == "scales" else one for one in PASSES
    ]
    prepared = prepare_with_record(model, passes=broken).model
    assert check_equal(model, prepare(model), [IMAGES]).holds
    equality = check_equal(model, prepared, [IMAGES])
    assert not equality.holds
    assert equality.differences.keys() == {"y"}


@each("factor, offset, difference", [
    (1.0, 0.0, 0.0), (1.0, 1e-3, 2.5e-4), (1.5, 0.0, 0.5), (np.nan, 0.0, np.inf), (np.inf, 0.0, np.inf),
])  # fmt: skip
def test_differences_are_relative_to_the_largest_value(factor, offset, difference):
    def scaled(factor, offset):
        nodes = [node("Mul", ["x", "f"], ["a"], "m"), node("Add", ["a", "o"], ["y"], "a")]
        weights = {"f": np.float32(factor), "o": np.float32(offset)}
        return make(nodes, weights, {"x": ["n"]}, {"y": ["n"]})

    feeds = [{"x": np.array([1, -4], np.float32)}, {"x": np.array([2], np.float32)}]
    equality = check_equal(scaled(1, 0), scaled(factor, offset), feeds)
    assert equality.samples == 3
    assert equality.largest == pytest.approx(difference, rel=1e-2)
    assert equality.holds == (difference == 0)


def test_not_numbers_in_both_are_no_difference():
    model = make([node("Sqrt", ["x"], ["y"], "root")], {}, {"x": ["n"]}, {"y": ["n"]})
    feeds = [{"x": np.array([-1, np.inf, 4], np.float32)}]
    assert check_equal(model, model, feeds).largest == 0


def test_whole_numbers_differ_by_their_share():
    def chosen(op):
        nodes = [node(op, ["x"], ["y"], "arg", axis=1, keepdims=0)]
        made = make(nodes, {}, {"x": ["n", 2]}, {"y": ["n"]})
        made.proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
        return made

    feeds = [{"x": np.array([[0, 1], [1, 0], [2, 2], [0, 3]], np.float32)}]
    assert check_equal(chosen("ArgMax"), chosen("ArgMin"), feeds).largest == 0.75


def test_tolerance_is_that_of_the_coarsest_float_type(model):
    assert tolerance_of(model.proto) == 1e-2
    single = make([*CHAIN[:4], node("Relu", ["d"], ["y"], "r")], WEIGHTS, {"x": ["n", 3, 8, 8]},
                  {"y": [None] * 4})  # fmt: skip
    assert tolerance_of(single.proto) == 1e-4
