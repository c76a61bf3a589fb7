"""What a quantized model loses on samples that no repair has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.compare.own_metric import OwnMetric
from trtcal.compare.per_sample import Values
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.errors import BackendError, InputError
from trtcal.model import Model
from trtcal.search.losses import Loss, Rows, joined, rows_of, total
from trtcal.search.shelf import Shelf

BATCH = 16
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


class Judge:
    """Runs models on all samples of a dataset beside the float model's outputs. A context manager.

    `objective` is "sqnr", which few samples tell already, or "kl", of class scores. A `metric` of the
    user's own, of which more is better, takes its place.
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
        self.size = fixed_batch(reference) or BATCH
        self.shelf = Shelf(ROOM)
        session = open_session(reference.proto)
        self.batches = 0
        for feeds in dataset.batches(self.size):
            outputs = run_session(session, self.names, feeds)
            self.shelf.keep("feeds", self.batches, feeds)
            self.shelf.keep("expected", self.batches, dict(zip(self.names, outputs, strict=True)))
            self.batches += 1

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shelf.close()

    def measure(self, proto: onnx.ModelProto) -> Verdict:
        """Return what a quantized model loses."""
        try:
            session = open_session(lower(proto))
        except BackendError:
            session = open_session(proto, as_it_is=True)
        rows, own = [], list[float]()
        for number in range(self.batches):
            said = run_session(session, self.names, self.shelf.get("feeds", number))
            expected = list(self.shelf.get("expected", number).values())
            start = number * self.size
            labels = self.dataset.labels
            mine = None if labels is None else labels[start : start + len(said[0])]
            rows.append(rows_of(expected, said, mine))
            own += self._own(said, mine)
        figures = joined(rows)
        if self.objective == "kl" and self.metric is None and "kl" not in figures:
            raise InputError(
                "the first output has no class scores, of which --objective kl is",
                "leave it out: sqnr is for any outputs; or give a --metric of your own",
            )
        return Verdict(total(figures), -np.array(own) if own else self._values(figures))

    def _values(self, rows: Rows) -> Values:
        """Return KL in nats, or noise over signal in dB, of each sample.

        A few samples have most of the power of the noise, which would decide alone.
        """
        if self.objective == "kl":
            return rows["kl"]
        error, signal = (np.maximum(rows[name], 1e-30) for name in ("error", "signal"))
        return np.asarray(10 * np.log10(error / signal))

    def _own(self, said: Sequence[Array], labels: Array | None) -> list[float]:
        if self.metric is None:
            return []
        found = self.metric(self.names, said, labels)
        return list(next(iter(found.values())))
