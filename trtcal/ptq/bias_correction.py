"""Bias correction: shifts of channels that quantization causes are taken back in the biases.

By BatchNorm statistics, without data (M. Nagel et al., "Data-Free Quantization Through Weight
Equalization and Bias Correction", 2019, section 4.2); or for the mean behind the activation, which
appendix D of the paper corrects before it. Noise before a Relu is cut off below zero and not above: the
mean behind it is too large although the mean before it is right, and over all channels and positions
that a later layer sums up this counts more than the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import scipy

from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.evaluate.search.segments import PairedGraph
from trtcal.model import Model
from trtcal.model.graph import clip_bounds, constant, import_graph, is_op, reads
from trtcal.model.model import Floats, Grid, Overrides
from trtcal.model.ops import ACTIVATIONS, ELEMENTWISE
from trtcal.ptq.layer_inputs import matrix_form
from trtcal.quantization import find_layers
from trtcal.quantization.weighted_ops import bias_of
from trtcal.quantization.weights import quantize_weight

STEPS = 2  # of the secant method
SLOPES = (0.2, 1.2)  # of the mean behind over the mean before, for a channel that seldom fires too


def correct_by_batch_norm(model: Model, original: Model) -> Overrides | None:
    """Return the model's overrides with biases from `original`'s BatchNorms, None if there are none.

    `original` is the model before it was prepared, which may fold BatchNorms into convolutions.
    """
    means = _batch_norm_means(import_graph(original.proto))
    overrides = model.overrides
    layers = {one.name: one for one in find_layers(model).layers if one.weight is not None}
    for node in import_graph(model.proto).nodes:
        form = matrix_form(node, layers[node.name]) if node.name in layers else None
        read, bias = node.inputs[0].name, bias_of(node)
        if form is None or bias is None or read not in means or read in overrides.moved:
            continue
        mean = means[read]
        if len(form.shape) < 3 or len(mean) != form.shape[1] * form.groups:
            continue
        weight, axis = np.asarray(constant(node.inputs[1])), 0
        grid = overrides.weights.get(node.name) or Grid(*quantize_weight(weight, axis))
        error = form.matrix(grid.floats(axis) - weight)
        shift = form.times_channels(error, mean.reshape(form.groups, -1))
        overrides = overrides.with_layer(node.name, None, (bias.values - shift).astype(np.float32))
    return None if overrides is model.overrides else overrides


def _batch_norm_means(graph: gs.Graph) -> dict[str, Floats]:
    """Return by tensor the channels' means behind BatchNorms, and behind Relus and Clips after them."""
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
                means[name] = _clipped_mean(*known[node.inputs[0].name], *bounds)
    return means


def _clipped_mean(deviation: Floats, mean: Floats, low: float, high: float) -> Floats:
    """Return the mean of a normal distribution whose values are clipped to the bounds."""
    deviation, norm = np.maximum(deviation, 1e-12), scipy.stats.norm
    a, b = (low - mean) / deviation, (high - mean) / deviation
    inner = mean * (norm.cdf(b) - norm.cdf(a)) + deviation * (norm.pdf(a) - norm.pdf(b))
    above = high * norm.sf(b) if np.isfinite(high) else 0.0
    return np.asarray(inner + low * norm.cdf(a) + above, np.float32)


class Activation:
    """Runs nodes that work on each value by itself."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.session = open_session(proto)
        self.read, self.made = proto.graph.input[0].name, proto.graph.output[0].name

    def __call__(self, values: Array) -> Array:
        """Return the activation of a layer's values."""
        return run_session(self.session, [self.made], {self.read: values})[0]


def activation_of(pair: PairedGraph, place: int) -> Activation | None:
    """Return the activation of the first output of the node at a place, None if there is none.

    It is as many nodes as work on each value by itself, have one tensor that is read behind them, and
    are not all linear.
    """
    made = pair.nodes[place].output[0]
    taken = [] if made in pair.outputs else _elementwise_behind(pair, place, made)
    for count in range(len(taken), 0, -1):
        nodes = taken[:count]
        left = _still_read(pair, made, nodes)
        if len(left) == 1 and any(node.op_type in ACTIVATIONS for node in nodes):
            return Activation(pair.as_model(nodes, [made], left))
    return None


def _elementwise_behind(pair: PairedGraph, place: int, made: str) -> list[onnx.NodeProto]:
    """Return the nodes that work on each value of a tensor, or of their own outputs, by itself."""
    taken, inside, known = list[onnx.NodeProto](), {made}, set(pair.tensors)
    unseen = pair.readers[made]
    for node in pair.nodes[place + 1 :]:
        read = set(reads(node))
        unseen -= len(read & inside)
        if node.op_type in ELEMENTWISE and read & inside and read <= inside | known:
            taken.append(node)
            inside |= set(node.output)
            unseen += sum(pair.readers[name] for name in node.output)
        if not unseen:
            break
    return taken


def _still_read(pair: PairedGraph, made: str, nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Return the tensors of these nodes that other nodes read too."""
    unread = {name: pair.readers[name] for name in (made, *(n.output[0] for n in nodes))}
    for name in (name for node in nodes for name in set(reads(node)) & set(unread)):
        unread[name] -= 1
    return [name for name, readers in unread.items() if readers]


def solve_shift(first: Floats, excess: Callable[[Floats], Floats]) -> Floats:
    """Return the shift of each channel, (channels,), at which there is no `excess` behind.

    `excess` gives by how much the means behind the activation are too large with a shift. The search
    is the secant method from no shift and `first`.
    """
    before: Floats = np.zeros_like(first)
    now, over = first, excess(before)
    for _ in range(STEPS):
        last, over = over, excess(now)
        moved = now - before
        slope = np.divide(over - last, moved, out=np.ones_like(now), where=moved != 0)
        before, now = now, now - over / np.clip(slope, *SLOPES)
    return now
