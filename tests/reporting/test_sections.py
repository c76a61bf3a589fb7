"""What the page shows beside variants and layers, and reports on builds that failed."""

import re
from dataclasses import replace

import pytest

from tests.fixtures.fails import fails
from tests.fixtures.schema import schema_errors as problems
from tests.fixtures.tables import each
from tests.reporting.large import write_large_run
from tests.reporting.samples import (
    accuracy,
    build,
    comparison,
    row,
    write_build,
    write_report,
    write_run,
)
from trtcal.data.issues import DataCheck, DataIssue
from trtcal.documents import seal, write_document
from trtcal.errors import InputError
from trtcal.evaluate.groups import Breakdown, Group
from trtcal.evidence.diagnosis.build_diagnosis import Diagnosis, write_diagnosis
from trtcal.evidence.findings import Cost, Finding
from trtcal.limits import judge_counts, parse_limits
from trtcal.quantization.plan import Plan, write_plan
from trtcal.reporting.document import assemble, read_report
from trtcal.reporting.engines import findings, logs
from trtcal.reporting.markdown import to_markdown
from trtcal.reporting.render import render
from trtcal.reporting.text import plain
from trtcal.runs.figures import figures_of_run
from trtcal.wings.fleet.prices import named_price, with_costs

GOOD = accuracy(5, 1)
FAILED = (
    "[11/21/2026-05:00:00] [I] [TRT] Parsing model\n"
    "[11/21/2026-05:00:01] [E] [TRT] 10: Could not find any implementation for node up/deconv.\n"
)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A run of a real model of 40 layers, and its report."""
    folder = write_large_run(tmp_path_factory.mktemp("large") / "run", 40)
    return assemble(folder)


def run(folder, **changes):
    """Write a run of one good variant, with these changes."""
    return write_run(folder, comparison(replace(row("a", GOOD), **changes)))


def test_a_row_goes_from_the_node_to_its_histogram_range_and_kernel(large):
    page = render(large)
    table = page[page.index('id="rows"') :]
    second = table.split("<tr>")[3]
    assert "backbone/stage0/block0/conv1/Conv" in second
    assert "backbone/stage0/block0/conv0/Conv_relu" in second
    assert 'data-t="' in second
    wired = large["builds"][0]["wiring"]["backbone/stage0/block0/conv1/Conv"]
    assert wired["op"] == "Conv"
    (read,) = wired["inputs"]
    (tensor,) = [one for one in large["tensors"] if one["name"] == read["tensor"]]
    of_build = large["builds"][0]["quantization"]["calibration"]
    (chosen,) = [one for one in tensor["ranges"] if one["calibration"] == of_build]
    assert read["amax"] == pytest.approx(chosen["amax"], rel=1e-6)


def test_bars_count_every_value_that_is_not_zero(large):
    for tensor in large["tensors"]:
        if tensor["bars"]:
            assert sum(tensor["bars"]) + tensor["zeros"] == tensor["values"]
            assert len(tensor["bars"]) == 40


def test_the_samples_that_reach_farthest_are_named(large):
    reaching = [one for one in large["tensors"] if one["tail"]]
    assert reaching
    for tensor in reaching:
        values = [one["value"] for one in tensor["tail"]]
        assert values == sorted(values, reverse=True)
        assert values[0] == pytest.approx(tensor["observed"], rel=1e-5)


def test_a_failed_build_has_a_report_that_names_the_layer_the_line_and_a_remedy(tmp_path):
    (tmp_path / "build.log").write_text(FAILED)
    document = assemble(tmp_path)
    verdict = document["measured"]["verdict"]
    assert verdict["word"] == "DO NOT SHIP"
    assert "up/deconv" in verdict["sentence"]
    assert "(line 2 of its log)" in verdict["sentence"]
    assert "give the node a higher precision" in verdict["sentence"]
    page = render(document)
    assert 'id="line-0-2"' in page
    assert 'href="#line-0-2"' in page
    assert 'id="variants"' not in page


def test_of_several_errors_the_first_is_the_cause(tmp_path):
    error = "[11/21/2026-05:00:01] [E] [TRT] "
    log = f"{error}FP32 GEMM is not supported for head\n{error}Invalid Engine.\n"
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "build.log").write_text(log)
    sentence = assemble(tmp_path)["measured"]["verdict"]["sentence"]
    assert sentence.startswith("No engine: the build in x failed: FP32 GEMM is not supported")


def test_builds_without_a_comparison_have_a_report(tmp_path):
    with fails(InputError, hint="trtcal compare"):
        assemble(tmp_path)
    write_build(tmp_path / "x", build("a", {"conv": "fp32"}))
    document = write_report(tmp_path, tmp_path / "page.html")
    assert document["measured"]["verdict"]["word"] == "INCONCLUSIVE"
    assert "was asked" not in document["measured"]["verdict"]["sentence"]


def test_a_limit_that_a_build_breaks_is_in_the_verdict(tmp_path):
    folder = write_run(tmp_path, comparison(row("a", GOOD)), build("a", {"conv": "fp32"}))
    judged = judge_counts(parse_limits(["silent_fallbacks == 0"]), {"silent_fallbacks": 1})
    write_diagnosis(folder / "builds" / "0", Diagnosis((), limits=judged))
    verdict = assemble(folder)["measured"]["verdict"]
    assert verdict["word"] == "DO NOT SHIP"
    assert "breaks the limit silent_fallbacks == 0.0 with 1" in verdict["sentence"]
    assert any("run in float" in reason for reason in verdict["reasons"])


def test_findings_of_one_kind_and_remedy_are_one_with_the_sum_of_their_costs(tmp_path):
    folder = write_run(tmp_path, comparison(row("a", GOOD)), build("a", {"conv": "fp32"}))
    cost = Cost(moved_bytes=1000, risk="low")
    found = tuple(
        Finding("silent_fallback", f"conv{i}", f"conv{i} fell back", "why", "fix", cost=cost)
        for i in range(3)
    )
    other = Finding("silent_fallback", "gemm", "gemm fell back", "why", "another fix")
    write_diagnosis(folder / "builds" / "0", Diagnosis((*found, other)))
    shown = findings(logs(assemble(folder)))["shown"]
    assert [(one["what"], len(one["alike"])) for one in shown] == [
        ("conv0 fell back", 2),
        ("gemm fell back", 0),
    ]
    assert shown[0]["names"] == {"conv0", "conv1", "conv2"}
    assert shown[0]["costs"] == ["3 kB moved", "low risk for accuracy"]


def test_a_slice_that_got_worse_is_shown(tmp_path):
    worse = Group("tier=low", 100, 98.0, 88.0, 10.0, (4.0, 16.0), 1e-6, 3e-6)
    fine = Group("tier=high", 400, 98.0, 98.0, 0.0, (-0.5, 0.5), 0.5, 1.0)
    breakdown = Breakdown("tier", "top1", "points", (worse, fine))
    page = render(assemble(run(tmp_path, breakdowns=(breakdown,))))
    section = page[page.index('id="slices"') : page.index('id="variants"')]
    assert "1 of 2 groups" in section
    assert section.count("worse here") == 1


def test_managers_are_spared_sections_without_data_and_see_those_with(tmp_path):
    def shown(document):
        return re.findall(r'<section id="(\w+)"(?! class="engineer")', render(document))

    folder = run(tmp_path)
    assert shown(assemble(folder)) == ["verdict", "chart", "known"]
    issue = DataIssue("channel_order", "x", "red and blue look swapped", {"share": 0.9}, "read RGB")
    for issues, known in (((), []), ((issue,), ["issues"])):
        check = DataCheck("sha256:m", "sha256:d", "cal", 128, 32, issues)
        check.write(folder / "data_check.json")
        assert shown(assemble(folder)) == ["verdict", "chart", "known", *known]
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "build.log").write_text(FAILED)
    assert shown(assemble(tmp_path / "failed")) == ["verdict", "known"]


def test_three_warnings_are_shown_in_words_and_the_rest_on_request(tmp_path):
    document = assemble(run(tmp_path))
    layers = "7 of 9 layers requested in INT8 run in float on sm89 (tensorrt): conv1, conv2."
    document["measured"]["verdict"]["reasons"] = [layers, "Second.", "Third.", "Fourth.", "Fifth."]
    page = render(document)
    section = page[page.index('id="verdict"') : page.index('id="known"')]
    first, more = section.split("<summary>2 more</summary>")
    assert first.count("<li>") == 3
    assert more.count("<li>") == 2
    words = "7 of 9 layers requested in INT8 run in float on sm89 (tensorrt)."
    assert f'<span class="manager">{words}</span><span class="engineer">{layers}</span>' in first
    assert layers in to_markdown(document).replace("&#45;", "-")


@each(
    "sentence,words",
    (
        ("failed: [8] Only floor is supported (line 3 of its log). Do.",
         "failed: Only floor is supported. Do."),
        ("failed: src/Importer.cpp:773: In function importResize: no mode.", "failed: no mode."),
        ("On sm89, the precision of 2 of 3 layers is not known: a/b, c.",
         "On sm89, the precision of 2 of 3 layers is not known."),
        ("The speed on sm89 was not measured: metric.py is slow.",
         "The speed on sm89 was not measured: metric.py is slow."),
    ),
)  # fmt: skip
def test_managers_read_no_code(sentence, words):
    assert plain(sentence) == words


def test_costs_are_in_money_where_the_price_is_known(tmp_path):
    document = assemble(run(tmp_path))
    assert 'id="costs"' not in render(document)
    relative = render(with_costs(document))
    assert "A million inferences, FP32 = 100" in relative
    page = render(with_costs(document, price=named_price(3.6)))
    # A batch of 32 in 1 ms: a million in 31.25 s, at 3.6 USD an hour.
    assert "A million inferences, USD" in page
    assert ">0.0312<" in page


def test_what_changed_since_the_last_run_is_shown(tmp_path):
    document = assemble(run(tmp_path))
    assert "This is the first known run" in render(document)
    common = {"variant": "a", "figure": "top1", "unit": "%", "change": -0.01}
    worse = {"name": "a: top-1", "before": 99.0, "now": 98.0, "better": False, **common}
    unseen = {"name": "a: cosine", "before": 1.0, "now": 0.999999, "better": False, **common}
    document["measured"]["against"] = {
        "run": {"number": 1, "label": "run 1", "time": "", "digest": "d", "verdict": "SHIP"},
        "figures": [worse, unseen],
        "changed": [{"what": "calibration data", "before": "sha256:1", "now": None}],
        "same": ["model"],
    }
    page = render(document)
    assert "<li>No figure that is watched got worse by more than chance.</li>" in page
    assert "<li>Changed inputs: calibration data.</li>" in page
    assert "Inputs that changed since then (1): calibration data" in page
    assert "a: top-1" in page
    assert "a: cosine" not in page


@pytest.mark.parametrize("version", [1, 3, 99])
def test_a_report_of_another_version_is_refused_with_the_command_that_makes_it_anew(
    tmp_path, version
):
    path = tmp_path / "other.json"
    write_document(path, seal({"kind": "report", "schema_version": version}))
    with fails(InputError, f"format {version}", hint="trtcal report FOLDER"):
        read_report(path)


def test_ab_tests_in_the_folder_are_shown(tmp_path):
    answer = {
        "name": "top1",
        "unit": "points",
        "baseline": 98.0,
        "candidate": 97.9,
        "limit": 1.0,
        "difference": {"value": -0.1, "low": -0.4, "high": 0.2},
        "p": 0.4,
        "adjusted_p": None,
        "state": "holds",
        "is_change": False,
        "mid_p": None,
    }
    verdict = {"word": "SHIP", "sentence": "B can replace A.", "answers": [answer]}
    verdict |= {"warnings": [], "limits": []}
    body = {
        "kind": "ab",
        "schema_version": 3,
        "baseline": "A fp32",
        "candidate": "B int8",
        "dataset": "d",
        "dataset_name": "test",
        "samples": 500,
        "seen": 500,
        "interim": [],
        "measured": {"verdict": verdict, "latency": None},
    }
    write_document(run(tmp_path) / "ab.json", seal(body))
    page = render(assemble(tmp_path))
    assert "B int8 against A fp32: SHIP" in page
    assert "B can replace A." in page


def test_a_command_for_a_mixed_model_names_its_plan(tmp_path):
    made = {"calibration": "sha256:c", "plan": "sha256:p"}
    page = render(assemble(run(tmp_path, name="mix", quantization=made)))
    assert "--calibration CALIBRATION.json --plan PLAN.json -o mix.onnx" in page


def test_an_interval_of_a_figure_of_one_s_own_is_not_cut(tmp_path):
    group = Group("tier=low", 100, 900.0, 600.0, 300.0, (250.0, 350.0), 1e-6, 3e-6)
    breakdown = Breakdown("tier", "map", "", (group,))
    assert "250.00 to 350.00" in render(assemble(run(tmp_path, breakdowns=(breakdown,))))


def test_nodes_with_a_second_pair_are_shown(tmp_path):
    write_plan(run(tmp_path) / "tuned.json", Plan(second_qdq=("block/conv",)))
    assert "<code>block/conv</code>" in render(assemble(tmp_path))


def test_data_issues_are_in_the_page_the_markdown_and_the_figures(tmp_path):
    folder = run(tmp_path)
    assert 'id="issues"' not in render(assemble(folder))
    issue = DataIssue("channel_order", "x", "red and blue look swapped", {"share": 0.9}, "read RGB")
    DataCheck("sha256:m", "sha256:d", "cal", 128, 32, (issue,)).write(folder / "data_check.json")
    document = assemble(folder)
    for text in (render(document), to_markdown(document)):
        assert "red and blue look swapped" in text
        assert "32 of 128 samples of cal were checked" in text
    assert figures_of_run(document)["digits", "data_issues"] == 1
    assert problems(document) == []


def test_tags_stand_in_the_provenance(tmp_path):
    document = assemble(run(tmp_path))
    assert "Tags: " not in render(document)
    cost = {"tags": {"team": "a<b>"}, "inferences_per_month": None, "instance": None}
    tagged = {**document, "cost": {**cost, "region": None, "pricing": "on-demand"}}
    assert "Tags: team a&lt;b&gt;." in render(tagged)
