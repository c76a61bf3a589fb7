"""Fake quantization that is spelled out: scale, Round, Clip and scale back, in any usual order.

A chain is read as what it computes: `Round(a * x + b)`, limited, times `c`, plus `d`, where the factors
cancel (a * c = 1) and b and -d / c are the same whole number, the zero point. With weights, which are
constants, only the steps and c are left. Straight-through estimators, `v + (Round(v) - v)`, are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto

from trtcal.model.graph import GraphWriter, clean, clip_bounds, constant, is_op, type_of
from trtcal.model.model import Model
from trtcal.model.ops import COMMUTES, SELECTS, SPELLED
from trtcal.model.passes.base import Pass, current
from trtcal.model.passes.constants import fold_constants
from trtcal.model.passes.reading import read_graph
from trtcal.model.passes.redundant import KeptTensors

Array = npt.NDArray[Any]

LONGEST = 5  # nodes before the Round of a chain, or after it
EQUAL = 1e-6  # what float32 leaves of the product of a factor and its inverse
NEAR = 1e-3  # of a whole number of steps
LOW, HIGH = -128, 127


@dataclass(frozen=True)
class Affine:
    """`factor * x + offset` between limits, each float64 and in a shape that broadcasts."""

    factor: Array
    offset: Array
    low: Array
    high: Array

    def then(self, factor: Any, offset: Any) -> Affine:
        """Return it times a factor, plus an offset."""
        parts = (self.offset, self.low, self.high)
        return Affine(self.factor * factor, *(part * factor + offset for part in parts))

    def within(self, low: Any, high: Any) -> Affine:
        """Return it between narrower limits."""
        low, high = (np.clip(limit, low, high) for limit in (self.low, self.high))
        return replace(self, low=low, high=high)


ITSELF = Affine(*map(np.asarray, (1.0, 0.0, -np.inf, np.inf)))


@dataclass(frozen=True)
class Chain:
    """Nodes around a Round that give `source`, in whole steps of `scale` from `low` to `high`.

    `scale` is () or, along `axis`, (channels,). A constant source is in steps already, `shift` too few.
    """

    node: str
    source: gs.Tensor
    result: gs.Tensor
    scale: Array
    axis: int | None
    low: float
    high: float
    shift: float

    @property
    def why_kept(self) -> str | None:
        """Why no Q/DQ can take its place, None if they can."""
        if not np.isfinite([self.low, self.high]).all():
            return "its steps have no limits"
        if self.low < LOW or self.high > HIGH:
            steps = f"from {self.low:g} to {self.high:g}"
            return f"its steps go {steps}, and INT8's from {LOW} to {HIGH}"
        if self.axis is not None and not isinstance(self.source, gs.Constant):
            return "its activations have a step for each channel, which TensorRT takes of weights alone"
        is_half = type_of(self.source) == TensorProto.FLOAT16
        return "its values are float16" if is_half else None

    def __str__(self) -> str:
        least, most = self.scale.min(), self.scale.max()
        size = f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}"
        kind, more = "INT8, ", ""
        if self.why_kept:
            kind, more = "", f"; no Q/DQ can do it: {self.why_kept}"
        ends = f"{kind}{self.low:g} to {self.high:g}"
        return f"{self.source.name!r} in steps of {size} ({ends}){more}"


def find_chains(graph: gs.Graph) -> list[Chain]:
    """Return the chains of a graph in which all constants were computed, but for those rounded."""
    kept = KeptTensors(graph)
    rounds = (node for node in graph.nodes if is_op(node, "Round"))
    return [chain for node in rounds if (chain := _shortest(node, kept))]


def chains_of(model: Model) -> list[Chain]:
    """Return the chains of a model, prepared or not."""
    if all(node.op_type != "Round" for node in model.proto.graph.node):
        return []
    graph = read_graph(model)
    fold_constants(graph, ("Round",))
    return find_chains(graph)


def _shortest(node: gs.Node, kept: KeptTensors) -> Chain | None:
    """Return the shortest chain around a Round that Q/DQ can replace, else the shortest of all."""
    befores = _before(node, kept)
    pairs = ((start, end) for start in befores for end in _after(node, start[1], kept))
    chains = [chain for pair in pairs if (chain := _closed(node, *pair))]
    return min(chains, key=lambda chain: chain.why_kept is not None, default=None)


Reach = tuple[gs.Tensor, Affine]
"""A tensor at an end of a chain, and how what is rounded comes from it, or it from that."""


def _before(node: gs.Node, kept: KeptTensors) -> Iterator[Reach]:
    tensor, makers = node.inputs[0], list[gs.Node]()
    while True:
        affine: Affine | None = ITSELF
        for maker in reversed(makers):
            affine = affine and _applied(affine, maker)
        if affine is None or tensor is None:
            return
        yield tensor, affine
        if not tensor.inputs or len(makers) == LONGEST or not _is_inner(tensor, node, kept):
            return
        makers.append(tensor.inputs[0])
        tensor = _operand(makers[-1])


def _after(node: gs.Node, before: Affine, kept: KeptTensors) -> Iterator[Reach]:
    tensor = _straight_through(node.outputs[0])
    affine = replace(ITSELF, low=np.rint(before.low), high=np.rint(before.high))
    for _ in range(LONGEST):
        reader = _only(tensor) if kept.is_free(tensor) else None
        step = _applied(affine, reader) if reader and _operand(reader) is tensor else None
        if reader is None or step is None:
            return
        affine, tensor = step, _straight_through(reader.outputs[0])
        yield tensor, affine


def _closed(node: gs.Node, before: Reach, after: Reach) -> Chain | None:
    """Return the chain between two ends, if its factors and its offsets cancel."""
    (source, into), (result, back) = before, after
    scale, shift = back.factor, back.offset / back.factor
    is_constant = isinstance(source, gs.Constant)
    offset = -shift if is_constant else into.offset
    product = 1.0 if is_constant else into.factor * scale
    is_scaled = np.all(scale != 1)
    cancels = np.allclose(product, 1, 0, EQUAL) and np.allclose(offset + shift, 0, 0, NEAR)
    limits = [np.unique(np.rint(limit / scale)) for limit in (back.low, back.high)]
    shifts = np.unique(np.rint(shift))
    if not (is_scaled and cancels and np.allclose(shift, shifts[0], 0, NEAR)):
        return None
    axes = [axis for axis, size in enumerate(np.shape(scale)) if size > 1]
    most = 0 if source.shape is None else 1
    if any(len(limit) > 1 for limit in limits) or len(axes) > most:
        return None
    low, high = (float(limit[0]) for limit in limits)
    axis = axes[0] + len(source.shape) - np.ndim(scale) if axes else None
    flat = np.asarray(scale, np.float32).reshape(-1 if axes else ())
    return Chain(node.name, source, result, flat, axis, low, high, float(shifts[0]))


def _applied(affine: Affine, node: gs.Node) -> Affine | None:
    """Return what a node of a chain makes of a value, None where that is no part of a chain."""
    if is_op(node, "Identity"):
        return affine
    if is_op(node, "Cast"):
        return _cast(affine, node.attrs["to"])
    if is_op(node, "Clip"):
        limits = clip_bounds(node)
        return None if limits is None else affine.within(*limits)
    value = next((constant(tensor) for tensor in node.inputs if tensor is not _operand(node)), None)
    if value is None or value.dtype.kind != "f":
        return None
    value = value.astype(np.float64)
    if node.op in ("Min", "Max"):
        return affine.within(*((-np.inf, value) if node.op == "Min" else (value, np.inf)))
    if node.op in ("Add", "Sub"):
        return affine.then(1, value if node.op == "Add" else -value)
    return affine.then(value if node.op == "Mul" else 1 / value, 0) if (value > 0).all() else None


def _cast(affine: Affine, kind: int) -> Affine | None:
    """Return a value that a Cast keeps: of floats to float32, of steps to a type that has them all."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    if dtype.kind not in "iu":
        return affine if kind == TensorProto.FLOAT else None
    ends = np.iinfo(dtype)
    holds = (ends.min <= affine.low).all() and (affine.high <= ends.max).all()
    return affine if holds and np.all(affine.factor == 1) else None


def _operand(node: gs.Node) -> gs.Tensor | None:
    """Return the input of a chain's node that is not constant, None if it can't be of a chain."""
    if not is_op(node, *SPELLED):
        return None
    if node.op not in COMMUTES | SELECTS:
        return node.inputs[0]
    others = [tensor for tensor in node.inputs if not isinstance(tensor, gs.Constant)]
    return others[0] if len(others) == 1 and len(node.inputs) == 2 else None


def _straight_through(tensor: gs.Tensor) -> gs.Tensor:
    """Return `other + (tensor - other)`, which is the tensor, where that is what reads it."""
    sub = _only(tensor)
    add = _only(sub.outputs[0]) if sub and is_op(sub, "Sub") else None
    if sub is None or add is None or not is_op(add, "Add") or sub.inputs[0] is not tensor:
        return tensor
    both = {id(sub.inputs[1]), id(sub.outputs[0])}
    return add.outputs[0] if both == set(map(id, add.inputs)) else tensor


def _only(tensor: gs.Tensor) -> gs.Node | None:
    return tensor.outputs[0] if len(tensor.outputs) == 1 else None


def _is_inner(tensor: gs.Tensor, node: gs.Node, kept: KeptTensors) -> bool:
    estimated = _straight_through(node.outputs[0]) is not node.outputs[0]
    readers = 3 if tensor is node.inputs[0] and estimated else 1
    return kept.is_free(tensor) and len(tensor.outputs) == readers


def _write(graph: gs.Graph) -> int:
    if not any(is_op(node, "Round") for node in graph.nodes):
        return 0
    folded, writer = fold_constants(graph, ("Round",)), GraphWriter(graph)
    chains = [chain for chain in find_chains(graph) if chain.why_kept is None]
    for chain in chains:
        _replace(chain, writer)
    clean(graph)
    return folded + len(chains)


def _replace(chain: Chain, writer: GraphWriter) -> None:
    name, source = chain.source.name, chain.source
    scale = writer.new_constant(f"{name}/scale", chain.scale)
    zero = writer.new_constant(f"{name}/zero_point", np.zeros(chain.scale.shape, np.int8))
    attributes = {} if chain.axis is None else {"axis": chain.axis}
    if isinstance(source, gs.Constant):
        steps = np.rint(np.asarray(constant(source))) + chain.shift
        steps = np.clip(steps, chain.low, chain.high).astype(np.int8)
        codes = writer.new_constant(f"{name}/int8", steps)
    else:
        if (chain.low, chain.high) != (LOW, HIGH):
            limits = [chain.scale * np.float32(end) for end in (chain.low, chain.high)]
            source = writer.new_clip(f"{chain.node}/limit", source, limits)
        codes = writer.new_variable(f"{name}/quantized", np.int8, source)
        writer.new_node("QuantizeLinear", f"{chain.node}/quantize", [source, scale, zero], codes)
    chain.result.inputs.clear()
    inputs, result = [codes, scale, zero], chain.result
    writer.new_node("DequantizeLinear", f"{chain.node}/dequantize", inputs, result, attributes)


def _none_left(graph: gs.Graph) -> str | None:
    left = (chain.node for chain in find_chains(graph) if chain.why_kept is None)
    name = next(left, None)
    return name and f"node {name!r} still rounds to steps"


ROUNDING = Pass(
    "fake-quantization",
    "Put Q/DQ with the trained steps in the place of fake quantization by Round and Clip.",
    _write,
    current,
    _none_left,
)
