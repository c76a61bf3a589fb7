"""Markdown of texts that the code has: help, meanings, docstrings."""

import inspect
import re
from collections.abc import Iterable, Sequence

CODE = re.compile(r"(`[^`]+`)")
SPECIAL = re.compile(r"([\\*_<>\[\]#|])")


def prose(text: str) -> str:
    """Return a text in one line with what Markdown would read as markup escaped, but for `code`."""
    parts = CODE.split(" ".join(text.split()))
    return "".join(
        part if CODE.fullmatch(part) else SPECIAL.sub(r"\\\1", part) for part in parts
    ).rstrip()


def cell(text: str) -> str:
    """Return a text for a table's cell."""
    parts = CODE.split(" ".join(text.split()))
    return "".join(
        part.replace("|", "\\|") if CODE.fullmatch(part) else SPECIAL.sub(r"\\\1", part)
        for part in parts
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def contents(names: Iterable[str], option: str = ":hidden:") -> str:
    """Return a table of contents, which the navigation has too; hidden, or with another option."""
    lines = ["```{toctree}", option, "", *names, "```"]
    return "\n".join(lines) + "\n"


def docstring(text: str | None) -> str:
    """Return a docstring as Markdown: paragraphs, lists, and fenced blocks for what is indented."""
    found = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        lines = part.splitlines()
        is_list = all(re.match(r"[-*] |\s", line) for line in lines)
        if lines and lines[0].startswith((" ", ">>>")):
            found.append(_block(part))
        elif is_list:
            found.append(part)
        else:
            found.append(prose(part))
    return _joined(found)


def _block(text: str) -> str:
    lines = inspect.cleandoc("\n" + text).replace("  # doctest: +SKIP", "")
    language = "pycon" if ">>>" in text else "text"
    return f"```{language}\n{lines}\n```"


def _joined(parts: list[str]) -> str:
    """Join parts; blocks of a session that stand one after another become one."""
    text = "\n\n".join(parts)
    return text.replace("\n```\n\n```pycon\n", "\n\n") + "\n"
