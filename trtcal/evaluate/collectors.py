"""What is collected while variants are replayed beside their reference.

Nothing grows with samples, but for an A/B test, which keeps a few figures of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trtcal.data import Dataset
from trtcal.data.slices import Attribute, classes_of, read_attributes
from trtcal.errors import InputError
from trtcal.evaluate.equality import Simulation, hold_against
from trtcal.evaluate.groups import Breakdown, Group, GroupAccumulator, Sample, Worst
from trtcal.evaluate.metrics import Accuracy, AccuracyMeter, OwnMetric, load_metric
from trtcal.evaluate.per_sample import WHAT, Labels, Values, compare_rows
from trtcal.evaluate.replay import Batch, Outputs, replay
from trtcal.evaluate.variants import Variant, open_simulation

KEPT = ("top1", "top5", "agreement", "cosine", "kl")
CLASSES, SLICES = "classes", "slices"


@dataclass
class SampleFigures:
    """Figure -> the values of A and B for each sample, in the order of the samples."""

    own: OwnMetric | None = None
    parts: dict[str, list[tuple[Values, Values]]] = field(default_factory=lambda: defaultdict(list))
    samples: int = 0

    def add(self, batch: Batch) -> None:
        """Take in a batch, whose last two outputs are those of A and B."""
        pair = (batch.expected, *batch.outputs)[-2:]
        a, b = (compare_rows([*batch.expected.values()], [*o.values()], batch.labels) for o in pair)
        for name in KEPT:
            if name in a and name in b:
                self.parts[name].append((a[name], b[name]))
        if self.own is not None:
            a, b = (self.own(outputs, batch.labels) for outputs in pair)
            for name, values in a.items():
                self.parts[name].append((values, b[name]))
        self.samples += batch.size

    def whole(self) -> dict[str, tuple[Values, Values]]:
        """Return each figure that every sample has, both of shape (samples,)."""
        joined = {
            name: (np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))
            for name, pairs in self.parts.items()
        }
        return {name: both for name, both in joined.items() if len(both[0]) == self.samples}


def sample_figures(
    both: tuple[Variant, Variant],
    dataset: Dataset,
    batch: int,
    reference: Variant | None = None,
    own: OwnMetric | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[SampleFigures]:
    """Yield the figures so far, after every batch.

    `top1` and `top5` need labels. With a reference there are `agreement`, `cosine` and `kl` of each
    with it; without one they are of B with A, which agrees with itself.
    """
    names = [spec.name for spec in both[0].outputs]
    first, *others = (one.runner(names) for one in ((reference, *both) if reference else both))
    found = SampleFigures(own)
    for part in replay(first, others, dataset.batches(batch), dataset.labels, progress):
        found.add(part)
        yield found


@dataclass(frozen=True)
class Wanted:
    """What to collect beside the means: by slices, by the user's own metric, in float simulation."""

    attributes: tuple[Attribute, ...] = ()
    own: OwnMetric | None = None
    simulate: bool = True


def read_wanted(
    dataset: Dataset, slices: Path | None = None, metric: Path | None = None, simulate: bool = True
) -> Wanted:
    """Return what to collect by files: a CSV of slices, and a Python file with a metric."""
    return Wanted(
        read_attributes(slices, len(dataset), dataset.files) if slices else (),
        load_metric(metric) if metric else None,
        simulate,
    )


@dataclass(frozen=True)
class Evaluation:
    """What was collected of one variant."""

    accuracy: Accuracy
    simulation: Simulation | None
    own: tuple[Group, ...]
    breakdowns: tuple[Breakdown, ...]
    worst: tuple[Sample, ...]


@dataclass
class _OfVariant:
    """Collects what one variant's outputs show, by its place among all outputs of a batch.

    `simulated` is the place of its Q/DQ executed in float, None if there is none.
    """

    place: int
    simulated: int | None
    accumulators: dict[str, GroupAccumulator]
    worst: Worst
    meter: AccuracyMeter = field(default_factory=AccuracyMeter)
    literal: AccuracyMeter = field(default_factory=AccuracyMeter)
    to_literal: AccuracyMeter = field(default_factory=AccuracyMeter)
    own: set[str] = field(default_factory=set)

    def add(
        self, start: int, outputs: Sequence[Outputs], labels: Labels | None
    ) -> dict[str, Values]:
        """Take in a batch, the reference's outputs first, and return the variant's figures."""
        lists = [[*one.values()] for one in outputs]
        found = self.meter.update(lists[0], lists[self.place], labels)
        self.worst.add(start, found, (lists[0], lists[self.place]), labels)
        if self.simulated is not None:
            self.literal.update(lists[0], lists[self.simulated], labels)
            self.to_literal.update(lists[self.simulated], lists[self.place], labels)
        return found

    def result(self) -> Evaluation:
        """Return what was collected."""
        simulation = None
        if self.simulated is not None:
            meters = self.meter, self.literal, self.to_literal
            simulation = hold_against(*(meter.result() for meter in meters))
        groups = [one for by, each in self.accumulators.items() for one in each.result(by)]
        own = tuple(map(self.accumulators[SLICES].whole, sorted(self.own)))
        return Evaluation(self.meter.result(), simulation, own, tuple(groups), self.worst.result())


def _add(everyone: Sequence[_OfVariant], own: OwnMetric | None, batch: Batch) -> None:
    """Take in a batch; the reference is held against itself."""
    outputs = (batch.expected, *batch.outputs)
    found = [one.add(batch.start, outputs, batch.labels) for one in everyone]
    added = [_own_figures(own, outputs[one.place], batch.labels) for one in everyone]
    for one, figures, more in zip(everyone, found, added, strict=True):
        one.own |= set(more)
        figure = "top1" if "top1" in figures else "agreement"
        both = {figure: (found[0][figure], figures[figure])} if figure in figures else {}
        both |= {name: (added[0][name], values) for name, values in more.items()}
        for accumulator in one.accumulators.values():
            accumulator.add(batch.start, both)


def _own_figures(
    own: OwnMetric | None, outputs: Outputs, labels: Labels | None
) -> dict[str, Values]:
    found = {} if own is None else own(outputs, labels)
    taken = sorted(set(found) & set(WHAT))
    if own is not None and taken:
        raise InputError(f"{own.path}: {taken[0]!r} is trtcal's own figure", "call yours otherwise")
    return found


def evaluate(
    everyone: Sequence[Variant],
    dataset: Dataset,
    batch: int,
    wanted: Wanted,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Evaluation]:
    """Return what everyone's outputs show, the first being the reference."""
    names = [spec.name for spec in everyone[0].outputs]
    runs = [one.runner(names) for one in everyone]
    collected = []
    for place, one in enumerate(everyone):
        simulation = open_simulation(one, names) if wanted.simulate else None
        accumulators = {SLICES: GroupAccumulator(wanted.attributes if place else ())}
        if dataset.labels is not None and place:
            accumulators[CLASSES] = GroupAccumulator((classes_of(dataset.labels),))
        simulated = None if simulation is None else len(runs)
        runs += [] if simulation is None else [simulation]
        collected.append(_OfVariant(place, simulated, accumulators, Worst(dataset.files)))
    for part in replay(runs[0], runs[1:], dataset.batches(batch), dataset.labels, progress):
        _add(collected, wanted.own, part)
    return [one.result() for one in collected]
