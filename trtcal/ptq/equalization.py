"""Equalization: scale channels so that one range suits them all, and undo it in the weights behind.

The network computes the same. Channels that only a depthwise layer reads, whose weights have a scale of
their own anyway, are made equal; before others half of the difference, in the logarithm, goes into the
weights. Sources: M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction" (2019), section 4.1; G. Xiao et al., "SmoothQuant" (2023), equation 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.data import Dataset
from trtcal.model import Model
from trtcal.model.graph import constant, import_graph
from trtcal.model.model import Floats
from trtcal.model.ops import AS_MATRIX, FACTORS, Operators
from trtcal.ptq.affine import affine_places, with_affines
from trtcal.ptq.artifact import Changes
from trtcal.ptq.channel_rules import find_channels
from trtcal.ptq.channels import Channels, Edit
from trtcal.ptq.shifts import Extremes, centre_channels, find_extremes
from trtcal.quantization import find_layers

MOST = 64.0  # times that a channel is scaled up or down at most
STRENGTH = 0.5  # of the difference between channels that goes into the weights behind
REACH = 0.15  # of a channel's spread, by which other samples may exceed what was seen before a Clip
MAKERS = {"layers": AS_MATRIX, "normalizations": FACTORS}

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moved(Changes):
    """Changes, and the tensors whose values are others because of them.

    Outputs of layers with other weights count, even where they compute the same.
    """

    tensors: frozenset[str] = frozenset()


def equalized(model: Model, dataset: Dataset, samples: int, kind: str) -> Moved | None:
    """Return what equalization changes in a prepared model, None if that is nothing.

    `kind` says what makes the channels that are scaled: "layers" or "normalizations". Those of the
    latter are shifted before, where MatMuls alone read them.
    """
    graph = import_graph(model.proto)
    channels = find_channels(graph)
    _hold_others(graph, channels, MAKERS[kind])
    placement = find_layers(model)
    layers = (*placement.layers, *placement.light)
    quantized = {name for layer in layers for name in layer.activations.values()}
    wanted = [name for name in sorted(quantized) if name in channels.of]
    free = channels.is_free()
    if not any(free[channels.of[name][1]].any() for name in wanted):
        return None
    axes = {name: channels.of[name][0] for name in (*wanted, *channels.limits)}
    extremes = find_extremes(model, dataset, samples, axes)
    centred: dict[str, Extremes] = {}
    shifted: dict[str, Floats] = {}
    if kind == "normalizations":
        named = {layer.name: layer for layer in placement.layers}
        centred, shifted = centre_channels(graph, named, extremes)
        extremes |= centred
    peaks = {name: extremes[name].peak for name in wanted}
    factors = _factors(graph, channels, peaks, _room(channels, extremes))
    constants = {**shifted, **edited(graph, channels.edits, factors)}
    scaled = {name for name, (_, ids) in channels.of.items() if (factors[ids] != 1.0).any()}
    moved = scaled.union(centred, _outputs(graph, constants))
    return Moved(constants, tensors=frozenset(moved)) if constants else None


def _outputs(graph: gs.Graph, constants: Mapping[str, Floats]) -> set[str]:
    """Return what layers with other weights make; an Add behind one may make up for it."""
    tensors = graph.tensors()
    readers = [node for name in constants for node in tensors[name].outputs]
    return {node.outputs[0].name for node in readers if node.op != "Add"}


def _hold_others(graph: gs.Graph, channels: Channels, makers: Operators) -> None:
    """Keep the channels that something else makes as they are."""
    ops = {node.name: node.op for node in graph.nodes}
    for edit in channels.edits:
        if edit.sign > 0 and ops[edit.node] not in makers | {"Add"}:
            channels.frozen.update(map(int, edit.ids))


def _factors(
    graph: gs.Graph, channels: Channels, peaks: Mapping[str, Values], room: Values
) -> Values:
    """Return what each channel is multiplied with, shape (numbers,)."""
    count = len(channels.parent)
    roots = channels.roots(np.arange(count))
    peak, reads, depthwise = np.zeros(count), np.zeros(count), np.ones(count, bool)
    for name, values in peaks.items():
        np.maximum.at(peak, roots[channels.of[name][1]], values)
    tensors = graph.tensors()
    for edit in (one for one in channels.edits if one.sign < 0):
        ids = roots[edit.ids]
        np.maximum.at(reads, ids, _shares(constant(tensors[edit.tensor]), edit))
        if edit.groups < len(ids):
            depthwise[ids] = False
    usable = channels.is_free()[roots] & (peak > 0) & (reads > 0)
    part = np.where(depthwise, 1.0, STRENGTH)
    factors = np.ones(count)
    wide = np.where(usable, peak, 1.0) ** -part * np.where(usable & ~depthwise, reads, 1.0) ** (
        1 - part
    )
    for ids in _together(channels, peaks, roots):
        mine = np.array([i for i in ids if usable[i]], np.int64)
        if not len(mine):
            continue
        # of a constant factor nothing depends; this one leaves the largest channel where it is
        mean = 1 / (wide[mine] * peak[mine]).max() * peak[mine].max()
        factors[mine] = np.clip(wide[mine] * mean, 1 / MOST, MOST)
    bounded = np.clip(factors, 1.0, np.minimum(room, MOST))
    factors = np.where(np.isfinite(room), bounded, factors)
    return np.where(usable, factors, 1.0)[roots]


def _room(channels: Channels, extremes: Mapping[str, Extremes]) -> Values:
    """Return how far each channel can be scaled up before a limit cuts it off, at least 1.

    Features that few samples have lie below zero in all others: so what they may reach is told by the
    spread of the sums before the Clip, of which the negative part is most.
    """
    roots = channels.roots(np.arange(len(channels.parent)))
    room = np.full(len(roots), np.inf)
    for name, limit in channels.limits.items():
        seen = extremes[name]
        reached = seen.largest + REACH * (seen.largest - seen.least)
        mine = limit / np.maximum(reached, limit / MOST)
        np.minimum.at(room, roots[channels.of[name][1]], np.maximum(mine, 1.0))
    return room


def _together(channels: Channels, peaks: Mapping[str, Values], roots: Any) -> list[Any]:
    """Return sets of channels that lie in one tensor, directly or by way of others."""
    groups: list[set[int]] = []
    for name in peaks:
        mine = set(map(int, roots[channels.of[name][1]]))
        touching = [one for one in groups if one & mine]
        groups = [one for one in groups if not one & mine] + [mine.union(*touching)]
    return [np.array(sorted(one), np.int64) for one in groups]


def _shares(weight: Any, edit: Edit) -> Values:
    """Return for each input channel its largest weight, relative to the largest of that output."""
    if edit.groups > 1:
        runs = np.abs(weight).reshape(
            edit.groups, -1, weight.shape[1], int(np.prod(weight.shape[2:]))
        )
        taps = runs.max(axis=3)
        largest = taps.max(axis=2, keepdims=True)
        return np.asarray((taps / np.maximum(largest, 1e-30)).max(axis=1).reshape(-1), np.float64)
    moved = np.abs(np.moveaxis(weight, edit.axis, 0))
    rows = (
        moved.reshape(len(moved), -1)
        if edit.axis == 0
        else moved.reshape(*moved.shape[:2], -1).max(axis=2)
    )
    largest = rows.max(axis=0, keepdims=True)
    return np.asarray((rows / np.maximum(largest, 1e-30)).max(axis=1), np.float64)


def edited(graph: gs.Graph, edits: Sequence[Edit], factors: Values) -> dict[str, Floats]:
    """Return the constants that change when channels are scaled by factors, shape (numbers,)."""
    tensors = graph.tensors()
    found: dict[str, Values] = {}
    for edit in edits:
        scale = factors[edit.ids] ** edit.sign
        if (scale == 1.0).all():
            continue
        values = found.get(edit.tensor, np.asarray(constant(tensors[edit.tensor]), np.float64))
        found[edit.tensor] = values * _shaped(scale, edit, values.shape)
    return {name: values.astype(np.float32) for name, values in found.items()}


def _shaped(scale: Values, edit: Edit, shape: tuple[int, ...]) -> Values:
    if edit.groups > 1:
        each = np.repeat(scale.reshape(edit.groups, -1), shape[0] // edit.groups, axis=0)
        return np.asarray(each.reshape(shape[0], shape[1], *[1] * (len(shape) - 2)))
    wanted = [1] * len(shape)
    wanted[edit.axis] = -1
    return scale.reshape(wanted)


def smoothed(model: Model, dataset: Dataset, samples: int) -> Moved | None:
    """Return what smoothing changes in a prepared model, None if that is nothing."""
    affines = tuple(affine_places(import_graph(model.proto), find_layers(model)))
    model = replace(model, proto=with_affines(model.proto, affines))
    found = equalized(model, dataset, samples, "normalizations")
    return None if found is None else replace(found, affines=affines)
