"""Ranges out of an ONNX model quantized with Q/DQ: by trtcal, ModelOpt, NNCF, ONNX Runtime and others.

Each QuantizeLinear on an activation stands for an interval: scale * (q - zero_point) over all q, or
448 * scale in FP8. Operators of ONNX Runtime on codes (QLinearConv and others) name scale and zero
point behind each operand. Not read: dynamic scales, and Q/DQ inside subgraphs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from calibrators.range import LEVELS, amax_of, problem
from trtcal.calibration.formats.table import UNKNOWN, foreign, imported
from trtcal.errors import InputError
from trtcal.formats import FORMATS
from trtcal.model import Model
from trtcal.model.files import array_of, quantized_type, subgraphs_of
from trtcal.model.ops import MOVES
from trtcal.model.tensors import constants_of, producers_of
from trtcal.quantization.qdq import quantization_record
from trtcal.ranges import Calibration, TensorRange

LIMITS: dict[int, tuple[int, int]] = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
}
FP16 = "/fp16"  # our own suffix for a tensor of the float model that `--rest fp16` put into float16
ON_CODES = ("QLinear", "QGemm")  # how ONNX Runtime's operators on codes begin
CODES = "_quantized"  # ONNX Runtime's suffix for the codes of a tensor
RENAMED = "_QuantizeLinear_Input"  # ONNX Runtime's suffix for a float output that became Q/DQ


def read_qdq(model: Model, known: Collection[str] = ()) -> Calibration:
    """Return the range of every activation that a QuantizeLinear takes, under its float name.

    `known` are the float model's tensors: a name that is not among them is followed to the input of
    the Cast that made it. `InputError` if no activation is quantized.
    """
    graph = _Graph(model.proto.graph)
    int8: dict[str, TensorRange] = {}
    fp8: dict[str, TensorRange] = {}
    unranged: dict[str, str] = {}
    for node in graph.quantizers:
        name = graph.origin(node.input[0], known)
        result = graph.range_of(node)
        if isinstance(result, str):
            unranged[name] = result
        else:
            ranges = fp8 if graph.kind_of(node) == TensorProto.FLOAT8E4M3FN else int8
            ranges[name] = _larger(ranges.get(name), result)
    if not (int8 or fp8 or unranged):
        raise InputError(
            f"no activation of {model.path} is quantized",
            "give a model with Q/DQ on activations: a model with quantized weights alone has no range",
        )
    made_for = quantization_record(model.proto).get("model", UNKNOWN)
    return foreign("qdq", int8, fp8, unranged, model=str(made_for))


class _Graph:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self.producers, self.values = producers_of(graph), constants_of(graph)
        constant = set(self.values)
        for node in graph.node:  # sorted, as ONNX wants it
            inputs = [name for name in node.input if name]
            if inputs and constant.issuperset(inputs) and not any(subgraphs_of(node)):
                constant.update(node.output)
        named = (node for node in graph.node if node.op_type == "QuantizeLinear")
        self.quantizers = [node for node in named if node.input[0] not in constant]
        written = {node.output[0] for node in self.quantizers} | constant
        self.quantizers += [
            helper.make_node("QuantizeLinear", [name.removesuffix(CODES), *parameters], [name])
            for node in graph.node
            for operand, *parameters in self._codes(node)
            for name in self._sources(operand)
            if name not in written and self.values.keys() >= {*parameters}
        ]

    def _codes(self, node: onnx.NodeProto) -> Iterator[Sequence[str]]:
        """Yield codes with scale and zero point, as ONNX Runtime's operators on codes name them."""
        maker = self.producers.get(node.input[0]) if node.op_type == "DequantizeLinear" else node
        if maker is not None and maker.op_type.startswith(ON_CODES):
            yield from zip(node.input, node.input[1:], node.input[2:], strict=False)

    def _sources(self, name: str) -> Iterator[str]:
        """Yield codes, and those that operators which keep their scale made them of."""
        yield name
        while (maker := self.producers.get(name)) and maker.op_type in MOVES | {"MaxPool"}:
            name = maker.input[0]
            yield name

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
        if node.op_type in ("Cast", "Clip") and node.input[0] in known:
            return str(node.input[0])
        in_float32 = name.removesuffix(FP16)
        return in_float32 if in_float32 in known else name.removesuffix(RENAMED)

    def range_of(self, node: onnx.NodeProto) -> TensorRange | str:
        """Return a QuantizeLinear's range, or why it has none that INT8 or FP8 could use."""
        if any(name and name not in self.values for name in node.input[1:3]):
            return "its scale is computed, not constant"
        scales, kind = array_of(self.values[node.input[1]]).astype(np.float64), self.kind_of(node)
        if kind not in (*LIMITS, TensorProto.FLOAT8E4M3FN):
            name = TensorProto.DataType.Name(kind).lower()
            return f"it is quantized to {name}, not to an integer type or float8e4m3fn"
        wrong = [text for scale in scales.flat if (text := problem(float(scale) * LEVELS))]
        if wrong or not scales.size:
            return wrong[0] if wrong else "its scale is empty"
        if kind not in LIMITS:
            return scaled(scales, FORMATS["fp8"].top)
        zeros = np.zeros(1)
        if any(node.input[2:]):
            zeros = array_of(self.values[node.input[2]]).astype(np.float64)
        return interval(scales, zeros, *LIMITS[kind])

    def kind_of(self, node: onnx.NodeProto) -> int:
        """Return the type that a QuantizeLinear gives, which is uint8 unless it says another."""
        return quantized_type(node, self.values) or int(TensorProto.UINT8)


def interval(
    scales: npt.NDArray[np.float64], zeros: npt.NDArray[np.float64], least: int, most: int
) -> TensorRange | str:
    """Return the range that holds all that can be represented; `zeros` have scales' shape or one."""
    notes = _notes(scales)
    low, high = float(((least - zeros) * scales).min()), float(((most - zeros) * scales).max())
    if np.all(least - zeros == -(most - zeros) - 1):  # symmetric: -128..127, one level more below
        largest = np.float32(scales.max())
        amax = amax_of(largest) if most - least == 255 else high
    else:
        notes.append(f"asymmetric: its range is [{low:.6g}, {high:.6g}]")
        amax = max(abs(low), abs(high))
    return problem(amax) or imported(amax, "; ".join(notes) or None)


def scaled(scales: npt.NDArray[np.float64], most: float) -> TensorRange | str:
    """Return the symmetric range of a type of which `most` is the largest value."""
    amax = float(scales.max()) * most
    return problem(amax) or imported(amax, "; ".join(_notes(scales)) or None)


def _notes(scales: npt.NDArray[np.float64]) -> list[str]:
    return [f"largest of {scales.size} scales"] if scales.size > 1 else []


def _larger(first: TensorRange | None, second: TensorRange) -> TensorRange:
    if first is None or first.amax == second.amax:
        return second
    wide, narrow = (first, second) if first.amax > second.amax else (second, first)
    note = f"also quantized with amax {narrow.amax:.6g}"
    return imported(wide.amax, "; ".join(filter(None, [wide.note, note])))
