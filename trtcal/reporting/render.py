"""The report as one HTML file: nothing is loaded from elsewhere, and it works without scripts.

All that is printed passes `visible` and is then escaped, so that a name can add no element to the
page and cannot turn its text around. Style and script are allowed by their hashes only.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from trtcal.documents import Document, digest_bytes, parsing, write_document, write_text
from trtcal.errors import InputError
from trtcal.reporting import finding_view, layer_view, sections, text, view
from trtcal.reporting import finding_view as optimization_view
from trtcal.reporting.document import assemble
from trtcal.reporting.histograms import draw_histograms
from trtcal.reporting.svg import inline
from trtcal.reporting.versions import current, read_report

SECTION = re.compile(rb'<section id="([\w-]+)".*?</section>', re.DOTALL)
SEAL = re.compile(rb'<meta name="trtcal-seal" content="([^"]*)">\n')
END_OF_HEAD = b"</head>"
FRAME = "frame"


def seal_page(page: str) -> str:
    """Return a page with its seal at the end of its head."""
    raw = page.encode("utf-8", "surrogateescape")
    content = "; ".join(f"{part} {digest}" for part, digest in digests_of_parts(raw).items())
    seal = f'<meta name="trtcal-seal" content="{content}">\n'.encode()
    before, end, after = raw.partition(END_OF_HEAD)
    return (before + seal + end + after).decode("utf-8", "surrogateescape")


def changed_parts(raw: bytes, name: str) -> list[str]:
    """Return the parts of a sealed page that are not as they were; `InputError` without a seal.

    A part is a section's id, or `frame` for all around the sections.
    """
    seal = SEAL.search(raw)
    if seal is None:
        raise InputError(f"{name} has no seal of trtcal", "give a report that trtcal wrote")
    told = dict(
        entry.rpartition(" ")[::2] for entry in seal[1].decode("latin-1").split("; ") if entry
    )
    found = digests_of_parts(raw[: seal.start()] + raw[seal.end() :])
    return [part for part in {**told, **found} if told.get(part) != found.get(part)]


def digests_of_parts(raw: bytes) -> dict[str, str]:
    """Return the digest of each section by its id, and of the frame: the page without them."""
    sections = {match[1].decode("ascii", "replace"): match[0] for match in SECTION.finditer(raw)}
    parts = {FRAME: SECTION.sub(rb"<\1>", raw), **sections}
    return {part: digest_bytes(data) for part, data in parts.items()}


TEMPLATES = Path(__file__).parent / "templates"


def render(document: Document) -> str:
    """Return the page of a report document, also of one that an earlier version wrote."""
    document = current(document)
    style, script = _asset("report.css"), _asset("report.js")
    page: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            **_shown(document),
            report=document,
            comparison=document["comparison"],
            measured=document["measured"],
            style=style,
            script=script,
            policy=_policy(style, script),
        )
    )
    return seal_page(page.lstrip())


def _shown(document: Document) -> dict[str, Any]:
    """Return what the sections show, by the names that the templates know."""
    rows = view.variants(document)
    chosen = next((row for row in rows if row["is_chosen"]), None)
    builds = layer_view.builds(document, chosen["model"] if chosen else None)
    verdict, tests = view.verdict(document), sections.tests(document)
    slices, optimizations = sections.slices(chosen), optimization_view.optimizations(document)
    findings, logs = finding_view.findings(document), finding_view.logs(document)
    events = finding_view.log_events(logs)
    layers = layer_view.layer_table(document, builds[0] if builds else None, findings["shown"])
    ranges, costs = sections.ranges(document), sections.costs(document, rows)
    return {
        "subject": rows[0]["name"] if rows else _subject(document),
        "places": _places(
            bool(rows), costs is not None, tests=tests, slices=slices, optimizations=optimizations
        ),
        "verdict": verdict,
        "steps": sections.first_steps(findings["shown"], chosen, verdict["fails"]),
        "costs": costs,
        "against": sections.against(document),
        "chart": _chart(document) if rows else None,
        "rows": rows,
        "tests": tests,
        "slices": slices,
        "optimizations": optimizations,
        "errors": sections.errors(chosen),
        "findings": findings,
        "builds": builds,
        "layers": layers,
        "ranges": ranges,
        "histograms": _histograms(ranges),
        "fusions": sections.fusions(document, chosen["model"] if chosen else None),
        "fusions_shown": sections.FUSIONS_SHOWN,
        "skipped": finding_view.skipped(document),
        "logs": logs,
        "log_events": events,
        "lines_shown": {event["id"] for event in events},
        "commands": view.commands(document),
        "run_command": view.run_command(document),
        "made_by": sections.made_by(document),
        "noted": sections.notes(document),
        "digests": view.digests(document),
        "nodes_shown": layer_view.NODES_SHOWN,
        "alike_shown": finding_view.ALIKE_SHOWN,
        "drawn": _data(layer_view.drawn_tensors(document, _numbers(layers))),
    }


PLACES = (
    ("steps", "Response here first", False),
    ("costs", "Costs", False),
    ("against", "Since the last run", False),
    ("chart", "Chart", False),
    ("tests", "A/B", False),
    ("slices", "Slices", False),
    ("variants", "Variants", True),
    ("errors", "Errors", True),
    ("optimizations", "Optimizations", False),
    ("findings", "Findings", True),
    ("layers", "Layers", True),
    ("ranges", "Ranges", True),
    ("fusions", "Fusions", True),
    ("skipped", "Skipped", True),
    ("log", "Build log", True),
    ("calibration", "Calibration", True),
    ("reproduce", "Reproduce", False),
    ("provenance", "Provenance", True),
    ("glossary", "Words", False),
)
"""Each section's id, what the links to it say, and whether only engineers are shown it."""

OF_COMPARISON = ("chart", "tests", "slices", "variants", "errors")


def _places(
    is_compared: bool, has_costs: bool, **found: Sequence[Any]
) -> list[tuple[str, str, bool]]:
    """Return the links to the sections that a page has; empty ones are for engineers only."""
    left_out = (*(() if is_compared else OF_COMPARISON), *(() if has_costs else ("costs",)))
    return [
        (place, words, is_deep or (place in found and not found[place]))
        for place, words, is_deep in PLACES
        if place not in left_out
    ]


def _subject(document: Document) -> str:
    names = [build["model_name"] for build in document["builds"]]
    return str(names[0] if names else document["measured"]["folder"] or "A build")


def _chart(document: Document) -> dict[str, Any]:
    chart = view.chart(document)
    return {**chart, "svg": Markup(inline(chart["svg"]))}  # noqa: S704 (escaped by svg.tidy)


def _histograms(ranges: dict[str, Any]) -> Markup | None:
    if not ranges["drawn"]:
        return None
    drawing = draw_histograms(ranges["drawn"], ranges["methods"])
    return Markup(inline(drawing))  # noqa: S704 (escaped by svg.tidy)


def _numbers(layers: dict[str, Any] | None) -> set[int]:
    return {row["number"] for row in layers["rows"] if row["number"]} if layers else set()


def _data(value: Any) -> Markup:
    """Return JSON for the page's script; nothing in it can end its element."""
    plain = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return Markup(plain.replace("<", "\\u003c"))  # noqa: S704 (no < is left)


def write_report(source: Path, output: Path) -> Document:
    """Write the report on a run folder as HTML to `output` and as JSON beside it; return it.

    A `report.json` as `source` is only shown again. `InputError` if either is not usable.
    """
    check_page(output)
    return write_page(output, assemble(source) if source.is_dir() else read_report(source), source)


def check_page(output: Path) -> None:
    """`InputError` if the page would be overwritten by the data that go beside it."""
    if output.suffix == ".json":
        raise InputError(f"{output} would be overwritten by the report's data", "end it in .html")


def write_page(output: Path, document: Document, source: Path | None = None) -> Document:
    """Write a report document as HTML to `output` and as JSON beside it; return it.

    `InputError`, which names the `source`, if it lacks a field.
    """
    check_page(output)
    page = parsing(source or output, lambda: _checked_render(document))
    write_text(output, page)
    return write_document(output.with_suffix(".json"), document)


def _checked_render(document: Document) -> str:
    try:
        return render(document)
    except jinja2.UndefinedError as error:
        raise KeyError(str(error)) from error


def _asset(name: str) -> Markup:
    """Return a style sheet or script of ours, as it stands."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704 (our own file)


def _policy(style: str, script: str) -> str:
    hashes = [
        base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (style, script)
    ]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printed,
    )
    environment.filters.update(
        number=text.number,
        ms=text.milliseconds,
        figure=text.figure,
        money=text.money,
        some=text.some,
        pattern=glob.escape,
        toml=lambda value: json.dumps(text.visible(str(value)), ensure_ascii=False),
        size=text.size,
        moment=text.moment,
        between=text.between,
        shorten=text.shorten,
        tight=lambda value: str(value).replace(" %", "\u00a0%"),
        digest=lambda value: text.shorten(str(value), 26),
    )
    return environment


def _printed(value: Any) -> Any:
    """Return what is printed for a value: markup as it is, all else as visible text."""
    if isinstance(value, Markup):
        return value
    return text.MISSING if value is None else text.visible(str(value))
