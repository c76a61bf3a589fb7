"""Plans: exact names, then rules in order, then the default; and what they mean for a model."""

import json

from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.quantization import Plan, Rule, plan_of, prepare, read_plan, resolve, write_plan

OPS = {"stem/conv": "Conv", "a/conv": "Conv", "a/relu": "Relu", "head[0]": "Gemm"}


def test_names_come_first_then_rules_in_order_then_the_default():
    rules = (Rule("fp16", "a/*"), Rule("int8", op="Conv"), Rule("fp16", "*"))
    plan = Plan("fp32", {"a/conv": "int8"}, rules)
    assert plan.decide("a/conv", "Conv").by == "name"
    assert plan.decide("a/relu", "Relu").by == "rule 1 (glob 'a/*')"
    assert plan.decide("stem/conv", "Conv").precision == "int8"
    assert plan.decide("head[0]", "Gemm").precision == "fp16"
    assert Plan("fp32", {}, rules[:1]).decide("head[0]", "Gemm").is_default


@each(
    "rule, matched",
    [
        (Rule("fp32", "*conv"), ["stem/conv", "a/conv"]),
        (Rule("fp32", "conv"), []),
        (Rule("fp32", "head[0]"), []),
        (Rule("fp32", "head[0]", "name"), ["head[0]"]),
        (Rule("fp32", r"(stem|a)/conv", "regex"), ["stem/conv", "a/conv"]),
        (Rule("fp32", "a", "regex"), []),
        (Rule("fp32", op="Gemm"), ["head[0]"]),
        (Rule("fp32", "a/*", op="Conv"), ["a/conv"]),
    ],
)
def test_a_rule_matches_whole_names(rule, matched):
    assert [name for name, op in OPS.items() if rule.matches(name, op)] == matched


@each("pattern", ["(a+)+$", "(a|a)*b", "(.*a){20}", "(a?){50}a{50}"])
def test_no_pattern_takes_for_ever(pattern):
    Rule("fp32", pattern, "regex").matches("a" * 5000 + "!", "Conv")
    Rule("fp32", "*a" * 40 + "*b").matches("a" * 200, "Conv")


@each(
    "table, name",
    [
        ({"rules": 3}, "rules"),
        ({"default": "fp4"}, "fp4"),
        ({"layers": {"a": "int4_awq"}}, "int4_awq"),
        ({"block_size": 100}, "100"),
        ({"block_size": -128}, "block_size"),
        ({"block_size": "128"}, "block_size"),
        ({"second_qdq": "conv"}, "second_qdq"),
        ({"second_qdq": [3]}, "second_qdq"),
        ({"rules": [3]}, "rules"),
        ({"rules": [{"pattern": "a"}]}, "rules.1.precision"),
        ({"rules": [{"precision": "fp16"}]}, "pattern"),
        ({"rules": [{"precision": "int2", "op": "Conv"}]}, "int2"),
        ({"rules": [{"precision": "fp16", "op": 3}]}, "rules.1.op"),
        ({"rules": [{"precision": "fp16", "op": "Conv", "optional": 1}]}, "rules.1.optional"),
        ({"rules": [{"precision": "fp16", "op": "Conv", "x": ""}]}, "rules.1.x"),
        ({"rules": [{"precision": "fp16", "match": "like", "pattern": ""}]}, "like"),
        ({"rules": [{"precision": "fp16", "match": "regex", "pattern": "("}]}, "regular"),
        ({"rules": [{"precision": "fp16", "match": "regex", "pattern": "(?=a)"}]}, "RE2"),
        ({"rules": [{"precision": "fp16", "match": "regex", "pattern": "\ud800"}]}, "regular"),
        ({"rules": [{"precision": "fp16", "pattern": "a" * 1001}]}, "1000"),
    ],
)
def test_wrong_rules_are_refused(tmp_path, table, name):
    (tmp_path / "plan.json").write_text(json.dumps(table))
    with fails(InputError) as caught:
        read_plan(tmp_path / "plan.json")
    shows(f"{caught.value.message} {caught.value.hint}", name)


def test_rules_are_written_and_read_and_older_documents_refused(tmp_path):
    rules = [{"precision": "fp16", "op": "Conv", "optional": True}]
    rules.append({"precision": "fp32", "match": "regex", "pattern": "a.*", "reason": "late"})
    plan = plan_of({"default": "fp16", "layers": {"a": "int8"}, "rules": rules}, "here")
    document = write_plan(tmp_path / "plan.json", plan)
    assert document["rules"] == rules
    assert read_plan(tmp_path / "plan.json") == plan
    document["rules"][0]["op"] = "Gemm"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with fails(InputError, "plan.json"):
        read_plan(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text(json.dumps({**document, "schema_version": 3}))
    with fails(InputError, "plan.json", "3", "4"):
        read_plan(tmp_path / "plan.json")


def test_operators_without_a_kernel_are_written_and_read(tmp_path):
    plan = Plan(without=("ConvTranspose",))
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    assert "without" not in Plan().to_document()


def test_nodes_with_a_second_pair_are_written_and_read(tmp_path):
    plan = plan_of({"second_qdq": ["a", "b", "a"]}, "here")
    document = write_plan(tmp_path / "plan.json", plan)
    assert document["second_qdq"] == ["a", "b"]
    assert read_plan(tmp_path / "plan.json") == plan
    rules = (Rule("fp16", op="Conv"),)
    assert write_plan(tmp_path / "plan.json", Plan("int8", {}, rules, ("a",)))["rules"]
    assert read_plan(tmp_path / "plan.json").rules == rules


@each(
    "plan, name",
    [
        (Plan(second_qdq=("a/relu",)), "a/relu"),
        (Plan(rules=(Rule("fp32", "sten/*"),)), "rule 1"),
        (Plan(rules=(Rule("int8", op="Relu"),)), "rule 1"),
        (Plan(layers={"a/relu": "int8"}), "a/relu"),
        (Plan(layers={"a/rely": "fp16"}), "a/rely"),
    ],
)
def test_what_is_about_no_node_is_an_error(plan, name):
    with fails(InputError, name):
        plan.check(OPS, ["stem/conv", "a/conv"])


def test_optional_rules_may_match_nothing():
    Plan(rules=(Rule("fp32", "sten/*", optional=True),)).check(OPS, ["stem/conv"])


def test_a_model_resolves_every_node_with_what_decided_and_its_share(tmp_path):
    model = prepare(load_model(conv_net(tmp_path / "net.onnx")))
    plan = Plan("int8", {"relu1": "fp16"}, (Rule("fp32", op="Gemm", reason="the head"),))
    found = {node.node: node for node in resolve(plan, model)}
    assert {name: node.precision for name, node in found.items()} == {
        "first": "int8", "relu1": "fp16", "second": "int8", "add": "int8", "relu2": "follows",
        "pool": "follows", "flatten": "follows", "gemm": "fp32",
    }  # fmt: skip
    assert (found["gemm"].by, found["gemm"].reason) == ("rule 1 (op 'Gemm')", "the head")
    assert (found["first"].weights, found["first"].macs) == (8 * 3 * 9, 8 * 3 * 9 * 64)
    assert (found["gemm"].macs, found["relu1"].macs) == (40, 0)
