"""A Relax module as the table that graphs have (`merkle.py`): a row for each binding and kernel.

TVM's own text of a module says nothing of the values of constants. So a binding's fingerprint covers
the operator, its attributes and what its arguments are computed from, with the SHA-256 of constants;
names have no part in it. `delta.py` then names the change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trtcal.wings.forensics.merkle import INSIDE, GraphTable, Prints, Rows, hash_of, same

FLOAT = re.compile(r"(?<![\w.])\d+\.\d+(?:[eE][+-]?\d+)?")
NAME = re.compile(r"(?<![\w.\"])[A-Za-z_]\w*(?![\w(\"]|\.)")
ALIAS, CAST = "identity", "match_cast"
"""What stands for a binding that only gives a value another name, and for one that checks its type."""


def _joined(head: Sequence[str], own: Sequence[str], inner: Iterable[Prints]) -> Prints:
    """Return the prints of an operator: `own` are its attributes, which its structure leaves out."""
    parts = list(inner)
    heads = Prints(hash_of(*head), *[hash_of(*head, *own)] * 2)
    return Prints(*(hash_of(head, *(each[n] for each in parts)) for n, head in enumerate(heads)))


def table_of(mod: Any) -> GraphTable:
    """Return the table of a Relax IRModule; its functions in the order of their names."""
    return _Writer(mod).table()


class _Writer:
    """Goes through a module once: Relax functions by their bindings, kernels by their text."""

    def __init__(self, mod: Any) -> None:
        self.functions = {
            variable.name_hint: function for variable, function in mod.functions_items()
        }
        self.rows, self.bodies = Rows(), dict[str, Prints]()
        self.signature = list[str]()

    def table(self) -> GraphTable:
        for name in sorted(self.functions):
            self._function(name)
        return self.rows.table(sorted(self.signature))

    def _function(self, name: str) -> Prints:
        """Return the prints of a function, whose rows are added once, before those of who calls it."""
        if name not in self.bodies:
            self.bodies[name] = same("function that calls itself")
            function = self.functions.get(name)
            kind = type(function).__name__
            if kind == "PrimFunc":
                self.bodies[name] = self._kernel(name, function)
            elif kind == "Function":
                self.bodies[name] = self._relax(name, function)
            else:
                self.bodies[name] = same("extern", name)
        return self.bodies[name]

    def _kernel(self, name: str, function: Any) -> Prints:
        """Add the row of a PrimFunc: names are numbered as they come, floats are its constants."""
        script = str(function.script())
        numbers: dict[str, str] = {}
        text = NAME.sub(lambda match: numbers.setdefault(match[0], f"v{len(numbers)}"), script)
        structure = hash_of("PrimFunc", FLOAT.sub("#", text))
        prints = Prints(structure, structure, hash_of("PrimFunc", text))
        nothing = hash_of("")
        labels = hash_of(name, script)
        self.rows.add(name, "PrimFunc", prints, uses=nothing, types=nothing, labels=labels)
        return prints

    def _relax(self, name: str, function: Any) -> Prints:
        scope = {
            parameter: same("input", str(place)) for place, parameter in enumerate(function.params)
        }
        inputs = ", ".join(f"{parameter.name}: {parameter.ty}" for parameter in function.params)
        attributes = sorted(f"{key}={value}" for key, value in dict(function.attrs or {}).items())
        if attributes and "Primitive=True" not in attributes:  # else its caller says what it is
            self.signature.append(f"function {name}({inputs}) with {', '.join(attributes)}")
        return self._body(function.body, scope, name)

    def _body(self, body: Any, scope: dict[Any, Prints], inside: str) -> Prints:
        """Add a row for each binding; return the prints of the result and of all bindings."""
        rows = []
        uses = _uses(body)
        for binding in (binding for block in body.blocks for binding in block.bindings):
            prints = self._binding(binding, scope, inside)
            scope[binding.var] = prints
            rows.append(prints)
            self.rows.add(
                f"{inside}{INSIDE}{binding.var.name}",
                operator_of(binding),
                prints,
                uses=hash_of(*sorted(uses.get(binding.var, ()))),
                types=hash_of(str(binding.var.ty)),
                labels=hash_of(
                    binding.var.name, *(variable.name for variable in variables_in(binding.value))
                ),
            )
        result = self._expression(body.body, scope, inside)
        ordered = (sorted(column) for column in zip(*rows, strict=True))
        others = [Prints(*row) for row in zip(*ordered, strict=True)]
        return _joined(["body"], [], [result, *others])

    def _binding(self, binding: Any, scope: dict[Any, Prints], inside: str) -> Prints:
        value = self._expression(binding.value, scope, f"{inside}{INSIDE}{binding.var.name}")
        kind = operator_of(binding)
        return _joined([kind], [str(binding.var.ty)], [value]) if kind in (ALIAS, CAST) else value

    def _expression(self, value: Any, scope: dict[Any, Prints], inside: str) -> Prints:
        """Return the prints of an expression: of variables, of constants, or of what it is made of."""
        kind = type(value).__name__
        if value in scope:
            return scope[value]
        if kind == "GlobalVar":
            return self._function(value.name_hint)
        if kind == "GenericConst" and hasattr(value.value, "numpy"):
            return _constant(value.value.numpy())
        if kind in ("SeqExpr", "Function"):
            inner = dict(scope)
            inner.update(
                (parameter, same("inner", str(n)))
                for n, parameter in enumerate(getattr(value, "params", ()))
            )
            return self._body(value if kind == "SeqExpr" else value.body, inner, inside)
        parts = list(parts_of(value))
        if not parts:
            return _joined([kind], [str(value)], [])
        head, own = _head(value)
        return _joined(head, own, [self._expression(part, scope, inside) for part in parts])


def _constant(array: Any) -> Prints:
    known = hash_of("constant", str(array.dtype), str(array.shape))
    return Prints(known, known, hash_of(known, hashlib.sha256(array.tobytes()).digest()))


def _head(value: Any) -> tuple[list[str], list[str]]:
    """Return what an expression is, and its attributes as text."""
    kind = type(value).__name__
    if kind == "TupleGetItem":
        return [kind, str(value.index)], []
    if kind != "Call":
        return [kind], []
    own = [str(value.attrs or ""), *map(str, value.ty_args or ())]
    return [kind, getattr(value.op, "name", "")], own


def parts_of(value: Any) -> Iterator[Any]:
    """Yield the expressions that an expression is made of; those of its body are not."""
    kind = type(value).__name__
    if kind == "Call":
        if type(value.op).__name__ != "Op":
            yield value.op
        yield from value.args
    elif kind == "Tuple":
        yield from value.fields
    elif kind == "TupleGetItem":
        yield value.tuple_value
    elif kind == "If":
        yield from (value.cond, value.true_branch, value.false_branch)


def variables_in(value: Any) -> Iterator[Any]:
    """Yield the variables that an expression reads, as often as it does."""
    if type(value).__name__ in ("Var", "DataflowVar"):
        yield value
    for part in parts_of(value):
        yield from variables_in(part)


def operator_of(binding: Any) -> str:
    """Return what a binding computes: its operator, `identity`, `match_cast`, or what it is."""
    kind = type(binding.value).__name__
    if type(binding).__name__ == "MatchCast":
        return CAST
    if kind in ("Var", "DataflowVar"):
        return ALIAS
    if kind != "Call":
        return kind
    name = getattr(binding.value.op, "name", None) or getattr(binding.value.op, "name_hint", "call")
    return str(name).removeprefix("relax.")


def _uses(body: Any) -> dict[Any, list[str]]:
    """Return the readers of each variable: operators and places, and the function's result."""
    uses: dict[Any, list[str]] = {}
    for binding in (binding for block in body.blocks for binding in block.bindings):
        for place, variable in enumerate(variables_in(binding.value)):
            uses.setdefault(variable, []).append(f"{operator_of(binding)} {place}")
    for place, variable in enumerate(variables_in(body.body)):
        uses.setdefault(variable, []).append(f"result {place}")
    return uses
