"""Run everyone over the data once, and collect all that is asked: nothing here grows with samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.backends.sessions import Session, run_session
from trtcal.data import Dataset
from trtcal.data.slices import Attribute, classes_of, read_attributes
from trtcal.errors import InputError
from trtcal.evaluate.equality import Simulation, hold_against
from trtcal.evaluate.groups import Breakdown, Group, GroupAccumulator, Sample, Worst, files_of
from trtcal.evaluate.metrics import Accuracy, AccuracyMeter, OwnMetric, load_metric
from trtcal.evaluate.per_sample import WHAT, Labels, compare_rows
from trtcal.evaluate.variants import Variant, open_simulation

Array = npt.NDArray[Any]
Values = npt.NDArray[np.float64]
KEPT = ("top1", "top5", "agreement", "cosine", "kl")


@dataclass
class SampleFigures:
    """Figure -> the baseline's and the variant's batches, in the order of the samples."""

    parts: dict[str, list[tuple[Values, Values]]] = field(default_factory=lambda: defaultdict(list))
    samples: int = 0

    def add(self, name: str, baseline: Values, variant: Values) -> None:
        """Take in a batch of one figure."""
        self.parts[name].append((baseline, variant))

    def whole(self) -> dict[str, tuple[Values, Values]]:
        """Return each figure that every sample has, both of shape (samples,)."""
        joined = {
            name: (np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))
            for name, pairs in self.parts.items()
        }
        return {name: both for name, both in joined.items() if len(both[0]) == self.samples}


def collect(
    both: tuple[Variant, Variant],
    dataset: Dataset,
    batch: int,
    reference: Variant | None = None,
    own: OwnMetric | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[SampleFigures]:
    """Yield the figures so far, after every batch.

    `top1` and `top5` need labels. With a reference there are `agreement`, `cosine` and `kl` of each
    with it; without one they are of the variant with the baseline, which agrees with itself.
    """
    names = [spec.name for spec in both[0].outputs]
    found = SampleFigures()
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
    found: SampleFigures,
    expected: Sequence[Array],
    outputs: Sequence[Sequence[Array]],
    labels: npt.NDArray[np.int64] | None,
) -> None:
    baseline, variant = (compare_rows(expected, one, labels) for one in outputs)
    for name in KEPT:
        if name in baseline and name in variant:
            found.add(name, baseline[name], variant[name])


Figures = Mapping[str, Values]
CLASSES, SLICES = "classes", "slices"


@dataclass(frozen=True)
class Wanted:
    """What to find out beside the means: by slices, by the user's own metric, in float simulation."""

    attributes: tuple[Attribute, ...] = ()
    own: OwnMetric | None = None
    simulate: bool = True


def read_wanted(
    dataset: Dataset, slices: Path | None = None, metric: Path | None = None, simulate: bool = True
) -> Wanted:
    """Return what to find out by files: a CSV of slices, and a Python file with a metric."""
    return Wanted(
        read_attributes(slices, len(dataset), files_of(dataset)) if slices else (),
        load_metric(metric) if metric else None,
        simulate,
    )


@dataclass(frozen=True)
class Evaluation:
    """What one variant's outputs tell."""

    accuracy: Accuracy
    simulation: Simulation | None
    own: tuple[Group, ...]
    breakdowns: tuple[Breakdown, ...]
    worst: tuple[Sample, ...]


@dataclass(frozen=True)
class _Batch:
    """Some samples from `start` on: what everyone gave for them, the reference first."""

    start: int
    feeds: dict[str, Array]
    labels: Labels | None
    outputs: list[list[Array]]


@dataclass
class _Watch:
    """Collects what one variant's outputs tell."""

    accumulators: dict[str, GroupAccumulator]
    worst: Worst
    simulated: Session | None = None
    meter: AccuracyMeter = field(default_factory=AccuracyMeter)
    literal: AccuracyMeter = field(default_factory=AccuracyMeter)
    apart: AccuracyMeter = field(default_factory=AccuracyMeter)
    own: set[str] = field(default_factory=set)

    def add(self, batch: _Batch, index: int, names: list[str]) -> Figures:
        """Take in a batch's outputs and return their figures."""
        outputs = batch.outputs[index]
        found = self.meter.update(batch.outputs[0], outputs, batch.labels)
        self.worst.add(batch.start, found, (batch.outputs[0], outputs), batch.labels)
        if self.simulated is not None:
            literal = run_session(self.simulated, names, batch.feeds)
            self.literal.update(batch.outputs[0], literal, batch.labels)
            self.apart.update(literal, outputs, batch.labels)
        return found

    def divide(self, start: int, figures: Mapping[str, tuple[Values, Values]]) -> None:
        """Take in the figures that are told by groups."""
        for accumulator in self.accumulators.values():
            accumulator.add(start, figures)

    def result(self) -> Evaluation:
        """Return what was collected."""
        simulation = None
        if self.simulated is not None:
            results = (self.meter.result(), self.literal.result(), self.apart.result())
            simulation = hold_against(*results)
        whole = self.accumulators[SLICES]
        return Evaluation(
            self.meter.result(),
            simulation,
            tuple(whole.whole(name) for name in sorted(self.own)),
            tuple(
                one
                for by, accumulator in self.accumulators.items()
                for one in accumulator.result(by)
            ),
            self.worst.result(),
        )


def evaluate(
    everyone: Sequence[Variant],
    dataset: Dataset,
    batch: int,
    wanted: Wanted,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Evaluation]:
    """Return what everyone's outputs tell, the first being the reference."""
    names = [spec.name for spec in everyone[0].outputs]
    watches = [_watch(one, dataset, wanted, one is everyone[0]) for one in everyone]
    for part in _batches(everyone, dataset, batch, names):
        found = [watch.add(part, index, names) for index, watch in enumerate(watches)]
        own = [_own(wanted.own, names, outputs, part.labels) for outputs in part.outputs]
        for watch, figures, more in zip(watches, found, own, strict=True):
            watch.own |= set(more)
            watch.divide(part.start, _pairs(found[0], figures) | _both(own[0], more))
        progress(len(part.outputs[0][0]))
    return [watch.result() for watch in watches]


def _watch(one: Variant, dataset: Dataset, wanted: Wanted, is_reference: bool) -> _Watch:
    accumulators = {SLICES: GroupAccumulator(() if is_reference else wanted.attributes)}
    if dataset.labels is not None and not is_reference:
        accumulators[CLASSES] = GroupAccumulator((classes_of(dataset.labels),))
    simulated = open_simulation(one) if wanted.simulate else None
    return _Watch(accumulators, Worst(files_of(dataset)), simulated)


def _batches(
    everyone: Sequence[Variant], dataset: Dataset, size: int, names: list[str]
) -> Iterator[_Batch]:
    labels, start = dataset.labels, 0
    for feeds in dataset.batches(size):
        stop = start + len(next(iter(feeds.values())))
        outputs = [run_session(one.session, names, feeds) for one in everyone]
        yield _Batch(start, feeds, None if labels is None else labels[start:stop], outputs)
        start = stop


def _own(
    own: OwnMetric | None, names: list[str], outputs: list[Array], labels: Labels | None
) -> dict[str, Values]:
    found = {} if own is None else own(names, outputs, labels)
    taken = sorted(set(found) & set(WHAT))
    if own is not None and taken:
        raise InputError(f"{own.path}: {taken[0]!r} is trtcal's own figure", "call yours otherwise")
    return found


def _pairs(reference: Figures, variant: Figures) -> dict[str, tuple[Values, Values]]:
    """Return the figure that is told by groups: top-1, without labels agreement, else none."""
    figure = "top1" if "top1" in variant else "agreement"
    return _both(reference, {name: variant[name] for name in (figure,) if name in variant})


def _both(reference: Figures, variant: Figures) -> dict[str, tuple[Values, Values]]:
    return {name: (reference[name], values) for name, values in variant.items()}
