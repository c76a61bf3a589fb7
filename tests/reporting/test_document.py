import json
from dataclasses import replace

import pytest

from tests.fixtures.fails import fails
from tests.reporting.samples import (
    accuracy,
    build,
    comparison,
    latency,
    row,
    write_build,
    write_run,
)
from trtcal.documents import digest_document, write_document
from trtcal.errors import InputError
from trtcal.reporting.document import MESSAGE_KEPT, assemble, read_log
from trtcal.reporting.render import render

GOOD = accuracy(5, 1)


def two(p50: float = 1.0):
    return comparison(row("a", GOOD, latency(p50)), row("b", accuracy(130, 10)))


def test_it_is_sealed_and_holds_what_the_stages_left(tmp_path):
    document = assemble(write_run(tmp_path, two(), build("a", {"conv": "int8"})))
    assert document["kind"] == "report"
    assert document["digest"] == digest_document(document)
    assert [one["name"] for one in document["comparison"]["rows"]] == ["digits", "a", "b"]
    assert document["builds"][0]["outcomes"][0]["got"] == "int8"
    assert document["calibrations"][0]["notes"] == {"conv1": "kept short"}
    assert document["plans"][0]["layers"] == {"head/gemm": "fp32"}
    assert document["measured"]["judgements"] == {"a": "holds", "b": "broken"}


def test_two_runs_with_other_times_in_other_folders_have_one_digest(tmp_path):
    builds = build("b", {"c": "int8"}), build("a", {"conv": "fp32"})
    slower = [
        replace(one, measured={"engine_bytes": 7, "seconds": 9.0}) for one in reversed(builds)
    ]
    first = assemble(write_run(tmp_path / "one", two(1.0), *builds))
    second = assemble(write_run(tmp_path / "two", two(9.0), *slower))
    assert first["digest"] == second["digest"]
    assert first["measured"] != second["measured"]


def test_the_lasting_part_names_no_folder(tmp_path):
    document = assemble(write_run(tmp_path / "secret-place", two(), build("a", {"conv": "int8"})))
    measured = document.pop("measured")
    assert "secret-place" not in json.dumps(document)
    assert measured["folder"] == "secret-place"
    assert str(tmp_path) not in json.dumps(measured)


def test_other_accuracy_has_another_digest(tmp_path):
    first = assemble(write_run(tmp_path / "one", two()))
    second = assemble(write_run(tmp_path / "two", comparison(row("a", GOOD))))
    assert first["digest"] != second["digest"]


def test_log_events_are_counted_and_quoted_without_the_background(tmp_path):
    document = assemble(write_run(tmp_path, two(), build("a", {"conv": "int8"})))
    log = next(iter(document["measured"]["builds"].values()))["log"]
    assert log["counts"] == {"fallback": 1, "uncalibrated": 1}
    assert [event["line"] for event in log["events"]] == [1, 2]
    assert log["is_original"]


def test_errors_come_before_the_rest_and_long_messages_are_cut(tmp_path):
    path = tmp_path / "build.log"
    fallbacks = "[11/21/2026-05:00:00] [I] [TRT] Fallback triggered for leaky_relu_5\n" * 30
    path.write_text(fallbacks + "[11/21/2026-05:00:01] [E] " + "x" * 1000 + "\n")
    log = read_log(path)
    assert log["findings"] == 31
    assert len(log["events"]) == 20
    assert (log["events"][-1]["line"], log["events"][-1]["severity"]) == (31, "error")
    assert len(log["events"][-1]["message"]) == MESSAGE_KEPT


def test_a_log_that_was_changed_is_marked(tmp_path):
    folder = write_run(tmp_path, two(), build("a", {"conv": "int8"}))
    (folder / "builds" / "0" / "build.log").write_text("all is well\n")
    log = next(iter(assemble(folder)["measured"]["builds"].values()))["log"]
    assert not log["is_original"]


def test_a_build_without_a_log_and_a_log_without_a_build(tmp_path):
    folder = write_run(tmp_path, two(), build("a", {"conv": "int8"}))
    (folder / "builds" / "0" / "build.log").unlink()
    write_build(folder / "failed", build("a", {}))
    (folder / "failed" / "build.json").unlink()
    measured = assemble(folder)["measured"]
    assert next(iter(measured["builds"].values()))["log"] is None
    assert measured["failed_builds"] == {"failed": "it left a log and no engine"}
    assert measured["failed_logs"][0]["log"]["findings"] == 2
    assert any("it left a log and no engine" in reason for reason in measured["verdict"]["reasons"])


def test_a_run_document_is_kept_under_measured(tmp_path):
    folder = write_run(tmp_path, two())
    without = assemble(folder)
    stages = [{"stage": "compare", "output": "comparison.json", "digest": "sha256:0"}]
    run = {"kind": "run", "schema_version": 1, "command": ["trtcal", "run"], "stages": stages}
    run = {**run, "missing_builds": {"sm89": "not installed"}}
    noted = {"machine": {"cpus": 4}, "packages": {"onnx": "1.0", "tensorrt-rtx": None}}
    write_document(folder / "run.json", {**run, "measured": {"seconds": 3, **noted}})
    document = assemble(folder)
    assert document["measured"]["machine"] == {"cpus": 4}
    assert document["measured"]["failed_builds"] == {"sm89": "not installed"}
    assert "tensorrt-rtx not installed" in render(document)
    assert document["measured"]["run"]["stages"] == stages
    assert document["digest"] == without["digest"]


def test_json_of_others_is_left_alone(tmp_path):
    folder = write_run(tmp_path, two())
    for name, text in {
        "a": "[]",
        "b": '{"kind": ["x"]}',
        "c": '{"kind": "build"}',
        "d": "7",
    }.items():
        (folder / f"{name}.json").write_text(text)
    write_document(folder / "report.json", {"kind": "report", "schema_version": 99})
    assemble(folder)


def test_folders_too_deep_and_hidden_ones_are_not_entered(tmp_path):
    folder = write_run(tmp_path, two())
    for place in ("1/2/3/4/5", ".cache"):
        comparison(row("x", GOOD)).write(folder / place / "comparison.json")
    assert assemble(folder)["comparison"]["rows"][1]["name"] == "a"
    comparison(row("x", GOOD)).write(folder / "1/2/3/4/comparison.json")
    with fails(InputError, "2 comparisons"):
        assemble(folder)


def test_the_same_document_twice_counts_once(tmp_path):
    folder = write_run(tmp_path, two())
    two().write(folder / "copy.json")
    assert assemble(folder)["digest"]


@pytest.mark.parametrize(
    "name", ["comparison.json", "builds/0/build.json", "calibrations/percentile.json", "plan.json"]
)
def test_an_altered_document_is_refused(tmp_path, name):
    path = write_run(tmp_path, two(), build("a", {"conv": "int8"})) / name
    document = json.loads(path.read_text())
    document.update(
        {"trtcal": "changed", "default": "fp32"} if name != "plan.json" else {"default": "fp32"}
    )
    path.write_text(json.dumps(document))
    with fails(InputError, path.name):
        assemble(tmp_path)


def test_half_a_document_is_refused(tmp_path):
    path = write_run(tmp_path, two(), build("a", {"conv": "int8"})) / "builds" / "0" / "build.json"
    path.write_text(path.read_text()[:100])
    with fails(InputError, path.name):
        assemble(tmp_path)


def test_a_folder_without_comparison_says_what_to_do(tmp_path):
    with fails(InputError, hint="trtcal compare"):
        assemble(tmp_path)
    with fails(InputError, "missing"):
        assemble(tmp_path / "missing")


def test_a_plan_written_by_hand_needs_no_digest(tmp_path):
    folder = write_run(tmp_path, two())
    (folder / "plan.json").write_text('{"kind": "plan", "default": "fp32"}')
    assert assemble(folder)["plans"][0]["default"] == "fp32"
    (folder / "plan.json").write_text('{"layers": {"a": "fp32"}}')
    assert assemble(folder)["plans"][0]["layers"] == {"a": "fp32"}
    (folder / "plan.json").write_text('{"layers": {"a": "conv"}}')
    assert assemble(folder)["plans"] == []
