"""A model run on samples as given and as changed: what it makes of them is its response."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.backends.sessions import Session, open_session, run_session
from trtcal.backends.taps import showing
from trtcal.calibration.job import tensor_bytes
from trtcal.check.samples import ImageInput, Samples
from trtcal.data import Feeds, batch_for
from trtcal.data.dataset import Array
from trtcal.evaluate.per_sample import SUM_TOLERANCE, Values, class_scores
from trtcal.model import Model
from trtcal.model.files import array_of, fits, stand_in
from trtcal.model.graph import part_of
from trtcal.model.ops import MULTIPLIES, Operators
from trtcal.model.tensors import constants_of
from trtcal.stats import softmax

DRIVEN = 8  # samples by which it is judged how strongly the first layers are driven
INPUT_BYTES = 1 << 21  # of samples run together: more are slower, and take more memory
LARGE = 2048  # nodes of a model: to optimize it takes longer than it saves
FEW = 4  # samples that the first layers see at a time: their outputs are the largest

FEWEST_CLASSES = 5  # of a dense output: less may be coordinates or colours
NORMS = 6  # BatchNormalizations read, evenly over the network
TINY = 1e-12
SMALLEST = 1e-38  # of float32: a probability of 0 was rounded to it


@dataclass(frozen=True)
class Response:
    """What a model makes of samples, one value a sample unless said otherwise.

    `classes`: the class with the highest score, `confidence` its probability; `lead`: its logit minus
    the mean of all; `sharpness`: that over their standard deviation, which no factor changes; `entropy`
    of the class probabilities; `mutual_information`: their KL divergence from their mean over all
    samples, in nats, 0 where the model cannot distinguish samples. `misfit`: how far what
    BatchNormalizations read is from their running statistics; `signal_to_bias`: see `FirstLayers`;
    `features`: see `feature_distances`. None without class scores, without such nodes, and without
    images.
    """

    classes: npt.NDArray[np.int64] | None
    confidence: Values | None
    lead: Values | None = None
    sharpness: Values | None = None
    entropy: Values | None = None
    mutual_information: Values | None = None
    misfit: float | None = None
    signal_to_bias: float | None = None
    features: Values | None = None


@dataclass(frozen=True)
class Norm:
    """A BatchNormalization: the tensor that it reads, and what it takes for its mean and variance."""

    tensor: str
    mean: Values
    variance: Values


Features = dict[str, Array]
"""Layer -> chosen places of its output."""
Scores = tuple[Array, bool] | None
"""Class scores, and whether they are dense."""
Answer = tuple[Scores, list[Values], Features | None]
"""Of one sample: scores, moments of each normalization, features."""


class ModelProbe:
    """A model, opened when it is first needed; what it makes of each sample is kept, and run once.

    With `only_classes` no inner tensor is read, which costs ONNX Runtime its fusions.
    """

    def __init__(self, model: Model, batch_size: int, only_classes: bool = False) -> None:
        self.model = model
        self.batch_size = batch_for(model, batch_size)
        self.norms = [] if only_classes else _norms(model.proto)
        self.layers = [] if only_classes else _inner_layers(model)
        self.answers = dict[tuple[object, int], Answer]()
        self.driven = dict[tuple[object, bytes], float | None]()
        self.columns: npt.NDArray[np.bool_] | None = None  # of dense outputs, once seen
        self.outputs = [spec.name for spec in model.outputs]
        self.read = [*self.outputs, *(norm.tensor for norm in self.norms)]

    @functools.cached_property
    def session(self) -> Session:
        """The model, with everything that is read as outputs."""
        proto, inputs = self.model.proto, {spec.name for spec in self.model.inputs}
        inner = {*self.read, *self.layers} - inputs - {*self.outputs}
        source = proto if fits(proto) else self.model.path  # large weights stay in files
        source = showing(proto, sorted(inner)) if inner else source
        return open_session(source, as_it_is=len(proto.graph.node) > LARGE, arena=False)

    @functools.cached_property
    def first_layers(self) -> FirstLayers | None:
        """The first layers, if the model takes images."""
        return FirstLayers(self.model) if ImageInput.of(self.model) else None

    def run(self, samples: Samples, inside: bool = False) -> Response:
        """Return the response to samples, which has features `inside`; `BackendError` if it fails."""
        keys = [(samples.form, int(number)) for number in samples.numbers]
        missing = [i for i, key in enumerate(keys) if not self._knows(key, inside)]
        size = self._size(samples, inside)
        rows = (np.array(missing[i : i + size]) for i in range(0, len(missing), size))
        answers = (answer for some in rows for answer in self._run(samples.at(some).feeds, inside))
        self.answers |= {keys[i]: answer for i, answer in zip(missing, answers, strict=True)}
        return self._response([self.answers[key] for key in keys], inside)

    def _knows(self, key: tuple[object, int], inside: bool) -> bool:
        return key in self.answers and not (inside and self.answers[key][2] is None)

    def _size(self, samples: Samples, inside: bool) -> int:
        size = batch_for(self.model, samples.fitting(self.batch_size, INPUT_BYTES))
        if not inside or size == samples.batch:
            return size
        sizes = tensor_bytes(stand_in(self.model.proto), next(samples.batches(1)))
        taken = sum(sizes.get(name, 0) for name in self.layers)
        return int(np.clip(ROOM // max(taken, 1), 1, size))

    def _run(self, feeds: Feeds, inside: bool) -> list[Answer]:
        read = dict.fromkeys([*self.read, *(self.layers if inside else ())])
        names = [name for name in read if name not in feeds]
        outputs = run_session(self.session, names, feeds)
        tensors = {**feeds, **dict(zip(names, outputs, strict=True))}
        size = len(next(iter(feeds.values())))
        scores = _scores([tensors[name] for name in self.outputs], size)
        moments = [_moments(tensors[norm.tensor], size) for norm in self.norms]
        chosen = _features(tensors, self.layers, size).items() if inside else ()
        kept = [{name: rows[i] for name, rows in chosen} if inside else None for i in range(size)]
        classes = [scores and (scores[0][i], scores[1]) for i in range(size)]
        return [(classes[i], [each[i] for each in moments], kept[i]) for i in range(size)]

    def signal_to_bias(self, samples: Samples) -> float | None:
        """Return how strongly a few of the samples drive the first layers: see `FirstLayers`."""
        few = samples.first(DRIVEN)
        key = few.form, few.numbers.tobytes()
        if self.first_layers is not None and key not in self.driven:
            driven = few.batches(batch_for(self.model, FEW))
            ratios = [self.first_layers.signal_to_bias(feeds) for feeds in driven]
            known = [ratio for ratio in ratios if ratio is not None]
            self.driven[key] = float(np.mean(known)) if known else None
        return self.driven.get(key)

    def _response(self, answers: list[Answer], inside: bool) -> Response:
        outputs, moments, features = zip(*answers, strict=True)
        sums = [np.sum(rows, axis=0) for rows in zip(*moments, strict=True)]
        misfits = [_misfit(*pair) for pair in zip(self.norms, sums, strict=True)]
        response = self._answered(outputs, float(np.mean(misfits)) if misfits else None)
        return replace(response, features=feature_distances(features)) if inside else response

    def _answered(self, outputs: Sequence[Scores], misfit: float | None) -> Response:
        known = [scores for scores in outputs if scores is not None]
        kinds = {(scores.shape, is_dense) for scores, is_dense in known}
        if len(known) < len(outputs) or len(kinds) > 1:
            return _response_of(None, misfit)
        scores, is_dense = np.stack([scores for scores, _ in known]), known[0][1]
        if is_dense and self.columns is None:
            self.columns = _probabilities(scores, len(self.outputs) == 1)
        if is_dense and self.columns is not None and not self.columns.any():
            return _response_of(None, misfit)
        response = _response_of(scores[:, self.columns] if is_dense else scores, misfit)
        return replace(response, classes=None) if is_dense else response


def _norms(proto: onnx.ModelProto) -> list[Norm]:
    """Return some BatchNormalizations of images with constant statistics, the first among them."""
    weights = constants_of(proto.graph)
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


def _moments(values: Array, samples: int) -> Values:
    """Return number, sum and sum of squares of each channel, [samples, 3, C].

    What is not of one sample each is shared out evenly.
    """
    rows = values.reshape(*values.shape[:2], -1).astype(np.float64)
    counts = np.full(rows.shape[:2], rows.shape[2])
    moments = np.stack([counts, rows.sum(2), np.square(rows).sum(2)], axis=1)
    if len(moments) == samples:
        return moments
    return np.repeat(moments.sum(0, keepdims=True) / samples, samples, axis=0)


def _misfit(norm: Norm, sums: Values) -> float:
    """Return the KL divergence of what was seen from what the node was trained on, median channel."""
    mean = sums[1] / sums[0]
    variance = np.maximum(sums[2] / sums[0] - mean**2, TINY)
    ratio = variance / norm.variance
    nats = (ratio - 1 - np.log(ratio) + (mean - norm.mean) ** 2 / norm.variance) / 2
    return float(np.log1p(np.median(nats)))


def _scores(outputs: list[Array], samples: int) -> Scores:
    """Return class scores, [n, classes], and whether they are dense: the highest of many places."""
    plain = [(scores, False) for scores in map(class_scores, outputs) if scores is not None]
    dense = [(scores, True) for scores in map(_highest, outputs) if scores is not None]
    return next((scores for scores in (*plain, *dense) if len(scores[0]) == samples), None)


def plain_response(outputs: list[Array], samples: int) -> Response | None:
    """Return the response that a model's outputs are, None without plain class scores."""
    scores = _scores(outputs, samples)
    return None if scores is None or scores[1] else _response_of(scores[0], None)


def _highest(output: Array) -> Array | None:
    """Return the highest value of each class anywhere, None if it is not like classes."""
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
    is_probability = np.asarray(((scores >= 0) & (scores <= 1)).all(0))
    has_classes = is_probability.sum() >= FEWEST_CLASSES
    return is_probability if has_classes else np.full_like(is_probability, alone)


def _response_of(scores: Array | None, misfit: float | None) -> Response:
    if scores is None or not np.isfinite(scores).all():
        return Response(None, None, None, None, None, None, misfit)
    logits = _logits(scores.astype(np.float64))
    lead = logits.max(1) - logits.mean(1)
    shares = softmax(logits)
    logs = np.log(np.maximum(shares, TINY))
    others = np.log(np.maximum(shares.mean(0), TINY))
    sharpness, entropy = lead / (logits.std(1) + TINY), -(shares * logs).sum(1)
    information = (shares * (logs - others)).sum(1)
    return Response(logits.argmax(1), shares.max(1), lead, sharpness, entropy, information, misfit)


def _logits(scores: Values) -> Values:
    """Return logits of probabilities, which need not add up to 1; other scores as they are."""
    if not ((scores >= 0) & (scores <= 1 + SUM_TOLERANCE)).all():
        return scores
    shares = np.clip(scores, SMALLEST, None)
    if (np.abs(scores.sum(1) - 1) <= SUM_TOLERANCE).all():
        return np.log(shares)
    return np.log(shares) - np.log(np.maximum(1 - shares, TINY))


LEAST_NORM = 1e-9
LAYERS = 8  # read, evenly over the network
FROM = 0.25  # of its depth on: what is before sees edges, whatever the colours
PLACES = 4096  # of a layer's output, chosen with a fixed seed
ROOM = 1 << 25  # bytes of outputs at a time


def _inner_layers(model: Model) -> list[str]:
    """Return the outputs of some layers of a model that takes images."""
    layers = weighted(model.proto) if ImageInput.of(model) and fits(model.proto) else []
    last = len(layers) - 1
    places = np.unique(np.linspace(FROM * last, last, LAYERS).round().astype(int))
    return [layers[place].output[0] for place in places if layers]


def _features(tensors: Mapping[str, Array], layers: Sequence[str], size: int) -> Features:
    """Return the chosen places of each layer's output, [n, places], one row a sample."""
    alike = {n: tensors[n] for n in layers if tensors[n].ndim > 1 and len(tensors[n]) == size}
    rows = {name: values.reshape(size, -1) for name, values in alike.items()}
    return {name: values[:, _places(values.shape[1])] for name, values in rows.items()}


@functools.cache
def _places(width: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).choice(width, min(width, PLACES), replace=False)


def feature_distances(samples: Sequence[Features]) -> Values | None:
    """Return how far each sample's features are from the mean of all samples, [n].

    In natural logarithms of Euclidean norms, in the mean over layers.
    """
    distances = []
    for name in (n for n in samples[0] if all(n in features for features in samples)):
        rows = np.stack([features[name] for features in samples]).astype(np.float64)
        norms = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
        if np.isfinite(norms).all():
            distances.append(np.log(norms + LEAST_NORM))
    return np.mean(distances, axis=0) if distances else None


FIRST = 4  # of them: the first may have no bias
NOTHING = 1e-6  # a bias so small beside what the images bring is none


class FirstLayers:
    """The first layers of a model, run alone: how strongly images drive them beside their biases.

    Normalization in training keeps both of one size: a layer behind pixels that are 255 times too large
    does not notice its biases, and behind such as are too small it hardly makes anything else.
    """

    def __init__(self, model: Model) -> None:
        graph = model.proto.graph
        layers = weighted(model.proto, MULTIPLIES | {"BatchNormalization", "Add"})[:FIRST]
        self.tensors = [node.output[0] for node in layers]
        places = [i for i, node in enumerate(graph.node) if node.output[0] in self.tensors]
        nodes = graph.node[: max(places, default=-1) + 1]
        constants = {tensor.name: tensor for tensor in graph.initializer}
        part = part_of(model.proto, nodes, constants, graph.input)
        self.part = showing(part, self.tensors)
        self.of_nothing: dict[str, list[Array]] = {}

    @functools.cached_property
    def session(self) -> Session:
        """The layers, if there are any."""
        return open_session(self.part, as_it_is=True, arena=False)

    def signal_to_bias(self, feeds: Feeds) -> float | None:
        """Return by how many powers of ten samples move the first layer with a bias more than that.

        Root mean squares over samples and outputs, beside those for inputs that are all zero; None
        without such a layer.
        """
        if not self.tensors:
            return None
        outputs = run_session(self.session, self.tensors, feeds), self._driven_by_nothing(feeds)
        for driven, empty in zip(*outputs, strict=True):
            bias = _strength(empty)
            moved = _strength(np.subtract(driven, empty, out=driven))
            if bias > NOTHING * moved > 0:
                return math.log10(moved / bias)
        return None

    def _driven_by_nothing(self, feeds: Feeds) -> list[Array]:
        """Return the outputs for zeros, which are kept: only whole numbers make them others."""
        whole = {n: a.tobytes() for n, a in feeds.items() if a.dtype.kind != "f"}
        key = str(([a.shape for a in feeds.values()], whole))
        if key not in self.of_nothing:
            nothing = {n: np.zeros_like(a) if a.dtype.kind == "f" else a for n, a in feeds.items()}
            self.of_nothing = {key: run_session(self.session, self.tensors, nothing)}
        return self.of_nothing[key]


def weighted(proto: onnx.ModelProto, operators: Operators = MULTIPLIES) -> list[onnx.NodeProto]:
    """Return the nodes that have constants beside what they read, in graph order."""
    constants = constants_of(proto.graph)
    return [
        node
        for node in proto.graph.node
        if node.op_type in operators
        and any(name in constants for name in node.input)
        and not all(name in constants for name in node.input)
    ]


def _strength(values: Array) -> float:
    """Return the root mean square, a sample at a time: in float64, all would be the lead of memory."""
    return math.sqrt(np.mean([np.square(value, dtype=np.float64).mean() for value in values]))
