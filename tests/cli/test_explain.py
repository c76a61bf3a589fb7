"""`trtcal log --explain`, and that it knows every name that is printed."""

import ast
import json
from pathlib import Path

import trtcal.evidence
from tests.evidence.log.lines import parse_lines
from tests.fixtures.tables import each
from trtcal.cli.main import run_command
from trtcal.evidence.findings import KINDS
from trtcal.evidence.log.recognition import CATEGORIES, RULES


def run(capsys, *arguments):
    status = run_command(["log", "--explain", *arguments])
    captured = capsys.readouterr()
    return status, " ".join(captured.out.split()), captured.err


@each("rule", RULES)
def test_a_rule_is_explained_by_the_name_that_the_log_prints(capsys, rule):
    status, out, _ = run(capsys, rule.name)
    assert status == 0
    for text in (rule.meaning, rule.why, rule.fix, *rule.example):
        assert " ".join(text.split()) in out


def test_a_rule_without_a_reason_of_its_own_has_its_categorys(capsys):
    (event,) = parse_lines(["[W] Tensor a is uniformly zero."])
    assert CATEGORIES["uncalibrated"].why in run(capsys, event.fields["rule"])[1]


ROOM = Path(trtcal.evidence.__file__).parent
SOURCES = [
    path.read_text() for path in (*ROOM.rglob("*.py"), ROOM.parent / "evaluate" / "overflow.py")
]


def test_every_finding_has_a_kind_that_is_explained(capsys):
    kinds = {name for one in CATEGORIES.values() for name in (one.each, one.together) if name}
    kinds |= {kind for source in SOURCES for kind in kinds_in(ast.parse(source))}
    assert len(kinds) > 20
    assert kinds <= set(KINDS)
    for kind in KINDS:
        assert kind in kinds or any(f'"{kind}"' in source for source in SOURCES), kind
        assert KINDS[kind].fix in run(capsys, kind)[1]


def kinds_in(tree):
    """Yield the constant kinds of `Finding(...)` and `Fault(...)`, and those that become one."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or "Finding(" not in ast.unparse(function):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "kind":
                yield from constants_in(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Finding", "Fault"):
            yield from constants_in(*node.args[:1])
            yield from constants_in(*(one.value for one in node.keywords if one.arg == "kind"))


def constants_in(*nodes):
    found = (inner.value for node in nodes for inner in ast.walk(node) if hasattr(inner, "value"))
    return [one for one in found if isinstance(one, str)]


def test_a_name_of_a_message_and_a_finding_is_explained_as_both(capsys):
    _, out, _ = run(capsys, "zero_point")
    assert "error, in category error" in out
    assert "a kind of finding" in out


def test_an_unknown_name_gets_the_nearest(capsys):
    status, out, err = run(capsys, "missing_scales")
    assert (status, out) == (2, "")
    assert "did you mean missing_scale" in err
    assert run(capsys, "Silent fallback")[0] == 0


LOST = (
    "Assertion item.second != nullptr failed. region should have been removed from Graph::regions"
)
FP8 = "Networks with FP8 layers require hardware with FP8 support."


@each(
    "pasted, names",
    [
        (f"[checkSanity.cpp::checkLinks::9] Error Code 2: Internal Error ({LOST})", ["check_links"]),
        (f"[TRT] [E] IBuilder::build: Error Code 2: Internal Error ({LOST} In checkLinks at "
         "/src/checkSanity.cpp:9)", ["check_links"]),
        ("Tensor a is uniformly zero.", ["uniformly_zero"]),
        ("Engine built in 4 sec.", ["time_built"]),
        (f"[E] Engine could not be created\n[E] Error[9]: {FP8}", ["type_hardware", "consequence"]),
        ("[E] Error[2]: [a.cpp::b::3] Error Code 2: Internal Error (Assertion c() failed. )",
         ["assertion_internal"]),
        ("[E] 4: [a.cpp::b::3] Error Code 4: Internal Error (an odd message)", ["unknown"]),
        ("(Could not find any implementation for node c1.)", ["no_implementation"]),
        ("error code 10 internal error (could not find any implementation for node)",
         ["no_implementation"]),
        ("what nobody has ever printed", ["unknown"]),
    ],
)  # fmt: skip
def test_pasted_lines_are_explained_by_the_rules_that_know_them(capsys, pasted, names):
    _, out, _ = run(capsys, pasted, "--json")
    assert [one["name"] for one in json.loads(out)["explanations"]] == names


def test_what_is_known_of_a_failure_is_shown(capsys):
    _, out, _ = run(capsys, "check_links")
    assert "TensorRT 10.3, fixed in 10.7" in out
    assert "occurs with: INT8 by calibration on Jetson Orin" in out
    assert "NVIDIA/TensorRT#4797" in out


def test_an_unknown_message_has_its_place_and_its_error_code(capsys):
    _, out, _ = run(capsys, "[E] 4: [a.cpp::b::3] Error Code 4: Internal Error (an odd message)")
    assert "Place: a.cpp::b::3. Error code: 4." in out


def test_without_a_name_all_are_listed(capsys):
    _, out, _ = run(capsys)
    for name in (*CATEGORIES, *KINDS, *(rule.name for rule in RULES)):
        assert f" {name}: " in f" {out}"


def test_json_has_the_same(capsys):
    _, out, _ = run(capsys, "--json")
    assert len(json.loads(out)["explanations"]) == len(CATEGORIES) + len(RULES) + len(KINDS)
    (one,) = json.loads(run(capsys, "missing_scale", "--json")[1])["explanations"]
    assert (one["about"], one["category"], len(one["examples"])) == ("message", "uncalibrated", 2)
