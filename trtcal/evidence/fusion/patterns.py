"""Patterns as data: which operators a person expects in one kernel, read from TOML."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from pathlib import Path

import onnx

from trtcal.config import (
    Kind,
    WrongKeyError,
    as_list,
    by_name,
    explaining,
    key,
    naming,
    read_section,
    read_sections,
    read_toml,
)
from trtcal.errors import InputError

LONGEST, MOST_OPERATORS = 1000, 40  # characters of an expression, and operators in one


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


def parse_expression(text: str) -> Operator:
    """Read an expression; `InputError` if it is not in the language."""
    if len(text) > LONGEST:
        raise InputError(f"an expression has {len(text)} characters", f"at most {LONGEST} are read")
    try:
        term = _term(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        what = f"the expression {text!r} cannot be read: {reason}"
        raise InputError(what, SYNTAX_HINT) from error
    if not isinstance(term, Operator):
        raise InputError(f"the expression {text!r} names no operator", SYNTAX_HINT)
    count = len(list(operators_in(term)))
    if count > MOST_OPERATORS:
        raise InputError(f"the expression {text!r} has {count} operators", SYNTAX_HINT)
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
    raise ValueError(f"{ast.unparse(tree)!r} is not an operator, a letter or a number")


def _named_item(word: str) -> Term:
    if word in WORDS:
        return WORDS[word]
    return Variable(word) if len(word) == 1 and word.islower() else Operator(word)


def operators_in(term: Term) -> Iterator[Operator]:
    """Yield the operators of an expression, from the outermost inwards."""
    if isinstance(term, Operator):
        yield term
        for operand in term.inputs:
            yield from operators_in(operand)


def operands_in(term: Term) -> Iterator[Term]:
    """Yield what stands for values in an expression: letters, words and numbers."""
    if not isinstance(term, Operator):
        yield term
        return
    for operand in term.inputs:
        yield from operands_in(operand)


def check_operator(name: str, known: Collection[str]) -> None:
    """`InputError` unless a name is known or an operator of ONNX, or of a `domain::` of its own."""
    if name in known or "::" in name or onnx.defs.has(name):
        return
    names = [*known, *(schema.name for schema in onnx.defs.get_all_schemas())]
    close = difflib.get_close_matches(name, names, n=1)
    hint = "give an ONNX operator, or define a set with this name"
    hint = f"did you mean {close[0]!r}?" if close else hint
    raise InputError(f"{name!r} is neither an operator nor a set", hint)


OWN = Path(__file__).with_name("patterns.toml")
BETWEEN = ("Identity", "Dropout", "Cast", "Transpose", "QDQ")
"""What may stand between two parts of a pattern and be seen through: it then breaks the pattern.

`Cast` are any Casts, `Transpose` only those that undo each other, `QDQ` a QuantizeLinear and the
DequantizeLinear after it.
"""
VARIABLE = Variable("x")
FORM_EXAMPLE = 'operator = "Swish", is = "Mul(x, Sigmoid(x))"'
PATTERN_EXAMPLE = 'name = "conv+activation", is = "activation(conv)"'
FILE_HINT = "give a TOML file with [operators], [[form]] and [[pattern]]"

NAME = Kind("a name", lambda value: isinstance(value, str) and value != "")
TEXTS = Kind(
    "a string or a list of one or more strings",
    lambda value: value != [] and all(isinstance(text, str) for text in as_list(value)),
    as_list,
)
STEPS = Kind(
    f"a list of {', '.join(BETWEEN)}",
    lambda value: all(text in BETWEEN for text in as_list(value)),
    lambda value: frozenset(as_list(value)),
)


def _expressions(value: object) -> tuple[Operator, ...]:
    with explaining():
        return tuple(map(parse_expression, TEXTS(value)))


@dataclass(frozen=True)
class Form:
    """An operator spelled out in others, of which `x` is what it reads, in one or several ways."""

    operator: str = key(NAME)
    expressions: tuple[Operator, ...] = key(_expressions, name="is")

    def __post_init__(self) -> None:
        for expression in self.expressions:
            if VARIABLE not in operands_in(expression) or expression.name == self.operator:
                hint = "write `x` for it, as in Mul(x, Sigmoid(x))"
                raise WrongKeyError("{} has no input", "is", hint)


@dataclass(frozen=True)
class Pattern:
    """Operators that are expected in one kernel, in one or several arrangements.

    Of what is seen `between` its parts, that in `allows` does not break it.
    """

    name: str = key(NAME)
    expressions: tuple[Operator, ...] = key(_expressions, name="is")
    between: frozenset[str] = key(STEPS, frozenset(BETWEEN))
    allows: frozenset[str] = key(STEPS, frozenset())


def _sets(value: object) -> dict[str, frozenset[str]]:
    sets = {name: frozenset(texts) for name, texts in by_name(TEXTS, value).items()}
    for name in sets:
        if not (name.isidentifier() and name.islower() and len(name) > 1):
            hint = "use a name such as my_conv"
            raise WrongKeyError("{} is not a valid name of a set", name, hint)
    return sets


@dataclass(frozen=True)
class Patterns:
    """All patterns, with the sets of operators and the spelled-out forms that they are made of."""

    operators: Mapping[str, frozenset[str]] = key(_sets, dict)
    forms: tuple[Form, ...] = key(partial(read_sections, Form, FORM_EXAMPLE), (), name="form")
    patterns: tuple[Pattern, ...] = key(
        partial(read_sections, Pattern, PATTERN_EXAMPLE), (), name="pattern"
    )

    def __post_init__(self) -> None:
        names = [[f.operator for f in self.forms], [p.name for p in self.patterns]]
        for word, listed in zip(("form", "pattern"), names, strict=True):
            for name in listed:
                if listed.count(name) > 1:
                    raise WrongKeyError(f"{{}} has {name!r} twice", word, "name each")

    def alternatives(self, name: str) -> frozenset[str]:
        """Return the operators that a name in an expression stands for."""
        return self.operators.get(name) or frozenset((name,))

    def replaced_by(self, other: Patterns) -> Patterns:
        """Return these patterns and others, which take the place of those of the same name."""
        forms = {form.operator: form for form in (*self.forms, *other.forms)}
        patterns = {pattern.name: pattern for pattern in (*self.patterns, *other.patterns)}
        operators = {**self.operators, **other.operators}
        return Patterns(operators, tuple(forms.values()), tuple(patterns.values()))

    def check(self, every: Patterns) -> None:
        """`InputError` if an operator is named that ONNX does not have, and none of all patterns."""
        forms = {form.operator for form in every.forms}
        for name, operators in self.operators.items():
            with naming(f"set {name!r}"):
                for operator in operators:
                    check_operator(operator, forms)
        spelled = [(form.operator, form.expressions) for form in self.forms]
        expected = [(pattern.name, pattern.expressions) for pattern in self.patterns]
        for name, expressions in (*spelled, *expected):
            with naming(repr(name)):
                for term in chain.from_iterable(map(operators_in, expressions)):
                    check_operator(term.name, {*every.operators, *forms})


def read_patterns(files: Iterable[Path] = ()) -> Patterns:
    """Read trtcal's own patterns and those of TOML files; `InputError` with the file and the entry."""
    read: dict[Path, Patterns] = {}
    for path in (OWN, *files):
        table = read_toml(path, FILE_HINT)
        with naming(path):
            read[path] = read_section(Patterns, table)
    every = reduce(Patterns.replaced_by, read.values())
    for path, patterns in read.items():
        with naming(path):
            patterns.check(every)
    return every
