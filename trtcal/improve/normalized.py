"""Bias correction from the statistics of a BatchNorm: no data are needed for it.

What a BatchNorm makes has mean beta and deviation gamma in every channel, if its statistics are those
of the data; after a Relu, the mean is that of a normal distribution cut off at zero. Rounding errors of
the weights behind, times these means, shift a layer's output.
Source: M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction"
(2019), section 4.2 and appendix C.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from scipy.stats import norm

from trtcal.graph import clip_bounds, constant, import_graph, is_op
from trtcal.improve.patches import form_of
from trtcal.model import Model
from trtcal.overlay import Floats, Grid, Overlay
from trtcal.quantize import find_layers
from trtcal.quantize.biased import bias_of
from trtcal.quantize.weights import quantize_weight


def corrected_by_normalization(model: Model, original: Model) -> Overlay | None:
    """Return the model's overlay with the biases that `original`'s BatchNorms tell, None if none do.

    `original` is the model before it was prepared: then its BatchNorms may be part of convolutions.
    """
    means = _means(import_graph(original.proto))
    graph, overlay = import_graph(model.proto), model.overlay
    layers = {one.name: one for one in find_layers(model).layers if one.weight is not None}
    changed = False
    for node in graph.nodes:
        form = form_of(node, layers[node.name]) if node.name in layers else None
        read = node.inputs[0].name
        mean = means.get(read) if form is not None and read not in overlay.moved else None
        bias = bias_of(node)
        if (
            form is None
            or mean is None
            or bias is None
            or not _is_same(mean, form.shape, form.groups)
        ):
            continue
        weight, axis = np.asarray(constant(node.inputs[1])), 0
        grid = overlay.weights.get(node.name) or Grid(*quantize_weight(weight, axis))
        error = form.matrix(grid.floats(axis) - weight)
        taps = error.reshape(*error.shape[:2], len(mean) // form.groups, -1).sum(axis=3)
        shift = (taps @ mean.reshape(form.groups, -1, 1)).reshape(-1)
        overlay = overlay.with_layer(node.name, None, (bias.values - shift).astype(np.float32))
        changed = True
    return overlay if changed else None


def _is_same(mean: Floats, shape: tuple[int, ...], groups: int) -> bool:
    return len(shape) > 2 and len(mean) == shape[1] * groups


def _means(graph: gs.Graph) -> dict[str, Floats]:
    """Return by tensor the channels' means that BatchNorms, and what is cut off after them, tell."""
    known: dict[str, tuple[Floats, Floats]] = {}
    means: dict[str, Floats] = {}
    for node in graph.nodes:
        name = node.outputs[0].name if node.outputs else ""
        if is_op(node, "BatchNormalization"):
            gamma, beta = (constant(tensor) for tensor in node.inputs[1:3])
            if gamma is not None and beta is not None:
                known[name] = np.abs(gamma).astype(np.float64), beta.astype(np.float64)
                means[name] = beta.astype(np.float32)
        elif is_op(node, "Relu", "Clip") and node.inputs[0].name in known:
            bounds = clip_bounds(node)
            if bounds is not None:
                means[name] = _cut_off(*known[node.inputs[0].name], *bounds)
    return means


def _cut_off(deviation: Floats, mean: Floats, low: float, high: float) -> Floats:
    """Return the mean of a normal distribution whose values are set to the bounds beyond these."""
    deviation = np.maximum(deviation, 1e-12)
    a, b = (low - mean) / deviation, (high - mean) / deviation
    inner = mean * (norm.cdf(b) - norm.cdf(a)) + deviation * (norm.pdf(a) - norm.pdf(b))
    above = high * norm.sf(b) if np.isfinite(high) else 0.0
    return np.asarray(inner + low * norm.cdf(a) + above, np.float32)
