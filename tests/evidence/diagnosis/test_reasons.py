"""Why a node lost its precision: what the log says of it counts before what the graph shows."""

from tests.evidence.log.lines import parse_lines
from tests.fixtures.structures import whole, wrong_axis
from tests.fixtures.tables import each
from trtcal.evidence.diagnosis.build_diagnosis import Case, diagnose
from trtcal.evidence.diagnosis.reasons import Mentions, explain, tensors_of
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.outcomes import Outcome

LOST = Outcome("node", "int8", "fp32", "node + relu", "its layer runs in fp32", "hint")
MISSING = (
    "[W] [TRT] Missing scale and zero-point for tensor {}, expect fall back to non-int8 implementation "
    "for any layer consuming or producing given tensor"
)
NO_KERNEL = "[E] Error[10]: Error Code: 10: Could not find any implementation for node {}."
FAILED = "[E] Error Code: 9: Skipping tactic 0x00000000000000ab due to exception no such shape"
SLOWER = (
    "[W] To achieve better performance on this platform, Q/DQ nodes will not be fused because INT8 is "
    "slower than FP16."
)
IGNORED = (
    "[W] node: a non-conforming implementation was chosen than was requested i.e. requested layer "
    "computation precision and output precision types were ignored"
)


def events(*lines):
    return [("build.log", event) for event in parse_lines(lines)]


def explained(proto, *lines, outcome=LOST):
    (found,) = explain([outcome], proto, Mentions(events(*lines)))
    return found


@each(
    "line, cause",
    [
        (MISSING.format("x"), "missing_range"),
        (NO_KERNEL.format("node + relu"), "no_kernel"),
        (NO_KERNEL.format("PWN(node)"), "no_kernel"),
        (IGNORED, "slower"),
        (SLOWER, "slower"),
    ],
)
def test_a_line_about_the_node_or_its_tensor_gives_the_reason(line, cause):
    proto = whole().proto()
    (conv,) = (one for one in proto.graph.node if one.name == "node")
    found = explained(proto, line.replace("tensor x,", f"tensor {conv.input[0]},"))
    assert found.cause == cause
    assert "build.log, line 1, says" in found.reason


def test_lines_about_others_give_none():
    proto = whole().proto()
    for line in (MISSING.format("other"), NO_KERNEL.format("nodes"), FAILED):
        assert explained(proto, line) == LOST


def test_a_line_counts_before_the_graph_and_the_graph_before_a_general_remark():
    proto = wrong_axis().proto()
    assert explained(proto).cause == "wrong_axis"
    assert explained(proto, SLOWER).cause == "wrong_axis"
    assert explained(proto, NO_KERNEL.format("node")).cause == "no_kernel"


def test_what_was_not_lost_needs_no_reason():
    met = Outcome("node", "int8", "int8", "node")
    assert explained(wrong_axis().proto(), SLOWER, outcome=met) == met


def found_with(*lines, outcome=LOST):
    proto = whole().proto()
    layer = Layer("node + relu", "conv", (TensorInfo("x", "fp32", (1, 8, 8, 8)),))
    outcomes = explain([outcome], proto, Mentions(events(*lines)))
    return diagnose(Case(outcomes, {}, [layer], events(*lines), tensors_of(proto))).findings


def test_a_fallback_is_silent_only_if_no_line_tells_of_it():
    assert [one.kind for one in found_with()] == ["silent_fallback"]
    assert [one.kind for one in found_with(SLOWER)] == ["fallback", "fallback"]
    (finding,) = found_with(IGNORED)
    assert finding.kind == "fallback"
    assert {one.source for one in finding.evidence} == {"node", "layer", "log"}


def test_a_precision_narrower_than_asked_is_a_risk_for_accuracy():
    narrowed = Outcome("node", "fp32", "int8", "node + relu", "its layer runs in int8", "hint")
    (found,) = found_with(outcome=narrowed)
    assert (found.kind, found.cost.risk) == ("narrowed", "high")
    assert found.cost.moved_bytes == 8 * 8 * 8 * 4
