"""Models in bfloat16: refused as a reference or to be quantized; narrow floats written in float32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto

from trtcal.documents.streams import command_line
from trtcal.errors import InputError
from trtcal.model.files import all_nodes
from trtcal.model.graph import constant, export_model, import_graph, parts_of, type_of
from trtcal.model.model import Model
from trtcal.model.ops import MOVES, SHAPE_ONLY
from trtcal.model.passes.base import Pass

WIDENED, TYPES = "float32", ("to", "dtype", "output_dtype")


def refuse_bfloat16(model: Model) -> None:
    """`InputError` for a model that computes in bfloat16, with the first node and the remedy."""
    if (where := next(_places(model.proto), None)) is None:
        return
    output = f"{model.path.stem}-{WIDENED}.onnx"
    command = command_line("prepare", str(model.path), add=WIDENED, o=output)
    raise InputError(
        f"model {model.path}: {where} is in bfloat16, which trtcal does not quantize and ONNX Runtime "
        "does not run on a CPU",
        f"write it in float32: `{command}`",
    )


def _places(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield the inputs, outputs and nodes in bfloat16; Casts and what only moves values are none."""
    brain = TensorProto.BFLOAT16
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == brain:
            yield f"tensor {value.name!r}"
    names = {tensor.name for tensor in proto.graph.initializer if tensor.data_type == brain}
    for node in all_nodes(proto):
        casts = [item.i for item in node.attribute if item.name == "to"]
        stated = [item.t.data_type for item in node.attribute if item.name == "value"]
        if brain in (*casts, *stated):
            names.update(node.output)
        elif not casts and node.op_type not in SHAPE_ONLY and names.intersection(node.input):
            names.update(node.output)
            if node.op_type not in MOVES:
                yield f"node {node.name!r} ({node.op_type})"


def in_float32(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that computes in float32 what this one computes in float16 or bfloat16."""
    graph = import_graph(proto)
    for kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        widen(graph, kind)
    return export_model(graph, proto)


def widen(graph: gs.Graph, kind: int = TensorProto.BFLOAT16) -> int:
    """Make float32 of a type in a graph and its subgraphs, and count what was of it."""
    count = 0
    for part in parts_of(graph):
        held = (value for node in part.nodes for value in node.attrs.values())
        tensors = (*part.tensors().values(), *part.inputs, *part.outputs, *held)
        count += sum(_widen_tensor(tensor, kind) for tensor in tensors)
        for node in part.nodes:
            named = [name for name in TYPES if node.attrs.get(name) == kind]
            node.attrs.update(dict.fromkeys(named, int(TensorProto.FLOAT)))
            count += len(named)
    return count


def _widen_tensor(tensor: object, kind: int) -> bool:
    """Make float32 of a tensor of this type, and tell whether it was one."""
    if not isinstance(tensor, gs.Tensor) or type_of(tensor) != kind:
        return False
    if isinstance(tensor, gs.Constant):
        tensor.values = np.asarray(constant(tensor), np.float32)
    else:
        tensor.dtype = np.float32
    return True


FLOAT32 = Pass(
    WIDENED,
    "Compute in float32 what a model computes in bfloat16, inputs and outputs too: each value is then "
    "more exact.",
    widen,
    retypes=True,
    on_request=True,
)
