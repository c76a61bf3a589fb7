"""Ranges out of an ONNX model that somebody quantized with Q/DQ: trtcal, ModelOpt, ONNX Runtime.

Each QuantizeLinear on an activation stands for an interval, scale * (q - zero_point) over all q. Not
read: dynamic scales, QLinear operators, and Q/DQ inside subgraphs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from calibrators.range import LEVELS, amax_of, problem
from trtcal.calibration.formats.table import UNKNOWN, foreign, imported
from trtcal.errors import InputError
from trtcal.model import Model
from trtcal.model.tensors import constants_of, producers_of
from trtcal.quantization.qdq import quantization_record
from trtcal.ranges import Calibration, TensorRange

LIMITS: dict[int, tuple[int, int]] = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
}
RENAMED = "_QuantizeLinear_Input"  # ONNX Runtime's suffix for a float output that became Q/DQ


def read_qdq(model: Model, known: Collection[str] = ()) -> Calibration:
    """Return the range of every activation that a QuantizeLinear takes, under its float name.

    `known` are the float model's tensors: a name that is not among them is followed to the input of
    the Cast that made it. `InputError` if no activation is quantized.
    """
    graph = _Graph(model.proto.graph)
    ranges: dict[str, TensorRange] = {}
    unranged: dict[str, str] = {}
    for node in graph.quantizers:
        name = graph.origin(node.input[0], known)
        found = graph.range_of(node)
        if isinstance(found, str):
            unranged[name] = found
        else:
            ranges[name] = _larger(ranges.get(name), found)
    if not ranges and not unranged:
        raise InputError(f"no activation of {model.path} is quantized", "give a model with Q/DQ")
    unranged = {name: why for name, why in unranged.items() if name not in ranges}
    made_for = quantization_record(model.proto).get("model", UNKNOWN)
    return foreign("qdq", ranges, unranged, model=str(made_for))


class _Graph:
    """A graph with what each tensor comes from."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.producers, self.values = producers_of(graph), constants_of(graph)
        constant = set(self.values)
        for node in graph.node:  # sorted, as ONNX wants it
            inputs = [name for name in node.input if name]
            if inputs and constant.issuperset(inputs) and not _has_subgraph(node):
                constant.update(node.output)
        quantizers = [node for node in graph.node if node.op_type == "QuantizeLinear"]
        self.quantizers = [node for node in quantizers if node.input[0] not in constant]

    def origin(self, name: str, known: Collection[str]) -> str:
        """Return the float tensor that a quantized one was, through pairs that stand in between."""
        node = self.producers.get(name)
        while name not in known and node and node.op_type == "DequantizeLinear":
            quantizer = self.producers.get(node.input[0])
            if quantizer is None or quantizer.op_type != "QuantizeLinear":
                break
            name = quantizer.input[0]
            node = self.producers.get(name)
        if name in known or node is None:
            return name
        is_cast = node.op_type == "Cast" and node.input[0] in known
        return node.input[0] if is_cast else name.removesuffix(RENAMED)

    def range_of(self, node: onnx.NodeProto) -> TensorRange | str:
        """Return a QuantizeLinear's range, or why it has none that INT8 could use."""
        if any(name and name not in self.values for name in node.input[1:3]):
            return "its scale is computed, not constant"
        scales = _array(self.values[node.input[1]])
        zero = self.values[node.input[2]] if len(node.input) > 2 and node.input[2] else None
        kind = zero.data_type if zero is not None else _output_type(node)
        if kind not in LIMITS:
            return (
                f"it is quantized to {TensorProto.DataType.Name(kind).lower()}, not to an "
                "integer type"
            )
        wrong = [text for scale in scales.flat if (text := problem(float(scale) * LEVELS))]
        if wrong or not scales.size:
            return wrong[0] if wrong else "its scale is empty"
        zeros = _array(zero) if zero is not None else np.zeros(1)
        return _interval(scales, zeros, *LIMITS[kind])


def _interval(
    scales: npt.NDArray[np.float64], zeros: npt.NDArray[np.float64], least: int, most: int
) -> TensorRange | str:
    """Return the range that holds all that can be represented; `zeros` have scales' shape or one."""
    notes = [f"largest of {scales.size} scales"] if scales.size > 1 else []
    low, high = float(((least - zeros) * scales).min()), float(((most - zeros) * scales).max())
    if np.all(least - zeros == -(most - zeros) - 1):  # symmetric: -128..127, one level more below
        one = np.float32(scales.max())
        amax = amax_of(one) if most - least == 255 else high
    else:
        notes.append(f"asymmetric: its range is [{low:.6g}, {high:.6g}]")
        amax = max(abs(low), abs(high))
    text = problem(amax)
    return text or imported(amax, "; ".join(notes) or None)


def _larger(first: TensorRange | None, second: TensorRange) -> TensorRange:
    if first is None or first.amax == second.amax:
        return second
    wide, narrow = (first, second) if first.amax > second.amax else (second, first)
    note = f"also quantized with amax {narrow.amax:.6g}"
    return imported(wide.amax, "; ".join(filter(None, [wide.note, note])))


def _has_subgraph(node: onnx.NodeProto) -> bool:
    """Tell whether a node holds a graph, which may read tensors that are not among its inputs."""
    kinds = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    return any(item.type in kinds for item in node.attribute)


def _output_type(node: onnx.NodeProto) -> int:
    """Return the type that ONNX gives a QuantizeLinear without a zero point: uint8 unless it says."""
    named = [item.i for item in node.attribute if item.name == "output_dtype"]
    return int(named[0]) if named and named[0] else int(TensorProto.UINT8)


def _array(tensor: Any) -> npt.NDArray[np.float64]:
    return np.asarray(numpy_helper.to_array(tensor)).astype(np.float64)
