"""The Markdown of a report: its parts, its size, and that no name becomes markup."""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import trtcal
from tests.fixtures.commands import answer, succeed
from tests.fixtures.examples import examples
from tests.fixtures.tables import each
from tests.reporting.samples import accuracy, build, comparison, row, write_build, write_run
from trtcal.cli.main import run_command
from trtcal.documents import seal, write_document
from trtcal.documents.streams import visible
from trtcal.evidence.diagnosis.build_diagnosis import Diagnosis, write_diagnosis
from trtcal.evidence.findings import Finding
from trtcal.limits import SHIP, WITH_CARE
from trtcal.reporting.advice import next_step
from trtcal.reporting.document import assemble
from trtcal.reporting.markdown import JOINER, escaped, to_markdown
from trtcal.wings.fleet.prices import named_price, with_costs

GOOD = accuracy(5, 1)
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = [
    "a|b||c\\|d\\\\|e",
    "`code` ``more ``` \\`",
    "</code></details><script>alert(1)</script><img src=x onerror=y>",
    "\n\n# Heading\n- item\n\n| a | b |\n|---|---|\n",
    "\r\n```\nfence",
    "@octocat and @org/team, me@example.com",
    "#123 owner/repo#45 GH-7 !8 https://example.com/x www.example.com",
    "[link](javascript:alert(1)) ![image](x) [a]: /url <http://x.y>",
    "**bold** __strong__ *em* _em_ ~~gone~~ $math$ $$x$$",
    "<!-- comment --> &lt; &#124; &copy; &amp;",
    "\x1b[31mred\x00\x9b2J \u202etxt\u200b\ufeff",
    "   indented    and spaced   ",
    "- [ ] task", "1. one", "> quote", "===", "---", "\ud800", "",
]  # fmt: skip


def named(folder, name, fix=None):
    """Return a report in which what can bear a name or a sentence bears this one."""
    made = build("a", {"conv": "fp32"}, model_name=name, target=name)
    made = replace(made, outcomes=(replace(made.outcomes[0], node=name, reason=name),))
    compared = comparison(replace(row("a", GOOD), name=name + "!"), reference=name)
    run = write_run(folder, replace(compared, dataset_name=name), made)
    finding = Finding("silent_fallback", name or None, name, name, fix or name)
    write_diagnosis(run / "builds" / "0", Diagnosis((finding,)))
    document = json.loads(json.dumps(with_costs(assemble(run), price=named_price(0.85))))
    document["measured"]["verdict"].update(
        word=name, variant=name + "!", sentence=name, rule=name, reasons=[name]
    )
    document["measured"]["costs"]["note"] = name
    document["measured"]["costs"]["price"]["currency"] = name
    document["measured"]["against"] = {
        "run": {"label": name, "time": name, "digest": name, "verdict": name},
        "figures": [
            {
                "name": name,
                "unit": name,
                "before": 1,
                "now": 2,
                "change": 1,
                "better": True,
                "variant": name,
                "figure": name,
            }
        ],
        "changed": [{"what": name, "before": name, "now": name}],
        "same": [],
    }
    return document


def tokens(source):
    return [
        inner
        for token in PARSER.parse(source)
        for inner in (token, *(token.children or []))
        if inner.type != "text"
    ]


def shape(source):
    """Count all kinds of tokens, and raw HTML by what it says."""
    found = Counter(token.type for token in tokens(source) if "html" not in token.type)
    return found + Counter(
        token.content.strip() for token in tokens(source) if "html" in token.type
    )


def shown(source):
    return "".join(
        inner.content
        for token in PARSER.parse(source)
        for inner in token.children or []
        if inner.type == "text"
    ).replace(JOINER, "")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return shape(to_markdown(named(tmp_path_factory.mktemp("plain"), "plain")))


@each("name", HOSTILE)
def test_a_hostile_name_adds_no_markup_and_is_shown(tmp_path, plain, name):
    source = to_markdown(named(tmp_path, name or "plain" if not name.strip() else name))
    assert shape(source) == plain
    assert " ".join(visible(name).split()) in " ".join(shown(source).split())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]", source)


@examples(16)
@given(st.text(st.sampled_from("a1 |\\`*_[](){}<>#+-.!~&$@:/^=\"'\n\r\t\x00\u202e"), min_size=1))
def test_no_text_is_more_than_text(text):
    page = PARSER.parse(f"| a | b |\n|---|---|\n| <code>{escaped(text)}</code> | {escaped(text)} |")
    assert [token.type for token in page].count("td_open") == 2
    cells = [token for token in page if token.type == "inline"][2:]
    kinds = [[one.type for one in cell.children if one.type != "text_special"] for cell in cells]
    assert set(kinds[0]) <= {"html_inline", "text"}
    assert kinds[0].count("html_inline") == 2
    assert set(kinds[1]) <= {"text"}


@pytest.mark.parametrize(
    "name", ["@octocat", "#123", "a/b#1", "gh-7", "!8", "http://x.y", "www.x.y"]
)
def test_nothing_is_left_that_a_forge_would_link(tmp_path, name):
    found = PARSER.render(to_markdown(named(tmp_path, name)))
    assert not re.search(r"@\w|#\d|!\d|://|www\.|gh-\d", re.sub(r"&#\d+;", "", found))


def test_the_verdict_stands_first_and_all_parts_are_there(tmp_path):
    lost = build("a", {"conv": "fp32", "gemm": "int8"})
    folder = write_run(tmp_path, comparison(row("a", GOOD), row("b", accuracy(130, 10))), lost)
    write_diagnosis(
        folder / "builds" / "0", Diagnosis((Finding("k", "conv", "it is slow", "y", "change it"),))
    )
    source = to_markdown(assemble(folder))
    assert source.startswith("## INT8: SHIP WITH CARE\n")
    heads = re.findall(r"^#+ (.*)$", source, re.MULTILINE)
    assert heads[1:] == [
        *("Limits", "Variants", "Findings", "Precision of the layers", "a on sm89", "Provenance"),
    ]
    for words in (
        "it is slow",
        "**Do:** change it",
        "1 of 2 layers requested in INT8",
        "broken",
        "(90.48 %)",  # of one that can pass beside one that cannot: one end wrong in 21 cases
        "holds",
    ):
        assert words in source
    assert "sha256:" in source.split("<details>")[1]


def test_costs_are_in_money_or_relative(tmp_path):
    document = assemble(write_run(tmp_path, comparison(row("a", GOOD))))
    assert "### Costs" not in to_markdown(document)
    relative = to_markdown(with_costs(document))
    assert "A million inferences, FP32 = 100" in relative
    assert "| 50.00 (45.45 to 55.56) |" in relative
    assert "A million inferences, USD" in to_markdown(with_costs(document, price=named_price(1)))


@pytest.mark.parametrize("character", ["a", "|", "\u202e", "\U000e0001"])
def test_the_largest_report_fits_into_a_comment(tmp_path, character):
    name = 400 * character
    rows = [replace(row("a", GOOD), name=f"{number}{name}") for number in range(60)]
    builds = [
        build("a", {f"{node}{name}": "fp32" for node in range(40)}, target=f"{number}{name}")
        for number in range(12)
    ]
    folder = write_run(tmp_path, comparison(*rows), *builds)
    for number in range(12):
        found = tuple(Finding(f"k{i}", name, name, name, name) for i in range(20))
        write_diagnosis(folder / "builds" / f"{number}", Diagnosis(found))
    document = with_costs(assemble(folder))
    document["measured"]["verdict"]["reasons"] = 50 * [name]
    document["measured"]["verdict"]["rule"] = document["measured"]["verdict"]["sentence"] = 3 * name
    document["measured"]["against"] = {
        "run": {"label": name, "verdict": name, "time": name},
        "figures": [],
        "changed": [{"what": name, "before": name, "now": name}] * 30,
        "same": [],
    }
    assert len(to_markdown(document)) < 60_000


def test_builds_without_a_comparison_have_a_note_too(tmp_path):
    write_build(tmp_path / "builds", build("a", {"conv": "fp32"}))
    source = to_markdown(with_costs(assemble(tmp_path)))
    assert "none was compared with FP32" in source
    assert "0 of 1 convolution or matrix product requested in INT8 run in INT8" in source


def test_the_command_prints_or_writes_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "run", comparison(row("a", GOOD)))
    printed = succeed(capsys, "report", folder, "--md")
    assert printed.startswith("## INT8: ")
    assert not (tmp_path / "report.html").exists()
    out = tmp_path / "note.md"
    assert run_command(["report", str(folder), "--md", "-o", str(out), "--price", "0.85"]) == 0
    assert "0.85 USD an hour" in out.read_text()
    for wrong in (["-o", "x.json"], ["--json"], ["--price", "0"], ["--prices", "none.toml"]):
        assert run_command(["report", str(folder), "--md", *wrong]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["note.md", "run"]


def test_a_report_made_again_keeps_that_fp32_fell(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = comparison(row("a", GOOD), limits=("top1 >= -1.0", "speedup >= 1.5"))
    folder = write_run(tmp_path / "run", result, build("a", {"conv": "int8"}))
    report = assemble(folder)
    assert report["measured"]["verdict"]["word"] == SHIP
    fall = "Top-1 of FP32 fell from 99.90 to 98.60 %."
    before = {"label": "run 1 of digits", "verdict": SHIP, "time": "2026-11-01", "digest": "d"}
    against = {"run": before, "figures": [], "changed": [], "same": [], "failing": None}
    report["measured"]["against"] = {**against, "since": "the baseline", "worse": [fall]}
    write_document(folder / "report.json", seal(report))
    verdict = answer(capsys, "report", folder, "-o", "page.html")["measured"]["verdict"]
    assert verdict["word"] == WITH_CARE
    assert verdict["reasons"][0] == f"Worse since run 1 of digits, the baseline: {fall}"
    assert trtcal.report(folder).verdict.word == WITH_CARE


def test_the_price_of_the_configuration_counts_and_the_json_has_the_cost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "run", comparison(row("a", GOOD)))
    (tmp_path / "trtcal.toml").write_text('[report]\nprice_per_hour = 3.6\ncurrency = "EUR"\n')
    assert run_command(["report", str(folder), "-o", "page.html"]) == 0
    costs = json.loads((tmp_path / "page.json").read_text())["measured"]["costs"]
    assert costs["price"]["currency"] == "EUR"
    # 1e6 / 32 batches of 1 ms at 0.001 EUR a second
    assert costs["variants"]["a"]["cost"]["value"] == pytest.approx(1e6 / 32 * 0.001 * 0.001)


def test_a_command_to_run_next_stands_there_whole(tmp_path):
    document = assemble(write_run(tmp_path, comparison(row("a", GOOD))))
    files = dict.fromkeys(("folder", "model", "config"), f"runs/{10 * 'long/'}one")
    document["measured"]["run"] = {"measured": {"files": files}}
    step = next_step(document)
    assert len(step.command) > 120
    assert f"<code>{escaped(step.command)}</code>" in to_markdown(document)
