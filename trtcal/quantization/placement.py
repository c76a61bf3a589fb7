"""Where Q/DQ may stand: which inputs of which nodes TensorRT can take in INT8.

Rules and their source: NVIDIA, "Working with Quantized Types", Q/DQ layer-placement recommendations:
quantize all inputs of weighted operations, per tensor for activations and per output channel for
weights; leave their outputs; quantize the residual input of a skip connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from trtcal.documents.streams import command_line
from trtcal.errors import InputError, some
from trtcal.model import Model
from trtcal.model.files import with_inner
from trtcal.model.graph import FP16_OPSET, import_graph, is_fp16, is_op, only_consumer
from trtcal.model.ops import CONVOLUTIONS, MULTIPLIES
from trtcal.model.passes.bfloat16 import refuse_bfloat16
from trtcal.quantization.propagate import choices, cut_sources, propagate, range_sources
from trtcal.quantization.weighted_ops import (
    QUANTIZED,
    REFUSAL,
    REFUSED,
    RULES,
    Found,
    Layer,
    is_activation,
)


@dataclass(frozen=True)
class Placement:
    """All layers of a model, and why other nodes of the same kinds are none.

    `light` are the nodes that are quantized because of `layers`, if these are, and `optional` those
    that are if a plan names them (see `propagate`); `sources` names the tensors that take another one's
    range.
    """

    layers: tuple[Layer, ...]
    light: tuple[Layer, ...]
    optional: tuple[Layer, ...]
    refused: dict[str, str]
    sources: dict[str, str]

    def range_of(self, tensor: str) -> str:
        """Return the tensor whose range a quantized tensor takes: mostly its own."""
        return self.sources.get(tensor, tensor)

    @property
    def names(self) -> list[str]:
        """The nodes that a plan may name."""
        every = (*self.layers, *self.light, *self.optional)
        return list(dict.fromkeys(layer.name for layer in every))


def find_layers(model: Model, is_needed: bool = True, graph: gs.Graph | None = None) -> Placement:
    """Return every place for Q/DQ in a prepared model; `InputError` if one `is_needed` and none is.

    `graph` is the model's, imported here if it is None.
    """
    refuse_bfloat16(model)
    placement = place(graph or import_graph(model.proto))
    is_needed = is_needed or REFUSAL in placement.refused.values()
    if is_needed and not any(layer.op in MULTIPLIES for layer in placement.layers):
        if bodies := list(_multiplying_bodies(model)):
            raise InputError(
                f"model {model.path} has nothing to quantize: all its products are in the body of "
                f"{some(bodies)}, and trtcal places Q/DQ in the main graph only",
                "export the model with the loop unrolled or the branch chosen; as it is, it runs in "
                "float: `trtcal build MODEL.onnx --target TARGET`",
            )
        reasons = [f"{name}: {why}" for name, why in placement.refused.items()]
        said = f" ({'; '.join(reasons[:3])})" if reasons else ""
        hint = f"INT8 helps {', '.join(sorted(MULTIPLIES))} nodes with constant float weights"
        if {*placement.refused.values()} == {QUANTIZED}:
            command = command_line("prepare", str(model.path), o=f"{model.name}-prepared.onnx")
            hint = f"build and compare the model that `{command}` writes"
        elif REFUSAL in placement.refused.values():
            hint = "quantize the FP32 model that it was made of: `trtcal run FP32.onnx --data DATA`"
        raise InputError(f"model {model.path} has nothing to quantize{said}", hint)
    return placement


def _multiplying_bodies(model: Model) -> Iterator[str]:
    """Yield the nodes (Loop, Scan, If) whose bodies have all products, none if others have some."""
    nodes = model.proto.graph.node
    for node in () if any(node.op_type in MULTIPLIES for node in nodes) else nodes:
        if any(part.op_type in MULTIPLIES for part in with_inner([node])):
            yield f"{node.op_type} {node.name!r}"


def tensors_to_observe(placement: Placement) -> list[str]:
    """Return the activations that some plan gives a range to, each once, in graph order."""
    names = _tensors((*placement.layers, *placement.light))
    return list(dict.fromkeys(map(placement.range_of, names)))


def _tensors(layers: Iterable[Layer]) -> list[str]:
    return [name for layer in layers for name in layer.activations.values()]


def place(graph: gs.Graph) -> Placement:
    """Apply the rules to every node of a sorted graph."""
    order = {node.name: number for number, node in enumerate(graph.nodes)}
    layers, refused = list[Layer](), dict[str, str]()
    needs = f"for which Q/DQ need opset {FP16_OPSET}, and the model has opset {graph.opset}"
    decision: Found | None
    for node in graph.nodes:
        heavy = is_op(node, *RULES)
        if is_fp16(node) and graph.opset < FP16_OPSET:
            decision = f"its values are float16, {needs}" if heavy else None
        elif heavy:
            decision = RULES[node.op](node)
        else:
            decision = REFUSAL if node.op in REFUSED else _residual_add(node, graph, order)
        if isinstance(decision, Layer):
            layers.append(decision)
        elif decision is not None:
            refused[node.name] = decision
    light = propagate(graph, layers)
    sources = range_sources(graph, _tensors([*layers, *light])) | cut_sources(graph, layers)
    optional = choices(graph, [*layers, *light])
    return Placement(tuple(layers), tuple(light), tuple(optional), refused, sources)


def _residual_add(node: gs.Node, graph: gs.Graph, order: dict[str, int]) -> Layer | None:
    """Quantize the skip input of an Add (or two-input Sum) that follows a convolution.

    The other input stays float, so that the compiler can do the addition in the convolution's
    epilogue. Where both inputs are convolutions, the one computed first is the skip.
    """
    if not is_op(node, "Add", "Sum") or len(node.inputs) != 2:
        return None
    ranks = {len(tensor.shape) for tensor in node.inputs if tensor.shape is not None}
    if len(ranks) > 1 or not all(map(is_activation, node.inputs)):
        return None
    heads = [i for i, tensor in enumerate(node.inputs) if _is_conv_output(tensor, graph)]
    if not heads or node.inputs[0] is node.inputs[1]:
        return None
    head = max(heads, key=lambda i: order[node.inputs[i].inputs[0].name])
    skip = 1 - head
    if any(is_op(maker, "DequantizeLinear") for maker in node.inputs[skip].inputs):
        return None
    return Layer(node.name, node.op, {skip: node.inputs[skip].name})


def _is_conv_output(tensor: gs.Tensor, graph: gs.Graph) -> bool:
    producer = tensor.inputs[0] if tensor.inputs else None
    weighted = producer is not None and producer.op in CONVOLUTIONS
    return weighted and only_consumer(tensor, graph) is not None
