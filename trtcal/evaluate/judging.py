"""What a quantized model loses on samples that no optimization has seen."""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.backends.sessions import Array, open_session
from trtcal.backends.taps import showing
from trtcal.backends.trial import crashes_as_warnings
from trtcal.data import Dataset
from trtcal.errors import InputError
from trtcal.evaluate.metrics import Loss, OwnMetric, Rows, joined, rows_of, total
from trtcal.evaluate.per_sample import NotFiniteError, Values, check_finite
from trtcal.evaluate.replay import Batch, Recording, Run, quantized_runner, runner
from trtcal.model import Model
from trtcal.model.graph import constant, import_graph, is_op
from trtcal.model.ops import MOVES
from trtcal.stats import Mask

Part = tuple[str, ...]
"""Tensors whose noise and signal are added up."""


def find_parts(model: Model) -> list[Part]:
    """Return the parts of all outputs: what a Concat joins, by the operators that make it."""
    graph = import_graph(model.proto)
    parts = list[Part]()
    for output in graph.outputs:
        kinds = defaultdict[str, list[str]](list)
        for op, name in _joined(output) if output.dtype == np.float32 else ():
            kinds[op].append(name)
        parts += map(tuple, kinds.values()) if len(kinds) > 1 else [(output.name,)]
    return parts


def _joined(tensor: gs.Tensor) -> Iterator[tuple[str, str]]:
    node = tensor.inputs[0] if tensor.inputs else None
    if node is not None and is_op(node, "Concat"):
        for part in node.inputs:
            yield from _joined(part)
    elif node is not None and is_op(node, *MOVES):
        yield from _joined(node.inputs[0])
    elif node is not None and constant(tensor) is None:
        yield node.op, tensor.name


LEAST_SCORE = 0.1  # scores that are never above say nothing: their noise does not matter
OFFSET = 2.0  # values above, in one output with scores from 0 to 1, are places or sizes in pixels
OFFSET_WEIGHT = 0.25  # of their noise beside that of scores, which decide what is detected at all


@dataclass(frozen=True)
class Piece:
    """Values of a tensor: all, or those of some places along an axis."""

    tensor: str
    axis: int = 0
    places: Mask | None = None

    def of(self, outputs: Mapping[str, Array]) -> Array:
        """Return the values, samples along the first axis."""
        values = outputs[self.tensor]
        return values if self.places is None else np.compress(self.places, values, self.axis)


Weighted = tuple[float, list[Piece]]
"""Pieces whose noise and signal are added up, and how much they weigh."""


def divide(tensor: str, values: Array) -> tuple[Piece, ...]:
    """Return a tensor's scores from 0 to 1 and the offsets beside them, or all of it as one piece.

    Exports without a Concat have boxes in pixels and scores along one axis.
    """
    for axis in range(1, values.ndim) if values.dtype.kind == "f" and values.size else ():
        others = tuple(i for i in range(values.ndim) if i != axis)
        low, high = values.min(axis=others), values.max(axis=others)
        scores = (low >= 0) & (high <= 1)
        if high[scores].max(initial=0) >= LEAST_SCORE and (high > OFFSET).any():
            return Piece(tensor, axis, scores), Piece(tensor, axis, ~scores)
    return (Piece(tensor),)


def weigh(parts: Iterable[Part], model: Model, outputs: Mapping[str, Array]) -> list[Weighted]:
    """Return the pieces whose noise is added up, with their weight, by what the float model gives.

    Offsets weigh less than scores that are a part of the same output.
    """
    groups = list[list[Piece]]()
    for part in parts:
        pieces = [divide(name, outputs[name]) for name in part]
        alike = len({len(each) for each in pieces}) == 1
        groups += map(list, zip(*pieces, strict=True)) if alike else [[*map(Piece, part)]]
    whole = {spec.name for spec in model.outputs}
    ends = [
        (min(each.min(initial=0) for each in values), max(each.max(initial=0) for each in values))
        for values in ([piece.of(outputs) for piece in group] for group in groups)
    ]
    shares = [group[0].places is not None or group[0].tensor not in whole for group in groups]
    has_scores = any(
        share and low >= 0 and LEAST_SCORE <= high <= 1
        for share, (low, high) in zip(shares, ends, strict=True)
    )
    return [
        (OFFSET_WEIGHT if has_scores and share and high > OFFSET else 1.0, group)
        for group, share, (_, high) in zip(groups, shares, ends, strict=True)
    ]


T = TypeVar("T")

BATCH = 16
SHARE = 1.0  # of the mean power of all samples, added to each one's
TINY = 1e-30
LARGEST = 150.0  # dB that a part counts, which may have no noise at all
ROOM = 1 << 24  # bytes of samples and outputs that are kept in memory


@dataclass(frozen=True)
class Verdict:
    """The loss of a model, and of each sample the one number that is to be small."""

    loss: Loss
    values: Values

    @property
    def value(self) -> float:
        """The mean of that number."""
        return float(self.values.mean())

    @property
    def is_finite(self) -> bool:
        """Whether no sample has NaN or an infinite loss."""
        return bool(np.isfinite(self.values).all())

    def is_better(self, other: Verdict, errors: float = 1.0) -> bool:
        """Tell whether it is less, by more than standard errors of the difference sample by sample.

        So what is chosen first stays unless there is evidence: the more of it, the more is tried. What
        is not finite is never better.
        """
        if not (self.is_finite and other.is_finite):
            return self.is_finite
        less = other.values - self.values
        error = less.std(ddof=1) / len(less) ** 0.5 if len(less) > 1 else math.inf
        return bool(less.mean() > errors * error)


def leading(measured: Iterable[tuple[Verdict, T]]) -> tuple[Verdict, T]:
    """Return the first, unless a later one is better than what led until then."""
    return functools.reduce(lambda best, new: new if new[0].is_better(best[0]) else best, measured)


class Judge(AbstractContextManager["Judge"]):
    """Runs models on all samples of a dataset beside the float model's outputs. A context manager.

    `objective` is "sqnr", which takes few samples, or "kl", of class scores. A `metric` of the
    user's own, of which more is better, takes its place. For the SQNR the worst part of all outputs
    decides (see `find_parts`, `weigh`, `decibels`). Samples on which the float model has NaN or
    infinite values do not count.
    """

    def __init__(
        self,
        reference: Model,
        dataset: Dataset,
        objective: str = "sqnr",
        metric: OwnMetric | None = None,
    ) -> None:
        self.objective, self.metric = objective, metric
        self.names = [spec.name for spec in reference.outputs]
        parts = find_parts(reference)
        self.shown = list(dict.fromkeys((*self.names, *itertools.chain(*parts))))
        run = runner(open_session(self.showing(reference.proto)), self.shown)
        batches = dataset.batches(BATCH)
        self.recording = Recording(run, batches, dataset.labels, ROOM)
        outputs = map(self.recording.expected, range(len(self.recording)))
        if any(len({values.shape[:1] for values in each.values()}) > 1 for each in outputs):
            parts = [(name,) for name in self.names]
        self.parts = weigh(parts, reference, self.recording.first.expected)
        self.finite = self._finite()

    def __exit__(self, *exception: object) -> None:
        self.recording.close()

    def measure(self, proto: onnx.ModelProto) -> Verdict:
        """Return what a quantized model loses: infinitely much if it crashes or gives NaN."""
        with crashes_as_warnings():
            return self.measure_run(quantized_runner(self.showing(proto), self.shown))
        return self._lost()

    def measure_run(self, run: Run) -> Verdict:
        """Return what is lost by what gives the outputs `shown` of a batch."""
        if not self.finite.any():
            check_finite(*(self.recording.first.expected[name] for name in self.names))
        try:
            return self._measured(run)
        except NotFiniteError:
            return self._lost()

    def _lost(self) -> Verdict:
        samples = int(self.finite.sum())
        return Verdict(Loss(samples, math.inf), np.full(samples, np.inf))

    def _finite(self) -> Mask:
        """Return the samples on which all outputs of the float model are finite."""
        masks = []
        for number, head in enumerate(self.recording.heads):
            expected, mask = self.recording.expected(number), np.ones(head.size, bool)
            for values in (expected[name] for name in self.names):
                if values.dtype.kind == "f" and values.shape[:1] == (head.size,):
                    mask &= np.isfinite(values.reshape(head.size, -1)).all(axis=1)
            masks.append(mask)
        return np.concatenate(masks)

    def _measured(self, run: Run) -> Verdict:
        heads = enumerate(self.recording.heads)
        numbers = [number for number, head in heads if self.finite[head.numbers].any()]
        each = self.recording.compare(
            lambda number: run(self.recording.feeds(number)), self._figures, numbers
        )
        rows, values = zip(*each, strict=True)
        figures = joined(rows)
        if self.objective == "kl" and self.metric is None:
            if "kl" not in figures:
                raise InputError(
                    "the first output has no class scores, which the objective kl needs",
                    "leave it out (sqnr works for all outputs), or give a --metric-file of your own",
                )
            return Verdict(total(figures), figures["kl"])
        if self.metric is not None:
            return Verdict(total(figures), -np.concatenate(values))
        weights = np.array([weight for weight, _ in self.parts])
        return Verdict(total(figures), decibels(np.concatenate(values, axis=2), weights))

    def _figures(self, batch: Batch) -> tuple[Rows, Values]:
        """Return the figures of a batch, and the user's or the powers of all parts."""
        finite = self.finite[batch.numbers]
        batch = batch if finite.all() else batch.at(finite)
        expected, outputs = batch.expected, batch.outputs[0]
        reference, actual = ({name: of[name] for name in self.names} for of in (expected, outputs))
        rows = rows_of([*reference.values()], [*actual.values()], batch.labels)
        if self.metric is None:
            return rows, self._powers(expected, outputs)
        return rows, next(iter(self.metric(actual, batch.labels).values()))

    def showing(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return a model that gives the tensors `shown`."""
        return proto if self.shown == self.names else showing(proto, self.shown)

    def _powers(self, expected: Mapping[str, Array], actual: Mapping[str, Array]) -> Values:
        """Return noise and signal of each part in each sample of a batch, (2, parts, samples)."""
        powers = []
        for _, group in self.parts:
            pairs = [(piece.of(expected), piece.of(actual)) for piece in group]
            noise = sum(_power(np.subtract(b, a, dtype=float)) for a, b in pairs)
            powers.append([noise, sum(_power(a) for a, _ in pairs)])
        return np.array(powers).transpose(1, 0, 2)


def decibels(powers: Values, weights: Values | None = None) -> Values:
    """Return noise over signal (dB) of each sample; powers as `_powers` gives, a weight for each part.

    It is that of the mean ratio of all parts, so that the worst one decides: no part makes up for
    another. A few samples have most of the power of the noise, which would decide alone: so what counts
    is the mean of logarithms. To either power its mean is added, or images on which a
    detector finds nothing, and noise does not matter, would count as much as others.
    """
    noise, signal = powers + SHARE * powers.mean(axis=2, keepdims=True)
    ratios = np.maximum(noise, TINY) / np.maximum(signal, TINY)
    decibel = 10 * np.log10(np.average(ratios, axis=0, weights=weights))
    return np.asarray(np.clip(decibel, -LARGEST, LARGEST))


def _power(values: Array) -> Values:
    rows = values.reshape(len(values), -1).astype(np.float64)
    return np.asarray(np.square(rows).sum(axis=1))
