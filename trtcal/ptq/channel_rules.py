"""How the channels that each operator reads and makes hang together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.model.graph import captured, clip_bounds, constant, is_op
from trtcal.model.ops import AS_MATRIX, SCALES, SHAPE_ONLY
from trtcal.ptq.channels import Channels, Edit, Ids
from trtcal.quantization.weighted_ops import bias_of


def find_channels(graph: gs.Graph) -> Channels:
    """Return the channels of a sorted graph, numbered."""
    found = Channels()
    for node in graph.nodes:
        rule = RULES.get(node.op) if is_op(node, node.op) else None
        if rule is None or not rule(node, found):
            for tensor in node.inputs:
                found.freeze(tensor.name)
    for tensor in (*graph.outputs, *captured(graph)):
        found.freeze(tensor.name)
    _hold_shared(graph, found)
    return found


def _hold_shared(graph: gs.Graph, found: Channels) -> None:
    """Freeze what needs a constant that others, in subgraphs too, read."""
    tensors = graph.tensors()
    for edit in found.edits:
        if len(tensors[edit.tensor].outputs) > 1:
            found.frozen.update(map(int, edit.ids))


def _axis(tensor: gs.Tensor, axis: int) -> int | None:
    """Return an axis counted from the front, None if the rank is not known."""
    if axis >= 0:
        return axis
    return None if tensor.shape is None else axis + len(tensor.shape)


def _make(found: Channels, tensor: gs.Tensor, axis: int | None, count: int) -> Ids | None:
    if axis is None:
        return None
    ids = found.new(count)
    found.of[tensor.name] = (axis, ids)
    return ids


def _read(found: Channels, tensor: gs.Tensor, axis: int | None, count: int) -> Ids | None:
    """Return the ids along an axis of what a node reads, None if they are not known to lie there."""
    at, ids = found.of.get(tensor.name, (None, np.empty(0, np.int64)))
    return ids if at is not None and at == axis and len(ids) == count else None


def _weighted(node: gs.Node, found: Channels) -> bool:
    weight, axes = constant(node.inputs[1]), weight_axes(node)
    if weight is None or weight.dtype != np.float32 or axes is None:
        return False
    rows, columns, axis = axes
    groups = node.attrs.get("group", 1) if node.op == "Conv" else 1
    name, source, result = node.inputs[1].name, node.inputs[0], node.outputs[0]
    ids = _read(found, source, _axis(source, axis), weight.shape[columns] * groups)
    if ids is None:
        found.freeze(source.name)
    else:
        found.edits.append(Edit(name, node.name, columns, ids, -1, groups))
    made = _make(found, result, _axis(result, axis), weight.shape[rows])
    if made is not None:
        found.edits.append(Edit(name, node.name, rows, made, 1))
        _with_bias(node, found, made)
    return True


def weight_axes(node: gs.Node) -> tuple[int, int, int] | None:
    """Return a weight's axes of outputs and inputs, and the axis of both in what it reads and makes."""
    if node.op == "Conv":
        return 0, 1, 1
    if node.op == "MatMul":
        weight = constant(node.inputs[1])
        return (1, 0, -1) if weight is not None and weight.ndim == 2 else None
    if node.attrs.get("transA", 0) or node.attrs.get("alpha", 1.0) != 1.0:
        return None
    rows = 0 if node.attrs.get("transB", 0) else 1
    return rows, 1 - rows, 1


def _with_bias(node: gs.Node, found: Channels, made: Ids) -> None:
    if node.op == "MatMul" or len(node.inputs) < 3:
        return
    if bias_of(node) is None or tuple(node.inputs[2].shape) != made.shape:
        found.freeze(node.outputs[0].name)
    else:
        found.edits.append(Edit(node.inputs[2].name, node.name, 0, made, 1))


def _alike(node: gs.Node, found: Channels) -> bool:
    if node.inputs[0].name in found.of:
        axis, ids = found.of[node.inputs[0].name]
        found.of[node.outputs[0].name] = (axis, ids)
    return len(node.outputs) == 1 or node.op == "Dropout"


def _clip(node: gs.Node, found: Channels) -> bool:
    """Bound the channels of a Relu6: one limit for all, so smaller ones can be scaled up only."""
    bounds = clip_bounds(node)
    if bounds is None or bounds[0] != 0.0:
        return False
    if node.inputs[0].name in found.of and np.isfinite(bounds[1]):
        found.limits[node.inputs[0].name] = bounds[1]
    return _alike(node, found)


def _unread(node: gs.Node, found: Channels) -> bool:
    """Pass over what reads no values."""
    return True


def _prelu(node: gs.Node, found: Channels) -> bool:
    return constant(node.inputs[1]) is not None and _alike(node, found)


def _reduce(node: gs.Node, found: Channels) -> bool:
    if node.inputs[0].name not in found.of or node.inputs[0].shape is None:
        return False
    axes = node.attrs.get("axes") if len(node.inputs) < 2 else constant(node.inputs[1])
    if axes is None:
        return False
    axis, ids = found.of[node.inputs[0].name]
    rank = len(node.inputs[0].shape)
    gone = {int(one) % rank for one in np.ravel(axes)}
    if axis in gone:
        return False
    kept = axis if node.attrs.get("keepdims", 1) else axis - sum(one < axis for one in gone)
    found.of[node.outputs[0].name] = (kept, ids)
    return True


def _flat(node: gs.Node, found: Channels) -> bool:
    """Worker on the channels of what has one value each."""
    source, result = node.inputs[0], node.outputs[0]
    if source.name not in found.of or source.shape is None or result.shape is None:
        return False
    axis, ids = found.of[source.name]
    rest = list(source.shape[axis + 1 :])
    if axis != 1 or any(size != 1 for size in rest) or len(result.shape) < 2:
        return False
    if result.shape[1] != len(ids):
        return False
    found.of[result.name] = (1, ids)
    return True


def _add(node: gs.Node, found: Channels) -> bool:
    for source, other in (node.inputs, node.inputs[::-1]):
        if constant(other) is not None:
            return _beside(node, found, source, other)
    left, right = node.inputs
    if not {left.name, right.name} <= set(found.of) or left.shape is None or right.shape is None:
        return False
    (a, first), (b, second) = (found.of[tensor.name] for tensor in (left, right))
    if a != b or len(left.shape) != len(right.shape) or len(first) != len(second):
        return False
    found.join(first, second)
    found.of[node.outputs[0].name] = (a, first)
    return True


def _beside(node: gs.Node, found: Channels, source: gs.Tensor, added: gs.Tensor) -> bool:
    """Scale what is added together with the channels, if it lies along them."""
    if source.name not in found.of or source.shape is None:
        return False
    axis, ids = found.of[source.name]
    fixed = np.asarray(constant(added))
    own = axis - (len(source.shape) - fixed.ndim)
    others = [size for i, size in enumerate(fixed.shape) if i != own]
    if own < 0 or fixed.shape[own] != len(ids) or any(size != 1 for size in others):
        return False
    if fixed.dtype != np.float32:
        return False
    found.of[node.outputs[0].name] = (axis, ids)
    found.edits.append(Edit(added.name, node.name, own, ids, 1))
    return True


def _mul(node: gs.Node, found: Channels) -> bool:
    """Make channels anew by one factor each; what it reads stays as it is."""
    index = 1 if constant(node.inputs[0]) is None else 0
    fixed = constant(node.inputs[index])
    source, result = node.inputs[1 - index], node.outputs[0]
    if fixed is None:
        return _gate(node, found)
    found.freeze(source.name)
    if fixed is None or source.shape is None or fixed.dtype != np.float32 or fixed.size < 2:
        found.freeze(node.inputs[index].name)
        return True
    axes = [i for i, size in enumerate(fixed.shape) if size == fixed.size]
    if len(axes) != 1:
        return True
    axis = axes[0] + len(source.shape) - fixed.ndim
    ids = _make(found, result, axis, fixed.size)
    if ids is not None:
        found.edits.append(Edit(node.inputs[index].name, node.name, axes[0], ids, 1))
    return True


def _gate(node: gs.Node, found: Channels) -> bool:
    """Worker on the channels that a computed factor multiplies; that factor stays as it is."""
    source, gate = sorted(node.inputs, key=lambda one: one.name not in found.of)
    found.freeze(gate.name)
    known, made = found.of.get(source.name), node.outputs[0]
    if known is None or source.shape is None or made.shape is None:
        return False
    axis, ids = known
    if len(made.shape) != len(source.shape) or made.shape[axis] != len(ids):
        return False
    found.of[made.name] = known
    return True


def _normalization(node: gs.Node, found: Channels) -> bool:
    """Make channels by a factor and an addend each."""
    found.freeze(node.inputs[0].name)
    vectors = [np.asarray(constant(tensor)) for tensor in node.inputs[1:3]]
    if len(node.outputs) > 1 or any(v.ndim != 1 or v.dtype != np.float32 for v in vectors):
        return True
    axis = 1 if node.op == "BatchNormalization" else -1
    ids = _make(found, node.outputs[0], _axis(node.outputs[0], axis), len(vectors[0]))
    if ids is not None:
        for tensor in node.inputs[1:3]:
            found.edits.append(Edit(tensor.name, node.name, 0, ids, 1))
    return True


def _concat(node: gs.Node, found: Channels) -> bool:
    known = [found.of[tensor.name] for tensor in node.inputs if tensor.name in found.of]
    axis = _axis(node.outputs[0], node.attrs["axis"])
    if axis is None or len(known) < len(node.inputs) or any(at != axis for at, _ in known):
        return False
    found.of[node.outputs[0].name] = (axis, np.concatenate([ids for _, ids in known]))
    return True


def _slice(node: gs.Node, found: Channels) -> bool:
    """Take the same part of the channels; steps along other axes change nothing."""
    source = node.inputs[0]
    given = [None if tensor.is_empty() else constant(tensor) for tensor in node.inputs[1:5]]
    if source.name not in found.of or source.shape is None or len(given) < 2:
        return False
    if any(one is None for one in given):
        return False
    starts, stops, *others = (np.asarray(one).tolist() for one in given)
    axes = others[0] if others else range(len(starts))
    steps = others[1] if len(others) > 1 else [1] * len(starts)
    at, ids = found.of[source.name]
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        if axis % len(source.shape) == at:
            ids = ids[slice(start, None if step < 0 and stop < -len(ids) else stop, step)]
    found.of[node.outputs[0].name] = (at, ids)
    return True


def _pad(node: gs.Node, found: Channels) -> bool:
    """Channels of zeros may have any scale."""
    source = node.inputs[0]
    pads = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    value = (
        constant(node.inputs[2]) if len(node.inputs) > 2 and not node.inputs[2].is_empty() else 0
    )
    plain = node.attrs.get("mode", "constant") == "constant" and value is not None
    if source.name not in found.of or pads is None or len(node.inputs) > 3 or not plain:
        return False
    at, ids = found.of[source.name]
    before, after = int(pads[at]), int(pads[at + len(pads) // 2])
    if np.any(value) or min(before, after) < 0:
        return False
    found.of[node.outputs[0].name] = (
        at,
        np.concatenate([found.new(before), ids, found.new(after)]),
    )
    return True


RULES: Mapping[str, Callable[[gs.Node, Channels], bool]] = {
    **dict.fromkeys(SCALES, _alike),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceSum"), _reduce),
    **dict.fromkeys(AS_MATRIX, _weighted),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), _flat),
    **dict.fromkeys(("BatchNormalization", "LayerNormalization"), _normalization),
    "Add": _add,
    "Clip": _clip,
    "Concat": _concat,
    "Mul": _mul,
    "PRelu": _prelu,
    **dict.fromkeys(SHAPE_ONLY, _unread),
    "Pad": _pad,
    "Slice": _slice,
}
