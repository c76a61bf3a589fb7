"""The report's sections: their order, their templates, and how HTML and Markdown render the same ones.

A section is a macro of a template; what it is written with (tables, sentences, code) comes from a kit,
`html.j2` or `markdown.j2`. All that a template prints passes the format's own escape.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from trtcal.errors import some
from trtcal.evidence.findings import sentence
from trtcal.quantization.coverage import percent
from trtcal.reporting import text, views
from trtcal.reporting.engines import View
from trtcal.reporting.svg import inline

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Section:
    """A section's id, template, title, the words that link to it, and its readers.

    `readers` are "engineer", "manager", or all if empty. `needs` and `shows` are expressions over the
    values: without the first the section is left out, without the second it is only for engineers.
    """

    id: str
    template: str
    title: str
    link: str = ""
    readers: str = ""
    needs: str = "true"
    shows: str = "true"

    def is_in(self, values: View) -> bool:
        """Whether a report has the section."""
        return bool(EXPRESSIONS.compile_expression(self.needs)(values))

    def readers_of(self, values: View) -> str:
        """Who reads it in this report."""
        return self.readers if EXPRESSIONS.compile_expression(self.shows)(values) else ENGINEER


EXPRESSIONS = jinja2.Environment(autoescape=True)
ENGINEER, MANAGER = "engineer", "manager"
HAS_ISSUES = "data_check.issues or data_check.questions"
SECTIONS = (
    Section("verdict", "summary", "Verdict"),
    Section("chart", "summary", "Accuracy and latency", "Chart", "", "rows", "drawing.drawings"),
    Section("known", "summary", "Measured, estimated, not known", "Evidence"),
    Section("issues", "summary", "Calibration data", "Data", "", "data_check", HAS_ISSUES),
    Section("tests", "summary", "A/B tests", "A/B", needs="rows", shows="the_tests"),
    Section("slices", "summary", "Slices", "", "", "rows", "breakdowns|sum(attribute='worse')"),
    Section("since", "summary", "What changed", "", MANAGER, "changes"),
    Section("next", "summary", "Next step", needs="next_step"),
    Section("steps", "summary", "What to improve first", "", ENGINEER),
    Section("costs", "summary", "Costs", "", ENGINEER, "cost_rows"),
    Section("against", "summary", "Since the last run", "", ENGINEER),
    Section("variants", "summary", "Variants", "", ENGINEER, "rows"),
    Section("errors", "summary", "Where the error comes from", "Errors", ENGINEER, "rows"),
    Section("optimizations", "origin", "Optimizations", "", ENGINEER),
    Section("findings", "engines", "Findings", "", ENGINEER),
    Section("imports", "engines", "Measured by other tools", "Imports", ENGINEER, "the_imports"),
    Section("layers", "engines", "Precision of the layers", "Layers", ENGINEER),
    Section("ranges", "origin", "Ranges and clipped values", "Ranges", ENGINEER),
    Section("fusions", "engines", "Fusions", "", ENGINEER),
    Section("skipped", "engines", "Layers that were not quantized", "Skipped", ENGINEER),
    Section("log", "engines", "Build logs", "Build log", ENGINEER),
    Section("calibration", "origin", "Calibration and plans", "Calibration", ENGINEER),
    Section("reproduce", "origin", "How to reproduce this run", "Reproduce", ENGINEER),
    Section("provenance", "origin", "Provenance", "", ENGINEER),
    Section("glossary", "origin", "Glossary", "", ENGINEER),
)
"""All sections in the order of the page."""


def environment(kit: str, finalize: Callable[[object], object]) -> jinja2.Environment:
    """Return the templates with one kit; `finalize` makes markup of everything that is printed."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    templates.filters.update(
        number=text.number,
        ms=text.milliseconds,
        figure=text.figure,
        share=percent,
        money=text.money,
        size=text.size,
        moment=text.moment,
        between=text.between,
        interval=views.interval_of,
        plain=text.plain,
        any=any,
        pattern=glob.escape,
        toml=lambda value: json.dumps(text.visible(str(value)), ensure_ascii=False),
        commands=lambda value: _with_commands(value, finalize),
        digest=lambda value: None if value is None else text.shorten(str(value), 26),
        quoted=repr,
        counted=text.count,
        sentence=sentence,
        visible=text.visible,
        some=lambda names: some(list(names)),
        svg=lambda drawing: Markup(inline(drawing)),  # noqa: S704 (escaped by svg.tidy)
    )
    templates.globals.update(kit=f"{kit}.j2", html=kit == "html")
    return templates


def _with_commands(value: object, finalize: Callable[[object], object]) -> Markup:
    """Return a sentence with its commands, which stand between backticks, as code."""
    parts = [escape(finalize(part)) for part in re.split(r"`(trtcal [^`]+)`", str(value))]
    parts[1::2] = [Markup("<code>{}</code>").format(part) for part in parts[1::2]]
    return Markup("").join(parts)


def body_of(templates: jinja2.Environment, section: Section, values: View) -> Markup:
    """Return what a section says."""
    module = templates.get_template(f"{section.template}.j2").make_module(values)
    markup: Markup = getattr(module, section.id)()
    return markup
