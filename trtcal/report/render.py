"""The report as one HTML file: nothing is loaded from elsewhere, and it works without scripts.

All that is printed passes `visible` and is then escaped, so that a name can add no element to the
page and cannot turn its text around. Style and script are allowed by their hashes only.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from trtcal.errors import InputError
from trtcal.report import text, view
from trtcal.report.document import KIND, VERSION, assemble
from trtcal.report.seals import seal_page
from trtcal.report.svg import inline
from trtcal.storage import Document, parsing, read_document, write_document, write_text

TEMPLATES = Path(__file__).parent / "templates"


def render(document: Document) -> str:
    """Return the page of a report document."""
    style, script = _asset("report.css"), _asset("report.js")
    chart, logs = view.chart(document), view.logs(document)
    page: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=document,
            comparison=document["comparison"],
            measured=document["measured"],
            verdict=view.verdict(document),
            chart={**chart, "svg": Markup(inline(chart["svg"]))},  # noqa: S704 (escaped by svg.tidy)
            rows=view.candidates(document),
            builds=view.builds(document),
            skipped=view.skipped(document),
            findings=view.findings(document),
            logs=logs,
            log_events=view.log_events(logs),
            commands=view.commands(document),
            run_command=view.run_command(document),
            digests=view.digests(document),
            name_shown=view.NAME_SHOWN,
            style=style,
            script=script,
            policy=_policy(style, script),
        )
    )
    return seal_page(page.lstrip())


def write_report(source: Path, output: Path) -> Document:
    """Write the report on a run folder as HTML to `output` and as JSON beside it; return it.

    A `report.json` as `source` is only shown again. `InputError` if either is not usable.
    """
    if output.suffix == ".json":
        raise InputError(f"{output} would be overwritten by the report's data", "end it in .html")
    document = assemble(source) if source.is_dir() else read_document(source, KIND, VERSION)
    page = parsing(source, lambda: _checked_render(document))
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
