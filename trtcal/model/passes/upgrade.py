"""Newer operators, and the types and shapes of tensors: what the onnx package does for us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import onnx
import onnx.version_converter
import onnx_graphsurgeon as gs
from onnx.shape_inference import infer_shapes

from trtcal.errors import InputError
from trtcal.model.checking import first_line
from trtcal.model.files import opset_of
from trtcal.model.graph import FP16_OPSET, MIN_OPSET, export_model, parts_of, restored, small_export
from trtcal.model.model import Model, checked, name_nodes
from trtcal.model.passes.base import Condition, NotApplicable, Pass
from trtcal.model.passes.constants import CONSTANTS
from trtcal.model.passes.reading import drop_other_types, read_graph


def upgrade_opset(proto: onnx.ModelProto, opset: int = MIN_OPSET) -> onnx.ModelProto:
    """Convert the model to `opset` if it is older; `InputError` if an operator has no successor."""
    if opset_of(proto) >= opset:
        return proto
    said = f"the model's opset {opset_of(proto)} cannot be raised to {opset}"
    hint = f"export the model with opset {opset} or later"
    if proto.functions:
        raise InputError(f"{said}: its functions would be lost", "do not skip the pass 'functions'")
    try:
        return onnx.version_converter.convert_version(proto, opset)
    except Exception as error:  # the converter raises bare RuntimeError, and worse
        raise InputError(f"{said}: {first_line(error)}", hint) from error


def changed(graph: gs.Graph, change: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    """Put what `change` makes of a graph's stand-in in the graph's place, if that is another one."""
    small, weights = small_export(graph)
    proto = change(small)
    if proto == small:
        return
    drop_other_types(proto)
    name_nodes(proto)
    new = restored(proto, weights)
    graph.nodes, graph.inputs, graph.outputs = new.nodes, new.inputs, new.outputs
    graph.opset, graph.import_domains = new.opset, new.import_domains
    graph.functions = new.functions


def _raise(graph: gs.Graph) -> int:
    before = graph.opset
    changed(graph, upgrade_opset)
    return int(graph.opset - before)


def _has_fp16(graph: gs.Graph) -> str | None:
    if graph.opset >= FP16_OPSET:
        return f"its opset is {graph.opset} already"
    fp16 = any(tensor.dtype == "float16" for tensor in graph.tensors().values())
    return None if fp16 else "none of its values is known to be float16"


def _raise_to(opset: int, graph: gs.Graph) -> int:
    before = graph.opset
    try:
        changed(graph, lambda proto: infer_shapes(upgrade_opset(proto, opset)))
    except Exception as error:  # see upgrade_opset
        raise NotApplicable(f"{first_line(error)}: its float16 layers stay in float") from error
    return int(graph.opset - before)


def raised(model: Model, opset: int) -> Model:
    """Return a prepared model in `opset` or a later one; `NotApplicable` if it cannot be raised."""
    if model.opset >= opset:
        return model
    graph = read_graph(model)
    _raise_to(opset, graph)
    CONSTANTS.apply(graph)
    return checked(replace(model, proto=export_model(graph, model.proto)))


def raised_to(opset: int) -> Condition:
    """Return the condition that a graph's opset is not lower any more."""
    return lambda graph: None if graph.opset >= opset else f"its opset is still {graph.opset}"


def infer_types(graph: gs.Graph) -> int:
    """Infer types and shapes; return the number of tensors of which more is known now."""
    before = _known(graph)
    try:
        changed(graph, infer_shapes)
    except Exception as error:  # see upgrade_opset
        raise NotApplicable(f"types cannot be inferred: {first_line(error)}") from error
    after = _known(graph)
    return sum(known != before.get(name) for name, known in after.items())


def _known(graph: gs.Graph) -> dict[tuple[int, str], tuple[str, str]]:
    return {
        (place, name): (str(tensor.dtype), str(tensor.shape))
        for place, part in enumerate(parts_of(graph))
        for name, tensor in part.tensors().items()
    }


OPSET = Pass(
    "opset",
    f"Raise the opset to {MIN_OPSET}, the first in which Q/DQ have an axis.",
    _raise,
    lambda graph: None if graph.opset < MIN_OPSET else f"its opset is {graph.opset} already",
    raised_to(MIN_OPSET),
)
TYPES = Pass(
    "types",
    "Infer types and shapes of tensors, which other passes and the placement of Q/DQ need.",
    infer_types,
)
FP16 = Pass(
    "fp16-opset",
    f"Raise the opset of a model with float16 values to {FP16_OPSET}, the first in which Q/DQ "
    "take float16.",
    partial(_raise_to, FP16_OPSET),
    _has_fp16,
    raised_to(FP16_OPSET),
)
