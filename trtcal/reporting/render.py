"""The report as one HTML file: nothing is loaded from elsewhere, and it works without scripts.

All that is printed passes `visible` and is then escaped, so that a name can add no element to the
page and cannot turn its text around. Style and script are allowed by their hashes only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
from markupsafe import Markup

from trtcal.documents import Document, digest_bytes, parsing, together, write_document, write_text
from trtcal.errors import InputError
from trtcal.reporting import text, views
from trtcal.reporting.charts import LAYOUTS, draw_histograms
from trtcal.reporting.pages import pages_beside
from trtcal.reporting.sections import SECTIONS, TEMPLATES, body_of, environment
from trtcal.reporting.tensors import drawn_tensors

SECTION = re.compile(rb'<section id="([\w-]+)".*?</section>', re.DOTALL)
SEAL = re.compile(rb'<meta name="trtcal-seal" content="([^"]*)">\n')


def seal_page(page: str) -> str:
    """Return a page with its seal at the end of its head."""
    raw = page.encode("utf-8", "surrogateescape")
    content = "; ".join(f"{part} {digest}" for part, digest in digests_of_parts(raw).items())
    seal = f'<meta name="trtcal-seal" content="{content}">\n'.encode()
    before, end, after = raw.partition(b"</head>")
    return (before + seal + end + after).decode("utf-8", "surrogateescape")


def changed_parts(raw: bytes, name: str) -> list[str]:
    """Return the parts of a sealed page that are not as they were; `InputError` without a seal.

    A part is a section's id, or `frame` for all around the sections.
    """
    seal = SEAL.search(raw)
    if seal is None:
        hint = "give a report as `trtcal report` or `trtcal run` wrote it"
        raise InputError(f"{name} is not a report that trtcal wrote, or it was edited", hint)
    parts = filter(None, seal[1].decode("latin-1").split("; "))
    sealed = dict(part.rpartition(" ")[::2] for part in parts)
    actual = digests_of_parts(raw[: seal.start()] + raw[seal.end() :])
    return [part for part in {**sealed, **actual} if sealed.get(part) != actual.get(part)]


def digests_of_parts(raw: bytes) -> dict[str, str]:
    """Return the digest of each section by its id, and of the frame: the page without them."""
    sections = {match[1].decode("ascii", "replace"): match[0] for match in SECTION.finditer(raw)}
    parts = {"frame": SECTION.sub(rb"<\1>", raw), **sections}
    return {part: digest_bytes(data) for part, data in parts.items()}


def render(document: Document, pages: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the page of a report document, with links to `pages` beside it: name -> file."""
    style = asset("palette.css") + asset("report.css")
    script = asset("tables.js") + asset("report.js")
    values = {**views.shown(document), "pages": pages}
    templates = environment("html", _printed)
    drawn, layers = values["the_ranges"]["drawn"], values["layers_shown"] or {"rows": ()}
    numbers = {row["number"] for row in layers["rows"]} - {None}
    methods = values["the_ranges"]["methods"]
    values["drawing"] = views.chart(values) if values["rows"] else None
    values["histograms"] = drawn and [draw_histograms(drawn, methods, own) for own in LAYOUTS]
    sections = [
        (section, section.readers_of(values), body_of(templates, section, values))
        for section in SECTIONS
        if section.is_in(values)
    ]
    values |= {
        "sections": sections,
        "tensors": embedded(drawn_tensors(document, methods, numbers)),
        "style": style,
        "script": script,
        "policy": policy(style, script),
    }
    page: str = templates.get_template("page.j2").render(values)
    return seal_page(page.lstrip())


def embedded(value: object) -> Markup:
    """Return JSON for a page's script; nothing in it can end its element."""
    plain = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return Markup(plain.replace("<", "\\u003c"))  # noqa: S704 (no < is left)


def check_page(output: Path) -> None:
    """`InputError` if the page would be overwritten by the data that go beside it."""
    if output.suffix == ".json":
        hint = "give a file name that ends in .html"
        raise InputError(f"the JSON of the report would overwrite {output}", hint)


def write_page(output: Path, document: Document, source: Path | None = None) -> Document:
    """Write a report document as HTML to `output` and as JSON beside it; return it.

    `source` is the run's folder, whose other pages are written beside it, or a JSON that is rendered
    again. `InputError`, which names it, if the document lacks a field.
    """
    check_page(output)
    with together():
        pages = pages_beside(source, output, document)
        write_text(output, parsing(source or output, lambda: _checked_render(document, pages)))
        return write_document(output.with_suffix(".json"), document)


def _checked_render(document: Document, pages: Mapping[str, str]) -> str:
    try:
        return render(document, pages)
    except jinja2.UndefinedError as error:
        raise KeyError(str(error)) from error


def asset(name: str, folder: Path = TEMPLATES) -> Markup:
    """Return a style sheet of ours without its indentation, or a script without its comments."""
    text = (folder / name).read_text(encoding="utf-8")
    left_out = r"(?m)^ +" if name.endswith(".css") else r"(?m)^ *//.*\n"
    return Markup(re.sub(left_out, "", text))  # noqa: S704 (our own file)


def policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy of a page that has just these."""
    raw = [hashlib.sha256(text.encode()).digest() for text in (style, script)]
    styles, scripts = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in raw)
    return (
        f"default-src 'none'; style-src {styles}; script-src {scripts}; base-uri 'none'; "
        "form-action 'none'"
    )


def _printed(value: Any) -> Any:
    """Return what is printed for a value: markup as it is, all else as visible text."""
    if isinstance(value, Markup):
        return value
    return text.MISSING if value is None else text.visible(str(value))
