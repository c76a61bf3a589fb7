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
import onnx
import onnx_graphsurgeon as gs

from trtcal.backends.kernel_forms import codes, fold, is_literal, pairs, parameters, settle
from trtcal.backends.sessions import Array
from trtcal.errors import InputError
from trtcal.model.files import all_nodes
from trtcal.model.graph import (
    GraphWriter,
    clean,
    clip_bounds,
    constant,
    expanded,
    export_model,
    import_graph,
    in_order,
    only_consumer,
)
from trtcal.model.ops import CONVOLUTIONS, MOVES, MULTIPLIES, QDQ
from trtcal.model.passes.base import NotApplicable
from trtcal.model.passes.functions import FUNCTIONS

SHIFT = 128
MOVED_UP = MOVES | {"Concat", "MaxPool"}
CLIPPING = {"Clip", "Relu"}
WIDENED = CLIPPING | MOVED_UP | {"GlobalAveragePool"}
INT32_LIMIT = 2**31 - 1


def lower(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model for ONNX Runtime's CPU kernels: see `lower_with_reasons`."""
    return lower_with_reasons(proto)[0]


def lower_with_reasons(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the model for ONNX Runtime's CPU kernels, and why it computes layers in float, by name.

    These are the layers with Q/DQ of other forms than kernels take (`backends.kernel_forms`).
    """
    if not any(node.op_type in QDQ for node in all_nodes(proto)):
        return proto, {}
    graph = import_graph(proto)
    if graph.functions:
        try:
            FUNCTIONS.apply(graph)
        except NotApplicable as reason:
            what = f"its Q/DQ cannot be checked: {reason}"
            raise InputError(what, "export the model without functions") from None
    fold(graph)
    reasons = settle(graph)
    lowering = _Lowering(graph)
    lowering.widen()
    lowering.move_up()
    lowering.clip_integers()
    lowering.float_convolutions()
    lowering.quantize_biases()
    lowering.shift_activations()
    return export_model(graph, proto), reasons


class _Lowering(GraphWriter):
    """The steps over one graph."""

    def __init__(self, graph: gs.Graph) -> None:
        super().__init__(graph)
        self.wide: dict[str, gs.Tensor] = {}  # the float32 form of a float16 tensor
        self.pairs = set(map(id, pairs(graph)))

    def widen(self) -> None:
        """Write float16 layers with INT8 inputs, and what leads from them to a Q, in float32."""
        for node in list(self.graph.nodes):
            if node.op == "QuantizeLinear" and node.inputs[0].name in self.wide:
                node.inputs = [self._widened(tensor) for tensor in node.inputs]
            elif node.outputs[0].dtype == np.float16 and self._can_widen(node):
                node.inputs = [self._widened(tensor) for tensor in node.inputs]
                narrow = node.outputs[0]
                wide = self.wide[narrow.name] = self._variable(narrow, "wide", np.float32)
                node.outputs = [wide]
                self._add("Cast", [wide], narrow, {"to": int(onnx.TensorProto.FLOAT16)})
        if self.wide:
            in_order(clean(self.graph))

    def _can_widen(self, node: gs.Node) -> bool:
        quantized = [self._scale(tensor) is not None for tensor in node.inputs]
        plain = [isinstance(tensor, gs.Constant) or tensor.is_empty() for tensor in node.inputs]
        if node.op in MULTIPLIES:
            return all(quantized[:2]) and all(plain[2:])
        known = (tensor.name in self.wide for tensor in node.inputs)
        return node.op in WIDENED and all(map(any, zip(quantized, plain, known, strict=True)))

    def _widened(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the float32 form of a tensor, which is itself if it is of another type."""
        values, scale = constant(tensor), self._scale(tensor)
        half = any(array is not None and array.dtype == np.float16 for array in (values, scale))
        if half and tensor.name not in self.wide:
            if values is not None:
                self.wide[tensor.name] = self._as_float32(tensor)
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
            if node.op == "Concat" and scale.dtype == np.float16:  # ONNX Runtime refuses its own
                wide = self._variable(node.outputs[0], "wide", np.float32)
                self._add("Cast", [node.outputs[0]], wide, {"to": int(onnx.TensorProto.FLOAT)})
                quantize.inputs[0], quantize.inputs[1] = wide, self._as_float32(scale)
        in_order(self.graph)

    def _as_float32(self, tensor: gs.Tensor) -> gs.Constant:
        return self.new_constant(f"{tensor.name}/wide", np.asarray(constant(tensor), np.float32))

    def _quantizer_after(self, node: gs.Node, ops: Collection[str]) -> gs.Node | None:
        """Return the QuantizeLinear that alone reads a node's output, if it is of a pair."""
        if node.op not in ops or len(node.outputs) != 1:
            return None
        following = only_consumer(node.outputs[0], self.graph)
        return following if id(following) in self.pairs else None

    def _pair(self, tensor: gs.Tensor, scale: gs.Tensor, zero: gs.Tensor) -> gs.Tensor:
        expected = (constant(scale), constant(zero))
        if self._scale(tensor) is not None and parameters(tensor.inputs[0]) == expected:
            return tensor
        readers = (reader for reader in tensor.outputs if id(reader) in self.pairs)
        quantizers = (reader for reader in readers if reader.op == "QuantizeLinear")
        same = (reader.outputs[0] for reader in quantizers if parameters(reader) == expected)
        if (quantized := next(same, None)) is None:
            quantized = self._variable(tensor, "quantized", zero.dtype)
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
        if op in QDQ and not isinstance(inputs[0], gs.Constant):
            self.pairs.add(id(self.graph.nodes[-1]))

    def _scale(self, tensor: gs.Tensor) -> Array | None:
        """Return the scale of a constant that is dequantized, or of a pair."""
        producer = tensor.inputs[0] if tensor.inputs else None
        if producer is None or producer.op != "DequantizeLinear" or is_literal(producer):
            return None
        is_known = id(producer) in self.pairs or constant(producer.inputs[0]) is not None
        return constant(producer.inputs[1]) if is_known else None

    def clip_integers(self) -> None:
        """Turn conv -> Relu or Clip -> Q into conv -> Q -> Clip on integers."""
        for node in list(self.graph.nodes):
            quantize = self._quantizer_after(node, CLIPPING)
            bounds = clip_bounds(node)
            if quantize is not None and bounds is not None:
                self._exchange(node, quantize, bounds)
        in_order(self.graph)

    def _exchange(self, node: gs.Node, quantize: gs.Node, bounds: tuple[float, float]) -> None:
        source, result = node.inputs[0], quantize.outputs[0]
        between = self._variable(source, "quantized", quantize.inputs[2].dtype)
        quantize.inputs[0] = source
        quantize.outputs = [between]
        steps = [np.asarray(codes(np.asarray(value, np.float32), quantize)) for value in bounds]
        limits = map(self.new_constant, (f"{node.name}/low", f"{node.name}/high"), steps)
        node.op, node.attrs = "Clip", {}
        node.inputs, node.outputs = [between, *limits], [result]
        self.pairs.add(id(node))

    def float_convolutions(self) -> None:
        """Store the dequantized weights of convolutions whose output stays float.

        ONNX Runtime has no integer kernel for them, and would expand their weights in every run.
        """
        for node in self.graph.nodes:
            if node.op in CONVOLUTIONS and self._quantizer_after(node, CONVOLUTIONS) is None:
                self._keep_float(node)

    def _keep_float(self, node: gs.Node) -> None:
        weight = expanded(node.inputs[1]) if self._scale(node.inputs[1]) is not None else None
        if weight is not None:
            node.inputs[1] = self.new_constant(f"{node.name}/float_weight", weight)

    def quantize_biases(self) -> None:
        """Give Conv and Gemm an int32 bias in steps of activation scale times weight scale."""
        for node in self.graph.nodes:
            if node.op in ("Conv", "Gemm") and len(node.inputs) == 3:
                self._quantize_bias(node)
        in_order(self.graph)

    def _quantize_bias(self, node: gs.Node) -> None:
        bias, (scale, weight_scale) = constant(node.inputs[2]), map(self._scale, node.inputs[:2])
        if bias is None or bias.ndim != 1 or bias.dtype != np.float32:  # float16 lacks the step
            return
        if scale is None or weight_scale is None:
            return
        step = np.asarray(np.float32(scale) * weight_scale, np.float32)
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

    def shift_activations(self) -> None:
        """Make every quantized activation uint8: codes, zero points and limits are 128 more."""
        for node in (node for node in self.graph.nodes if id(node) in self.pairs):
            for index, tensor in enumerate(node.inputs):
                values = constant(tensor)
                if values is not None and values.dtype == np.int8:
                    shifted = np.array(int(values) + SHIFT, np.uint8)
                    node.inputs[index] = self.new_constant(f"{node.name}/{index}", shifted)
            if node.outputs[0].dtype == np.int8:
                node.outputs[0].dtype = np.uint8
