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
        parts = _Quant(node, constants).parts() if node.domain in DOMAINS else [node]
        nodes += (part for part in parts if isinstance(part, NodeProto))
        tensors += (part for part in parts if isinstance(part, TensorProto))
        before.update(node.input if node.domain in DOMAINS else ())
    refill(proto.graph.node, nodes)
    unread = before.difference(name for node in all_nodes(proto) for name in node.input)
    unread -= {value.name for value in proto.graph.output}
    left = [tensor for tensor in proto.graph.initializer if tensor.name not in unread]
    refill(proto.graph.initializer, [*left, *tensors])
    imports = [item for item in proto.opset_import if item.domain not in DOMAINS]
    refill(proto.opset_import, imports)


@dataclass
class _Quant:
    """One node, and the constants of its graph by name."""

    node: NodeProto
    constants: dict[str, TensorProto]

    def fail(self, what: str) -> NoReturn:
        name = self.node.name or self.node.output[0]
        raise InputError(f"node {name!r} ({self.node.op_type!r} of QONNX) {what}", HINT)

    def parts(self) -> list[NodeProto | TensorProto]:
        """Return the nodes that take its place, and their constants."""
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
        flat = scale.reshape(-1 if axes else ())
        zero = np.full(flat.shape, point, kind)
        names = [self._name("scale"), self._name("zero_point")]
        source = self.constants.get(self.node.input[0])
        if source is not None:
            steps = np.rint(array_of(source) / scale).clip(low, high) + point
            first = [self._tensor("codes", steps.astype(kind))]
        else:
            first = self._quantized(flat, kind, point, (low, high), names, axes)
        tensors = [self._tensor("scale", flat), self._tensor("zero_point", zero)]
        axis: dict[str, Any] = {"axis": axes[0]} if axes else {}
        inputs = [self._name("codes"), *names]
        name = f"{self.node.name}/dequantize"
        last = helper.make_node("DequantizeLinear", inputs, [self.node.output[0]], name, **axis)
        return [*first, *tensors, last]

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

    def _quantized(
        self,
        scale: Array,
        kind: Any,
        point: int,
        steps: tuple[int, int],
        names: list[str],
        axes: Any,
    ) -> list[NodeProto | TensorProto]:
        """Return what makes the codes of an activation."""
        ends, source = np.iinfo(kind), self.node.input[0]
        parts = list[NodeProto | TensorProto]()
        if (steps[0] + point, steps[1] + point) != (ends.min, ends.max):
            if axes:
                self.fail("has fewer steps than a byte, in several scales of an activation")
            limits = [self._tensor(f"limit{step}", np.asarray(scale * step)) for step in steps]
            inputs = [source, *(limit.name for limit in limits)]
            source = self._name("limited")
            clip = helper.make_node("Clip", inputs, [source], f"{self.node.name}/limit")
            parts += [*limits, clip]
        inputs, axis = [source, *names], {"axis": axes[0]} if axes else {}
        name = f"{self.node.name}/quantize"
        node = helper.make_node("QuantizeLinear", inputs, [self._name("codes")], name, **axis)
        return [*parts, node]

    def _name(self, what: str) -> str:
        return f"{self.node.output[0]}/{what}"

    def _tensor(self, what: str, values: Array) -> TensorProto:
        return numpy_helper.from_array(values, self._name(what))
