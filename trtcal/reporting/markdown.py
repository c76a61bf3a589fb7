"""The report as Markdown for a pull request: the verdict first, short enough for one comment.

Names and sentences are untrusted. What could be markup is written as a character reference, and what
a forge would make a mention, an issue or a link of gets a word joiner (U+2060) inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from markupsafe import Markup

from trtcal.documents import Document
from trtcal.reporting import text, views
from trtcal.reporting.sections import SECTIONS, body_of, environment

# The second and third would begin a list, a heading or a block of code at the start of a line.
MARKUP = re.compile(r"[\\`*_{}\[\]<>|~&$@#!^]|^[\s=+-]+|^\d+(?=[.)](?:\s|$))")
REFERENCES = re.compile(r"@|#|!(?=\d)|:(?=//)|\bwww(?=\.)|\bgh-(?=\d)", re.IGNORECASE)
JOINER = "\u2060"
NAME_SHOWN, COMMAND_SHOWN, TEXT_SHOWN = 80, 400, 1000  # a command is there to be copied
SECTION_ROOM = {
    "verdict": 16000,
    "against": 2500,
    "tests": 2000,
    "next": 1000,
    "issues": 4000,
    "variants": 10000,
    "costs": 4000,
    "optimizations": 3000,
    "findings": 8000,
    "layers": 4000,
    "provenance": 4000,
}
"""The sections shown, and how many characters each may have: together under 60,000."""


def to_markdown(document: Document) -> str:
    """Return a report document as Markdown under 60,000 characters."""
    values = {**views.shown(document), "histograms": None, "drawing": None}
    templates = environment("markdown", _markup)
    templates.filters.update(
        oneline=lambda value: Markup(" ".join(_markup(value).split())),  # noqa: S704 (escaped)
        name=lambda value: _markup(value, NAME_SHOWN),
        command=lambda value: _markup(value, COMMAND_SHOWN),
        trimmed=lambda value: _markup(str(value).strip()),
    )
    sections = {section.id: section for section in SECTIONS if section.is_in(values)}
    word = escaped(document["measured"]["verdict"]["word"], NAME_SHOWN)
    title, lines = f"## {values['formats']}: {word}", list[str]()
    for place, room in SECTION_ROOM.items():
        lines_here = body_of(templates, sections[place], values) if place in sections else ""
        kept = list(_within(lines_here.splitlines(), room))
        if any(kept):
            lines += [f"### {sections[place].title}" if lines else title, "", *kept]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def escaped(value: object, shown: int = TEXT_SHOWN) -> str:
    """Return any text so that it stands there as it is and is nothing else, on one line."""
    plain = text.shorten(text.visible(str(value)), shown)
    joined = REFERENCES.sub(lambda match: match[0] + JOINER, plain)
    return MARKUP.sub(lambda match: "".join(f"&#{ord(letter)};" for letter in match[0]), joined)


def _markup(value: object, shown: int = TEXT_SHOWN) -> Markup:
    """Return what is printed for a value: markup as it is, all else escaped."""
    if isinstance(value, Markup):
        return value
    return Markup(escaped(text.MISSING if value is None else value, shown))  # noqa: S704 (it is)


def _within(lines: Iterable[str], room: int) -> Iterable[str]:
    """Yield the lines that there is room for, and how many more there are."""
    left_out = opened = 0
    for line in lines:
        room -= len(line) + 1
        if room >= 0:
            opened += line.startswith("<details>") - (line == "</details>")
            yield line
        else:
            left_out += bool(line.strip())
    if left_out:
        yield f"\n… and {left_out} more lines."
    yield from ["", "</details>"] * opened
