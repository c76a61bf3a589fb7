"""Which channels of which tensors can be scaled together without changing what a network computes.

Every channel of every tensor gets a number; numbers that have to be scaled alike are joined (the two
inputs of an Add, the input and the output of a Relu). A channel is free if every node that makes or
reads it can compensate its scale: in a weight, or in the factor of a normalization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
import scipy

from trtcal.model.graph import captured, clip_bounds, constant, is_op
from trtcal.model.ops import AS_MATRIX, SCALES, SHAPE_ONLY
from trtcal.quantization.weighted_ops import bias_of

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Edit:
    """A constant to be scaled: `axis` has the channels `ids`; with `sign` -1 it is divided.

    `groups` above 1 is that of a convolution whose input channels lie in so many runs over its outputs.
    """

    tensor: str
    node: str
    axis: int
    ids: Ids
    sign: int
    groups: int = 1


@dataclass
class Channels:
    """The channels of a sorted graph: `of` a tensor its (axis, ids).

    `pairs` are channels that are joined one by one. `limits` are inputs of Clips, whose upper bound
    stays the same whatever the scale.
    """

    of: dict[str, tuple[int, Ids]] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    count: int = 0
    pairs: list[tuple[Ids, Ids]] = field(default_factory=list)
    frozen: set[int] = field(default_factory=set)

    def new(self, count: int) -> Ids:
        """Return numbers for new channels."""
        self.count += count
        return np.arange(self.count - count, self.count)

    def make(self, tensor: gs.Tensor, axis: int | None, count: int) -> Ids | None:
        """Give a tensor new channels along an axis, counted from either end; None if it is unknown."""
        if (axis := _from_front(tensor, axis)) is None:
            return None
        ids = self.new(count)
        self.of[tensor.name] = (axis, ids)
        return ids

    def roots(self) -> Ids:
        """Return for each number the first that is joined with it."""
        return joined(self.count, self.pairs)

    def freeze(self, *tensors: gs.Tensor) -> None:
        """Keep the channels of tensors as they are."""
        for tensor in tensors:
            if tensor.name in self.of:
                self.frozen.update(map(int, self.of[tensor.name][1]))

    def is_free(self) -> npt.NDArray[np.bool_]:
        """Return for each number whether it may be scaled, shape (numbers,)."""
        roots = self.roots()
        fixed = np.zeros(len(roots), bool)
        fixed[roots[sorted(self.frozen)]] = True
        return ~fixed[roots]


def joined(count: int, pairs: Iterable[tuple[Ids, Ids]]) -> Ids:
    """Return for each of `count` numbers the first of its set; pairs of numbers are in one set."""
    left, right = np.concatenate([np.empty((2, 0), np.int64), *map(np.stack, pairs)], axis=1)
    edges = scipy.sparse.csr_array((np.ones(len(left)), (left, right)), shape=(count, count))
    _, sets = scipy.sparse.csgraph.connected_components(edges, directed=False)
    return np.asarray(np.unique(sets, return_index=True)[1][sets])


def find_channels(graph: gs.Graph) -> Channels:
    """Return the channels of a sorted graph, numbered."""
    channels = Channels()
    for node in graph.nodes:
        rule = RULES.get(node.op) if is_op(node, node.op) else None
        if rule is None or not rule(node, channels):
            channels.freeze(*node.inputs)
    channels.freeze(*graph.outputs, *captured(graph))
    tensors = graph.tensors()
    for edit in channels.edits:
        if len(tensors[edit.tensor].outputs) > 1:  # another node reads the constant too
            channels.frozen.update(map(int, edit.ids))
    return channels


def weight_axes(node: gs.Node) -> tuple[int, int, int] | None:
    """Return the axes of outputs and inputs in a weight, and that of channels in the activations."""
    if node.op == "Conv":
        return 0, 1, 1
    if node.op == "MatMul":
        weight = constant(node.inputs[1])
        return (1, 0, -1) if weight is not None and weight.ndim == 2 else None
    if node.attrs.get("transA", 0) or node.attrs.get("alpha", 1.0) != 1.0:
        return None
    rows = 0 if node.attrs.get("transB", 0) else 1
    return rows, 1 - rows, 1


def _from_front(tensor: gs.Tensor, axis: int | None) -> int | None:
    """Return an axis counted from the front, None if the rank is not known."""
    if axis is None or axis >= 0:
        return axis
    return None if tensor.shape is None else axis + len(tensor.shape)


def _weighted(node: gs.Node, channels: Channels) -> bool:
    weight, axes = constant(node.inputs[1]), weight_axes(node)
    if weight is None or weight.dtype != np.float32 or axes is None:
        return False
    rows, columns, axis = axes
    groups = node.attrs.get("group", 1) if node.op == "Conv" else 1
    source, kernel = node.inputs[:2]
    at, ids = channels.of.get(source.name, (None, np.empty(0, np.int64)))
    if at is None or at != _from_front(source, axis) or len(ids) != weight.shape[columns] * groups:
        channels.freeze(source)
    else:
        channels.edits.append(Edit(kernel.name, node.name, columns, ids, -1, groups))
    if (new_ids := channels.make(node.outputs[0], axis, weight.shape[rows])) is not None:
        channels.edits.append(Edit(kernel.name, node.name, rows, new_ids, 1))
        _with_bias(node, channels, new_ids)
    return True


def _with_bias(node: gs.Node, channels: Channels, ids: Ids) -> None:
    if node.op == "MatMul" or len(node.inputs) < 3:
        return
    if bias_of(node) is None or tuple(node.inputs[2].shape) != ids.shape:
        channels.freeze(node.outputs[0])
    else:
        channels.edits.append(Edit(node.inputs[2].name, node.name, 0, ids, 1))


def _alike(node: gs.Node, channels: Channels) -> bool:
    if node.inputs[0].name in channels.of:
        channels.of[node.outputs[0].name] = channels.of[node.inputs[0].name]
    return len(node.outputs) == 1 or node.op == "Dropout"


def _clip(node: gs.Node, channels: Channels) -> bool:
    """Bound the channels of a Relu6: one limit for all, so smaller ones can only be scaled up."""
    bounds = clip_bounds(node)
    if bounds is None or bounds[0] != 0.0:
        return False
    if node.inputs[0].name in channels.of and np.isfinite(bounds[1]):
        channels.limits[node.inputs[0].name] = bounds[1]
    return _alike(node, channels)


def _reduce(node: gs.Node, channels: Channels) -> bool:
    source = node.inputs[0]
    axes = node.attrs.get("axes") if len(node.inputs) < 2 else constant(node.inputs[1])
    if source.name not in channels.of or source.shape is None or axes is None:
        return False
    axis, ids = channels.of[source.name]
    gone = {int(removed) % len(source.shape) for removed in np.ravel(axes)}
    if axis in gone:
        return False
    kept = axis if node.attrs.get("keepdims", 1) else axis - sum(removed < axis for removed in gone)
    channels.of[node.outputs[0].name] = (kept, ids)
    return True


def _flat(node: gs.Node, channels: Channels) -> bool:
    """Keep the channels of a tensor that has one value of each."""
    source, result = node.inputs[0], node.outputs[0]
    if source.name not in channels.of or source.shape is None or result.shape is None:
        return False
    axis, ids = channels.of[source.name]
    if axis != 1 or any(size != 1 for size in source.shape[2:]) or len(result.shape) < 2:
        return False
    if result.shape[1] != len(ids):
        return False
    channels.of[result.name] = (1, ids)
    return True


def _add(node: gs.Node, channels: Channels) -> bool:
    for source, other in (node.inputs, node.inputs[::-1]):
        if constant(other) is not None:
            return _add_constant(node, channels, source, other)
    left, right = node.inputs
    if not {left.name, right.name} <= set(channels.of) or left.shape is None or right.shape is None:
        return False
    (a, first), (b, second) = (channels.of[tensor.name] for tensor in (left, right))
    if a != b or len(left.shape) != len(right.shape) or len(first) != len(second):
        return False
    channels.pairs.append((first, second))
    channels.of[node.outputs[0].name] = (a, first)
    return True


def _add_constant(node: gs.Node, channels: Channels, source: gs.Tensor, added: gs.Tensor) -> bool:
    """Scale an added constant together with the channels, if it lies along them."""
    if source.name not in channels.of or source.shape is None:
        return False
    axis, ids = channels.of[source.name]
    fixed = np.asarray(constant(added))
    own = axis - (len(source.shape) - fixed.ndim)
    lies_along = own >= 0 and fixed.shape[own] == len(ids) == fixed.size
    if not lies_along or fixed.dtype != np.float32:
        return False
    channels.of[node.outputs[0].name] = (axis, ids)
    channels.edits.append(Edit(added.name, node.name, own, ids, 1))
    return True


def _mul(node: gs.Node, channels: Channels) -> bool:
    """Make channels anew by one factor each; the input stays as it is."""
    index = 1 if constant(node.inputs[0]) is None else 0
    source, factors = node.inputs[1 - index], node.inputs[index]
    if (fixed := constant(factors)) is None:
        return _gate(node, channels)
    channels.freeze(source)
    if source.shape is None or fixed.dtype != np.float32 or fixed.size < 2:
        channels.freeze(factors)
        return True
    axes = [i for i, size in enumerate(fixed.shape) if size == fixed.size]
    if len(axes) == 1 and fixed.ndim <= len(source.shape):
        axis = axes[0] + len(source.shape) - fixed.ndim
        _scaled_by(node, channels, {factors.name: axes[0]}, axis, fixed.size)
    return True


def _scaled_by(
    node: gs.Node, channels: Channels, constants: Mapping[str, int], axis: int, count: int
) -> None:
    """Make channels along an axis that are scaled in constants, each with its own axis."""
    if (ids := channels.make(node.outputs[0], axis, count)) is not None:
        channels.edits += [Edit(name, node.name, own, ids, 1) for name, own in constants.items()]


def _gate(node: gs.Node, channels: Channels) -> bool:
    """Keep the channels that a computed factor multiplies; that factor stays as it is."""
    source, gate = sorted(node.inputs, key=lambda input_: input_.name not in channels.of)
    channels.freeze(gate)
    known, result = channels.of.get(source.name), node.outputs[0]
    if known is None or source.shape is None or result.shape is None:
        return False
    axis, ids = known
    if len(result.shape) != len(source.shape) or result.shape[axis] != len(ids):
        return False
    channels.of[result.name] = known
    return True


def _normalization(node: gs.Node, channels: Channels) -> bool:
    """Make channels by a factor and an addend each."""
    channels.freeze(node.inputs[0])
    vectors = [np.asarray(constant(tensor)) for tensor in node.inputs[1:3]]
    if len(node.outputs) == 1 and all(v.ndim == 1 and v.dtype == np.float32 for v in vectors):
        axis = 1 if node.op == "BatchNormalization" else -1
        names = {tensor.name: 0 for tensor in node.inputs[1:3]}
        _scaled_by(node, channels, names, axis, len(vectors[0]))
    return True


def _concat(node: gs.Node, channels: Channels) -> bool:
    known = [channels.of[tensor.name] for tensor in node.inputs if tensor.name in channels.of]
    axis = _from_front(node.outputs[0], node.attrs["axis"])
    if axis is None or len(known) < len(node.inputs) or any(at != axis for at, _ in known):
        return False
    channels.of[node.outputs[0].name] = (axis, np.concatenate([ids for _, ids in known]))
    return True


def _slice(node: gs.Node, channels: Channels) -> bool:
    """Take the same part of the channels; steps along other axes change nothing."""
    source = node.inputs[0]
    arguments = [None if tensor.is_empty() else constant(tensor) for tensor in node.inputs[1:5]]
    if source.name not in channels.of or source.shape is None or len(arguments) < 2:
        return False
    if any(argument is None for argument in arguments):
        return False
    starts, stops, *others = (np.asarray(argument).tolist() for argument in arguments)
    axes = others[0] if others else range(len(starts))
    steps = others[1] if len(others) > 1 else [1] * len(starts)
    at, ids = channels.of[source.name]
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        if axis % len(source.shape) == at:
            ids = ids[slice(start, None if step < 0 and stop < -len(ids) else stop, step)]
    channels.of[node.outputs[0].name] = (at, ids)
    return True


def _pad(node: gs.Node, channels: Channels) -> bool:
    """Add channels of zeros, which may have any scale."""
    source, *arguments = node.inputs
    pads = constant(arguments[0]) if arguments else None
    value = constant(arguments[1]) if len(arguments) > 1 and not arguments[1].is_empty() else 0
    plain = node.attrs.get("mode", "constant") == "constant" and value is not None
    if source.name not in channels.of or pads is None or len(arguments) > 2 or not plain:
        return False
    at, ids = channels.of[source.name]
    before, after = int(pads[at]), int(pads[at + len(pads) // 2])
    if np.any(value) or min(before, after) < 0:
        return False
    padded = np.concatenate([channels.new(before), ids, channels.new(after)])
    channels.of[node.outputs[0].name] = (at, padded)
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
    "PRelu": lambda node, channels: constant(node.inputs[1]) is not None and _alike(node, channels),
    **dict.fromkeys(SHAPE_ONLY, lambda node, channels: True),
    "Pad": _pad,
    "Slice": _slice,
}
"""By operator, whether it compensates the scale of its input, with an entry in the found channels."""
