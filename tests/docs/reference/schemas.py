"""The JSON Schema of what commands print with `--json`.

    python -m tests.docs.schemas --write

Types are those that commands print, and those of the dataclasses that their documents are made of: a
field that is null in every sample, and may be a number, has both. The meaning of fields is in
`documents.toml`, the unit of a figure at the end of its name.
"""

import getpass
import importlib
import json
import pkgutil
import platform
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import calibrators
import trtcal
from tests.docs.pages import ROOT
from tests.docs.reference.printed import Printed, record
from trtcal.reporting.document import read_schema

FOLDER = ROOT / "docs" / "schemas"
TYPES = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    NoneType: "null",
}
DEEPEST = 6
"""Levels of objects that no sample has, and that are described by their annotations alone."""
Schema = dict[str, Any]


@dataclass
class Hint:
    """What an annotation says: JSON's types, and what is in objects and arrays."""

    types: frozenset[str]
    record: type | None = None
    values: Any = None
    items: Any = None


def hint_of(kind: Any) -> Hint | None:
    """Return what an annotation says of JSON, None if that is nothing."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _joined([hint_of(one) for one in arguments])
    if origin is Literal:
        return Hint(frozenset(TYPES[type(one)] for one in arguments))
    if origin in (tuple, list, Sequence, Iterable, frozenset, set):
        is_same = origin is not tuple or arguments[-1] is Ellipsis
        return Hint(frozenset({"array"}), items=arguments[0] if is_same else None)
    if origin in (dict, Mapping):
        return Hint(frozenset({"object"}), values=arguments[1])
    if isinstance(kind, type) and is_dataclass(kind):
        return Hint(frozenset({"object"}), record=kind)
    if kind is float:
        return Hint(frozenset({"number"}))
    plain = str if kind is Path else kind
    return Hint(frozenset({TYPES[plain]})) if plain in (str, bool, int, NoneType) else None


def _joined(hints: list[Hint | None]) -> Hint | None:
    """Return what a union says; None where a part of it says nothing."""
    known = [one for one in hints if one is not None]
    if len(known) < len(hints):
        return None
    parts = ("record", "values", "items")
    inside = {
        name: next(filter(None, (getattr(one, name) for one in known)), None) for name in parts
    }
    return Hint(frozenset().union(*(one.types for one in known)), **inside)


def schema_of(values: list[Any], kind: Any = None, name: str = "", depth: int = 0) -> Schema:
    """Return the schema of the JSON values of a field, widened by an annotation that fits them all."""
    seen = {TYPES[type(value)] for value in values}
    hint = hint_of(kind) if depth < DEEPEST else None
    if hint is None or not _fits(seen, hint.types):
        hint = Hint(frozenset())
    types = sorted(seen | hint.types)
    if "number" in types and "integer" in types:
        types.remove("integer")
    if types in ([], ["null"]):  # nothing was seen that says what else it may be
        return {}
    schema: Schema = {"type": types[0] if len(types) == 1 else types}
    if "object" in types:
        schema |= _object([one for one in values if isinstance(one, dict)], hint, name, depth)
    if "array" in types:
        inside = list(chain.from_iterable(one for one in values if isinstance(one, list)))
        schema["items"] = schema_of(inside, hint.items, f"{name}[]", depth + (not inside))
    return schema


def _fits(seen: set[str], allowed: frozenset[str]) -> bool:
    return seen <= allowed | ({"integer"} if "number" in allowed else set())


TABLES = {
    *(
        "variants",
        "targets",
        "figures",
        "means",
        "tensors",
        "ranges",
        "skipped",
        "unranged",
        "sizes",
    ),
    *(
        "counts",
        "parameters",
        "digests",
        "tags",
        "unused",
        "severities",
        "precisions",
        "tolerances",
    ),
    *("inputs", "peaks", "unpriced", "notes", "missing_builds", "scripts", "packages", "backends"),
    *("asked", "got", "narrow_macs_percent", "only_before", "only_after", "narrow_layers"),
    *("calibrations", "figures.*", "profiles[]", "uncalibrated", "rows", "casts"),
}
"""Fields whose objects have names of tensors, variants and the like as keys, not fields."""


def _object(values: list[dict[str, Any]], hint: Hint, name: str, depth: int) -> Schema:
    names = list(dict.fromkeys(chain.from_iterable(values)))
    if hint.values is not None or (hint.record is None and (name in TABLES or is_table(names))):
        inside = [item for one in values for item in one.values()]
        item = schema_of(inside, hint.values, f"{name}.*", depth + (not inside))
        return {"additionalProperties": item}
    measured = [one["measured"] for one in values if isinstance(one.get("measured"), dict)]
    record = hint.record or record_of(frozenset([*names, *chain.from_iterable(measured)]))
    kinds = annotations(record)
    listed = names or [item.name for item in fields(record or Hint) if record]
    properties = {
        one: schema_of(
            [each[one] for each in values if one in each], kinds.get(one), one, depth + (not values)
        )
        for one in listed
    }
    required = [one for one in names if all(one in each for each in values)]
    title = {"title": record.__name__} if record else {}
    return {**title, "properties": properties, **({"required": required} if required else {})}


def is_table(names: list[str]) -> bool:
    """Whether the keys of an object are data, such as names of tensors, and not fields."""
    return bool(names) and not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in names)


@cache
def record_of(names: frozenset[str]) -> type | None:
    """Return the dataclass whose fields an object has, the one that fits best."""
    fit = [one for one in records() if 2 <= len(one[1]) >= 0.6 * len(names) and one[1] <= names]
    return max(fit, key=lambda one: len(one[1]), default=(None, None))[0]


@cache
def annotations(record: type | None) -> dict[str, Any]:
    """Return the annotations of a dataclass, none where its module imports them for type checkers."""
    try:
        return get_type_hints(record) if record else {}
    except NameError:
        return {}


@cache
def records() -> tuple[tuple[type, frozenset[str]], ...]:
    """Return every dataclass of the packages with the names of its fields."""
    found: dict[type, frozenset[str]] = {}
    for package in (trtcal, calibrators):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                names = vars(importlib.import_module(module.name))
            except ImportError:  # needs a framework
                continue
            kinds = [one for one in names.values() if isinstance(one, type) and is_dataclass(one)]
            found |= {one: frozenset(item.name for item in fields(one)) for one in kinds}
    return tuple(found.items())


def schemas(recorded: Iterable[Printed]) -> dict[str, Schema]:
    """Return the schema of every form that commands print, with an example, by the form's name."""
    by_name: dict[str, list[Printed]] = defaultdict(list)
    for one in recorded:
        by_name[one.name].append(one)
    return {name: _whole(name, group) for name, group in by_name.items()}


def _whole(name: str, group: list[Printed]) -> Schema:
    if name == "report":
        return {**read_schema(), "title": name, "x-commands": ["report", "run"]}
    documents = [one.document for one in group]
    commands = sorted({one.command for one in group})
    schema = schema_of(documents)
    for field in {"kind", "schema_version"} & {*schema.get("properties", ())}:
        schema["properties"][field]["const"] = documents[0][field]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    return {
        **head,
        "x-commands": commands,
        **schema,
        "title": name,
        "examples": [shortened(documents[0])],
    }


def shortened(value: Any) -> Any:
    """Return a value with the first of each list and the first two entries of each table of many."""
    if isinstance(value, list):
        return [shortened(one) for one in value[:1]]
    if isinstance(value, dict):
        kept = list(value.items())[:2] if is_table([*value]) else value.items()
        return {key: shortened(one) for key, one in kept}
    return f"{value[:60]}..." if isinstance(value, str) and len(value) > 100 else value


def file_of(name: str) -> Path:
    """Return the file of a form's schema."""
    return FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def read_schemas() -> dict[str, Schema]:
    """Return the schemas in docs/schemas by the names of their forms; the report's is the package's."""
    found = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    return {one["title"]: one for one in found}


def write_schemas() -> None:
    """Run every command, and write the schemas of what they print, without names of this machine."""
    with tempfile.TemporaryDirectory() as name:
        found = schemas(record(Path(name)))
    ours = {
        str(Path(name)): "/home/you",
        f"{sys.base_prefix}/bin/": "/usr/bin/",
        f'"user": "{getpass.getuser()}"': '"user": "you"',
        platform.node(): "machine",
    }
    FOLDER.mkdir(exist_ok=True)
    for path in {*FOLDER.glob("*.json")} - {*map(file_of, found)}:
        path.unlink()
    for form, schema in found.items():
        text = json.dumps(schema, indent=1)
        for own, general in ours.items():
            text = text.replace(own, general)
        file_of(form).write_text(f"{text}\n")
