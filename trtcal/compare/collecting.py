"""Runs two models on the same samples and keeps every figure of every sample: 8 bytes each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.backends.sessions import run_session
from trtcal.compare.candidates import Candidate
from trtcal.compare.own_metric import OwnMetric
from trtcal.compare.per_sample import compare_rows
from trtcal.data import Dataset

Array = npt.NDArray[Any]
Values = npt.NDArray[np.float64]
KEPT = ("top1", "top5", "agreement", "cosine", "kl")


@dataclass
class Figures:
    """Figure -> the baseline's and the candidate's batches, in the order of the samples."""

    parts: dict[str, list[tuple[Values, Values]]] = field(default_factory=lambda: defaultdict(list))
    samples: int = 0

    def add(self, name: str, baseline: Values, candidate: Values) -> None:
        """Take in a batch of one figure."""
        self.parts[name].append((baseline, candidate))

    def whole(self) -> dict[str, tuple[Values, Values]]:
        """Return each figure that every sample has, both of shape (samples,)."""
        joined = {
            name: (np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))
            for name, pairs in self.parts.items()
        }
        return {name: both for name, both in joined.items() if len(both[0]) == self.samples}


def collect(
    both: tuple[Candidate, Candidate],
    dataset: Dataset,
    batch: int,
    reference: Candidate | None = None,
    own: OwnMetric | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Figures]:
    """Yield the figures so far, after every batch.

    `top1` and `top5` need labels. With a reference there are `agreement`, `cosine` and `kl` of each
    with it; without one they are of the candidate with the baseline, which agrees with itself.
    """
    names = [spec.name for spec in both[0].outputs]
    found = Figures()
    for feeds in dataset.batches(batch):
        size = len(next(iter(feeds.values())))
        labels = dataset.labels
        part = None if labels is None else labels[found.samples : found.samples + size]
        outputs = [run_session(one.session, names, feeds) for one in both]
        expected = run_session(reference.session, names, feeds) if reference else outputs[0]
        _add(found, expected, outputs, part)
        if own is not None:
            values = [own(names, one, part) for one in outputs]
            for name, baseline in values[0].items():
                found.add(name, baseline, values[1][name])
        found.samples += size
        progress(size)
        yield found


def _add(
    found: Figures,
    expected: Sequence[Array],
    outputs: Sequence[Sequence[Array]],
    labels: npt.NDArray[np.int64] | None,
) -> None:
    baseline, candidate = (compare_rows(expected, one, labels) for one in outputs)
    for name in KEPT:
        if name in baseline and name in candidate:
            found.add(name, baseline[name], candidate[name])
