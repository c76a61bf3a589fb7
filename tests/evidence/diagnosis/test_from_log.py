"""What a log alone shows: each thing once, warnings separately."""

import pytest

from tests.evidence.log.lines import parse_lines
from tests.fixtures.tables import each
from trtcal.config import Config
from trtcal.evidence.diagnosis.build_diagnosis import Case, check_engine, diagnose, with_context
from trtcal.evidence.findings import Evidence, Finding
from trtcal.evidence.layers.reading import Engine

MISSING = (
    "[W] [TRT] Missing scale and zero-point for tensor {}, expect fall back to non-int8 implementation "
    "for any layer consuming or producing given tensor"
)
NONE_FOUND = "Could not find any implementation for node {}."


def diagnosed(lines, tensors=None):
    events = [("build.log", event) for event in parse_lines(lines)]
    return diagnose(Case(events=events, tensors=tensors or {}))


def test_every_tensor_without_a_range_is_a_finding_of_its_own_and_repeats_are_not():
    found = diagnosed([MISSING.format(name) for name in ("a", "b", "a")]).findings
    assert [(one.kind, one.subject) for one in found] == [
        ("missing_range", "a"),
        ("missing_range", "b"),
    ]
    assert [one.place for one in found[0].evidence] == ["build.log:1", "build.log:3"]


def test_a_failure_is_reported_by_its_cause_not_by_what_follows_from_it():
    found = diagnosed(
        [
            f"[E] 10: [optimizer.cpp::computeCosts::9] Error Code 10: Internal Error "
            f"({NONE_FOUND.format('mix + relu')})",
            "[E] Engine could not be created from network",
            "[E] Building engine failed",
        ]
    ).findings
    assert [(one.kind, one.subject) for one in found] == [("no_implementation", "mix + relu")]


@each("order", [(0, 512), (512, 0)])
def test_no_free_memory_at_all_is_the_least_there_was(order):
    skipped = (
        "[W] Skipping tactic 3 due to insufficient memory on requested size of 900 detected for "
    )
    asked = "[W] Tactic Device request: 900MB Available: {}MB. Device memory is insufficient."
    lines = [f"{skipped}tactic 0x3.", *(asked.format(size) for size in order)]
    (found,) = diagnosed(lines).findings
    assert found.what.endswith("the largest needs 900 MiB, and 0 MiB were available")


def test_an_echo_without_a_cause_is_kept():
    (found,) = diagnosed(["[E] Engine could not be created from network"]).findings
    assert found.kind == "build_error"


def test_information_is_counted_and_is_no_finding():
    made = diagnosed(
        [
            "[W] [TRT] CUDA lazy loading is not enabled. Enabling it can significantly reduce memory",
            "[W] [TRT] Implicit batch mode has been deprecated.",
            "[I] [TRT] Engine generation completed in 3.1 seconds.",
        ]
    )
    assert not made.findings
    assert sum(made.notes.values()) == 2


def test_a_guessed_range_is_the_first_finding():
    found = diagnosed(
        [
            MISSING.format("a"),
            "[TensorRT] WARNING: Calibration range fallback defaulted to (min=-6.0, max=6.0)",
        ]
    ).findings
    assert [one.cost.risk for one in found] == ["high", "none"]
    assert "-6.0" in found[0].what


@pytest.mark.parametrize("name", ["</td><b>", "[/red]", "x\x1b[2J", "a\u202eb"])
def test_hostile_names_stay_names(name, tmp_path):
    (tmp_path / "build.log").write_bytes((MISSING.format(name) + "\n").encode())
    logs = [tmp_path / "build.log"]
    (found,) = check_engine(Engine("", ()), Config(tmp_path), logs).findings
    assert found.kind == "missing_range"


def test_a_log_of_noise_gives_nothing():
    assert not diagnosed([b"\xff\xfe\x00 not a log", b"", b"hello"]).findings


def test_lines_of_the_log_stand_once_among_the_neighbours_of_findings(tmp_path):
    log = tmp_path / "build.log"
    log.write_text("".join(f"line {number}\n" for number in range(1, 9)))
    wanted = [3, 4, 6]
    findings = [
        Finding("error", None, "x", "y", "z", (Evidence("log", f"build.log:{line}", "said"),))
        for line in wanted
    ]
    texts = [one.evidence[0].text.split("\n") for one in with_context(findings, [log])]
    assert texts == [["line 2", "line 3"], ["line 4", "line 5"], ["line 6", "line 7"]]
