"""Zero-centering: shift what a Relu makes, and compensate in the biases behind.

It moves zero into the middle of a Relu's output, so that both halves of the INT8 levels are
used; the Relu becomes a Clip. Source: X. Wei et al., "Outlier Suppression+" (2023), section 4.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.model import Model
from trtcal.model.graph import import_graph
from trtcal.model.model import Floats
from trtcal.model.ops import SHIFTS
from trtcal.ptq.changes import Bounds, Changes
from trtcal.ptq.compensation import bounded_layers, compensating_readers, shift
from trtcal.quantization import find_layers
from trtcal.quantization.placement import Placement
from trtcal.ranges import Calibration

OPSET = 11  # from which on a Clip has its bounds as inputs


def zero_center(model: Model, calibration: Calibration) -> tuple[Changes, Calibration] | None:
    """Return what changes in a prepared model, with its ranges; None if nothing can be shifted."""
    graph = import_graph(model.proto)
    placement = find_layers(model, graph=graph)
    layers = {layer.name: layer for layer in placement.layers}
    ranges = dict(calibration.ranges)
    changed: dict[str, Floats] = {}
    bounds: dict[str, Bounds] = {}
    moved = set[str]()
    for place in bounded_layers(graph, layers) if graph.opset >= OPSET else ():
        is_relu = place.bounds[0] == 0.0
        readers = compensating_readers(place.made, graph, layers, SHIFTS) if is_relu else None
        names = _ranges(readers.tensors, placement, ranges) if readers is not None else []
        if readers is None or not names:
            continue
        half = float(np.float32(ranges[names[0]].amax / 2))
        shift(changed, place.bias, readers.layers, np.array(half, np.float32))
        bounds[place.node.name] = (-half, place.bounds[1] - half)
        moved |= {place.sum.name, *(tensor.name for tensor in readers.tensors)}
        for name in names:
            before = ranges[name].amax
            note = f"{before:.6g}, shifted by {half:.6g}"
            amax = max(half, before - half)
            ranges[name] = dataclasses.replace(ranges[name], amax=amax, note=note)
    if not bounds:
        return None
    table = dataclasses.replace(calibration, ranges=ranges)
    return Changes(changed, bounds, moved=frozenset(moved)), table


def _ranges(
    tensors: Sequence[gs.Tensor], placement: Placement, known: Mapping[str, object]
) -> list[str]:
    """Return the ranges of tensors, in their order; none if others use them or they are unknown."""
    mine = {tensor.name for tensor in tensors}
    layers = (*placement.layers, *placement.light, *placement.optional)
    read = {name for layer in layers for name in layer.activations.values()}
    names = dict.fromkeys(placement.range_of(t.name) for t in tensors if t.name in read)
    users = {name for name in read | set(placement.sources) if placement.range_of(name) in names}
    if not users | set(names) <= mine or not set(names) <= set(known):
        return []
    return list(names)
