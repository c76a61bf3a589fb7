"""The keys of `trtcal.toml`, from the dataclasses that are its schema."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.docs.reference.markdown import prose
from trtcal import config
from trtcal.config import Config, Kind, read_toml

PAGE = """\
# Keys of `trtcal.toml`

Every key, its type and its default. [Configuration](../configuration.md) has examples.

"""
OTHERS = {
    config._limits: config.LIMITS.words,
    config._texts: "a table of names to strings or numbers",
    config._suppressions: "tables of `kind`, `reason` and maybe `subject`, all of them strings",
    config.read_tags: "a table of names to strings",
}
"""In words what keys take whose reader is no kind of value."""

TEXTS = read_toml(Path(config.__file__).with_suffix(".toml"))
"""What keys mean, by class and field, and what holds where they are not given."""

NAMED = {"plans": config.PlanConfig, "devices": config.DeviceConfig}
"""Tables of sections with names of the user's choice."""

PLAIN = (config.FILE_NAME, config.TEXT, config.STRINGS, config.NAMES, config.LABEL, config.FLAG)
"""Kinds whose own example says no more than their words."""

SUPPRESS = {
    "kind": "The kind of finding that is accepted.",
    "reason": "Why it is accepted; the report shows it.",
    "subject": "A pattern of the names that it is accepted for. Default: every one.",
}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page."""
    plain = [one for one in keys(Config) if section_of(one) is None and one.name != "suppress"]
    text = PAGE + "## Top level\n\n" + "\n".join(_entry(Config, one) for one in plain)
    for one in keys(Config):
        if (section := section_of(one)) is not None:
            text += f"\n## `{_heading(one)}`\n\n{prose(TEXTS['Config'][one.name]['about'])}\n\n"
            text += "\n".join(_entry(section, inner) for inner in keys(section))
    text += "\n## `[[suppress]]`\n\nA table for each accepted finding.\n\n"
    text += "\n".join(f"`{name}`\n: {prose(about)}\n" for name, about in SUPPRESS.items())
    yield "configuration.md", text


def keys(section: type) -> list[Field[Any]]:
    """Return the keys of a table."""
    return [one for one in fields(section) if one.metadata]


def section_of(item: Field[Any]) -> type | None:
    """Return the dataclass of the table that a key is, None for a plain value."""
    if item.name in NAMED:
        return NAMED[item.name]
    read = item.metadata["read"]
    kind = read.args[0] if isinstance(read, partial) else None
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def _heading(item: Field[Any]) -> str:
    return f"[{item.name}.NAME]" if item.name in NAMED else f"[{item.name}]"


def _entry(section: type, item: Field[Any]) -> str:
    """Return a key as an entry of a list: what it means, takes, and holds where it is not given."""
    facts = [f"Type: {prose(takes(item.metadata['read']))}."]
    facts += ["Required."] if is_required(item) else [f"Default: {default_of(section, item)}."]
    facts += [f"Example: `{example}`"] if (example := _example(item)) else []
    name = item.metadata["name"] or item.name
    return (
        f"`{name}`\n: {prose(TEXTS[section.__name__][item.name]['about'])}\n\n  {' '.join(facts)}\n"
    )


def _example(item: Field[Any]) -> str:
    """Return a line with a key that says more than its type and default do."""
    kind = item.metadata["read"]
    example = item.metadata["example"] or getattr(kind, "example", "")
    is_plain = kind in PLAIN or str(getattr(kind, "wanted", "")).startswith("one of")
    says_nothing = is_plain and example == getattr(kind, "example", "")
    if not example or says_nothing or example == json.dumps(item.default, default=str):
        return ""
    return f"{item.name} = {example}"


def takes(read: Callable[[Any], Any]) -> str:
    """Return in words what a reader of values takes."""
    if read is config.FILE_NAME:
        return "a path"
    if isinstance(read, Kind):
        return re.sub("'([^']*)'", r'`"\1"`', read.words)
    if isinstance(read, partial) and read.func is config.by_name:
        inner = takes(read.args[0])
        return f"a table of names, each with {inner}"
    return OTHERS[read]


def is_required(item: Field[Any]) -> bool:
    """Whether a table must have this key."""
    return item.default is MISSING and item.default_factory is MISSING


def default_of(section: type, item: Field[Any]) -> str:
    """Return what holds where a key is not given."""
    if unset := TEXTS[section.__name__][item.name].get("unset"):
        return prose(unset)
    if item.default in (None, ()) or item.default_factory is dict:
        return "none"
    value = list(item.default) if isinstance(item.default, tuple) else item.default
    return f"`{json.dumps(value)}`"
