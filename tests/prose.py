"""Every sentence that a user can meet: documents, help, messages, templates, tables of rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import calibrators
import trtcal
from tests.docs.pages import PAGES, ROOT, name_of
from trtcal.config import tomllib

PACKAGE = Path(trtcal.__file__).parent
MODULES = sorted([*PACKAGE.rglob("*.py"), *Path(calibrators.__file__).parent.rglob("*.py")])
STYLE = ROOT / "docs" / "style.md"
APART = {ROOT / "CHANGELOG.md", STYLE}
"""Pages that name what is not used any more."""
TABLES = sorted(PACKAGE.rglob("*.toml"))
TEMPLATES = sorted(PACKAGE.rglob("*.j2"))
OF_OTHERS = ("example", "needle", "pattern", "starts")
"""Keys whose text is that of other programs."""


class Sentence(NamedTuple):
    """A text and where it is."""

    place: str
    text: str


def sentences() -> Iterator[Sentence]:
    """Yield every text that a user can meet."""
    for path in MODULES:
        yield from in_code(path)
    for path in sorted(set(PAGES) - APART):
        yield from in_document(path)
    for path in TABLES:
        yield from in_table(path)
    for path in TEMPLATES:
        yield Sentence(name_of(path), without_marks(path.read_text()))


def in_code(path: Path) -> Iterator[Sentence]:
    """Yield the messages of a module, the help of its commands, and docstrings that it exports."""
    tree = ast.parse(path.read_text())
    docs: dict[int, ast.AST | None] = {
        id(node.value): None for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }
    docs |= {id(doc): owner for owner in ast.walk(tree) if (doc := _docstring(owner))}
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        text = _text(node)
        if text is None or id(node) in parts or " " not in text.strip():
            continue
        if id(node) not in docs or is_shown(path, docs[id(node)]):
            yield Sentence(f"{name_of(path)}:{node.lineno}", text)


def is_shown(path: Path, owner: ast.AST | None) -> bool:
    """Whether a docstring is the help of a command, or that of a name which `import trtcal` has."""
    if getattr(owner, "name", None) in trtcal.__all__:
        return True
    return path.parent.name == "cli" and isinstance(owner, ast.ClassDef) and bool(owner.keywords)


def _docstring(owner: ast.AST) -> ast.Constant | None:
    first = owner.body[0] if isinstance(getattr(owner, "body", None), list) and owner.body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first.value if is_text and isinstance(first.value.value, str) else None


def _text(node: ast.AST) -> str | None:
    """Return a string's text, with `N` for each value in it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "N" for part in node.values)
    return None


def in_document(path: Path) -> Iterator[Sentence]:
    """Yield a Markdown document's lines outside blocks of code, with code in a line cut out."""
    text = re.sub(r"^(```|~~~).*?^\1", _lines_of, path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("    "):
            yield Sentence(f"{name_of(path)}:{number}", re.sub(r"`[^`]*`", "N", line))


def _lines_of(block: re.Match[str]) -> str:
    return "\n" * block[0].count("\n")


def in_table(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a TOML table."""
    for text in _texts(tomllib.loads(path.read_text())):
        if " " in text:
            yield Sentence(name_of(path), text)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([one for key, one in value.items() if key not in OF_OTHERS])
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def without_marks(template: str) -> str:
    """Return a template's text without Jinja's and HTML's marks, styles and scripts."""
    marks = r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<(style|script).*?</\1>|<[^>]*>"
    return re.sub(marks, " ", template, flags=re.DOTALL)
