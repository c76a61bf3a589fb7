"""Findings are ranked by what they cost."""

from trtcal.evidence.findings import Cost, Finding, rank


def finding(kind, **cost):
    return Finding(kind, kind, "what", "why", "fix", cost=Cost(**cost))


def test_accuracy_comes_first_then_time_then_bytes():
    ranked = rank(
        [
            finding("free"),
            finding("bytes", moved_bytes=10**9),
            finding("low", risk="low"),
            finding("slow", time_ms=0.5),
            finding("slower", time_ms=2.0),
            finding("wrong", risk="high"),
        ]
    )
    assert [one.kind for one in ranked] == ["wrong", "slower", "slow", "bytes", "low", "free"]


def test_what_was_asked_and_is_not_so_comes_before_costs():
    ranked = rank([finding("unfused_qdq", time_ms=3.0), finding("silent_fallback")])
    assert [one.kind for one in ranked] == ["silent_fallback", "unfused_qdq"]


def test_order_does_not_depend_on_the_order_given():
    some = [finding("b"), finding("a"), finding("c", time_ms=1.0)]
    assert rank(some) == rank(reversed(some))
