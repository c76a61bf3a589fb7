"""What is collected while variants are replayed beside their reference.

Nothing grows with samples, but for an A/B test, which keeps a few figures of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trtcal.backends.sessions import open_session
from trtcal.data import Dataset, batch_for
from trtcal.data.slices import Attribute, classes_of, read_attributes
from trtcal.errors import BackendError, InputError
from trtcal.evaluate.accuracy import (
    Accuracy,
    AccuracyMeter,
    Mean,
    MeanCollector,
    OutputFigures,
    noise_shares,
    rounded,
    sqnr_db,
)
from trtcal.evaluate.equality import Simulation, hold_against
from trtcal.evaluate.groups import Breakdown, Group, GroupAccumulator, Sample, Worst
from trtcal.evaluate.mean_precision import PrecisionCollector
from trtcal.evaluate.metrics import OwnMetric, load_metric
from trtcal.evaluate.outputs import Figures, UnsampledError
from trtcal.evaluate.per_sample import WHAT, Labels, Values, class_labels
from trtcal.evaluate.replay import Batch, Outputs, Run, replay, runner
from trtcal.evaluate.tasks import PRECISIONS, Rows, Task, TaskReader, find_task
from trtcal.evaluate.variants import Variant
from trtcal.metrics import METRICS, OF_OUTPUTS, SQNR, WORST
from trtcal.model import Model
from trtcal.model.graph import sigmoid_outputs
from trtcal.stats import OfMany

CLASSES, SLICES = "classes", "slices"


def read_task(
    reference: Variant,
    dataset: Dataset,
    batch: int,
    name: str | None = None,
    wanted: Sequence[str] = (),
) -> tuple[Task, int]:
    """Return the task of a reference, read from its outputs for the first samples, and the batch size.

    That is 1 where the outputs' rows are not samples, as after a NonMaxSuppression. `InputError` as
    `find_task`.
    """
    run = reference.runner([spec.name for spec in reference.outputs])
    reader = TaskReader(name, tuple(wanted), sigmoids=reference.sigmoids)
    is_fixed = any(isinstance(size, int) for spec in reference.inputs for size in spec.shape[:1])
    return _read(run, dataset, (batch, is_fixed), reader)


def _read(
    run: Run, dataset: Dataset, batch: tuple[int, bool], reader: TaskReader
) -> tuple[Task, int]:
    size, is_fixed = batch
    try:
        return _probe(run, dataset, size if is_fixed else min(size, PROBED), reader), size
    except UnsampledError as error:
        if size == 1:
            raise
        try:
            return _probe(run, dataset, 1, reader), 1
        except BackendError:  # it takes no other batch than its own
            raise error from None


def batch_of_rows(reader: TaskReader, model: Model, dataset: Dataset, most: int) -> int:
    """Return the batch size in which the rows of a model's outputs are samples, as `read_task`."""
    size, reader.sigmoids = batch_for(model, 0), sigmoid_outputs(model.proto)
    given = {spec.shape[:1] for spec in model.inputs}
    if reader.batch is None and not size and any(o.shape[:1] not in given for o in model.outputs):
        run = runner(open_session(model.reference), [spec.name for spec in model.outputs])
        reader.known, reader.batch = _read(run, dataset, (most, False), reader)
        reader.known.check_labels(dataset.labels)
    return size or min(reader.batch or most, most)


PROBED = 8  # samples that a task is read from


def _probe(run: Run, dataset: Dataset, size: int, reader: TaskReader) -> Task:
    feeds = next(dataset.batches(size))
    first = next(replay(run, (), [feeds]))
    shapes = [np.shape(array) for array in feeds.values()]
    task = find_task(
        first.expected, first.size, shapes, reader.name, reader.wanted, reader.sigmoids
    )
    labels = None if dataset.labels is None else dataset.labels[: first.size]
    return task.fitting(task.rows(first.expected, first.size), labels)


@dataclass
class Contrast:
    """How near the outputs for one sample are to those for another: what a limit has to distinguish.

    A limit that the outputs of other samples hold too, or those of a model that lies halfway to them,
    shows nothing. The figures are of the reference: the samples of the first batch beside each other,
    and those of ever fewer later ones beside the first, since samples often come in order.
    """

    task: Task
    samples: int = 0
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    powers: dict[str, Values] = field(default_factory=lambda: defaultdict(lambda: np.zeros(2)))
    batches: int = 0
    first: Rows | None = None

    def add(self, rows: Rows) -> None:
        """Take in a batch of the reference's rows."""
        number, size = self.batches, len(rows[0])
        self.batches += 1
        if not _is_due(number):
            return
        if self.first is None:
            self.first = rows
            before = None if size == 1 else [_rolled(one, 1) for one in rows]
        else:  # moved, since samples may come in turns that a batch is a multiple of
            size = min(size, len(self.first[0]))
            rows, before = ([one[:size] for one in each] for each in (rows, self.first))
            before = [_rolled(one, number % size) for one in before]
        if before is None or not all(map(_are_alike, rows, before)):
            return
        by_output = self.task.by_output(rows, before)
        self.samples += len(rows[0])
        for name, values in self.task.compare(rows, before, None, by_output).items():
            self.sums[name] += float(values.sum())
        for name, found in by_output.items():
            if "error" in found:
                self.powers[name] += [found["signal"].sum(), found["error"].sum()]

    def result(self) -> dict[str, float]:
        """Return the figures halfway between the same outputs and those of other samples."""
        if not self.samples:
            return {}
        means = {name: value / self.samples for name, value in self.sums.items()}
        halfway = {name: ((WORST.get(name) == "least") + means[name]) / 2 for name in means}
        ratios = [sqnr_db(signal, error / 2) for signal, error in self.powers.values()]
        known = [one for one in ratios if one is not None]
        found = halfway | ({SQNR: min(known)} if known else {})
        return {name: rounded(value) for name, value in found.items()}


def _is_due(number: int) -> bool:
    """Whether a batch is held beside the first: up to four between two powers of two."""
    below = 1 << max(number.bit_length() - 1, 0)
    return number == 0 or (number - below) % max(below // 4, 1) == 0


def _rolled(rows: Any, by: int) -> Any:
    if isinstance(rows, list):
        return [*rows[len(rows) - by :], *rows[: len(rows) - by]]
    return np.roll(rows, by, axis=0)


def _are_alike(rows: Any, before: Any) -> bool:
    if isinstance(rows, list):
        return [one.shape for one in rows[0].cells] == [one.shape for one in before[0].cells]
    return bool(rows.shape == before.shape)


@dataclass
class SampleFigures:
    """Figure -> the values of A and B for each sample, in the order of the samples."""

    task: Task
    own: OwnMetric | None = None
    parts: dict[str, list[tuple[Values, Values]]] = field(default_factory=lambda: defaultdict(list))
    powers: dict[str, list[Values]] = field(default_factory=lambda: defaultdict(list))
    samples: int = 0
    precision: PrecisionCollector | None = None
    contrast: Contrast = field(init=False)

    def __post_init__(self) -> None:
        self.contrast = Contrast(self.task)
        self.precision = PrecisionCollector.of(self.task)

    def contrasts(self) -> dict[str, float]:
        """Return the figures of what shows nothing, so far."""
        return self.contrast.result() | (self.precision.contrast() if self.precision else {})

    def add(self, batch: Batch) -> None:
        """Take in a batch, whose last two outputs are those of A and B."""
        pair = (batch.expected, *batch.outputs)[-2:]
        expected = self.task.rows(batch.expected, batch.size)
        made = [self.task.rows(one, batch.size) for one in pair]
        self.contrast.add(expected)
        by_output = [self.task.by_output(expected, one) for one in made]
        a, b = (
            self.task.compare(expected, one, batch.labels, found)
            for one, found in zip(made, by_output, strict=True)
        )
        for name in (metric.name for metric in OF_OUTPUTS if metric.is_tested):
            if name in a and name in b:
                self.parts[name].append((a[name], b[name]))
        self._add_powers(*by_output)
        if self.own is not None:
            a, b = (self.own(outputs, batch.labels) for outputs in pair)
            for name, values in a.items():
                self.parts[name].append((values, b[name]))
        if self.precision is not None and batch.labels is not None:
            self.precision.add(pair, batch.size, batch.labels)
        self.samples += batch.size

    def _add_powers(self, a: Mapping[str, Figures], b: Mapping[str, Figures]) -> None:
        for name, found in b.items():
            if "error" in found:
                rows = (found["signal"], a[name]["error"], found["error"])
                self.powers[name].append(np.stack(rows))

    def whole(self) -> dict[str, tuple[Values, Values] | OfMany]:
        """Return each figure that every sample has, both of shape (samples,), and those of all samples.

        Of `sqnr_db` it is the share of noise in the output that has most, see `noise_shares`.
        """
        joined = {
            name: (np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))
            for name, pairs in self.parts.items()
        }
        found: dict[str, tuple[Values, Values] | OfMany] = {
            name: both for name, both in joined.items() if len(both[0]) == self.samples
        }
        if self.precision is not None:
            found |= {name: partial(self.precision.corpus, name, (0, 1)) for name in PRECISIONS}
        if self.powers:
            found[SQNR] = max(map(_noise, self.powers.values()), key=lambda both: both[1].mean())
        return found


def _noise(powers: Sequence[Values]) -> tuple[Values, Values]:
    signal, a, b = np.concatenate(powers, axis=1)
    return noise_shares(signal, a), noise_shares(signal, b)


def sample_figures(
    both: tuple[Variant, Variant],
    dataset: Dataset,
    batch: int,
    task: Task,
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
    found = SampleFigures(task, own)
    for part in replay(first, others, dataset.batches(batch), dataset.labels, progress):
        found.add(part)
        yield found


@dataclass(frozen=True)
class Wanted:
    """What to collect: by slices, by the user's own metric, in float simulation, of which task.

    `task` and `outputs` are the user's, else they are read from the reference's outputs.
    """

    attributes: tuple[Attribute, ...] = ()
    own: OwnMetric | None = None
    simulate: bool = True
    task: str | None = None
    outputs: tuple[str, ...] = ()


def read_wanted(
    dataset: Dataset,
    slices: Path | None = None,
    metric: Path | None = None,
    simulate: bool = True,
    task: str | None = None,
    outputs: Sequence[str] = (),
) -> Wanted:
    """Return what to collect by files: a CSV of slices, and a Python file with a metric."""
    return Wanted(
        read_attributes(slices, len(dataset), dataset.files) if slices else (),
        load_metric(metric) if metric else None,
        simulate,
        task,
        tuple(outputs),
    )


@dataclass(frozen=True)
class Evaluation:
    """What was collected of one variant."""

    accuracy: Accuracy
    outputs: tuple[OutputFigures, ...]
    means: dict[str, Mean]
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
    meters: tuple[AccuracyMeter, AccuracyMeter, AccuracyMeter]
    means: MeanCollector = field(default_factory=MeanCollector)
    own: set[str] = field(default_factory=set)

    def add(self, start: int, rows: Sequence[Rows], labels: Labels | None) -> Figures:
        """Take in a batch, the reference's rows first, and return the variant's figures."""
        meter, literal, to_literal = self.meters
        found = meter.update(rows[0], rows[self.place], labels)
        self.worst.add(start, found, (rows[0], rows[self.place]), labels)
        if self.simulated is not None:
            literal.update(rows[0], rows[self.simulated], labels)
            to_literal.update(rows[self.simulated], rows[self.place], labels)
        return found

    def result(self) -> Evaluation:
        """Return what was collected."""
        accuracy, *_ = found = [meter.result() for meter in self.meters if meter.samples]
        simulation = None if self.simulated is None else hold_against(*found)
        groups = [one for by, each in self.accumulators.items() for one in each.result(by)]
        own = tuple(map(self.accumulators[SLICES].whole, sorted(self.own)))
        means = self.means.result(accuracy.samples)
        worst = self.worst.result()
        outputs = self.meters[0].by_output()
        return Evaluation(accuracy, outputs, means, simulation, own, tuple(groups), worst)


def _add(
    everyone: Sequence[_OfVariant],
    own: OwnMetric | None,
    rows: Sequence[Rows],
    batch: Batch,
) -> None:
    """Take in a batch; the reference is held against itself."""
    outputs = (batch.expected, *batch.outputs)
    found = [one.add(batch.start, rows, batch.labels) for one in everyone]
    added = [_own_figures(own, outputs[one.place], batch.labels) for one in everyone]
    for one, figures, more in zip(everyone, found, added, strict=True):
        one.own |= set(more)
        one.means.add({**found[0], **added[0]}, {**figures, **more})
        figure = "top1" if "top1" in figures else "agreement"
        both = {figure: (found[0][figure], figures[figure])} if figure in figures else {}
        both |= {name: (added[0][name], values) for name, values in more.items()}
        for accumulator in one.accumulators.values():
            accumulator.add(batch.start, both)


def _own_figures(
    own: OwnMetric | None, outputs: Outputs, labels: Labels | None
) -> dict[str, Values]:
    found = {} if own is None else own(outputs, labels)
    taken = sorted(set(found) & {*WHAT, *METRICS})
    if own is not None and taken:
        raise InputError(
            f"{own.path}: {taken[0]!r} is the name of a figure of trtcal",
            "choose another name for your figure",
        )
    return found


def own_names(own: OwnMetric | None, reference: Variant, dataset: Dataset, batch: int) -> set[str]:
    """Return the figures of an own metric, which is called for the first sample if it was not yet."""
    if own is not None and not own.known:
        feeds = next(dataset.batches(batch))
        outputs = reference.runner([spec.name for spec in reference.outputs])(feeds)
        labels = None if dataset.labels is None else dataset.labels[:1]
        _own_figures(own, {name: array[:1] for name, array in outputs.items()}, labels)
    return own.known if own else set()


def evaluate(
    everyone: Sequence[Variant],
    dataset: Dataset,
    batch: int,
    task: Task,
    wanted: Wanted,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[Evaluation], dict[str, float]]:
    """Return what everyone's outputs show, the first being the reference, and its contrast."""
    names = [spec.name for spec in everyone[0].outputs]
    runs = [one.runner(names) for one in everyone]
    collected, contrast = [], Contrast(task)
    for place, one in enumerate(everyone):
        simulation = one.simulation(names) if wanted.simulate else None
        accumulators = {SLICES: GroupAccumulator(wanted.attributes if place else ())}
        labels = class_labels(dataset.labels)
        if labels is not None and place:
            accumulators[CLASSES] = GroupAccumulator((classes_of(labels),))
        simulated = None if simulation is None else len(runs)
        runs += [] if simulation is None else [simulation]
        meters = (AccuracyMeter(task), AccuracyMeter(task), AccuracyMeter(task))
        worst = Worst(dataset.files)
        collected.append(_OfVariant(place, simulated, accumulators, worst, meters))
    precision = PrecisionCollector.of(task)
    for part in replay(runs[0], runs[1:], dataset.batches(batch), dataset.labels, progress):
        outputs = (part.expected, *part.outputs)
        rows = [task.rows(one, part.size) for one in outputs]
        contrast.add(rows[0])
        _add(collected, wanted.own, rows, part)
        if precision is not None and part.labels is not None:
            precision.add(outputs[: len(everyone)], part.size, part.labels)
    found = [one.result() for one in collected]
    if precision is None:
        return found, contrast.result()
    found = [replace(one, means=one.means | precision.means(n)) for n, one in enumerate(found)]
    return found, contrast.result() | precision.contrast()
