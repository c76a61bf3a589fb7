"""The Python API, from signatures and docstrings."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any

import trtcal
from tests.docs.reference.markdown import contents, docstring, prose, table

INDEX = """\
# Python

What `import trtcal` exports. A name is imported when it is first used. `help(trtcal.calibrate)` shows
the text of these pages. An error is a
[`TrtcalError`](classes.md#trtcalerror) with a message and a hint.

```pycon
{example}
```

"""
TYPES = """\
## Types

| type | what it takes |
| --- | --- |
| `PathLike` | a `str` or a `pathlib.Path` |
| `AnyModel` | a path, an `onnx.ModelProto`, a `Model`, a `QuantizedModel` or an `Improved` |
| `Data` | a path, an array, `{input: array}`, a `Dataset`, or feeds that can be read again |
| `Variants` | models or builds, by name in a dict or in a list |
| `Reported` | a `Calibration`, `Comparison`, `ABTest`, `Build` or `Plan` |

"""
LINE = 96
HIDDEN = ("self", "cls")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of everything that `import trtcal` exports, and their list."""
    exported = {name: getattr(trtcal, name) for name in trtcal.__all__}
    functions = {name: one for name, one in exported.items() if not isinstance(one, type)}
    errors = {n: one for n, one in exported.items() if _is_error(one)}
    classes = {n: one for n, one in exported.items() if n not in functions and n not in errors}
    text = INDEX.format(example=_example(trtcal.__doc__ or ""))
    for head, page, group in (
        ("Functions", "functions", functions),
        ("Classes", "classes", classes),
        ("Errors", "classes", errors),
    ):
        rows = [
            (f"[`{name}`]({page}.md#{name.lower()})", _first(one)) for name, one in group.items()
        ]
        text += f"## {head}\n\n{table(['name', 'what it is'], rows)}\n"
    yield "python/index.md", text + TYPES + contents(["functions", "classes"])
    entries = "".join(_entry(name, one) for name, one in functions.items())
    yield "python/functions.md", f"# Functions\n\n{entries}"
    entries = "".join(_entry(name, one) for name, one in (classes | errors).items())
    yield "python/classes.md", f"# Classes and errors\n\n{entries}"


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Exception)


def _example(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip().startswith(">>>"))


def _first(one: object) -> str:
    """Return the first sentence of a docstring."""
    return prose(inspect.cleandoc(one.__doc__ or "").split("\n\n")[0])


def _entry(name: str, one: Any) -> str:
    text = f"## `{name}`\n\n```python\n{signature(f'trtcal.{name}', one)}\n```\n\n"
    text += docstring(one.__doc__) + "\n"
    if isinstance(one, type) and not _is_error(one):
        text += "".join(_member(member, about) for member, about in members(one))
    return text


def signature(name: str, one: Any) -> str:
    """Return how a function or class is called, a line for each parameter where one is too long."""
    try:
        found = inspect.signature(one)
    except ValueError:
        return name
    parameters = [_parameter(each) for each in found.parameters.values() if each.name not in HIDDEN]
    if any(each.kind is each.KEYWORD_ONLY for each in found.parameters.values()):
        kinds = [each.kind for each in found.parameters.values() if each.name not in HIDDEN]
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = "" if found.return_annotation in (found.empty, None, "None") else _result(found)
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= LINE:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){result}"


def _result(found: inspect.Signature) -> str:
    return f" -> {type_of(found.return_annotation)}"


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = "" if one.annotation is one.empty else f": {type_of(one.annotation)}"
    if one.default is one.empty:
        return f"{stars}{one.name}{kind}"
    default = repr(one.default)
    return f"{one.name}{kind} = {'...' if '<' in default else default}"


def type_of(annotation: Any) -> str:
    """Return an annotation without the modules that its names come from."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:trtcal|typing|pathlib|collections|stages)\.(?:\w+\.)*", "", text)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class that have a docstring: properties, then methods."""
    found = {
        name: one
        for base in reversed(kind.__mro__)
        if base.__module__.startswith(("trtcal", "calibrators"))
        for name, one in vars(base).items()
        if not name.startswith("_")
    }
    hidden = {one.name for one in fields(kind)} if is_dataclass(kind) else set()
    shown = {name: one for name, one in found.items() if name not in hidden and _documented(one)}
    order = sorted(shown.items(), key=lambda pair: not is_property(pair[1]))
    yield from order


def _documented(one: object) -> bool:
    is_member = is_property(one) or callable(one) or isinstance(one, (classmethod, staticmethod))
    return is_member and bool(getattr(one, "__doc__", None)) and not isinstance(one, type)


def is_property(one: object) -> bool:
    """Whether a member of a class is read without a call."""
    return isinstance(one, (property, cached_property))


def _member(name: str, one: Any) -> str:
    """Return a property or method as an entry of a list."""
    if is_property(one):
        head = name
    else:
        function = one.__func__ if isinstance(one, (classmethod, staticmethod)) else one
        head = (
            signature(name, function)
            .replace("(\n    ", "(")
            .replace("\n    ", " ")
            .replace(",\n)", ")")
        )
    text = textwrap.indent(docstring(one.__doc__).strip(), "  ")
    return f"`{head}`\n: {text.lstrip()}\n\n"
