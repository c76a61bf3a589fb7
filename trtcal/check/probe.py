"""What a model says of samples as given and as changed: the evidence."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import Inside
from trtcal.check.responses import Depths, Front, constants_of
from trtcal.check.sampling import Drawn, find_images
from trtcal.data import Feeds, fixed_batch
from trtcal.data.dataset import Array
from trtcal.evaluate.per_sample import SUM_TOLERANCE, class_scores
from trtcal.model import Model
from trtcal.model.files import array_of, fits

FEW = 4  # samples that the first layers see at a time: their outputs are the largest

Values = npt.NDArray[np.float64]

FEWEST_CLASSES = 5  # of a dense output: less may be coordinates or colours
NORMS = 6  # BatchNormalizations looked at, spread over the network
LEAST = 1e-12
SMALLEST = 1e-38  # of float32: a probability of 0 was rounded to it


@dataclass(frozen=True)
class Response:
    """What a model made of samples, one value a sample where nothing else is said.

    `classes`: the class with the highest score, `sureness` its probability; `peak`: its logit minus the
    mean of all; `sharpness`: that over their standard deviation, which no factor changes; `entropy` of
    the class probabilities; `told`: their KL divergence from their mean over all samples, in nats, 0
    where the model cannot tell samples apart. `misfit`: how far what BatchNormalizations read is
    from their running statistics; `drive`: see `Front`. None without class scores, without such nodes,
    and without images.
    """

    classes: npt.NDArray[np.int64] | None
    sureness: Values | None
    peak: Values | None
    sharpness: Values | None
    entropy: Values | None
    told: Values | None
    misfit: float | None
    drive: float | None = None


@dataclass(frozen=True)
class Norm:
    """A BatchNormalization: the tensor that it reads, and what it takes for its mean and variance."""

    tensor: str
    mean: Values
    variance: Values


class ModelProbe:
    """A model, opened once and run on samples again and again."""

    def __init__(self, model: Model, together: int) -> None:
        self.model = model
        self.together = fixed_batch(model) or together
        self.norms = _norms(model.proto)
        self.outputs = len(model.outputs)
        self.columns: npt.NDArray[np.bool_] | None = None  # of dense outputs, once seen
        self.read = [*(spec.name for spec in model.outputs), *(norm.tensor for norm in self.norms)]
        self.inside = Inside(model.proto, self.read) if self.norms else None
        source = (
            model.proto if fits(model.proto) else model.path
        )  # large weights stay in their files
        self.session = self.inside.session if self.inside else open_session(source, arena=False)
        self.front = Front(model) if find_images(model) else None

    @functools.cached_property
    def depths(self) -> Depths:
        """The inner layers of the model."""
        return Depths(self.model, self.together)

    def look(self, drawn: Drawn) -> Response:
        """Run the model on samples; `BackendError` if that fails."""
        scores, sums = [], [np.zeros((3, len(norm.mean))) for norm in self.norms]
        for feeds in drawn.batches(self.together):
            found = self._run(feeds)
            scores.append(_scores(found[: self.outputs]))
            for sum_, tensor in zip(sums, found[self.outputs :], strict=True):
                sum_ += _moments(tensor)
        misfits = [_misfit(*pair) for pair in zip(self.norms, sums, strict=True)]
        look = self._judged(scores, float(np.mean(misfits)) if misfits else None)
        if self.front is None:
            return look
        few = fixed_batch(self.model) or FEW
        drives = [self.front.drive(feeds) for feeds in drawn.batches(few)]
        known = [one for one in drives if one is not None]
        return replace(look, drive=float(np.mean(known)) if known else None)

    def _judged(self, found: list[tuple[Array, bool] | None], misfit: float | None) -> Response:
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return _look(None, misfit)
        scores, is_dense = np.concatenate([one for one, _ in known]), known[0][1]
        if is_dense and self.columns is None:
            self.columns = _probabilities(scores, self.outputs == 1)
        if is_dense and self.columns is not None and not self.columns.any():
            return _look(None, misfit)
        look = _look(scores[:, self.columns] if is_dense else scores, misfit)
        return replace(look, classes=None) if is_dense else look

    def _run(self, feeds: Feeds) -> list[Array]:
        if self.inside is None:
            return run_session(self.session, self.read, feeds)
        found = self.inside.read(feeds)
        return [found[name] for name in self.read]


def _norms(proto: onnx.ModelProto) -> list[Norm]:
    """Return some BatchNormalizations of images with constant statistics, the first among them."""
    weights = constants_of(proto)
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


def _scores(outputs: list[Array]) -> tuple[Array, bool] | None:
    """Return class scores, [n, classes], and whether they are dense: the highest of many places."""
    plain = [(one, False) for one in map(class_scores, outputs) if one is not None]
    dense = [(one, True) for one in map(_highest, outputs) if one is not None]
    return next(iter([*plain, *dense]), None)


def _highest(output: Array) -> Array | None:
    """Return the highest value of each class anywhere, None if it does not look like classes."""
    if output.dtype.kind != "f" or output.ndim < 3 or 0 in output.shape:
        return None
    last = output.ndim == 3 and output.shape[2] < output.shape[1]
    rows = np.moveaxis(output, -1, 1) if last else output
    highest: Array = rows.reshape(*rows.shape[:2], -1).max(2)
    return highest if highest.shape[1] >= FEWEST_CLASSES else None


def _probabilities(scores: Array, alone: bool) -> npt.NDArray[np.bool_]:
    """Tell which columns are classes: probabilities, beside which the others are coordinates.

    Without any all are, if it is the model's only output; one of several may be anything.
    """
    found = np.asarray(((scores >= 0) & (scores <= 1)).all(0))
    return found if found.sum() >= FEWEST_CLASSES else np.full_like(found, alone)


def _look(scores: Array | None, misfit: float | None) -> Response:
    if scores is None or not np.isfinite(scores).all():
        return Response(None, None, None, None, None, None, misfit)
    logits = _logits(scores.astype(np.float64))
    peak = logits.max(1) - logits.mean(1)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    logs = np.log(np.maximum(shares, LEAST))
    others = np.log(np.maximum(shares.mean(0), LEAST))
    return Response(
        logits.argmax(1),
        shares.max(1),
        peak,
        peak / (logits.std(1) + LEAST),
        -(shares * logs).sum(1),
        (shares * (logs - others)).sum(1),
        misfit,
    )


def _logits(scores: Values) -> Values:
    """Return logits of probabilities, which need not add up to 1; other scores as they are."""
    if not ((scores >= 0) & (scores <= 1 + SUM_TOLERANCE)).all():
        return scores
    shares = np.clip(scores, SMALLEST, None)
    if (np.abs(scores.sum(1) - 1) <= SUM_TOLERANCE).all():
        return np.log(shares)
    return np.log(shares) - np.log(np.maximum(1 - shares, LEAST))
