"""Centring: what a Relu makes is shifted so that zero lies in the middle of it, and has a bit more.

TensorRT's INT8 is symmetric, and of what a Relu or a Relu6 makes, the negative half stays empty. With
c half of the range, relu(x) - c = max(x - c, -c): c is taken off the bias before, the Relu becomes a
Clip at -c, and c times the weights is added to the biases of the layers behind. The step is half as
large. Not where a reader pads its input, for padding has no c.
Source: the channel-wise shift of X. Wei et al., "Outlier Suppression+" (2023), section 4.1, of one
size for a whole tensor, before its activation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.calibration import Calibration
from trtcal.graph import import_graph
from trtcal.improve.equalize import Moved
from trtcal.improve.shifts import PASSING, cuts, shift, takers
from trtcal.model import Model
from trtcal.overlay import Floats
from trtcal.quantize import find_layers
from trtcal.quantize.placement import Placement

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
        reading = takers(cut.made, graph, layers, PASSING) if cut.bounds[0] == 0.0 else None
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
