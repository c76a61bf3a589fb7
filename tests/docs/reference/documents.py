"""The JSON documents: what each command prints with `--json` and what it writes, with every field."""

import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT
from tests.docs.reference.commands import leaves
from tests.docs.reference.markdown import cell, prose, table
from tests.docs.reference.printed import UNTRIED
from tests.docs.reference.schemas import Schema, file_of, read_schemas, records
from trtcal.config import tomllib
from trtcal.metrics import METRICS

HERE = Path(__file__)
DOCUMENTS: dict[str, Any] = tomllib.loads(HERE.with_suffix(".toml").read_text())
FIELDS: dict[str, Any] = tomllib.loads(HERE.with_name("fields.toml").read_text())
HEAD = {
    "kind": "The kind of document: the headings of this page.",
    "schema_version": "Version of the kind. This trtcal reads and writes the one that it says.",
    "trtcal": "Version of trtcal that wrote it.",
    "digest": "`sha256:` and the SHA-256 of everything but `digest` and `measured`, as JSON with "
    "sorted keys and without spaces.",
    "measured": "What differs from run to run: times, sizes, machines. `digest` does not cover it; in "
    "the folder of a run the record of its files does.",
}
PAGE = """\
# JSON documents

What commands print with `--json`, and what they write for other programs and for the next command. Each
form has a JSON Schema (draft 2020-12) to validate with, its fields with type, unit and meaning, and an
example in which lists are cut to their first entry. Code that reads a form must accept fields that it
does not know. [Stability](../stability.md) says what may change.

A document that a command writes is an object with these fields besides its own; `trtcal verify`
recomputes the digest.

{head}
## By command

{commands}
"""
REPORT = """\
## report

The JSON of a report, of which the HTML page is only a rendering. Printed by: `trtcal report --json`,
`trtcal run --json`. File: `report.json`. Version: {version}. `trtcal report --schema` prints
its [JSON Schema]({file}), with units and what null means in every field below these.

"""
OTHERS = """\
## Files of other forms

| file | form |
| --- | --- |
| `events.json` | a build log as `trtcal log --json` prints it: `events`, `layers`, `lines` |
| `build.jsonl` | a record for each line of the build log, with its time |
| `checkpoints.jsonl` | a record for each pass and stage: [Traceability](../traceability.md) |
| `envelope.json`, `manifest.json` | of a bundle, as DSSE: [Traceability](../traceability.md) |
| `runs/*.json` of a store | Statements of in-toto: [Traceability](../traceability.md) |
| `history.sqlite` | the runs: `trtcal history export` prints JSON or CSV of it |
"""
EXAMPLE = """\
<details><summary>Example</summary>

```json
{text}
```

</details>

"""
Row = tuple[str, str, str, str]


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page."""
    schemas = read_schemas()
    objects: dict[str, Schema] = {}
    printed = "".join(
        _form(name, one, objects) for name, one in sorted(schemas.items()) if name != "report"
    )
    written = "".join(_file(name, one) for name, one in DOCUMENTS.items() if name not in schemas)
    shared = "".join(_shared(name, objects) for name in _closure(objects))
    text = PAGE.format(head=_fields(HEAD), commands=_commands(schemas)) + printed
    text += f"{_report(schemas['report'])}\n{written}## Objects\n\nIn several forms.\n\n{shared}"
    yield "documents.md", text + OTHERS


def _commands(schemas: dict[str, Schema]) -> str:
    """Return the table of the commands, and the forms that each prints."""
    rows = []
    for context in leaves():
        path = context.command_path.removeprefix("trtcal ")
        forms = [name for name, one in sorted(schemas.items()) if path in one["x-commands"]]
        links = ", ".join(f"[{name}](#{anchor(name)})" for name in forms)
        if any("--json" in one.opts for one in context.command.params):
            rows.append((f"`trtcal {path}`", links or f"not recorded: needs {UNTRIED[path]}"))
    return table(["command with `--json`", "prints"], rows)


def anchor(name: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-")


def _form(name: str, schema: Schema, objects: dict[str, Schema]) -> str:
    """Return the section of what commands print: about, schema, fields, example."""
    known = DOCUMENTS.get(name, {})
    commands = ", ".join(f"`trtcal {one} --json`" for one in schema["x-commands"])
    facts = [f"Printed by: {commands}.", f"[JSON Schema]({_link(name)})."]
    if known:
        facts.insert(1, f"File: {known['file']}. Written by: {known['command']}.")
        facts.insert(2, f"Version: {known['version']}.")
    about = [known["about"]] if known else []
    rows = rows_of(schema, (HEAD if known else {}) | known.get("fields", {}), objects)
    text = "\n\n".join([f"## {name}", *about, " ".join(facts)]) + "\n\n"
    return (
        text + _rows(rows) + "\n" + EXAMPLE.format(text=json.dumps(schema["examples"][0], indent=1))
    )


def _link(name: str) -> str:
    return os.path.relpath(file_of(name), ROOT / "docs" / "reference")


def rows_of(
    schema: Schema,
    known: dict[str, str],
    objects: dict[str, Schema],
    path: str = "",
    about: str = "",
) -> list[Row]:
    """Return the fields of an object; objects with a name of their own go to `objects`."""
    found: list[Row] = []
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(key), dict) and not is_named(schema[key]):
            found += rows_of(schema[key], known, objects, f"{path}{mark}")
        elif isinstance(schema.get(key), dict) and not path:
            found += rows_of({**schema[key], "title": ""}, known, objects, mark)
    for name, one in schema.get("properties", {}).items():
        place = f"{path}.{name}".lstrip(".")
        title = schema.get("title", "")
        meaning = known.get(place) or meaning_of(name, title, about)
        unit = unit_of(name, title) if is_figure(one) else ""
        found.append((f"`{place}`", kind_of(one, objects), unit, cell(meaning)))
        if not is_named(one):
            found += rows_of(one, known, objects, place)
    return found


def is_figure(schema: Schema) -> bool:
    """Whether a field has numbers, alone or in a list or table."""
    kinds = schema.get("type", [])
    inner = [
        one for key in ("items", "additionalProperties") if isinstance(one := schema.get(key), dict)
    ]
    return bool({"number", "integer"} & {*([kinds] if isinstance(kinds, str) else kinds)}) or any(
        map(is_figure, inner)
    )


def is_named(schema: Schema) -> bool:
    """Whether an object has the name of a dataclass, and a table of its own."""
    return bool(schema.get("title")) and "properties" in schema


def kind_of(schema: Schema, objects: dict[str, Schema]) -> str:
    """Return the type of a field in words, with a link to the table of a named object."""
    if is_named(schema):
        title = schema["title"]
        merged = {**objects.get(title, {}).get("properties", {}), **schema["properties"]}
        objects[title] = {**schema, "properties": merged}
        words = f"[{title}](#{anchor(title)})"
        return f"{words} or null" if "null" in schema["type"] else words
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    types = schema.get("type", "any")
    words = " or ".join(
        [types] if isinstance(types, str) else sorted(types, key=lambda one: one == "null")
    )
    if schema.get("items"):
        words = words.replace("array", f"array of {kind_of(schema['items'], objects)}")
    if isinstance(schema.get("additionalProperties"), dict):
        inner = kind_of(schema["additionalProperties"], objects)
        words = words.replace("object", f"object by name, each {inner}", 1)
    return words


def unit_of(name: str, title: str = "") -> str:
    """Return the unit of a field of an object: stated, at the end of its name, of a metric, or none."""
    units: dict[str, str] = FIELDS["units"]
    for key in (f"{title}.{name}", name):
        if key in units:
            return units[key]
    if name in METRICS:
        return METRICS[name].unit
    ending = f"_{name.removesuffix('_interval').rpartition('_')[2]}"
    return units.get(ending, "")


def meaning_of(name: str, title: str = "", about: str = "") -> str:
    """Return what a field means: by its name, as a metric, or by the text of its object."""
    for key in (f"{title}.{name}", name):
        if key in FIELDS["meanings"]:
            return str(FIELDS["meanings"][key])
    if name in METRICS:
        return f"{METRICS[name].title.capitalize()}."
    if name.endswith("_interval"):
        return f"Its interval, of `{name.removesuffix('_interval')}`."
    return "In the text above." if f"`{name}`" in about else ""


def _closure(objects: dict[str, Schema]) -> list[str]:
    """Return the names of all objects, also of those that are in others only."""
    before = -1
    while before != len(objects):
        before = len(objects)
        for one in list(objects.values()):
            rows_of(one, {}, objects)
    return sorted(objects)


def _shared(name: str, objects: dict[str, Schema]) -> str:
    """Return the section of an object: what its dataclass says of it, and its fields."""
    about = next((one.__doc__ or "" for one, _ in records() if one.__name__ == name), "")
    text = inspect.cleandoc(about).partition(">>>")[0]
    lines = "" if text.startswith(f"{name}(") else f"{prose(text)}\n\n"
    return f"### {name}\n\n{lines}{_rows(rows_of(objects[name], {}, objects, about=about))}\n"


def _rows(rows: list[Row]) -> str:
    return table(["field", "type", "unit", "meaning"], rows)


def _file(kind: str, one: dict[str, Any]) -> str:
    made = f"File: {one['file']}. Written by: {one['command']}. Version: {one['version']}."
    return f"## {kind}\n\n{one['about']}\n\n{made}\n\n{_fields(one['fields'])}\n"


def _fields(fields: dict[str, str]) -> str:
    return table(
        ["field", "what it has"], [(f"`{name}`", cell(one)) for name, one in fields.items()]
    )


def _report(schema: Schema) -> str:
    own = {name: one for name, one in schema["properties"].items() if name not in HEAD}
    version = schema["properties"]["schema_version"]["const"]
    head = REPORT.format(version=version, file=_link("report"))
    return head + _fields({name: str(one["description"]) for name, one in own.items()})
