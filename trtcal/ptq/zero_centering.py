"""The least and the largest value of every channel of tensors, over samples of a dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.data import Dataset
from trtcal.model import Model
from trtcal.model.graph import import_graph, is_op
from trtcal.model.model import Floats
from trtcal.model.ops import SHIFTS
from trtcal.ptq.equalization import Moved
from trtcal.ptq.shifts import cuts, find_extremes, shift, takers
from trtcal.quantization import find_layers
from trtcal.quantization.placement import Placement
from trtcal.ranges import Calibration

OPSET = 11  # from which on a Clip has its bounds as inputs


def centred(model: Model, calibration: Calibration) -> tuple[Moved, Calibration] | None:
    """Return what changes in a prepared model, with its ranges; None if nothing can be centred."""
    graph = import_graph(model.proto)
    placement = find_layers(model)
    layers = {one.name: one for one in placement.layers}
    ranges = dict(calibration.ranges)
    changed: dict[str, Floats] = {}
    bounds: dict[str, tuple[float, float]] = {}
    moved = set[str]()
    for cut in cuts(graph, layers) if graph.opset >= OPSET else ():
        reading = takers(cut.made, graph, layers, SHIFTS) if cut.bounds[0] == 0.0 else None
        names = _ranges(reading[1], placement, ranges) if reading is not None else []
        if reading is None or not names:
            continue
        half = float(np.float32(ranges[names[0]].amax / 2))
        shift(changed, cut.bias, reading[0], np.array(half, np.float32))
        bounds[cut.node.name] = (-half, cut.bounds[1] - half)
        moved |= {cut.sum.name, *(tensor.name for tensor in reading[1])}
        for name in names:
            before = ranges[name].amax
            note = f"{before:.6g}, shifted by {half:.6g}"
            amax = max(half, before - half)
            ranges[name] = dataclasses.replace(ranges[name], amax=amax, note=note)
    if not bounds:
        return None
    table = dataclasses.replace(calibration, ranges=ranges)
    return Moved(changed, bounds, tensors=frozenset(moved)), table


def _ranges(
    tensors: list[gs.Tensor], placement: Placement, known: Mapping[str, object]
) -> list[str]:
    """Return the ranges of tensors, in their order; none if others, or unknown ones, are among them."""
    mine = {tensor.name for tensor in tensors}
    layers = (*placement.layers, *placement.light, *placement.optional)
    read = {name for layer in layers for name in layer.activations.values()}
    wanted = dict.fromkeys(placement.range_of(t.name) for t in tensors if t.name in read)
    users = {name for name in read | set(placement.sources) if placement.range_of(name) in wanted}
    if not users | set(wanted) <= mine or not set(wanted) <= set(known):
        return []
    return list(wanted)


PART = 0.9  # of the least value seen: others may be smaller
CHANNELS = ("Conv", "Gemm")  # have their channels along axis 1


def absorbed(model: Model, dataset: Dataset, samples: int) -> Moved | None:
    """Return the biases of a prepared model that change, with their new values; None if none does."""
    graph = import_graph(model.proto)
    layers = {one.name: one for one in find_layers(model).layers if one.op in CHANNELS}
    found = []
    for cut in cuts(graph, layers):
        reading = takers(cut.made, graph, layers) if is_op(cut.node, "Relu") else None
        if reading is not None:
            found.append((cut, reading[0]))
    if not found:
        return None
    extremes = find_extremes(model, dataset, samples, {cut.sum.name: 1 for cut, _ in found})
    changed: dict[str, Floats] = {}
    moved = set[str]()
    for cut, readers in found:
        by = PART * np.maximum(extremes[cut.sum.name].least, 0.0)
        if by.any():
            shift(changed, cut.bias, readers, by)
            moved |= {cut.sum.name, cut.made.name}
    return Moved(changed, tensors=frozenset(moved)) if changed else None
