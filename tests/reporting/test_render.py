import base64
import hashlib
import html.parser
import json
import re
import unicodedata
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from tests.reporting.samples import (
    EXACT,
    accuracy,
    build,
    calibration,
    comparison,
    latency,
    row,
    unlabelled,
    write_build,
    write_report,
    write_run,
)
from trtcal.documents import Document, write_document
from trtcal.documents.streams import HIDDEN, visible
from trtcal.errors import InputError
from trtcal.evidence.diagnosis.build_diagnosis import Diagnosis, write_diagnosis
from trtcal.evidence.findings import Evidence, Finding
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.model.work import NodeWork, Work
from trtcal.quantization import Plan
from trtcal.quantization.coverage import cover
from trtcal.reporting.document import VERSION, assemble
from trtcal.reporting.markdown import to_markdown
from trtcal.reporting.render import render
from trtcal.reporting.views import commands, made_by

GOOD = accuracy(5, 1)
HOSTILE = [
    *("<script>alert(1)</script>", "</style><img src=x onerror=alert(1)>", "</script>"),
    *("</title><b>", "-->", "$x^2$ \\frac{1}", "\" onmouseover=\"alert(1)' x='"),
    *("\x1b[31mred\x00\x9b2J", "\u202etxt.exe\u2066\u200f", "{{ 7 * 7 }}{% raw %}"),
    *("[/red]&lt;&#0;", "\ud800"),
]


# A label that is all spaces is not drawn, and a long one may get a line to its point.
DRAWING = ("g", "path", "text")


class Page(html.parser.HTMLParser):
    """Counts elements, collects attributes and text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def shape(self) -> tuple[Counter[str], set[str], set[tuple[str, str]]]:
        """How many elements outside the chart's drawing, and which elements and attributes at all."""
        outside = Counter({tag: n for tag, n in self.elements.items() if tag not in DRAWING})
        return outside, set(self.elements), {(tag, name) for tag, name, _ in self.attributes}


def named(folder, name: str) -> Document:
    """Return a report in which everything that can bear a name bears this one."""
    made = build("a", {"conv": "int8"}, model_name=name, target=name, backend=name)
    outcome = Outcome(name, "int8", "fp32", name, name, name)
    made = replace(made, outcomes=(outcome,), skipped={name: name}, backend_version=name)
    compared = comparison(replace(row("a", GOOD), name=name + "!"), reference=name)
    run = write_run(folder, replace(compared, dataset_name=name, machine={name: name}), made)
    document = json.loads(json.dumps(assemble(run)))
    document["calibrations"][0].update(method=name, parameters={name: name}, notes={name: name})
    document["plans"][0]["layers"] = {name: name}
    for measured in document["measured"]["builds"].values():
        measured["where"] = name
        measured["log"]["counts"] = {name: 1}
        for event in measured["log"]["events"]:
            event.update(severity=name, category=name, message=name)
    stages = [{"stage": name, "output": name, "digest": name}]
    document["measured"]["run"] = {"command": name, "stages": stages}
    document["measured"].update(folder=name, made_at=name, packages={name: name})
    document["measured"]["failed_builds"] = {name: name}
    return document


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    lost = build("a", {"conv": "fp32", "gemm": "unknown"}, skipped={"up": "no rule"})
    rows = [row("a", GOOD), row("b", accuracy(130, 10))]
    folder = write_run(tmp_path_factory.mktemp("run"), comparison(*rows), lost)
    return render(assemble(folder))


def test_sections_stand_in_their_order(page):
    found = re.findall(r'<section id="(\w+)"', page)
    assert found == [
        *("verdict", "chart", "known", "tests", "slices", "steps", "against", "variants"),
        *("errors", "optimizations", "findings", "layers", "ranges", "fusions", "skipped", "log"),
        *("calibration", "reproduce", "provenance", "glossary"),
    ]


def test_it_shows_what_became_of_the_layers(page):
    text = " ".join(Page(page).texts)
    assert "On sm89: 0 of 2 convolutions and matrix products requested in INT8 run in INT8." in text
    assert "quantize its input" in text
    assert "no rule" in text
    assert "Missing scale and zero-point for tensor relu_3" in text


def test_nothing_is_loaded_from_outside(page):
    for tag, name, value in Page(page).attributes:
        if name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (value or "").startswith("#"), (tag, name, value)
    assert "http:" not in page
    assert "https:" not in page
    assert "url(#" in page  # clip paths inside the chart
    assert not re.search(r"url\((?!#)|@import", page)


def test_every_link_inside_has_its_target(page):
    parsed = Page(page)
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = {value[1:] for _, name, value in parsed.attributes if name == "href" and value}
    assert links <= set(ids)


def test_the_policy_allows_exactly_our_style_and_script(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    for tag in ("style", "script"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy
    assert "default-src &#39;none&#39;" in policy
    parsed = Page(page)
    assert (parsed.elements["style"], parsed.elements["script"]) == (1, 2)
    assert page.count('<script type="application/json"') == 1  # data, which no browser executes
    assert not [name for _, name, _ in parsed.attributes if name == "style" or name[:2] == "on"]


def test_it_has_what_readers_and_browsers_need(page):
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert '<meta charset="utf-8">' in page
    assert 'name="viewport"' in page
    parsed = Page(page)
    assert parsed.elements["title"] >= 1
    assert parsed.elements["caption"] == parsed.elements["table"]
    heads = sum(1 for tag, name, _ in parsed.attributes if tag == "th" and name == "scope")
    assert heads == parsed.elements["th"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Page(render(named(tmp_path_factory.mktemp("plain"), "plain"))).shape


@each("name", HOSTILE)
def test_a_hostile_name_adds_no_element_and_no_attribute(tmp_path, plain, name):
    source = render(named(tmp_path, name))
    parsed = Page(source)
    assert parsed.shape == plain
    assert visible(name) in "".join(parsed.texts)
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", source
    )
    source.encode()  # no lone surrogate either


@examples(6)
@given(name=st.text(min_size=1, max_size=12))
def test_no_name_changes_the_page(tmp_path_factory, plain, name):
    parsed = Page(render(named(tmp_path_factory.mktemp("any"), name)))
    assert parsed.shape == plain


@given(st.text())
def test_visible_leaves_no_character_unseen(text):
    assert not HIDDEN & {unicodedata.category(character) for character in visible(text)}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row("exact", EXACT)],
        [row("unlabelled", unlabelled(99.0))],
        [row("vectors", unlabelled(None)), row("same", replace(unlabelled(None), sqnr_db=None))],
        [row(f"m{number}", GOOD, latency(1.0 + number)) for number in range(50)],
    ],
)
def test_it_shows_any_comparison(tmp_path, rows):
    comparison(*rows, limits=("top1 >= -1.0", "speedup >= 1.5")).write(tmp_path / "comparison.json")
    assert "</html>" in render(assemble(tmp_path))


@pytest.mark.parametrize("got", ["int8", "fp32"])
def test_five_hundred_layers_stay_under_300_kb(tmp_path, got):
    nodes = {f"backbone/stage{number // 50}/block{number}/conv": got for number in range(500)}
    folder = write_run(tmp_path, comparison(row("a", GOOD), row("b", GOOD)))
    write_build(folder / "x", build("a", nodes))
    write_build(folder / "y", build("b", nodes))
    page = render(assemble(folder))
    assert len(page.encode()) < 300_000
    assert (
        ">On sm89: 0 of 500 convolutions and matrix products requested in INT8 run in INT8" in page
    ) == (got == "fp32")
    assert ("and 488 more" in page) == (got == "fp32")


def test_write_report_leaves_page_and_data_and_reads_the_data_again(tmp_path):
    folder = write_run(tmp_path / "run", comparison(row("a", GOOD)))
    document = write_report(folder, tmp_path / "page.html")
    again = write_report(tmp_path / "page.json", tmp_path / "again.html")
    assert again == document
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "page.html").read_bytes()
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "page.json").read_bytes()


def test_a_report_written_into_its_run_folder_can_be_made_again(tmp_path):
    folder = write_run(tmp_path, comparison(row("a", GOOD)))
    first = write_report(folder, folder / "report.html")
    assert write_report(folder, folder / "report.html")["digest"] == first["digest"]


def test_unusable_sources_and_outputs_are_input_errors(tmp_path):
    folder = write_run(tmp_path / "run", comparison(row("a", GOOD)))
    with fails(InputError, "report.json"):
        write_report(folder, tmp_path / "report.json")
    with fails(InputError, "missing.json"):
        write_report(tmp_path / "missing.json", tmp_path / "page.html")
    write_document(tmp_path / "empty.json", {"kind": "report", "schema_version": VERSION})
    with fails(InputError, "empty.json"):
        write_report(tmp_path / "empty.json", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_findings_stand_once_with_the_builds_that_have_them(tmp_path):
    folder = write_run(
        tmp_path / "run",
        comparison(row("int8", accuracy(3, 1)), row("int8b", accuracy(3, 1))),
        build("int8", {"conv1": "fp32"}),
        build("int8b", {"conv1": "fp32"}),
    )
    hostile = "</td><script>alert(1)</script>"
    finding = Finding(
        "silent_fallback",
        "conv1",
        hostile,
        "why",
        "fix",
        (Evidence("log", "build.log:1", hostile),),
    )
    for number in ("0", "1"):
        write_diagnosis(folder / "builds" / number, Diagnosis((finding,)))
    page = render(assemble(folder))
    assert page.count("<strong>Do:</strong> fix") == 1
    assert "int8 on sm89, int8b on sm89" in page
    assert "<script>alert" not in page


def test_a_run_without_diagnoses_says_so(tmp_path):
    folder = write_run(
        tmp_path / "run",
        comparison(row("int8", accuracy(3, 1))),
        build("int8", {"conv1": "int8"}),
    )
    assert "No build was diagnosed" in render(assemble(folder))


def in_fp8(folder):
    """Return the report of a run that chooses a variant in FP8 beside one in INT8."""
    work = Work((NodeWork("conv", "Conv", 100, 1, "conv"),), {})
    rows = [
        replace(row(name, figures), coverage=cover(work, {"conv": precision}, {}))
        for name, figures, precision in (("a", GOOD, "fp8"), ("b", accuracy(130, 10), "int8"))
    ]
    built = [
        build(name, {}, outcomes=(Outcome("conv", precision, precision, "l"),))
        for name, precision in (("a", "fp8"), ("b", "int8"))
    ]
    return assemble(write_run(folder, comparison(*rows), *built))


def test_a_report_is_named_after_the_format_of_its_variant(tmp_path):
    document = in_fp8(tmp_path)
    assert document["measured"]["verdict"]["variant"] == "a"
    source = render(document)
    page = Page(source)
    assert "digits in FP8" in page.texts
    assert "<title>SHIP WITH CARE: digits in FP8 (trtcal report)</title>" in source
    assert to_markdown(document).startswith("## FP8: SHIP WITH CARE")
    shown = source.split('id="verdict"')[1].split('id="glossary"')[0]
    assert "INT8" not in shown.replace("in INT8, FP8, INT4 or NVFP4", "").replace(
        "<small>INT8</small>", ""
    )


def test_the_commands_take_the_plan_of_the_variant(tmp_path):
    document = in_fp8(tmp_path)
    stages = [{"stage": "plan", "output": "plans/a.json", "digest": "sha256:p"}]
    files = {"model": "m.onnx", "config": "trtcal.toml", "folder": "out"}
    document["measured"]["run"] = {"stages": stages, "measured": {"files": files}}
    wanted = "trtcal quantize m.onnx --plan out/plans/a.json --calibration"
    made = list(commands(document))
    assert any(one.startswith(wanted) and one.endswith("-o quantized.onnx") for one in made)
    assert not any("int8.onnx" in one for one in made)


def test_the_commands_take_the_ranges_of_the_variant(tmp_path):
    chosen, other = calibration("minmax"), calibration("entropy")
    made = replace(row("a", GOOD), quantization={"calibration": chosen.digest})
    folder = write_run(tmp_path, comparison(made))
    for name, one in (("minmax", chosen), ("entropy", other)):
        one.write(folder / "calibrations" / f"{name}.json")
    document = assemble(folder)
    methods = [one["method"] for one in document["calibrations"]]
    assert methods == ["entropy", "minmax", "percentile"]
    (made,) = (one for one in commands(document) if "quantize" in one)
    assert "--calibration calibration-minmax.json -o int8.onnx" in made
    document["optimizations"] = [{"variants": ["a"], "effort": "fast"}]
    (made,) = (one for one in commands(document) if "quantize" in one)
    assert "--improve fast -o int8.onnx" in made
    assert "--calibration" not in made


def test_what_made_a_variant_in_int8_names_the_precision_of_the_rest(tmp_path):
    document = in_fp8(tmp_path)
    digest = Plan(rest="fp16").to_document()["digest"]
    variant = {
        "quantization": {"calibration": "sha256:c", "plan": digest},
        "name": "b",
        "model": "sha256:b",
        "number": 2,
    }
    (made,) = made_by(document, [variant])
    assert made["command"].endswith("--calibration CALIBRATION.json --rest fp16 -o b.onnx")
