"""Bias absorption: what a Relu never cuts off goes into the bias behind; the range gets smaller.

Where a channel before a Relu is at least c > 0 for every sample seen, c is taken off its bias and,
times the weights, added to the bias of the layers that read it: relu(x) - c = relu(x - c). Not where
a reader pads its input, for padding has no c.
Source: M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction"
(2019), section 4.1.3, with what was seen in place of three standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.backends.inside import Inside
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.graph import constant, import_graph, is_op, only_consumer
from trtcal.improve.equalize import Moved
from trtcal.improve.patches import form_of
from trtcal.model import Model
from trtcal.overlay import Floats
from trtcal.quantize import find_layers
from trtcal.quantize.biased import Bias, bias_of

BATCH = 8
PART = 0.9  # of the least value seen: others may be smaller


def absorbed(model: Model, dataset: Dataset, samples: int) -> Moved | None:
    """Return the biases of a prepared model that change, with their new values; None if none does."""
    graph = import_graph(model.proto)
    layers = {one.name: one for one in find_layers(model).layers}
    found = {}
    for node in graph.nodes:
        relu = only_consumer(node.outputs[0], graph) if is_op(node, "Conv", "Gemm") else None
        if relu is not None and is_op(relu, "Relu") and _readers(relu, graph, layers):
            found[node.outputs[0].name] = (node, relu)
    if not found:
        return None
    least = _least(model, dataset, samples, list(found))
    changed: dict[str, Floats] = {}
    moved = set[str]()
    for name, (node, relu) in found.items():
        shift = PART * np.maximum(least[name], 0.0)
        readers = _readers(relu, graph, layers)
        if shift.any() and readers is not None:
            _move(changed, node, readers, shift, layers)
            moved |= {name, relu.outputs[0].name}
    return Moved(changed, frozenset(moved)) if changed else None


def _readers(
    relu: gs.Node, graph: gs.Graph, layers: Mapping[str, object]
) -> list[tuple[gs.Node, Bias]] | None:
    """Return the layers that read a Relu, with their biases, None if one can't take anything on."""
    if any(tensor is relu.outputs[0] for tensor in graph.outputs):
        return None
    found = []
    for node in relu.outputs[0].outputs:
        bias = bias_of(node) if node.name in layers and is_op(node, "Conv", "Gemm") else None
        form = form_of(node, layers[node.name]) if bias is not None else None  # type: ignore[arg-type]
        if bias is None or form is None or any(form.pads) or not _own_bias(bias):
            return None
        found.append((node, bias))
    return found or None


def _own_bias(bias: Bias) -> bool:
    """Tell whether a bias is a constant that nothing else reads."""
    if bias.index >= len(bias.node.inputs):
        return False
    return len(bias.node.inputs[bias.index].outputs) == 1


def _move(
    changed: dict[str, Floats],
    node: gs.Node,
    readers: list[tuple[gs.Node, Bias]],
    shift: Any,
    layers: Mapping[str, object],
) -> None:
    own = bias_of(node)
    if own is None or not _own_bias(own):
        return
    _add(changed, own, -shift)
    for reader, bias in readers:
        form = form_of(reader, layers[reader.name])  # type: ignore[arg-type]
        weight = constant(reader.inputs[1])
        if form is None or weight is None:
            continue
        matrix = form.matrix(weight)  # (groups, outputs, channels times taps)
        taps = matrix.reshape(*matrix.shape[:2], len(shift) // form.groups, -1).sum(axis=3)
        each = shift.reshape(form.groups, -1, 1)
        _add(changed, bias, (taps @ each).reshape(-1))


def _add(changed: dict[str, Floats], bias: Bias, shift: Any) -> None:
    tensor = bias.node.inputs[bias.index]
    before = changed.get(tensor.name, bias.values).reshape(-1)
    changed[tensor.name] = np.asarray(before + shift, np.float32).reshape(tuple(tensor.shape))


def _least(model: Model, dataset: Dataset, samples: int, names: list[str]) -> dict[str, Floats]:
    """Return the least value of each channel of tensors."""
    inside = Inside(model.proto, names)
    found: dict[str, Floats] = {}
    for feeds in dataset.batches(fixed_batch(model) or BATCH, 0, samples):
        for name, values in inside.read(feeds).items():
            others = tuple(i for i in range(values.ndim) if i != 1)
            least = values.min(axis=others)
            found[name] = np.minimum(found.get(name, np.inf), least)
    return found
