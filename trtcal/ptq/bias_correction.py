"""Second moments of what a layer reads: all that its least squares and its rounding need to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from scipy.stats import norm

from trtcal.model import Model
from trtcal.model.graph import clip_bounds, constant, import_graph, is_op
from trtcal.model.model import Floats, Grid, Int8Overrides
from trtcal.ptq.patches import Form, Shares, form_of
from trtcal.quantization import find_layers
from trtcal.quantization.weighted_ops import bias_of
from trtcal.quantization.weights import quantize_weight


def corrected_by_normalization(model: Model, original: Model) -> Int8Overrides | None:
    """Return the model's overrides with the biases that `original`'s BatchNorms tell, None if none do.

    `original` is the model before it was prepared: then its BatchNorms may be part of convolutions.
    """
    means = _means(import_graph(original.proto))
    graph, overrides = import_graph(model.proto), model.overrides
    layers = {one.name: one for one in find_layers(model).layers if one.weight is not None}
    changed = False
    for node in graph.nodes:
        form = form_of(node, layers[node.name]) if node.name in layers else None
        read = node.inputs[0].name
        mean = means.get(read) if form is not None and read not in overrides.moved else None
        bias = bias_of(node)
        if (
            form is None
            or mean is None
            or bias is None
            or not _is_same(mean, form.shape, form.groups)
        ):
            continue
        weight, axis = np.asarray(constant(node.inputs[1])), 0
        grid = overrides.weights.get(node.name) or Grid(*quantize_weight(weight, axis))
        error = form.matrix(grid.floats(axis) - weight)
        taps = error.reshape(*error.shape[:2], len(mean) // form.groups, -1).sum(axis=3)
        shift = (taps @ mean.reshape(form.groups, -1, 1)).reshape(-1)
        overrides = overrides.with_layer(node.name, None, (bias.values - shift).astype(np.float32))
        changed = True
    return overrides if changed else None


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


ROWS = 8192  # of a layer's input, at most
ROWS_A_WEIGHT = 4  # or so many for each weight of an output, if that is more


@dataclass(frozen=True)
class Moments:
    """Means of q qᵀ (`gram`) and x qᵀ (`cross`), each (groups, d, d), q quantized and x in float."""

    gram: Floats
    cross: Floats

    def with_other(self, other: Moments) -> Moments:
        """Return the means over both halves."""
        return Moments((self.gram + other.gram) / 2, (self.cross + other.cross) / 2)


Read = Callable[[int], tuple[Floats, Floats]]
"""Gives a batch of a layer's input in float and quantized."""


def measure_moments(
    form: Form, batches: Sequence[int], read: Read, centred: bool, shares: Shares = None
) -> Moments:
    """Return the moments over batches, `centred` on the means where a bias makes up for these.

    Rows count by their `shares`. The means of the first batch are taken off before: float32 could not
    tell a small spread from a large mean. Of many rows it takes a part, evenly from all batches and
    drawn from a fixed seed.
    """
    most = max(ROWS, ROWS_A_WEIGHT * form.width) // max(len(batches), 1)
    generator = np.random.default_rng(0)
    shape = (form.groups, form.width, form.width)
    gram: Floats = np.zeros(shape, np.float32)
    cross: Floats = np.zeros(shape, np.float32)
    sums = np.zeros((2, *shape[:2]), np.float64)
    count, offsets = 0.0, list[Floats]()
    for number in batches:
        x, q = read(number)
        chosen = _drawn(form.places(x), most, generator)
        rows, snapped = form.rows(x, chosen), form.rows(q, chosen)
        if centred:
            offsets = offsets or [one.mean(axis=1, keepdims=True) for one in (rows, snapped)]
            rows, snapped = rows - offsets[0], snapped - offsets[1]
        counted = np.ones(len(chosen)) if shares is None else shares[number][chosen]
        weighted = snapped * counted.astype(np.float32)[:, None]
        gram += snapped.transpose(0, 2, 1) @ weighted
        cross += rows.transpose(0, 2, 1) @ weighted
        sums += [np.einsum("n,gnw->gw", counted, one) for one in (rows, snapped)]
        count += counted.sum()
    gram, cross = gram / np.float32(count), cross / np.float32(count)
    if centred:
        x_mean, q_mean = (sums / count).astype(np.float32)
        gram -= q_mean[:, :, None] * q_mean[:, None, :]
        cross -= x_mean[:, :, None] * q_mean[:, None, :]
    return Moments(gram, cross)


def _drawn(places: int, most: int, generator: np.random.Generator) -> np.ndarray:
    if places <= most:
        return np.arange(places)
    return np.sort(generator.choice(places, most, replace=False))
