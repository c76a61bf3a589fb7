"""Zero-centering and bias absorption: shift what a Relu makes, and compensate in the biases behind.

Zero-centering moves zero into the middle of a Relu's output, so that both halves of the INT8 levels are
used; the Relu becomes a Clip. Source: X. Wei et al., "Outlier Suppression+" (2023), section 4.1.
Bias absorption moves what a Relu never cuts off into the next bias. Source: M. Nagel et al., "Data-Free
Quantization Through Weight Equalization and Bias Correction" (2019), section 4.1.3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.data import Dataset
from trtcal.model import Model
from trtcal.model.graph import import_graph, is_op
from trtcal.model.model import Floats
from trtcal.model.ops import SHIFTS
from trtcal.ptq.changes import Bounds, Changes
from trtcal.ptq.compensation import bounded_layers, compensating_readers, find_extremes, shift
from trtcal.quantization import find_layers
from trtcal.quantization.placement import Placement
from trtcal.ranges import Calibration

OPSET = 11  # from which on a Clip has its bounds as inputs
PART = 0.9  # of the least value observed: others may be smaller
CHANNELS = ("Conv", "Gemm")  # have their channels along axis 1


def zero_center(model: Model, calibration: Calibration) -> tuple[Changes, Calibration] | None:
    """Return what changes in a prepared model, with its ranges; None if nothing can be shifted."""
    graph = import_graph(model.proto)
    placement = find_layers(model)
    layers = {one.name: one for one in placement.layers}
    ranges = dict(calibration.ranges)
    changed: dict[str, Floats] = {}
    bounds: dict[str, Bounds] = {}
    moved = set[str]()
    for one in bounded_layers(graph, layers) if graph.opset >= OPSET else ():
        is_relu = one.bounds[0] == 0.0
        readers = compensating_readers(one.made, graph, layers, SHIFTS) if is_relu else None
        names = _ranges(readers.tensors, placement, ranges) if readers is not None else []
        if readers is None or not names:
            continue
        half = float(np.float32(ranges[names[0]].amax / 2))
        shift(changed, one.bias, readers.layers, np.array(half, np.float32))
        bounds[one.node.name] = (-half, one.bounds[1] - half)
        moved |= {one.sum.name, *(tensor.name for tensor in readers.tensors)}
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
    wanted = dict.fromkeys(placement.range_of(t.name) for t in tensors if t.name in read)
    users = {name for name in read | set(placement.sources) if placement.range_of(name) in wanted}
    if not users | set(wanted) <= mine or not set(wanted) <= set(known):
        return []
    return list(wanted)


def absorb_biases(model: Model, dataset: Dataset, samples: int) -> Changes | None:
    """Return the biases of a prepared model that change, with their new values; None if none does."""
    graph = import_graph(model.proto)
    layers = {one.name: one for one in find_layers(model).layers if one.op in CHANNELS}
    found = [
        (one, compensating_readers(one.made, graph, layers))
        for one in bounded_layers(graph, layers)
        if is_op(one.node, "Relu")
    ]
    shifted = [(one, readers.layers) for one, readers in found if readers is not None]
    if not shifted:
        return None
    extremes = find_extremes(model, dataset, samples, {one.sum.name: 1 for one, _ in shifted})
    changed: dict[str, Floats] = {}
    moved = set[str]()
    for one, layers_behind in shifted:
        by = PART * np.maximum(extremes[one.sum.name].least, 0.0)
        if by.any():
            shift(changed, one.bias, layers_behind, by)
            moved |= {one.sum.name, one.made.name}
    return Changes(changed, moved=frozenset(moved)) if changed else None
