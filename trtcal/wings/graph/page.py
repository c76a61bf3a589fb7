"""The page of a graph: one HTML file with its data, its style and its script, that loads nothing."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from trtcal.documents import Document
from trtcal.reporting.render import asset, embedded, policy, seal_page
from trtcal.reporting.sections import environment
from trtcal.reporting.text import visible
from trtcal.wings.graph.document import graph_document
from trtcal.wings.graph.figures import figured_run

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("dagre.js", "network.js", "drawing.js", "panels.js", "graph.js")


def render(document: Document) -> str:
    """Return the page of a graph's JSON."""
    style = asset("palette.css") + asset("graph.css", TEMPLATES)
    script = Markup().join(asset(name, TEMPLATES) for name in SCRIPTS)
    pages = environment("html", lambda value: visible(value) if type(value) is str else value)
    pages.loader = jinja2.FileSystemLoader(TEMPLATES)
    page = pages.get_template("graph.j2").render(
        title=document["title"],
        subtitle=document["subtitle"],
        report=document["report"],
        data=embedded(document),
        style=style,
        script=script,
        policy=policy(style, script),
    )
    return seal_page(page.lstrip())


def page_of_run(folder: Path, document: Document, report: str) -> str | None:
    """Return the page of a verdict's variant, beside the page `report`; None if it was not built.

    `document` is the report of the run in `folder`.
    """
    shown = figured_run(folder, document)
    return None if shown is None else render(graph_document([shown], report))
