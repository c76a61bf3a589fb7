"""The fusion check on what TVM made: the same patterns as for TensorRT, and TVM's kernels as layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from trtcal.wings.forensics.tvm.kernels import CONSTANT, INPUT, Step, steps_of
from trtcal.wings.forensics.tvm.table import ALIAS, CAST

TABLE = read_toml(Path(__file__).with_name("operators.toml"))
OPERATORS = TABLE["operators"]
"""Relax's operators, as their kernels are called, by the names of ONNX, which the patterns have."""
NOTHING = (ALIAS, CAST, *TABLE["nothing"])
"""What gives its input another name, type or place."""


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
