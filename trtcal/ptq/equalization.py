"""Cross-layer equalization and smoothing: scale channels to share one range, with compensation behind.

The network computes the same. Channels that only depthwise layers read are made equal, as each has a
weight scale of its own there; before other layers half of the difference, in the logarithm, goes into
the weights. Sources: M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction" (2019), section 4.1; G. Xiao et al., "SmoothQuant" (2023), equation 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.data import Dataset
from trtcal.evaluate.per_sample import Values
from trtcal.model import Model
from trtcal.model.graph import constant, import_graph, is_op
from trtcal.model.model import Floats
from trtcal.model.ops import AS_MATRIX, FACTORS, QUANTIZES, Operators
from trtcal.ptq.changes import Changes, affine_readers, with_affines
from trtcal.ptq.channels import Channels, Edit, find_channels, joined
from trtcal.ptq.compensation import (
    Extremes,
    addend,
    compensating_readers,
    find_extremes,
    scaled_constants,
    shift_to_middle,
)
from trtcal.quantization import find_layers
from trtcal.quantization.placement import Placement

LARGEST_FACTOR = 64.0  # times that a channel is scaled up or down at most
STRENGTH = 0.5  # of the difference between channels that goes into the weights behind
REACH = 0.15  # of a channel's range, by which other samples may exceed those observed
TINY = 1e-30


def equalize(model: Model, dataset: Dataset, samples: int) -> Changes | None:
    """Return what equalization of layers' outputs changes, None if that is nothing."""
    return _equalized(model, dataset, samples, AS_MATRIX)


def smooth(model: Model, dataset: Dataset, samples: int) -> Changes | None:
    """Return what smoothing changes in a prepared model, None if that is nothing.

    Channels of normalizations' outputs are shifted, where only MatMuls read them, and scaled. Other
    nonlinear outputs get a Mul and an Add of their own before the layers that read them: TensorRT
    computes both in the kernel that quantizes (seen on TensorRT-RTX 1.7).
    """
    graph = import_graph(model.proto)
    affines = tuple(find_affines(graph, find_layers(model, graph=graph)))
    model = replace(model, proto=with_affines(model.proto, affines))
    changes = _equalized(model, dataset, samples, FACTORS)
    return None if changes is None else replace(changes, affines=affines)


def _equalized(model: Model, dataset: Dataset, samples: int, makers: Operators) -> Changes | None:
    """Scale the channels that operators `makers` make."""
    graph = import_graph(model.proto)
    channels = find_channels(graph)
    _freeze_others(graph, channels, makers)
    placement = find_layers(model, graph=graph)
    layers = (*placement.layers, *placement.light)
    quantized = {name for layer in layers for name in layer.activations.values()}
    names = [name for name in sorted(quantized) if name in channels.of]
    free = channels.is_free()
    if not any(free[channels.of[name][1]].any() for name in names):
        return None
    axes = {name: channels.of[name][0] for name in (*names, *channels.limits)}
    extremes = find_extremes(model, dataset, samples, axes)
    shifted: dict[str, Extremes] = {}
    constants: dict[str, Floats] = {}
    if makers is FACTORS:
        named = {layer.name: layer for layer in placement.layers}
        shifted, constants = shift_to_middle(graph, named, extremes)
        extremes |= shifted
    peaks = {name: extremes[name].peak for name in names}
    factors = _factors(graph, channels, peaks, _room(channels, extremes))
    constants |= scaled_constants(graph, channels.edits, factors)
    if not constants:
        return None
    scaled = {name for name, (_, ids) in channels.of.items() if (factors[ids] != 1.0).any()}
    moved = scaled.union(shifted, _outputs(graph, constants))
    return Changes(constants, moved=frozenset(moved))


def _outputs(graph: gs.Graph, constants: Mapping[str, Floats]) -> set[str]:
    """Return the outputs of layers with other weights; an Add behind one may compensate them."""
    tensors = graph.tensors()
    readers = [node for name in constants for node in tensors[name].outputs]
    return {node.outputs[0].name for node in readers if node.op != "Add"}


def _freeze_others(graph: gs.Graph, channels: Channels, makers: Operators) -> None:
    """Keep the channels that other operators make as they are."""
    ops = {node.name: node.op for node in graph.nodes}
    for edit in channels.edits:
        if edit.sign > 0 and ops[edit.node] not in makers | {"Add"}:
            channels.frozen.update(map(int, edit.ids))


def _factors(
    graph: gs.Graph, channels: Channels, peaks: Mapping[str, Values], room: Values
) -> Values:
    """Return what each channel is multiplied with, shape (numbers,)."""
    count, roots = channels.count, channels.roots()
    peak, reads, depthwise = np.zeros(count), np.zeros(count), np.ones(count, bool)
    for name, values in peaks.items():
        np.maximum.at(peak, roots[channels.of[name][1]], values)
    tensors = graph.tensors()
    for edit in (edit for edit in channels.edits if edit.sign < 0):
        ids = roots[edit.ids]
        weight = np.asarray(constant(tensors[edit.tensor]))
        np.maximum.at(reads, ids, _largest_weights(weight, edit))
        if edit.groups < len(ids):
            depthwise[ids] = False
    usable = channels.is_free()[roots] & (peak > 0) & (reads > 0)
    part = np.where(depthwise, 1.0, STRENGTH)
    dense = np.where(usable & ~depthwise, reads, 1.0)
    wide = np.where(usable, peak, 1.0) ** -part * dense ** (1 - part)
    factors = np.ones(count)
    sets = joined(count, ((ids[:-1], ids[1:]) for ids in (roots[channels.of[n][1]] for n in peaks)))
    for group in np.unique(sets[usable]):  # channels of one tensor, directly or through others
        mine = np.flatnonzero(usable & (sets == group))
        # nothing depends on a constant factor; this one leaves the largest channel as it is
        mean = 1 / (wide[mine] * peak[mine]).max() * peak[mine].max()
        factors[mine] = np.clip(wide[mine] * mean, 1 / LARGEST_FACTOR, LARGEST_FACTOR)
    bounded = np.clip(factors, 1.0, np.minimum(room, LARGEST_FACTOR))
    factors = np.where(np.isfinite(room), bounded, factors)
    return np.where(usable, factors, 1.0)[roots]


def _room(channels: Channels, extremes: Mapping[str, Extremes]) -> Values:
    """Return how far each channel can be scaled up before a limit clips it, at least 1.

    Features that few samples have lie below zero in all others. So how far they may reach is taken
    from the range of the sums before the Clip, most of which is negative.
    """
    roots = channels.roots()
    room = np.full(len(roots), np.inf)
    for name, limit in channels.limits.items():
        seen = extremes[name]
        reached = seen.largest + REACH * (seen.largest - seen.least)
        mine = limit / np.maximum(reached, limit / LARGEST_FACTOR)
        np.minimum.at(room, roots[channels.of[name][1]], np.maximum(mine, 1.0))
    return room


def _largest_weights(weight: Floats, edit: Edit) -> Values:
    """Return for each input channel its largest weight, relative to the largest of that output."""
    taps = np.abs(np.moveaxis(weight, edit.axis, 1))
    rows = taps.reshape(edit.groups, -1, taps.shape[1], math.prod(taps.shape[2:])).max(axis=3)
    share = rows / np.maximum(rows.max(axis=2, keepdims=True), TINY)
    return np.asarray(share.max(axis=1).reshape(-1), np.float64)


def find_affines(graph: gs.Graph, placement: Placement) -> list[str]:
    """Return the tensors that layers could read through a Mul and an Add of their own, in graph order.

    Not those that can be scaled and shifted where they are made, and none that a product of two
    activations reads: a fused attention allows nothing between.
    """
    channels = find_channels(graph)
    free = channels.is_free()
    layers = {layer.name: layer for layer in placement.layers}
    readers: dict[str, set[str]] = {}
    for layer in (*placement.layers, *placement.light):
        for name in layer.activations.values():
            readers.setdefault(name, set()).add(layer.name)
    affines = []
    for name, tensor in graph.tensors().items():
        if name not in readers or not _is_nonlinear(tensor):
            continue
        if {node.name for node in affine_readers(tensor, layers)} != readers[name]:
            continue
        _, ids = channels.of.get(name, (0, np.empty(0, np.int64)))
        shifts = addend(tensor) is not None
        shifts = shifts and compensating_readers(tensor, graph, layers) is not None
        if not (shifts and len(ids) and free[ids].all()):
            affines.append(name)
    return affines


def _is_nonlinear(tensor: gs.Tensor) -> bool:
    """Tell whether such an operator makes a tensor, and not as the bias of a product."""
    (maker,) = tensor.inputs or (None,)
    if maker is None or not is_op(maker, *QUANTIZES) or tensor.shape is None:
        return False
    sources = {input_.op for operand in maker.inputs for input_ in operand.inputs}
    return sources != {"MatMul"} or not any(isinstance(t, gs.Constant) for t in maker.inputs)
