"""What a quantized model loses on samples that no optimization has seen."""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.backends.sessions import Array, open_session
from trtcal.backends.taps import showing
from trtcal.backends.trial import crashes_as_warnings
from trtcal.calibration import Observation, calibrate
from trtcal.data import Dataset
from trtcal.errors import InputError
from trtcal.evaluate.metrics import Loss, OwnMetric, Rows, joined, rows_of, total
from trtcal.evaluate.per_sample import NotFiniteError, Values, check_finite
from trtcal.evaluate.replay import Batch, Recording, Run, quantized_runner, runner
from trtcal.model import Model
from trtcal.model.graph import constant, import_graph, is_op
from trtcal.model.ops import MOVES
from trtcal.quantization import quantize
from trtcal.ranges import Calibration, Parameters

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


T = TypeVar("T")

BATCH = 16
SHARE = 0.1  # of the mean power of all samples, added to each one's
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

    def is_better(self, other: Verdict) -> bool:
        """Tell whether it is less, by more than a standard error of the difference sample by sample.

        So what is chosen first stays unless there is evidence. What is not finite is never better.
        """
        if not (self.is_finite and other.is_finite):
            return self.is_finite
        less = other.values - self.values
        return bool(less.mean() > less.std(ddof=1) / len(less) ** 0.5) if len(less) > 1 else False


def leading(measured: Iterable[tuple[Verdict, T]]) -> tuple[Verdict, T]:
    """Return the first, unless a later one is better than what led until then."""
    return functools.reduce(lambda best, new: new if new[0].is_better(best[0]) else best, measured)


class Judge(AbstractContextManager["Judge"]):
    """Runs models on all samples of a dataset beside the float model's outputs. A context manager.

    `objective` is "sqnr", which takes few samples, or "kl", of class scores. A `metric` of the
    user's own, of which more is better, takes its place. Every part of every output (see `parts`)
    counts alike for the SQNR.
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
        self.parts = find_parts(reference)
        self.shown = list(dict.fromkeys((*self.names, *itertools.chain(*self.parts))))
        run = runner(open_session(self._showing(reference.proto)), self.shown)
        batches = dataset.batches(BATCH)
        self.recording = Recording(run, batches, dataset.labels, ROOM)
        outputs = map(self.recording.expected, range(len(self.recording)))
        if any(len({values.shape[:1] for values in each.values()}) > 1 for each in outputs):
            self.parts = [(name,) for name in self.names]

    def __exit__(self, *exception: object) -> None:
        self.recording.close()

    def measure(self, proto: onnx.ModelProto) -> Verdict:
        """Return what a quantized model loses: infinitely much if it crashes or gives NaN."""
        with crashes_as_warnings():
            run = quantized_runner(self._showing(proto), self.shown)
            try:
                return self._measured(run)
            except NotFiniteError:
                for expected in map(self.recording.expected, range(len(self.recording))):
                    check_finite(*map(expected.__getitem__, self.names))
        samples = sum(head.size for head in self.recording.heads)
        return Verdict(Loss(samples, math.inf), np.full(samples, np.inf))

    def _measured(self, run: Run) -> Verdict:
        rows, values = zip(*self.recording.rerun(run, self._figures), strict=True)
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
        return Verdict(total(figures), decibels(np.concatenate(values, axis=2)))

    def _figures(self, batch: Batch) -> tuple[Rows, Values]:
        """Return the figures of a batch, and the user's or the powers of all parts."""
        expected, outputs = batch.expected, batch.outputs[0]
        reference, actual = ({name: of[name] for name in self.names} for of in (expected, outputs))
        rows = rows_of([*reference.values()], [*actual.values()], batch.labels)
        if self.metric is None:
            return rows, self._powers(expected, outputs)
        return rows, next(iter(self.metric(actual, batch.labels).values()))

    def _showing(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        return proto if self.shown == self.names else showing(proto, self.shown)

    def _powers(self, expected: Mapping[str, Array], actual: Mapping[str, Array]) -> Values:
        """Return noise and signal of each part in each sample of a batch, (2, parts, samples)."""
        powers = []
        for part in self.parts:
            noise = sum(_power(np.subtract(actual[n], expected[n], dtype=float)) for n in part)
            powers.append([noise, sum(_power(expected[n]) for n in part)])
        return np.array(powers).transpose(1, 0, 2)


def decibels(powers: Values) -> Values:
    """Return noise over signal (dB) of each sample, in the mean over parts; powers as `_powers` gives.

    A few samples have most of the power of the noise, which would decide alone: so it is the mean of
    logarithms. To either power a tenth of its mean is added, or images on which a detector finds
    nothing, and noise does not matter, would count as much as others.
    """
    noise, signal = powers + SHARE * powers.mean(axis=2, keepdims=True)
    ratio = np.maximum(noise, TINY) / np.maximum(signal, TINY)
    return np.asarray(np.clip(10 * np.log10(ratio), -LARGEST, LARGEST).mean(axis=0))


def _power(values: Array) -> Values:
    rows = values.reshape(len(values), -1).astype(np.float64)
    return np.asarray(np.square(rows).sum(axis=1))


METHODS = ("percentile", "mse", "auto", "minmax", "entropy")


def choose_method(
    prepared: Model,
    observation: Observation,
    select: Dataset,
    parameters: Parameters | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> tuple[Calibration, dict[str, Verdict]]:
    """Return the best ranges on samples that `observation` has not seen, and the loss by method.

    A later one must be better than those before by more than a standard error, so that `percentile`
    stays unless there is evidence. `parameters` are those of `auto`, which goes tensor by tensor.
    """
    verdicts, tables = dict[str, Verdict](), dict[str, Calibration]()
    with Judge(prepared, select) as judge:
        for method in METHODS:
            own = parameters if method == "auto" else None
            tables[method] = calibrate(observation, method, own)
            verdicts[method] = judge.measure(quantize(prepared, tables[method]).proto)
            advance(1)
    _, chosen = leading((verdicts[method], tables[method]) for method in METHODS)
    return chosen, verdicts
