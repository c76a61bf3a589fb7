"""Patterns as data: which operators a person expects in one kernel, read from TOML."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from trtcal.errors import InputError

LONGEST = 1000  # characters
MOST_OPERATORS = 40


@dataclass(frozen=True)
class Anything:
    """Any value; one that must be computed, or must be constant, if required."""

    computed: bool = False
    constant: bool = False


@dataclass(frozen=True)
class Number:
    """A constant of one value."""

    value: float


@dataclass(frozen=True)
class Variable:
    """Any value, the same one wherever the letter stands."""

    letter: str


@dataclass(frozen=True)
class Operator:
    """A node by the name of its operator, or of a set of operators, and what its inputs are."""

    name: str
    inputs: tuple[Term, ...] = ()


Term = Anything | Number | Variable | Operator
WORDS = {"_": Anything(), "const": Anything(constant=True), "value": Anything(computed=True)}


def parse_expression(text: str, known: Collection[str]) -> Operator:
    """Read an expression; `known` are the named sets and the operators that forms spell out.

    `InputError` if it is not in the language or names an operator that ONNX does not have.
    """
    if len(text) > LONGEST:
        raise InputError(f"an expression of {len(text)} characters", f"at most {LONGEST} are read")
    try:
        term = _term(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(
            f"the expression {text!r} cannot be read: {reason}", SYNTAX_HINT
        ) from error
    if not isinstance(term, Operator):
        raise InputError(f"the expression {text!r} names no operator", SYNTAX_HINT)
    operators = list(operators_in(term))
    if len(operators) > MOST_OPERATORS:
        raise InputError(f"the expression {text!r} has {len(operators)} operators", SYNTAX_HINT)
    for one in operators:
        check_operator(one.name, known)
    return term


SYNTAX_HINT = "write it like activation(BatchNormalization(conv))"


def _term(tree: ast.expr) -> Term:
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        number = _term(tree.operand)
        if isinstance(number, Number):
            return Number(-number.value)
    if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
        return Number(float(tree.value))  # type: ignore[arg-type]  # it is one of the two
    if isinstance(tree, ast.Name):
        return _named_item(tree.id)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
        head = _named_item(tree.func.id)
        if isinstance(head, Operator):
            return Operator(head.name, tuple(map(_term, tree.args)))
    raise ValueError(f"{ast.unparse(tree)!r} is no operator, letter or number")


def _named_item(word: str) -> Term:
    if word in WORDS:
        return WORDS[word]
    return Variable(word) if len(word) == 1 and word.islower() else Operator(word)


def operators_in(term: Term) -> Iterator[Operator]:
    """Yield the operators of an expression, from the outermost inwards."""
    if isinstance(term, Operator):
        yield term
        for one in term.inputs:
            yield from operators_in(one)


def operands_in(term: Term) -> Iterator[Term]:
    """Yield what stands for values in an expression: letters, words and numbers."""
    if not isinstance(term, Operator):
        yield term
        return
    for one in term.inputs:
        yield from operands_in(one)


def check_operator(name: str, known: Collection[str]) -> None:
    """`InputError` unless a name is known or an operator of ONNX, or of a `domain::` of its own."""
    if name in known or "::" in name or onnx.defs.has(name):
        return
    names = [*known, *(schema.name for schema in onnx.defs.get_all_schemas())]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "name an operator of ONNX, or define a set"
    raise InputError(f"there is no operator or set {name!r}", hint)


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN = Path(__file__).with_name("patterns.toml")
BETWEEN = ("Identity", "Dropout", "Cast", "Transpose", "QDQ")
"""What may stand between two parts of a pattern and be seen through: it then breaks the pattern.

`Cast` are any Casts, `Transpose` only those that undo each other, `QDQ` a QuantizeLinear and the
DequantizeLinear after it.
"""
NONE = frozenset[str]()
VARIABLE = Variable("x")
LARGEST = 1 << 20  # bytes of a file of patterns
KEYS = {
    "operators": (),
    "form": ("operator", "is"),
    "pattern": ("name", "is", "between", "allows"),
}


@dataclass(frozen=True)
class Form:
    """An operator spelled out in others, of which `x` is what it reads."""

    operator: str
    expression: Operator


@dataclass(frozen=True)
class Pattern:
    """Operators that are expected in one kernel, in one or several arrangements.

    Of what is seen `between` its parts, that in `allows` does not break it.
    """

    name: str
    expressions: tuple[Operator, ...]
    between: frozenset[str] = frozenset(BETWEEN)
    allows: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Patterns:
    """All patterns, with the sets of operators and the spelled-out forms that they are made of."""

    operators: Mapping[str, frozenset[str]]
    forms: tuple[Form, ...]
    patterns: tuple[Pattern, ...]

    def alternatives(self, name: str) -> frozenset[str]:
        """Return the operators that a name in an expression stands for."""
        return self.operators.get(name) or frozenset((name,))


def read_patterns(files: Iterable[Path] = ()) -> Patterns:
    """Read trtcal's own patterns and those of TOML files; `InputError` with the file and the entry."""
    sets: dict[str, Any] = {}
    forms: dict[str, Any] = {}
    patterns: dict[str, Any] = {}
    for path in (OWN, *files):
        document = _read(path)
        sets |= _table(document, path)
        forms |= _named(document, "form", "operator", path)
        patterns |= _named(document, "pattern", "name", path)
    known = {*sets, *forms}
    for (name, operators), path in sets.values():
        for operator in operators:
            with _within(path, f"set {name!r}"):
                check_operator(operator, set(forms))
    return Patterns(
        {name: frozenset(operators) for (name, operators), _ in sets.values()},
        tuple(form for entry, path in forms.values() for form in _forms(entry, known, path)),
        tuple(_pattern(entry, known, path) for entry, path in patterns.values()),
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"patterns {path} are larger than {LARGEST} bytes", "give less")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"patterns {path} cannot be read: {error.strerror}", HINT) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"patterns {path} are not TOML: {error}", HINT) from error
    _check_keys(document, KEYS, f"patterns {path}")
    return document


HINT = "give a TOML file with [operators], [[form]] and [[pattern]]"


def _check_keys(entry: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in entry:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}", f"known: {', '.join(known)}")


def _table(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    table = document.get("operators", {})
    if not isinstance(table, dict):
        raise InputError(f"patterns {path}: 'operators' is no table", HINT)
    for name in table:
        if not (name.isidentifier() and name.islower() and len(name) > 1):
            raise InputError(f"patterns {path}: the set {name!r}", "name it like my_conv")
    return {name: ((name, _texts(table, name, path)), path) for name in table}


def _named(document: Mapping[str, Any], kind: str, key: str, path: Path) -> dict[str, Any]:
    entries = document.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise InputError(f"patterns {path}: {kind!r} is no list of tables", f"write [[{kind}]]")
    found: dict[str, Any] = {}
    for entry in entries:
        name = entry.get(key)
        if not isinstance(name, str) or not name or name in found:
            fault = f"{name!r} twice" if name in found else "none"
            raise InputError(f"patterns {path}: a [[{kind}]] has as {key!r} {fault}", "name each")
        _check_keys(entry, KEYS[kind], f"patterns {path}: {kind} {name!r}")
        found[name] = entry, path
    return found


def _forms(entry: Mapping[str, Any], known: set[str], path: Path) -> list[Form]:
    name = entry["operator"]
    found = [Form(name, one) for one in _expressions(entry, known, path, f"form {name!r}")]
    for form in found:
        if VARIABLE not in operands_in(form.expression) or form.expression.name == name:
            raise InputError(
                f"patterns {path}: form {name!r} does not say what it reads",
                "write `x` for it, as in Mul(x, Sigmoid(x))",
            )
    return found


def _pattern(entry: Mapping[str, Any], known: set[str], path: Path) -> Pattern:
    where = f"pattern {entry['name']!r}"
    expressions = _expressions(entry, known, path, where)
    between = _kinds(entry, "between", path, where, frozenset(BETWEEN))
    return Pattern(entry["name"], expressions, between, _kinds(entry, "allows", path, where))


def _expressions(
    entry: Mapping[str, Any], known: set[str], path: Path, where: str
) -> tuple[Operator, ...]:
    texts = _texts(entry, "is", path, where)
    with _within(path, where):
        return tuple(parse_expression(text, known) for text in texts)


def _kinds(
    entry: Mapping[str, Any], key: str, path: Path, where: str, default: frozenset[str] = NONE
) -> frozenset[str]:
    found = frozenset(_texts(entry, key, path, where)) if key in entry else default
    if found - set(BETWEEN):
        wrong = ", ".join(sorted(found - set(BETWEEN)))
        raise InputError(
            f"patterns {path}: {where}: {key!r} has {wrong}", f"known: {', '.join(BETWEEN)}"
        )
    return found


def _texts(entry: Mapping[str, Any], key: str, path: Path, where: str = "") -> tuple[str, ...]:
    """Return a text or a list of texts."""
    value = entry.get(key)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        place = f"{where}: {key!r}" if where else repr(key)
        raise InputError(f"patterns {path}: {place} is no text and no list of texts", HINT)
    if not texts and key not in ("between", "allows"):
        raise InputError(f"patterns {path}: {where or repr(key)} is empty", HINT)
    return tuple(texts)


@contextmanager
def _within(path: Path, where: str) -> Iterator[None]:
    """Name the file and the entry in the errors of the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"patterns {path}: {where}: {error.message}", error.hint) from None
