"""What may be float16: which inputs and outputs of a node, which values, which scales.

Float16 ends at 65504, has 11 significant bits, and no more than those below 2**-24 either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from trtcal.graph import HALF_OPSET, constant
from trtcal.quantize.weights import as_scale

MOST = 65504.0
NORMAL = 2.0**-14  # smaller values lose digits
LEAST_SCALE = 2.0**-17  # a smaller scale would be wrong by more than half a step at 127
HEAVY = ("Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")
LAYER_NORMS = ("GroupNormalization", "LayerNormalization", "RMSNormalization")
NORMS = ("InstanceNormalization", "LpNormalization", "LRN", "MeanVarianceNormalization")
LOG_SUMS = ("LogSoftmax", "ReduceLogSum", "ReduceLogSumExp", "Softmax")
SUMS = ("CumSum", "LpPool", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare")
RISING = ("Exp", "Log", "Pow", "Reciprocal", "ReduceProd")
INDEXING = ("Cos", "GridSample", "RoiAlign", "Sin", "Tan")
SENSITIVE = (*LAYER_NORMS, *NORMS, *LOG_SUMS, *SUMS, *RISING, *INDEXING)
"""They add up, grow fast, or index by their values: float32 unless a plan names them."""
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")
PAIR = ("QuantizeLinear", "DequantizeLinear")
TYPED_BY_ATTRIBUTE = ("Cast", "CastLike", "Constant", "ConstantOfShape", "EyeLike", *PAIR, *RANDOM)
UNTYPED = ("Shape", "Size")  # they read whatever type there is
FIRST_ONLY = frozenset(("Resize", "Upsample"))  # their other inputs are regions and factors
HALF = "tensor(float16)"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Places:
    """The float32 inputs and outputs of a node that become float16 with it, by place."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def half_places(node: gs.Node, opset: int) -> Places | None:
    """Return what a node can read and write in float16 in place of float32, None if nothing."""
    tensors = [tensor for tensor in (*node.inputs, *node.outputs) if not tensor.is_empty()]
    inner = any(
        isinstance(value, (gs.Graph, list)) and _graphs(value) for value in node.attrs.values()
    )
    schema = _schema(node, opset)
    if (
        schema is None
        or inner
        or node.op in (*TYPED_BY_ATTRIBUTE, *UNTYPED)
        or any(tensor.dtype is None for tensor in tensors)
    ):
        return None
    inputs = _places(node.inputs, schema.inputs, schema)
    outputs = _places(node.outputs, schema.outputs, schema)
    inputs = inputs[:1] if node.op in FIRST_ONLY else inputs
    return Places(inputs, outputs) if inputs or outputs else None


def _graphs(value: Any) -> bool:
    return isinstance(value, gs.Graph) or any(isinstance(item, gs.Graph) for item in value)


def _schema(node: gs.Node, opset: int) -> onnx.defs.OpSchema | None:
    if node.domain not in (None, "", "ai.onnx"):
        return None
    try:
        return onnx.defs.get_schema(node.op, opset)
    except onnx.defs.SchemaError:
        return None


def _places(tensors: Any, formal: Any, schema: onnx.defs.OpSchema) -> tuple[int, ...]:
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    found = []
    for index, tensor in enumerate(tensors):
        kind = formal[min(index, len(formal) - 1)].type_str
        if is_single(tensor) and HALF in allowed.get(kind, (kind,)):
            found.append(index)
    return tuple(found)


def is_single(tensor: gs.Tensor) -> bool:
    """Tell whether a tensor is known to be float32."""
    return not tensor.is_empty() and tensor.dtype == np.float32


def is_cast_to(dtype: type, node: gs.Node) -> bool:
    """Tell whether a node is a Cast to this type."""
    return bool(node.op == "Cast" and node.outputs[0].dtype == dtype)


def overflow(node: gs.Node, places: Places, observed: Mapping[str, float]) -> str | None:
    """Return why a node can't be computed in float16, None if nothing that is known speaks against.

    `observed` has the largest magnitude that was seen of a tensor.
    """
    for tensor in at_places(node, places):
        if isinstance(tensor, gs.Constant):
            reason = _unfit(tensor)
            if reason:
                return reason
        elif observed.get(tensor.name, 0.0) > MOST:
            seen = observed[tensor.name]
            return f"tensor {tensor.name!r} reached {seen:.6g}, and float16 ends at {MOST:.0f}"
    return None


def at_places(node: gs.Node, places: Places) -> Iterator[gs.Tensor]:
    """Yield the tensors at a node's places."""
    yield from (node.inputs[index] for index in places.inputs)
    yield from (node.outputs[index] for index in places.outputs)


def _unfit(tensor: gs.Constant) -> str | None:
    values = np.abs(np.asarray(constant(tensor)))
    finite = values[np.isfinite(values)]
    if finite.size and finite.max() > MOST:
        return (
            f"its constant {tensor.name!r} has {finite.max():.6g}, and float16 ends at {MOST:.0f}"
        )
    if finite.any() and not finite.astype(np.float16).any():
        return f"its constant {tensor.name!r} of {finite.max():.6g} would be 0 in float16"
    return None


def subnormal(values: Array) -> int:
    """Return how many values other than 0 are too small for all of float16's digits."""
    return int(np.count_nonzero((values != 0) & (np.abs(values) < NORMAL)))


def takes_half_scale(node: gs.Node, opset: int) -> bool:
    """Tell whether a Q or DQ node can have a float16 scale in place of its float32 one."""
    scale = constant(node.inputs[1])
    if opset < HALF_OPSET or scale is None or scale.dtype != np.float32:
        return False
    return bool((scale >= LEAST_SCALE).all() and (scale * 128 <= MOST).all())


def half_scale(node: gs.Node) -> Array:
    """Return the scale of a Q or DQ node in float16.

    An activation's is rounded up, so that no value leaves the range. A weight's int8 values stand
    already: its scales are rounded to the nearest, so that their errors have no direction.
    """
    scale = np.asarray(constant(node.inputs[1]))
    if isinstance(node.inputs[0], gs.Constant):
        return np.asarray(scale.astype(np.float16))
    return as_scale(scale, np.float16)
