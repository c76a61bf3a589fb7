"""QONNX's `Quant` nodes, as Brevitas writes them, become Q/DQ when a model is read.

A weight becomes codes and a DequantizeLinear; an activation a pair, behind a Clip where its bits have
fewer steps than a byte. Codes are int8 with zero point 0 where that holds all steps, else uint8.
Source: QONNX 1.0, "Quant"; files by Brevitas 0.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from trtcal.errors import InputError
from trtcal.model.files import all_nodes, array_of, attribute_of, refill
from trtcal.model.pairs import stated_constants

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
ROUNDINGS = (b"ROUND", b"HALF_EVEN")
MOST_BITS = 8
HINT = "export it with `brevitas.export.export_onnx_qcdq`, or with 2 to 8 bits and constant scales"
Array = npt.NDArray[Any]


def has_quant(proto: onnx.ModelProto) -> bool:
    """Tell whether a model has nodes of QONNX in its main graph."""
    return any(node.domain in DOMAINS for node in proto.graph.node)


def write_qdq(proto: onnx.ModelProto) -> None:
    """Put Q/DQ in the place of `Quant` nodes; `InputError` names the first that has no Q/DQ."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    constants |= stated_constants(proto.graph.node)
    nodes, tensors, before = list[NodeProto](), list[TensorProto](), set[str]()
    for node in proto.graph.node:
        is_quant = node.domain in DOMAINS
        nodes += _Quant(node, constants, tensors).nodes() if is_quant else [node]
        before.update(node.input if is_quant else ())
    refill(proto.graph.node, nodes)
    unread = before.difference(name for node in all_nodes(proto) for name in node.input)
    unread -= {value.name for value in proto.graph.output}
    left = [tensor for tensor in proto.graph.initializer if tensor.name not in unread]
    refill(proto.graph.initializer, [*left, *tensors])
    imports = [item for item in proto.opset_import if item.domain not in DOMAINS]
    refill(proto.opset_import, imports)


@dataclass
class _Quant:
    """One node, the constants of its graph by name, and the new ones."""

    node: NodeProto
    constants: dict[str, TensorProto]
    tensors: list[TensorProto]

    def fail(self, what: str) -> NoReturn:
        name = self.node.name or self.node.output[0]
        raise InputError(f"node {name!r} ({self.node.op_type!r} of QONNX) {what}", HINT)

    def nodes(self) -> list[NodeProto]:
        """Return the nodes that take its place; their constants are added."""
        if self.node.op_type != "Quant" or len(self.node.input) != 4:
            self.fail("has no Q/DQ that computes it")
        if attribute_of(self.node, "rounding_mode", b"ROUND") not in ROUNDINGS:
            self.fail("does not round half to even")
        scale = self._constant(1, "scale").astype(np.float32)
        low, high = self._steps()
        is_int8 = low >= -128 and high <= 127
        kind, point = (np.int8, 0) if is_int8 else (np.uint8, max(-low, 0))
        axes = [axis - scale.ndim for axis, size in enumerate(scale.shape) if size > 1]
        if len(axes) > 1 or max(point, high + point) > np.iinfo(kind).max:
            self.fail("has scales on several axes, or a zero point outside of its steps")
        flat, axis = scale.reshape(-1 if axes else ()), {"axis": axes[0]} if axes else {}
        zero = np.full(flat.shape, point, kind)
        parameters = [self._new("scale", flat), self._new("zero_point", zero)]
        weight = self.constants.get(self.node.input[0])
        if weight is not None:
            steps = np.rint(array_of(weight) / scale).clip(low, high) + point
            inputs = [self._new("codes", steps.astype(kind)), *parameters]
            return [self._node("DequantizeLinear", inputs, self.node.output[0], axis)]
        source, before = self.node.input[0], list[NodeProto]()
        if high - low < np.iinfo(np.uint8).max:
            if axes:
                self.fail("has fewer steps than a byte, in several scales of an activation")
            limits = [self._new(f"limit{step}", np.asarray(flat * step)) for step in (low, high)]
            before = [self._node("Clip", [source, *limits], self._name("limited"), {})]
            source = self._name("limited")
        codes = self._name("codes")
        last = self._node("DequantizeLinear", [codes, *parameters], self.node.output[0], axis)
        return [*before, self._node("QuantizeLinear", [source, *parameters], codes, axis), last]

    def _constant(self, place: int, what: str) -> Array:
        tensor = self.constants.get(self.node.input[place])
        if tensor is None:
            self.fail(f"has a {what} that is computed")
        values = array_of(tensor)
        if not np.isfinite(values).all() or (place == 1 and not (values > 0).all()):
            self.fail(f"has a {what} that is not positive and finite")
        return values

    def _steps(self) -> tuple[int, int]:
        """Return the first and the last step, counted from the zero point."""
        zeros, bits = (np.unique(self._constant(place, "size")) for place in (2, 3))
        whole = len(zeros) == len(bits) == 1 and not np.any(
            np.rint([*zeros, *bits]) != [*zeros, *bits]
        )
        if not whole or not 2 <= bits[0] <= MOST_BITS:
            self.fail(f"has other bits than 2 to {MOST_BITS}, or several zero points")
        zero, count = int(zeros[0]), 2 ** int(bits[0])
        is_narrow = attribute_of(self.node, "narrow", 0)
        if attribute_of(self.node, "signed", 1):
            return is_narrow - count // 2 - zero, count // 2 - 1 - zero
        return -zero, count - 1 - is_narrow - zero

    def _node(self, op: str, inputs: list[str], output: str, axis: dict[str, Any]) -> NodeProto:
        return helper.make_node(op, inputs, [output], f"{self.node.name}/{op}", **axis)

    def _name(self, what: str) -> str:
        return f"{self.node.output[0]}/{what}"

    def _new(self, what: str, values: Array) -> str:
        self.tensors.append(numpy_helper.from_array(values, self._name(what)))
        return self._name(what)
