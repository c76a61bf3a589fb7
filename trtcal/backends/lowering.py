"""Lower TensorRT's Q/DQ (int8, zero point 0) to what ONNX Runtime's integer kernels take on a CPU.

The numbers stay the same. Activations become uint8 with zero point 128 (the fast kernels' type), the
bias becomes int32 in steps of the accumulator, and Q/DQ moves across operators that commute with it:

- Relu and Clip are monotone and quantization is too, so `Q(Clip(x)) == Clip(Q(x))`; the clip is then
  done on the integers, and the convolution's output is quantized at once;
- MaxPool, Concat and changes of shape pick or move values: `Q(f(x)) == f(Q(x))` for one scale.

The integer kernels know float32 only. What stands in float16 between two INT8 tensors is written in
float32: only a rounding to float16 right before that to INT8 is left out, and Q clips what overflows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from trtcal.backends.narrow import adapt, is_literal
from trtcal.errors import InputError
from trtcal.model.graph import (
    GraphWriter,
    clip_bounds,
    constant,
    export_model,
    import_graph,
    only_consumer,
)
from trtcal.model.model import along
from trtcal.model.ops import CONVOLUTIONS, MOVES, MULTIPLIES, QDQ

Array = npt.NDArray[Any]

ZERO_POINT = 128
MOVED_UP = MOVES | {"Concat", "MaxPool"}
CLIPPING = {"Clip", "Relu"}
WIDENED = CLIPPING | MOVED_UP | {"GlobalAveragePool"}
INT32_LIMIT = 2**31 - 1


def lower(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model for ONNX Runtime's CPU kernels.

    Integers stay as they are if they have other Q/DQ than TensorRT's: asymmetric, unsigned, or read by
    nodes that are not DequantizeLinear. FP8 and FP4 become what its kernels take (`backends.narrow`).
    """
    if not any(node.op_type in QDQ for node in proto.graph.node):
        return proto
    graph = import_graph(proto)
    changed = adapt(graph)
    quantizers = [
        node for node in graph.nodes if node.op == "QuantizeLinear" and not is_literal(node)
    ]
    if not quantizers or not _is_tensorrts(graph):
        return export_model(graph, proto) if changed else proto
    lowering = _Lowering(graph)
    lowering.widen()
    lowering.move_up()
    lowering.widen_concats()
    lowering.clip_integers()
    lowering.float_convolutions()
    lowering.quantize_biases()
    lowering.separate_weights()
    lowering.shift_activations()
    return export_model(graph, proto)


class _Lowering(GraphWriter):
    """The steps over one graph."""

    def __init__(self, graph: gs.Graph) -> None:
        super().__init__(graph)
        self.wide: dict[str, gs.Tensor] = {}  # the float32 form of a float16 tensor

    def widen(self) -> None:
        """Write float16 layers with INT8 inputs, and what leads from them to a Q, in float32."""
        for node in list(self.graph.toposort().nodes):
            if node.op == "QuantizeLinear" and node.inputs[0].name in self.wide:
                node.inputs = [self._widened(tensor) for tensor in node.inputs]
            elif node.outputs[0].dtype == np.float16 and self._can_widen(node):
                node.inputs = [self._widened(tensor) for tensor in node.inputs]
                narrow = node.outputs[0]
                wide = self.wide[narrow.name] = self._variable(narrow, "wide", np.float32)
                node.outputs = [wide]
                self._add("Cast", [wide], narrow, {"to": int(onnx.TensorProto.FLOAT16)})
        self.graph.cleanup(remove_unused_graph_inputs=False).toposort()

    def _can_widen(self, node: gs.Node) -> bool:
        quantized = [_dequantizer_scale(tensor) is not None for tensor in node.inputs]
        plain = [isinstance(tensor, gs.Constant) or tensor.is_empty() for tensor in node.inputs]
        if node.op in MULTIPLIES:
            return all(quantized[:2]) and all(plain[2:])
        known = (tensor.name in self.wide for tensor in node.inputs)
        return node.op in WIDENED and all(map(any, zip(quantized, plain, known, strict=True)))

    def _widened(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the float32 form of a tensor, which is itself if it is of another type."""
        values, scale = constant(tensor), _dequantizer_scale(tensor)
        half = any(array is not None and array.dtype == np.float16 for array in (values, scale))
        if half and tensor.name not in self.wide:
            if values is not None:
                wide = self.new_constant(f"{tensor.name}/wide", values.astype(np.float32))
                self.wide[tensor.name] = wide
            else:
                producer = tensor.inputs[0]
                wide = self.wide[tensor.name] = self._variable(tensor, "wide", np.float32)
                inputs = list(map(self._widened, producer.inputs))
                self._add(producer.op, inputs, wide, producer.attrs)
        return self.wide.get(tensor.name, tensor)

    def move_up(self) -> None:
        """Quantize the inputs of each moving operator whose output alone is quantized."""
        for node in reversed(list(self.graph.nodes)):
            quantize = self._quantizer_after(node, MOVED_UP)
            if quantize is None:
                continue
            data = len(node.inputs) if node.op == "Concat" else 1
            scale, zero = quantize.inputs[1], quantize.inputs[2]
            for index in range(data):
                node.inputs[index] = self._pair(node.inputs[index], scale, zero)
        self.graph.toposort()

    def widen_concats(self) -> None:
        """Quantize Concats of float16 in float32: ONNX Runtime would make of them what it refuses."""
        for node in list(self.graph.nodes):
            quantize = self._quantizer_after(node, {"Concat"})
            scale = None if quantize is None else constant(quantize.inputs[1])
            if quantize is None or scale is None or scale.dtype != np.float16:
                continue
            wide = self._variable(node.outputs[0], "wide", np.float32)
            self._add("Cast", [node.outputs[0]], wide, {"to": int(onnx.TensorProto.FLOAT)})
            scale = self.new_constant(f"{wide.name}/scale", scale.astype(np.float32))
            quantize.inputs[0], quantize.inputs[1] = wide, scale
        self.graph.toposort()

    def _quantizer_after(self, node: gs.Node, ops: Collection[str]) -> gs.Node | None:
        """Return the QuantizeLinear that alone reads a node's output, if it is int8 per tensor."""
        if node.op not in ops or len(node.outputs) != 1:
            return None
        following = only_consumer(node.outputs[0], self.graph)
        return following if following is not None and is_int8_per_tensor(following) else None

    def _pair(self, tensor: gs.Tensor, scale: gs.Tensor, zero: gs.Tensor) -> gs.Tensor:
        if _dequantizer_scale(tensor) == constant(scale):
            return tensor
        for reader in tensor.outputs:
            if is_int8_per_tensor(reader) and constant(reader.inputs[1]) == constant(scale):
                quantized = reader.outputs[0]
                break
        else:
            quantized = self._variable(tensor, "quantized", np.int8)
            self._add("QuantizeLinear", [tensor, scale, zero], quantized)
        result = self._variable(tensor, "dequantized", scale.dtype)
        self._add("DequantizeLinear", [quantized, scale, zero], result)
        return result

    def _variable(self, like: gs.Tensor, suffix: str, dtype: type) -> gs.Variable:
        return self.new_variable(f"{like.name}/{suffix}", dtype, like)

    def _add(
        self,
        op: str,
        inputs: list[gs.Tensor],
        output: gs.Variable,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.new_node(op, f"{output.name}/{op}", inputs, output, attributes)

    def clip_integers(self) -> None:
        """Turn conv -> Relu or Clip -> Q into conv -> Q -> Clip on integers."""
        for node in list(self.graph.nodes):
            quantize = self._quantizer_after(node, CLIPPING)
            bounds = clip_bounds(node) if quantize is not None else None
            if quantize is None or bounds is None:
                continue
            scale = float(quantize.inputs[1].values)
            low, high = (int(np.clip(np.rint(value / scale), -128, 127)) for value in bounds)
            self._exchange(node, quantize, low, high)
        self.graph.toposort()

    def _exchange(self, node: gs.Node, quantize: gs.Node, low: int, high: int) -> None:
        source, result = node.inputs[0], quantize.outputs[0]
        between = self._variable(source, "quantized", np.int8)
        quantize.inputs[0] = source
        quantize.outputs = [between]
        limits = [
            self.new_constant(f"{node.name}/{side}", np.array(value, np.int8))
            for side, value in (("low", low), ("high", high))
        ]
        node.op, node.attrs = "Clip", {}
        node.inputs, node.outputs = [between, *limits], [result]

    def float_convolutions(self) -> None:
        """Store the dequantized weights of convolutions whose output stays float.

        ONNX Runtime has no integer kernel for them, and would expand their weights in every run.
        """
        for node in self.graph.nodes:
            if node.op in CONVOLUTIONS and self._quantizer_after(node, CONVOLUTIONS) is None:
                self._keep_float(node)

    def _keep_float(self, node: gs.Node) -> None:
        weight = _dequantized_weight(node.inputs[1])
        if weight is not None:
            node.inputs[1] = self.new_constant(f"{node.name}/float_weight", weight)

    def quantize_biases(self) -> None:
        """Give Conv and Gemm an int32 bias in steps of activation scale times weight scale."""
        for node in self.graph.nodes:
            if node.op in ("Conv", "Gemm") and len(node.inputs) == 3:
                self._quantize_bias(node)
        self.graph.toposort()

    def _quantize_bias(self, node: gs.Node) -> None:
        bias = constant(node.inputs[2])
        scales = [_dequantizer_scale(tensor) for tensor in node.inputs[:2]]
        if bias is None or bias.ndim != 1 or scales[0] is None or scales[1] is None:
            return
        if bias.dtype != np.float32:
            return  # a float16 can't hold the step
        step = (np.float32(scales[0]) * scales[1]).astype(np.float32)
        values = np.rint(bias.astype(np.float64) / step)
        if np.abs(values).max() > INT32_LIMIT:
            self._keep_float(node)  # an int32 cannot hold the bias
            return
        name = node.inputs[2].name
        inputs: list[gs.Tensor] = [
            self.new_constant(f"{name}/int32", values.astype(np.int32)),
            self.new_constant(f"{name}/scale", step),
            self.new_constant(f"{name}/zero_point", np.zeros_like(step, np.int32)),
        ]
        result = self._variable(node.inputs[2], "dequantized", np.float32)
        self._add("DequantizeLinear", inputs, result, {"axis": 0} if step.ndim else {})
        node.inputs[2] = result

    def separate_weights(self) -> None:
        """Give every reader of quantized weights its own: shared ones ONNX Runtime fails on."""
        for node in list(self.graph.nodes):
            shared = node.op == "DequantizeLinear" and constant(node.inputs[0]) is not None
            shared = shared and not is_literal(node)
            for reader in node.outputs[0].outputs[1:] if shared else []:
                own: list[gs.Tensor] = [
                    self.new_constant(f"{reader.name}/{tensor.name}", np.asarray(constant(tensor)))
                    for tensor in node.inputs
                ]
                result = self._variable(node.outputs[0], "dequantized", np.float32)
                self._add("DequantizeLinear", own, result, node.attrs)
                place = next(i for i, read in enumerate(reader.inputs) if read is node.outputs[0])
                reader.inputs[place] = result
        self.graph.toposort()

    def shift_activations(self) -> None:
        """Make every quantized activation uint8 with zero point 128."""
        for node in self.graph.nodes:
            if node.op in QDQ and not is_literal(node) and _carries_activation(node):
                zero = np.array(ZERO_POINT, np.uint8)
                node.inputs[2] = self.new_constant(f"{node.name}/zero_point", zero)
            for tensor in node.outputs:
                if tensor.dtype == np.int8:
                    tensor.dtype = np.uint8
            if node.op == "Clip":
                self._shift_limits(node)

    def _shift_limits(self, node: gs.Node) -> None:
        for index, tensor in enumerate(node.inputs[1:], start=1):
            limit = None if tensor.is_empty() else constant(tensor)
            if limit is not None and limit.dtype == np.int8:
                shifted = np.array(int(limit) + ZERO_POINT, np.uint8)
                node.inputs[index] = gs.Constant(tensor.name, shifted)


def _is_tensorrts(graph: gs.Graph) -> bool:
    """Return whether every quantized activation is int8 with zero point 0 and read by DQ alone."""
    for node in graph.nodes:
        quantized = node.outputs[0] if node.op == "QuantizeLinear" else None
        if node.op == "DequantizeLinear" and isinstance(node.inputs[0], gs.Variable):
            quantized = node.inputs[0]
        if quantized is not None and not is_literal(node) and not _is_plain_pair(quantized):
            return False
    return True


def _is_plain_pair(quantized: gs.Tensor) -> bool:
    producer = quantized.inputs[0] if quantized.inputs else None
    if producer is None or not is_int8_per_tensor(producer) or not quantized.outputs:
        return False
    return all(reader.op == "DequantizeLinear" for reader in quantized.outputs)


def is_int8_per_tensor(node: gs.Node) -> bool:
    """Return whether a node is a QuantizeLinear to int8 with one constant scale and zero point 0."""
    if node.op != "QuantizeLinear" or len(node.inputs) != 3:
        return False
    scale, zero = constant(node.inputs[1]), constant(node.inputs[2])
    if scale is None or zero is None:
        return False
    return scale.size == 1 and zero.dtype == np.int8 and not zero.any()


def _dequantizer_scale(tensor: gs.Tensor) -> Array | None:
    producer = tensor.inputs[0] if tensor.inputs else None
    if producer is None or producer.op != "DequantizeLinear" or is_literal(producer):
        return None
    return constant(producer.inputs[1])


def _dequantized_weight(tensor: gs.Tensor) -> Array | None:
    scale = _dequantizer_scale(tensor)
    if scale is None:
        return None
    producer = tensor.inputs[0]
    values = constant(producer.inputs[0])
    if values is None or values.dtype != np.int8:
        return None
    axis = producer.attrs.get("axis", 1) if scale.ndim else None
    if axis is not None and scale.size not in (1, *values.shape[axis : axis + 1 or None]):
        raise InputError(
            f"{producer.name!r} has {scale.size} scales for a weight of {list(values.shape)}",
            "quantize the float model again: `trtcal quantize`",
        )
    return np.asarray(values * along(scale, values.ndim, axis), scale.dtype)


def _carries_activation(node: gs.Node) -> bool:
    return not isinstance(node.inputs[0], gs.Constant) and constant(node.inputs[2]) is not None
