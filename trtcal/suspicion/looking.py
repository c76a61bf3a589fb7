"""What a model says of samples as given and as changed: the evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.backends.inside import Inside
from trtcal.backends.sessions import open_session, run_session
from trtcal.compare.per_sample import SUM_TOLERANCE, class_scores
from trtcal.data import Feeds
from trtcal.data.fingerprint import Array
from trtcal.model import Model
from trtcal.onnxfile import array_of, weights_of
from trtcal.suspicion.drawing import Drawn

Values = npt.NDArray[np.float64]

BATCH = 16
NORMS = 6  # BatchNormalizations looked at, spread over the network
LEAST = 1e-12
SMALLEST = 1e-38  # of float32: a probability of 0 was rounded to it


@dataclass(frozen=True)
class Look:
    """What a model made of samples, one value a sample where nothing else is said.

    `classes`: the class with the highest score, `sureness` its probability; `peak`: that logit minus the mean of all;
    `sharpness`: the same over their standard deviation, which no factor changes; `entropy` of the class
    probabilities; `information`: what a sample tells of its class, in nats, over all samples. `misfit`:
    how far the inputs of BatchNormalizations are from their running statistics: mean KL divergence of
    normal distributions, in nats, None without such nodes. All but `misfit` None without class scores.
    """

    classes: npt.NDArray[np.int64] | None
    sureness: Values | None
    peak: Values | None
    sharpness: Values | None
    entropy: Values | None
    information: float
    misfit: float | None


@dataclass(frozen=True)
class Norm:
    """A BatchNormalization: the tensor that it reads, and what it takes for its mean and variance."""

    tensor: str
    mean: Values
    variance: Values


class Eye:
    """A model, opened once and run on samples again and again."""

    def __init__(self, model: Model) -> None:
        self.norms = _norms(model.proto)
        self.output = model.outputs[0].name
        read = [self.output, *(norm.tensor for norm in self.norms)]
        self.inside = Inside(model.proto, read) if self.norms else None
        self.session = None if self.norms else open_session(model.proto)

    def look(self, drawn: Drawn) -> Look:
        """Run the model on samples; `BackendError` if that fails."""
        scores, sums = [], [np.zeros((3, len(norm.mean))) for norm in self.norms]
        for feeds in _batches(drawn):
            found = self._read(feeds)
            scores.append(found[self.output])
            for sum_, norm in zip(sums, self.norms, strict=True):
                sum_ += _moments(found[norm.tensor])
        pairs = zip(self.norms, sums, strict=True)
        misfit = float(np.mean([_misfit(*pair) for pair in pairs])) if self.norms else None
        return _look(np.concatenate(scores), misfit)

    def _read(self, feeds: Feeds) -> dict[str, Array]:
        if self.inside is not None:
            return self.inside.read(feeds)
        assert self.session is not None
        return {self.output: run_session(self.session, [self.output], feeds)[0]}


def _batches(drawn: Drawn) -> Iterable[Feeds]:
    size = drawn.batch if drawn.batch > 1 else BATCH
    for start in range(0, len(drawn), size):
        yield {name: array[start : start + size] for name, array in drawn.feeds.items()}


def _norms(proto: onnx.ModelProto) -> list[Norm]:
    """Return some BatchNormalizations of images with constant statistics, the first among them."""
    weights = weights_of(proto)
    nodes = [
        node
        for node in proto.graph.node
        if node.op_type == "BatchNormalization" and all(name in weights for name in node.input[3:5])
    ]
    picked = np.unique(np.linspace(0, len(nodes) - 1, min(NORMS, len(nodes))).astype(int))
    return [_norm(nodes[place], weights) for place in picked]


def _norm(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> Norm:
    mean, variance = (array_of(weights[name]).astype(np.float64) for name in node.input[3:5])
    return Norm(node.input[0], mean, variance + 1e-5)


def _moments(values: Array) -> Values:
    """Return number, sum and sum of squares of each channel, [3, C]."""
    rows = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1).astype(np.float64)
    return np.stack([np.full(len(rows), rows.shape[1]), rows.sum(1), np.square(rows).sum(1)])


def _misfit(norm: Norm, sums: Values) -> float:
    """Return the KL divergence of what was seen from what the node was trained on, median channel."""
    mean = sums[1] / sums[0]
    variance = np.maximum(sums[2] / sums[0] - mean**2, LEAST)
    ratio = variance / norm.variance
    nats = (ratio - 1 - np.log(ratio) + (mean - norm.mean) ** 2 / norm.variance) / 2
    return float(np.log1p(np.median(nats)))


def _look(output: Array, misfit: float | None) -> Look:
    scores = class_scores(output)
    if scores is None or not np.isfinite(scores).all():
        return Look(None, None, None, None, None, 0.0, misfit)
    logits = _logits(scores.astype(np.float64))
    peak = logits.max(1) - logits.mean(1)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    entropy = _entropy(shares)
    return Look(
        logits.argmax(1),
        shares.max(1),
        peak,
        peak / (logits.std(1) + LEAST),
        entropy,
        float(_entropy(shares.mean(0)) - entropy.mean()),
        misfit,
    )


def _logits(scores: Values) -> Values:
    given = (scores >= 0).all() and (np.abs(scores.sum(1) - 1) <= SUM_TOLERANCE).all()
    return np.log(np.maximum(scores, SMALLEST)) if given else scores


def _entropy(shares: Values) -> Values:
    return -(shares * np.log(np.maximum(shares, LEAST))).sum(-1)
