"""Bias absorption: what a Relu never cuts off goes into the bias behind; the range gets smaller.

Where a channel before a Relu is at least c > 0 for every sample seen, c is taken off its bias and,
times the weights, added to the bias of the layers that read it: relu(x) - c = relu(x - c). Not where
a reader pads its input, for padding has no c.
Source: M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction"
(2019), section 4.1.3, with what was seen in place of three standard deviations.
"""

from __future__ import annotations

import numpy as np

from trtcal.data import Dataset
from trtcal.graph import import_graph, is_op
from trtcal.improve.equalize import Moved
from trtcal.improve.extremes import find_extremes
from trtcal.improve.shifts import cuts, shift, takers
from trtcal.model import Model
from trtcal.overlay import Floats
from trtcal.quantize import find_layers

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
