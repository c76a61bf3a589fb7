"""What docs/stability.md calls stable, recorded in surface.json beside this file.

The suite compares the record with the sources. An addition is written into it with the command below.
The command refuses what breaks a user (something removed, renamed, of another type or default) unless
the version is raised since the last release of CHANGELOG.md as docs/stability.md says, or the
`schema_version` of the document is. What is evolving is recorded too, and not held.

    python -m tests.release.surface --write
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import trtcal
from tests.docs.reference import api, configuration, errors
from tests.docs.reference.commands import leaves
from tests.docs.reference.schemas import Schema, read_schemas
from tests.release.lock import ROOT
from tests.release.notes import HEAD
from trtcal import config
from trtcal.config import Config, tomllib
from trtcal.errors import __version__
from trtcal.evidence.explanations import FINDING, MESSAGE, explanations
from trtcal.metrics import METRICS

RECORD = Path(__file__).with_suffix(".json")
COMMAND = "python -m tests.release.surface --write"
EVOLVING_COMMANDS = ("device", "export", "graph", "import", "trace tvm")
STABLE_GROUPS = ("trtcal.calibrators",)
Surface = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """A place in the surface, what happened there, and whether that breaks a user."""

    place: str
    what: str
    breaks: bool

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def surface() -> Surface:
    """Return the surface of the sources: `version`, and what is stable and what is evolving."""
    commands = {path: _command(one) for path, one in sorted(_commands())}
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    forms = {name: _document(schema) for name, schema in sorted(read_schemas().items())}
    known = tuple(explanations())
    parts = {
        "commands": commands,
        "documents": forms,
        "entry points": {name: sorted(group) for name, group in sorted(groups.items())},
    }
    split = {name: _split(part) for name, part in parts.items()}
    stable = {
        "python": {name: _thing(getattr(trtcal, name)) for name in sorted(trtcal.__all__)},
        "configuration": dict(_keys("", Config)),
        "exit statuses": {one.__name__: one.exit_status for one in errors.classes()},
        "messages": sorted(one.name for one in known if one.about == MESSAGE),
        "findings": sorted(one.name for one in known if one.about == FINDING),
        "metrics": {name: metric.unit for name, metric in sorted(METRICS.items())},
    }
    return {
        "version": __version__,
        "stable": stable | {name: part[0] for name, part in split.items()},
        "evolving": {name: part[1] for name, part in split.items()},
    }


def _split(part: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what of a part is stable, and what is evolving."""
    evolving = {name: one for name, one in part.items() if is_evolving(name)}
    return {name: one for name, one in part.items() if name not in evolving}, evolving


def is_evolving(name: str) -> bool:
    """Whether a command, what it prints or a group of entry points is not held."""
    is_group = name.startswith("trtcal.") and name not in STABLE_GROUPS
    return is_group or any(f"{name} ".startswith(f"{one} ") for one in EVOLVING_COMMANDS)


def _commands() -> Iterator[tuple[str, click.Command]]:
    for context in leaves():
        yield context.command_path.removeprefix("trtcal "), context.command


def _command(command: click.Command) -> dict[str, Any]:
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    return {
        "arguments": {
            one.name: _parameter(one) for one in shown if isinstance(one, click.Argument)
        },
        "options": {
            " ".join(sorted(one.opts + one.secondary_opts)): _parameter(one)
            for one in shown
            if isinstance(one, click.Option)
        },
    }


def _parameter(one: click.Parameter) -> dict[str, Any]:
    default = one.default if isinstance(one.default, (str, int, float, Path)) else None
    kind = "flag" if getattr(one, "is_flag", False) else one.type.name
    choices = list(one.type.choices) if isinstance(one.type, click.Choice) else None
    return {
        "type": f"{kind}{choices or ''}",
        "default": str(default) if isinstance(default, Path) else default or None,
        "required": one.required,
        "repeats": getattr(one, "multiple", False) or one.nargs != 1,
    }


def _thing(one: Any) -> dict[str, Any]:
    """Return how a name of `import trtcal` is called, and the members of a class."""
    found = {"call": _call(one)}
    if isinstance(one, type):
        found["members"] = {name: _member(member) for name, member in api.members(one)}
    return found


def _member(one: Any) -> dict[str, Any]:
    if api.is_property(one):
        return {"property": True}
    return {"call": _call(getattr(one, "__func__", one))}


def _call(one: Any) -> dict[str, Any]:
    """Return the parameters of a function in their order, and what it returns."""
    try:
        signature = inspect.signature(one)
    except ValueError:
        return {}
    shown = [each for each in signature.parameters.values() if each.name not in api.HIDDEN]
    return {
        "parameters": {
            each.name: {
                "type": "" if each.annotation is each.empty else api.type_of(each.annotation),
                "required": each.default is each.empty and each.kind < each.VAR_POSITIONAL,
                "default": None if each.default is each.empty else _shown(each.default),
                "by name": each.kind == each.KEYWORD_ONLY,
            }
            for each in shown
        },
        "returns": api.type_of(signature.return_annotation)
        if signature.return_annotation is not signature.empty
        else "",
    }


def _shown(default: Any) -> str:
    return "..." if "<" in repr(default) else repr(default)


def _keys(table: str, section: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each key of `trtcal.toml` with what it takes and its default."""
    for item in configuration.keys(section):
        name = f"{table}{item.metadata['name'] or item.name}"
        inner = configuration.section_of(item)
        if inner is not None:
            free = "NAME." if item.name in configuration.NAMED else ""
            yield from _keys(f"{name}.{free}", inner)
        elif item.metadata["read"] is not config._suppressions:
            required = configuration.is_required(item)
            default = None if required else configuration.default_of(section, item)
            kind = configuration.takes(item.metadata["read"])
            yield name, {"type": kind, "default": default, "required": required}


def _document(schema: Schema) -> dict[str, Any]:
    """Return the version of a document, and the type of each field but what is measured."""
    version = schema.get("properties", {}).get("schema_version", {}).get("const")
    return {"schema_version": version, "fields": dict(fields_of(schema, schema))}


def fields_of(schema: Schema, whole: Schema, path: str = "", depth: int = 0) -> Iterator[Any]:
    """Yield the path and the type of every field: `rows[].name`, `ranges.*.amax`."""
    schema = resolved(schema, whole)
    for name, one in schema.get("properties", {}).items():
        inner, place = resolved(one, whole), f"{path}.{name}".lstrip(".")
        if place != "measured" and depth < 8:
            yield place, type_words(inner)
            yield from fields_of(inner, whole, place, depth + 1)
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(key), dict):
            yield from fields_of(schema[key], whole, f"{path}{mark}", depth + 1)


def resolved(schema: Schema, whole: Schema) -> Schema:
    """Return what a reference leads to, with what stands beside it."""
    if "$ref" not in schema:
        return schema
    target = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    return {**target, **{key: one for key, one in schema.items() if key != "$ref"}}


def type_words(schema: Schema) -> str:
    """Return the JSON types of a field, such as `number or null`."""
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    types = schema.get("type", [])
    words = [types] if isinstance(types, str) else list(types)
    words += [type_words(one) if "type" in one else "object" for one in options]
    return " or ".join(sorted({*words})) or ("const" if "const" in schema else "any")


def differences(before: Surface, after: Surface) -> list[Difference]:
    """Return how the stable part of two surfaces differs."""
    return list(_differences(before["stable"], after["stable"], ""))


def _differences(before: Any, after: Any, place: str) -> Iterator[Difference]:
    if isinstance(before, list) and isinstance(after, list):
        before, after = dict.fromkeys(before), dict.fromkeys(after)
    if not (isinstance(before, dict) and isinstance(after, dict)):
        if before != after:
            yield Difference(place, f"{before!r} is {after!r} now", breaks=True)
        return
    for name in before.keys() | after.keys():
        path = f"{place} > {name}".removeprefix(" > ")
        if name not in after:
            yield Difference(path, "is gone", breaks=True)
        elif name not in before:
            yield Difference(path, "is new", breaks=_is_required(after[name]))
        else:
            yield from _differences(before[name], after[name], path)
    if place.startswith("python") and place.endswith("call > parameters") and _moved(before, after):
        yield Difference(place, "are in another order", breaks=True)


def _is_required(one: Any) -> bool:
    """Whether what is new must be given: who does not know it cannot call any more."""
    return isinstance(one, dict) and bool(one.get("required"))


def _moved(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether the parameters of before that have places are not the first ones any more."""
    old, new = (
        [name for name, one in part.items() if not one["by name"]] for part in (before, after)
    )
    kept = [name for name in old if name in new]
    return new[: len(kept)] != kept


def breaks(before: Surface, after: Surface, released: str | None) -> list[Difference]:
    """Return what breaks users and is not allowed, `released` being the last released version."""
    wrong = [one for one in differences(before, after) if one.breaks]
    if released is None or is_raised(released, after["version"]):
        return []
    documents = after["stable"]["documents"]
    return [
        one for one in wrong if not _has_new_version(one, before["stable"]["documents"], documents)
    ]


def _has_new_version(one: Difference, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a document says by its `schema_version` that it differs."""
    part, _, rest = one.place.partition(" > ")
    kind = rest.partition(" > ")[0]
    if part != "documents" or kind not in before or kind not in after:
        return False
    old, new = before[kind]["schema_version"], after[kind]["schema_version"]
    return old is not None and new is not None and new > old


def is_raised(before: str, after: str) -> bool:
    """Whether a version may break users of another: another MAJOR, or before 1.0 another MINOR."""
    old, new = ([int(part) for part in one.split(".")[:2]] for one in (before, after))
    return new[0] > old[0] or (new[0] == old[0] == 0 and new[1] > old[1])


def last_release(changelog: str) -> str | None:
    """Return the newest version of a changelog whose section has a date."""
    dated = [one[1] for one in HEAD.finditer(changelog) if (one[2] or "")[:1].isdigit()]
    return next(iter(dated), None)


def main() -> int:
    """Write the record, or print what it must not hold; return the exit status."""
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    now = surface()
    if RECORD.exists():
        released = last_release((ROOT / "CHANGELOG.md").read_text())
        wrong = breaks(json.loads(RECORD.read_text()), now, released)
        if wrong:
            print(*wrong, sep="\n")
            print(
                f"surface: this breaks users of {released}: raise the version (docs/stability.md)"
            )
            return 1
    RECORD.write_text(json.dumps(now, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
