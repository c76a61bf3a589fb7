"""A graph page: nodes, edges and blocks as plain JSON, in one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jinja2
from markupsafe import Markup

from trtcal.documents import Document
from trtcal.errors import InputError
from trtcal.reporting import text
from trtcal.reporting.render import asset, embedded, policy, seal_page
from trtcal.reporting.sections import environment
from trtcal.wings.graph.blocks import fold
from trtcal.wings.graph.drawn import Drawn, Edge
from trtcal.wings.graph.engine import Engine
from trtcal.wings.graph.figures import Figured, NodeFigures, figured_run

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("dagre.js", "network.js", "drawing.js", "panels.js", "graph.js")
MOST_NODES = 20_000
LEAST_SHARED = 0.5  # of the nodes, that two models of one network have both
FASTER = 1.1  # the ratio of two times from which they count as changed
OTHER_DB = 1.0  # the difference of two SQNR from which they count as changed


def _number(key: str, title: str, unit: str = "", bad: str = "high") -> Document:
    return {"key": key, "title": title, "kind": "number", "unit": unit, "bad": bad}


OVERLAYS: tuple[Document, ...] = (
    {"key": "built", "title": "Precision built", "kind": "category"},
    {"key": "requested", "title": "Precision requested", "kind": "category"},
    _number("missed", "Built differently than requested"),
    _number("loss_db", "SQNR by its own rounding", "dB", bad="low"),
    _number("share", "Share of the loss", "%"),
    _number("ms", "Time", "ms"),
    _number("bytes", "Bytes moved", "B"),
    _number("clipped", "Clipped values", "%"),
    _number("findings", "Findings"),
)
"""What nodes can be coloured by."""


def graph_document(shown: Sequence[Figured], report: str | None = None) -> Document:
    """Return the JSON of a page of one engine, or of two of one network beside each other.

    `report` is the name of the page that the graph belongs to. `InputError` if the network is too
    large, or if two have too few nodes in common.
    """
    first = shown[0]
    if len(first.model.proto.graph.node) > MOST_NODES:
        what = f"{first.title} has more than {MOST_NODES:,} nodes"
        raise InputError(
            what, "cut the part out that counts: `trtcal prepare MODEL --outputs TENSOR`"
        )
    drawn = Drawn(first.model.proto)
    for other in shown[1:]:
        _check_same(first, other)
        drawn.edges = list(_common(drawn, Drawn(other.model.proto)))
    engines = [Engine(each, drawn) for each in shown]
    blocks = [*(top := fold(drawn.wiring)).flat()]
    inside = dict.fromkeys(top.nodes(), -1)
    for number, (block, _) in enumerate(blocks):
        inside |= {child: number for child in block.children if isinstance(child, int)}
    documents = [engine.document() for engine in engines]
    return {
        "title": " and ".join(text.visible(each.title) for each in shown),
        "subtitle": _subtitle(drawn, first),
        "report": report,
        "nodes": {
            "name": _visible(drawn.names),
            "op": _visible(drawn.operators),
            "block": [inside[number] for number in range(len(drawn.names))],
            "shape": _visible(drawn.shapes),
        },
        "blocks": [
            {"title": text.visible(block.title), "parent": parent, "repeat": block.repeat}
            for block, parent in blocks
        ],
        "edges": [
            [edge.start, edge.end, text.visible(edge.shape), edge.precision] for edge in drawn.edges
        ],
        "engines": documents,
        "changes": _changes(*engines) if len(engines) > 1 else {},
        "overlays": _overlays(documents, first),
    }


def _check_same(first: Figured, other: Figured) -> None:
    known = first.nodes.keys() & other.nodes.keys()
    if len(known) < LEAST_SHARED * min(len(first.nodes), len(other.nodes)):
        what = f"{first.title} and {other.title} have {len(known)} nodes in common"
        raise InputError(what, "give two builds or two variants of one network")


def _common(drawn: Drawn, other: Drawn) -> Iterator[Edge]:
    """Yield the edges, without a precision where two models do not have the same."""
    names = other.names
    known = {(names[edge.start], names[edge.end]): edge.precision for edge in other.edges}
    for edge in drawn.edges:
        there = known.get((drawn.names[edge.start], drawn.names[edge.end]))
        yield edge if there == edge.precision else replace(edge, precision="")


def _subtitle(drawn: Drawn, first: Figured) -> str:
    nodes = text.count(len(drawn.numbers), "node")
    what = "layers of the engine" if first.build else "layers that TensorRT is expected to make"
    return f"{nodes}, {len(first.layers):,} {what}" if first.layers else nodes


def _visible(names: Iterable[str]) -> list[str]:
    return list(map(text.visible, names))


def _overlays(engines: Sequence[Document], first: Figured) -> list[Document]:
    """Return the overlays of which some engine knows something."""
    values = [engine["values"] for engine in engines]
    known = [
        row
        for row in OVERLAYS
        if any(any(v not in (None, 0) for v in each[row["key"]]) for each in values)
    ]
    titles = {} if first.build else {"built": "Precision expected"}
    if any(engine["estimated"] for engine in engines):
        titles["ms"] = "Time (estimate)"
    known = known or [OVERLAYS[0]]
    return [{**row, "title": titles.get(row["key"], row["title"])} for row in known]


def _changes(first: Engine, second: Engine) -> dict[str, list[str]]:
    """Return by a node's number what is different of it in the second engine."""
    pairs = enumerate(zip(first.figures, second.figures, strict=True))
    changes = {str(number): list(_changed(a, b)) for number, (a, b) in pairs if a and b}
    return {number: sentences for number, sentences in changes.items() if sentences}


def _changed(a: NodeFigures, b: NodeFigures) -> Iterator[str]:
    """Yield in sentences how a node's figures in the second engine differ from those in the first."""
    precisions = {"Requested": (a.requested, b.requested), "Built": (a.built, b.built)}
    for what, (first, second) in precisions.items():
        if first != second:
            yield f"{what} in {_label(first)} first, in {_label(second)} second."
    if a.ms and b.ms and max(a.ms, b.ms) > FASTER * min(a.ms, b.ms):
        yield f"{text.milliseconds(a.ms)} ms first, {text.milliseconds(b.ms)} ms second."
    if a.loss_db is not None and b.loss_db is not None and abs(a.loss_db - b.loss_db) > OTHER_DB:
        yield f"SQNR {a.loss_db:.1f} dB first, {b.loss_db:.1f} dB second."
    yield from (f"New in the second: {each}" for each in b.findings if each not in a.findings)


def _label(precision: str | None) -> str:
    return precision.upper() if precision else "a precision that is not known"


def render(document: Document) -> str:
    """Return the page of a graph's JSON."""
    style = asset("palette.css") + asset("graph.css", TEMPLATES)
    script = Markup().join(asset(name, TEMPLATES) for name in SCRIPTS)
    pages = environment("html", lambda value: text.visible(value) if type(value) is str else value)
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
