"""What a quantized model loses on samples that no optimization has seen."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.backends.taps import showing
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.errors import BackendError, InputError
from trtcal.evaluate.metrics import OwnMetric
from trtcal.evaluate.per_sample import Values
from trtcal.evaluate.search.caches import SpillCache
from trtcal.evaluate.search.losses import Loss, joined, rows_of, total
from trtcal.model import Model
from trtcal.model.graph import constant, import_graph, is_op
from trtcal.model.ops import MOVES

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
    """Yield operator and name of each tensor that is joined in one."""
    node = tensor.inputs[0] if tensor.inputs else None
    if node is not None and is_op(node, "Concat"):
        for one in node.inputs:
            yield from _joined(one)
    elif node is not None and is_op(node, *MOVES):
        yield from _joined(node.inputs[0])
    elif node is not None and constant(tensor) is None:
        yield node.op, tensor.name


T = TypeVar("T")

BATCH = 16
SHARE = 0.1  # of the mean power of all samples, added to each one's
TINY = 1e-30
LARGEST = 150.0  # dB that a part counts, which may have no noise at all
ROOM = 1 << 28  # bytes of samples and outputs that are kept in memory


@dataclass(frozen=True)
class Verdict:
    """The loss of a model, and of each sample the one number that is to be small."""

    loss: Loss
    values: Values

    @property
    def value(self) -> float:
        """The mean of that number."""
        return float(self.values.mean())

    def is_better(self, other: Verdict) -> bool:
        """Tell whether it is less, by more than a standard error of the difference sample by sample.

        So what is chosen first stays unless there is evidence. What is not finite is never better.
        """
        if not np.isfinite(self.values).all():
            return False
        if not np.isfinite(other.values).all():
            return True
        less = other.values - self.values
        return bool(less.mean() > less.std(ddof=1) / len(less) ** 0.5) if len(less) > 1 else False


def leading(measured: Iterable[tuple[Verdict, T]]) -> tuple[Verdict, T]:
    """Return the first, unless a later one is better than what led until then."""
    return functools.reduce(lambda best, one: one if one[0].is_better(best[0]) else best, measured)


class Judge:
    """Runs models on all samples of a dataset beside the float model's outputs. A context manager.

    `objective` is "sqnr", which few samples tell already, or "kl", of class scores. A `metric` of the
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
        self.dataset, self.objective, self.metric = dataset, objective, metric
        self.names = [spec.name for spec in reference.outputs]
        self.parts = find_parts(reference)
        self.shown = list(dict.fromkeys((*self.names, *itertools.chain(*self.parts))))
        self.size = fixed_batch(reference) or BATCH
        self.spill = SpillCache(ROOM)
        session = open_session(self._showing(reference.proto))
        self.batches = 0
        for feeds in dataset.batches(self.size):
            outputs = run_session(session, self.shown, feeds)
            self.spill.keep("feeds", self.batches, feeds)
            self.spill.keep("expected", self.batches, dict(zip(self.shown, outputs, strict=True)))
            self.batches += 1
            if any(one.shape[:1] != outputs[0].shape[:1] for one in outputs):  # not a row a sample
                self.parts = [(name,) for name in self.names]

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exception: object) -> None:
        self.spill.close()

    def measure(self, proto: onnx.ModelProto) -> Verdict:
        """Return what a quantized model loses."""
        shown = self._showing(proto)
        try:
            session = open_session(lower(shown))
        except BackendError:
            session = open_session(shown, as_it_is=True)
        rows, own, powers = [], list[float](), []
        for number in range(self.batches):
            made = run_session(session, self.shown, self.spill.get("feeds", number))
            said = dict(zip(self.shown, made, strict=True))
            expected = self.spill.get("expected", number)
            start = number * self.size
            labels = self.dataset.labels
            mine = None if labels is None else labels[start : start + self.size]
            given, outputs = ([of[name] for name in self.names] for of in (expected, said))
            rows.append(rows_of(given, outputs, mine))
            powers.append(self._powers(expected, said))
            own += self._own(outputs, mine)
        figures = joined(rows)
        if self.objective == "kl" and self.metric is None:
            if "kl" not in figures:
                raise InputError(
                    "the first output has no class scores, of which --objective kl is",
                    "leave it out: sqnr is for any outputs; or give a --metric of your own",
                )
            return Verdict(total(figures), figures["kl"])
        values = -np.array(own) if own else decibels(np.concatenate(powers, axis=2))
        return Verdict(total(figures), values)

    def _showing(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        return proto if self.shown == self.names else showing(proto, self.shown)

    def _powers(self, expected: Mapping[str, Array], said: Mapping[str, Array]) -> Values:
        """Return noise and signal of each part in each sample of a batch, (2, parts, samples)."""
        found = []
        for part in self.parts:
            noise = sum(_power(np.subtract(said[n], expected[n], dtype=float)) for n in part)
            found.append([noise, sum(_power(expected[n]) for n in part)])
        return np.array(found).transpose(1, 0, 2)

    def _own(self, said: Sequence[Array], labels: Array | None) -> list[float]:
        if self.metric is None:
            return []
        found = self.metric(self.names, said, labels)
        return list(next(iter(found.values())))


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
