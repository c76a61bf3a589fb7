"""What a plan means for one model: every node that it decides, why, and what share that is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs

from trtcal.model import Model
from trtcal.model.graph import import_graph
from trtcal.model.ops import CONVOLUTIONS, MULTIPLIES, SENSITIVE
from trtcal.quantization.placement import Placement, find_layers
from trtcal.quantization.plan import Decision, Plan

FOLLOWS = "follows"
KEPT = "it stays in float32 unless a plan names it or its operator"


@dataclass(frozen=True)
class Planned:
    """A node and its precision, or `follows` where its neighbours decide; `by` says what decided.

    `weights` counts constants, `macs` multiplications for one sample, None if shapes leave it open.
    """

    node: str
    op: str
    precision: str
    by: str
    reason: str
    weights: int
    macs: int | None

    @property
    def follows(self) -> bool:
        """Whether its neighbours decide."""
        return self.precision == FOLLOWS

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)


def decide(plan: Plan, graph: gs.Graph, placement: Placement) -> dict[str, Decision]:
    """Return what a plan asks of every node; `InputError` if a part of it is about none."""
    ops = {node.name: node.op for node in graph.nodes}
    plan.check(ops, placement.names)
    return {name: plan.decide(name, op) for name, op in ops.items()}


def resolve(plan: Plan, model: Model) -> tuple[Planned, ...]:
    """Return every node of a prepared model, in the order of its graph.

    Ranges are not looked at: what overflows float16 is found when the model is quantized.
    """
    placement = find_layers(model)
    graph = import_graph(model.proto)
    decisions = decide(plan, graph, placement)
    layers = {layer.name for layer in (*placement.layers, *placement.light)}
    named = {name for name in placement.names if not decisions[name].is_default}
    return tuple(
        _planned(node, decisions[node.name], node.name in layers | named, placement.refused)
        for node in graph.nodes
    )


def _planned(node: gs.Node, decision: Decision, is_layer: bool, refused: dict[str, str]) -> Planned:
    precision, reason = decision.precision, decision.reason
    if precision == "int8" and not is_layer:
        heavy = node.op in MULTIPLIES
        precision = "fp32" if heavy else FOLLOWS
        reason = f"not INT8: {refused.get(node.name, 'nothing to quantize')}" if heavy else reason
    elif decision.is_default and precision != "int8" and node.op not in MULTIPLIES:
        precision = FOLLOWS
    if precision == "fp16" and node.op in SENSITIVE and not decision.named:
        precision, reason = "fp32", KEPT
    weights = sum(math.prod(shape) for shape in _weight_shapes(node))
    return Planned(node.name, node.op, precision, decision.by, reason, weights, _macs(node))


def _weight_shapes(node: gs.Node) -> Iterator[tuple[int, ...]]:
    constants = (tensor for tensor in node.inputs[:2] if isinstance(tensor, gs.Constant))
    return (tuple(tensor.shape) for tensor in constants if node.op in MULTIPLIES)


def _macs(node: gs.Node) -> int | None:
    """Return the multiplications of one sample, which the first axis counts; 0 for light nodes."""
    if node.op not in MULTIPLIES:
        return 0
    weight = next(_weight_shapes(node), None)
    if node.op in CONVOLUTIONS:
        image = node.outputs[0] if node.op == "Conv" else node.inputs[0]
        return _times(weight, (image.shape or [None, None, None])[2:])
    if node.op == "Gemm":
        return _times(weight, [])
    if node.op == "MatMul":
        result = node.outputs[0].shape
        length = (node.inputs[0].shape or [None])[-1]
        return _times((), [*(result[1:] if result else [None]), length])
    return None


def _times(weight: tuple[int, ...] | None, sizes: list[Any]) -> int | None:
    if weight is None or not all(isinstance(size, int) for size in sizes):
        return None
    return math.prod((*weight, *sizes))
