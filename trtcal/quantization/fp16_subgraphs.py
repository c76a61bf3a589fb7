"""Float16 subgraphs in a float32 graph: which nodes are in them, and the casts at their borders.

Tensors keep their names and types; the float16 form of one is called `<tensor>/fp16`. A tensor that
crosses the border is cast once, and not at all where a DequantizeLinear can give either type.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.model.graph import GraphWriter, clean, constant, in_order, redirect_readers
from trtcal.model.ops import HEAVY, SHAPE_ONLY
from trtcal.quantization import fp16
from trtcal.quantization.fp16 import subnormal, takes_fp16_scale
from trtcal.quantization.plan import Decision

CLIPPED = "/within/clip"  # the end of the names of Clips that are written


@dataclass(frozen=True)
class Fp16Subgraphs:
    """The nodes that became float16, the number of casts, and what a user should know of them.

    `skipped` says why a node that was asked in float16 is not, `subnormal` how many values of a
    constant lose digits, `unknown` are the float16 tensors without a known bound below 65504.
    """

    nodes: tuple[str, ...] = ()
    casts: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    subnormal: dict[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def make_fp16_subgraphs(
    graph: gs.Graph,
    decisions: Mapping[str, Decision],
    quantized: Collection[str],
    values: fp16.Values,
    floats: str,
) -> Fp16Subgraphs:
    """Turn what `decisions` ask in fp16, by node name, into float16, in place.

    `quantized` are the nodes in INT8, `values` what is known of tensors. What nothing decides on runs
    in `floats` (fp16 or fp32), or in the other one where that saves casts.
    """
    survey = fp16.Survey(in_order(graph), decisions, quantized, values, floats)
    nodes = survey.split(floats)
    unknown = survey.unbounded(nodes)
    writer = _Writer(graph)
    for node in nodes:
        writer.convert(node, survey.places[id(node)])
    writer.meet_casts()
    in_order(clean(graph))
    casts = sum(node.name in writer.casts for node in graph.nodes)
    names = tuple(node.name for node in nodes)
    return Fp16Subgraphs(names, casts, survey.skipped, writer.subnormal, unknown)


class _Writer(GraphWriter):
    """Converts nodes in the order of the graph, and remembers the float16 form of every tensor."""

    def __init__(self, graph: gs.Graph) -> None:
        super().__init__(graph)
        self.narrow: dict[str, gs.Tensor] = {}
        self.limits: list[gs.Constant] = []
        self.casts: set[str] = set()
        self.subnormal: dict[str, int] = {}

    def convert(self, node: gs.Node, places: fp16.Places) -> None:
        """Make a node read and write float16; a cast gives its float32 readers their tensor."""
        for index in places.inputs:
            node.inputs[index] = self._fp16(node.inputs[index])
        for index in places.outputs:
            tensor = node.outputs[index]
            node.outputs[index] = self.narrow[tensor.name] = self._variable(tensor)
            self._cast(self.narrow[tensor.name], tensor)

    def meet_casts(self) -> None:
        """Let Q nodes, and the model's own casts to float16, read float16 tensors directly."""
        for node in self.graph.nodes:
            if not (node.inputs and self._is_ours(node.inputs[0])):
                continue
            if node.op == "QuantizeLinear" and takes_fp16_scale(node, self.graph.opset):
                node.inputs[0] = self.narrow[node.inputs[0].name]
                node.inputs[1] = self._scale(node)
            elif fp16.is_cast_to(np.float16, node):
                redirect_readers(node.outputs[0], self.narrow[node.inputs[0].name])
            elif node.op in SHAPE_ONLY:
                node.inputs[0] = self.narrow[node.inputs[0].name]

    def _is_ours(self, tensor: gs.Tensor) -> bool:
        is_cast = any(producer.name in self.casts for producer in tensor.inputs)
        return is_cast and fp16.is_fp32(tensor)

    def _fp16(self, tensor: gs.Tensor) -> gs.Tensor:
        if tensor.name not in self.narrow:
            self.narrow[tensor.name] = self._made(tensor)
        return self.narrow[tensor.name]

    def _made(self, tensor: gs.Tensor) -> gs.Tensor:
        if isinstance(tensor, gs.Constant):
            return self._constant(tensor)
        for producer in tensor.inputs:  # one at most
            if producer.op == "DequantizeLinear" and takes_fp16_scale(producer, self.graph.opset):
                return self._dequantized(producer)
            if producer.op == "Cast" and producer.inputs[0].dtype == np.float16:
                return producer.inputs[0]
        for node in tensor.outputs:
            if fp16.is_cast_to(np.float16, node):
                return node.outputs[0]
        return self._cast(self._clipped(tensor), self._variable(tensor))

    def _clipped(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return a float32 layer's output clipped to the limits of float16, other tensors as they are.

        TensorRT-RTX 1.7 computes Conv and Cast in float16 throughout, even if the weights overflow
        there; a Clip before the Cast prevents that.
        """
        heavy = [maker for maker in tensor.inputs if maker.op in HEAVY]
        if all(any(fp16.pairs_before(maker)) for maker in heavy):
            return tensor
        result = self.new_variable(f"{tensor.name}/within", tensor.dtype, tensor)
        ends = (("lowest", -fp16.FP16_MAX), ("highest", fp16.FP16_MAX))
        self.limits = self.limits or [
            self.new_constant(f"float16/{name}", np.array(end, np.float32)) for name, end in ends
        ]
        return self.new_node("Clip", f"{result.name}/clip", [tensor, *self.limits], result)

    def _constant(self, tensor: gs.Constant) -> gs.Constant:
        values = np.asarray(constant(tensor))
        if lost := subnormal(values):
            self.subnormal[tensor.name] = lost
        return self.new_constant(f"{tensor.name}/fp16", values.astype(np.float16))

    def _dequantized(self, node: gs.Node) -> gs.Variable:
        """Return a float16 form of what a DQ node gives; the float32 one goes if nothing reads it."""
        result = self._variable(node.outputs[0])
        inputs = [node.inputs[0], self._scale(node), *node.inputs[2:]]
        return self.new_node(node.op, f"{node.name}/fp16", inputs, result, node.attrs)

    def _scale(self, node: gs.Node) -> gs.Tensor:
        """Return a scale in float16; the float32 one takes its value, so that Q and DQ agree."""
        scale = node.inputs[1]
        if scale.dtype == np.float16:
            return scale
        if not isinstance(scale, gs.Constant):
            return self._fp16(scale)
        if scale.name not in self.narrow:
            rounded = fp16.fp16_scale(node)
            self.narrow[scale.name] = self.new_constant(f"{scale.name}/fp16", rounded)
            scale.values = rounded.astype(np.float32)
        return self.narrow[scale.name]

    def _cast(self, source: gs.Tensor, result: gs.Tensor) -> gs.Tensor:
        to = {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(result.dtype))}
        self.new_node("Cast", f"{result.name}/cast", [source], result, to)
        self.casts.add(self.graph.nodes[-1].name)
        return result

    def _variable(self, like: gs.Tensor) -> gs.Variable:
        return self.new_variable(f"{like.name}/fp16", np.float16, like)
