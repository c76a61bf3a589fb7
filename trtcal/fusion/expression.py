"""The small language in which patterns are written: operators around what they read.

    activation(BatchNormalization(conv))     an operator, or a named set of them, and its inputs
    Mul(x, Sigmoid(x))                       one letter: any value, the same one each time
    Add(MatMul, const)   Add(value, value)   `const` is any constant, `value` anything computed
    Pow(x, 2)   MatMul(Softmax, _)           a number is a constant of that value, `_` anything

Inputs that are not written may be anything. Of Add and Mul the two operands may stand in either order.
It is read with Python's own parser and never run.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx

from trtcal.errors import InputError

LONGEST = 1000  # characters
MOST_OPERATORS = 40


@dataclass(frozen=True)
class Anything:
    """Any value; one that must be computed, or must be constant, if that is said."""

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
        raise InputError(f"the expression {text!r} cannot be read: {reason}", HINT) from error
    if not isinstance(term, Operator):
        raise InputError(f"the expression {text!r} names no operator", HINT)
    operators = list(operators_in(term))
    if len(operators) > MOST_OPERATORS:
        raise InputError(f"the expression {text!r} has {len(operators)} operators", HINT)
    for one in operators:
        check_operator(one.name, known)
    return term


HINT = "write it like activation(BatchNormalization(conv))"


def _term(tree: ast.expr) -> Term:
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        number = _term(tree.operand)
        if isinstance(number, Number):
            return Number(-number.value)
    if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
        return Number(float(tree.value))  # type: ignore[arg-type]  # it is one of the two
    if isinstance(tree, ast.Name):
        return _named(tree.id)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
        head = _named(tree.func.id)
        if isinstance(head, Operator):
            return Operator(head.name, tuple(map(_term, tree.args)))
    raise ValueError(f"{ast.unparse(tree)!r} is no operator, letter or number")


def _named(word: str) -> Term:
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
