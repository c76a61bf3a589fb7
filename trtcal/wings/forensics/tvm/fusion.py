"""The fusion check on what TVM made: the same patterns as for TensorRT, and TVM's kernels as layers.

Which operators of a Relax module share a kernel is known once FuseOps has grouped them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx import NodeProto, TensorProto, helper

from trtcal.config import read_toml
from trtcal.documents import canonical_json, digest_bytes, to_fields
from trtcal.evidence.fusion.fusions import Fusions, check_fusions
from trtcal.evidence.fusion.patterns import Patterns
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.reading import Engine
from trtcal.model import Model
from trtcal.wings.forensics.tvm.table import ALIAS, CAST, operator_of

TABLE = read_toml(Path(__file__).with_name("operators.toml"))
OPERATORS = TABLE["operators"]
"""Relax's operators, as their kernels are called, by the names of ONNX, which the patterns have."""
NOTHING = (ALIAS, CAST, *TABLE["nothing"])
"""What gives its input another name, type or place."""
NUMBER = re.compile(r"\d+$")
CALLS = ("relax.call_tir", "relax.call_tir_inplace")
CONSTANT, INPUT = -1, -2
RESULT = "result"
"""The last step: it reads what the function returns."""


@dataclass(frozen=True)
class Step:
    """One operator: its name in TVM, the kernel that it is in (None: it is none), and what it reads.

    `inputs` are the numbers of steps, -1 for a constant and -2 for an input of the function.
    """

    name: str
    operator: str
    kernel: str | None
    inputs: tuple[int, ...] = ()


def steps_of(mod: Any) -> tuple[Step, ...]:
    """Return the operators of `main` after FuseOps, those of its kernels in their places."""
    functions = {variable.name_hint: value for variable, value in mod.functions_items()}
    reader = _Reader(functions)
    main = functions["main"]
    scope = dict.fromkeys(main.params, INPUT)
    reader.read(main.body, scope, None)
    results = tuple(reader.place(statement, scope) for statement in _flat([main.body.body]))
    return (*reader.steps, Step(RESULT, RESULT, None, results))


@dataclass
class _Reader:
    functions: dict[str, Any]
    steps: list[Step] = field(default_factory=list)
    kernels: int = 0

    def read(self, body: Any, scope: dict[Any, int], kernel: str | None) -> int:
        """Add the steps of a body; return the number of the one that makes its result."""
        for binding in (binding for block in body.blocks for binding in block.bindings):
            scope[binding.var] = self._binding(binding, scope, kernel)
        return self.place(body.body, scope)

    def _binding(self, binding: Any, scope: dict[Any, int], kernel: str | None) -> int:
        value, kind = binding.value, operator_of(binding)
        if kind in (ALIAS, CAST):
            return self._add(binding, kind, None, [self.place(value, scope)])
        if kind != type(value).__name__ and hasattr(value, "args"):
            return self._call(binding, scope, kernel)
        return self.place(value, scope)

    def _call(self, binding: Any, scope: dict[Any, int], kernel: str | None) -> int:
        value = binding.value
        name = getattr(value.op, "name_hint", None)
        inputs = [self.place(argument, scope) for argument in _flat(value.args)]
        callee: Any = self.functions.get(str(name))
        if type(callee).__name__ == "Function":
            inner = self._kernel(str(name)) if "Primitive" in dict(callee.attrs or {}) else None
            return self.read(callee.body, dict(zip(callee.params, inputs, strict=True)), inner)
        if getattr(value.op, "name", "") in CALLS:
            operator = str(value.args[0].name_hint)
            return self._add(
                binding, NUMBER.sub("", operator), kernel or self._kernel(operator), inputs
            )
        return self._add(binding, operator_of(binding), None, inputs)

    def _kernel(self, name: str) -> str:
        """Return a name for one launch of a kernel, which may be launched again."""
        self.kernels += 1
        return f"{name} #{self.kernels}"

    def _add(self, binding: Any, operator: str, kernel: str | None, inputs: list[int]) -> int:
        number = len(self.steps)
        self.steps.append(Step(f"{binding.var.name} #{number}", operator, kernel, tuple(inputs)))
        return number

    def place(self, value: Any, scope: dict[Any, int]) -> int:
        kind = type(value).__name__
        if kind == "TupleGetItem":
            return self.place(value.tuple_value, scope)
        if kind == "Tuple":
            return next((self.place(field, scope) for field in value.fields), CONSTANT)
        return scope.get(value, CONSTANT)


def _flat(values: Any) -> Iterator[Any]:
    """Yield arguments, those of a tuple one by one; functions are none."""
    for value in values:
        if type(value).__name__ == "Tuple":
            yield from _flat(value.fields)
        elif type(value).__name__ != "GlobalVar":
            yield value


def tvm_fusions(mod: Any, name: str = "module", patterns: Patterns | None = None) -> Fusions:
    """Check which patterns of a Relax module become one kernel, after `relax.transform.FuseOps`.

    The operators of the module give the prediction, the kernels into which TVM grouped them the
    evidence. `InputError` if the module has no function `main`.

    >>> found = tvm_fusions(module)  # doctest: +SKIP
    >>> [match.state for match in found.matches]  # doctest: +SKIP
    ['broken']
    """
    return fusions_of(steps_of(mod), name, patterns)


def fusions_of(steps: Sequence[Step], name: str, patterns: Patterns | None = None) -> Fusions:
    """Check the operators of a module, as `steps_of` gives them."""
    model = _model(steps, name)
    return check_fusions(
        model, patterns, Engine(name, tuple(_layers(steps)), model=model.fingerprint)
    )


def _layers(steps: Iterable[Step]) -> Iterable[Layer]:
    kernels: dict[str, list[str]] = {}
    for step in steps:
        if step.kernel is not None:
            kernels.setdefault(step.kernel, []).append(step.name)
    return (Layer(name, "kernel", nodes=tuple(nodes)) for name, nodes in kernels.items())


def _model(steps: Sequence[Step], name: str) -> Model:
    """Return the graph of the operators, under ONNX's names: it is matched, never run."""
    nodes = list[NodeProto]()
    for number, step in enumerate(steps):
        operator = "Identity" if step.operator in NOTHING else OPERATORS.get(step.operator)
        read = [_tensor(tensor, number, place) for place, tensor in enumerate(step.inputs)]
        nodes.append(
            helper.make_node(
                operator or step.operator,
                read,
                [_tensor(number, number, 0)],
                step.name,
                domain="" if operator else "tvm",
            )
        )
    constants = [name for node in nodes for name in node.input if name.startswith("constant ")]
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [1], [0.0]) for name in constants]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        for name in ("input", _tensor(len(steps) - 1, 0, 0))
    )
    graph = helper.make_graph(nodes, name, inputs, outputs, weights)
    fingerprint = digest_bytes(canonical_json([to_fields(step) for step in steps]))
    return Model(Path(f"{name}.onnx"), helper.make_model(graph), fingerprint)


def _tensor(source: int, reader: int, place: int) -> str:
    if source == INPUT:
        return "input"
    return f"constant {reader} {place}" if source == CONSTANT else f"value {source}"
