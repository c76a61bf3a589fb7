"""What is collected while variants are replayed beside their reference.

Nothing grows with samples but the digests that show copies, the boxes where labels are annotations,
and in an A/B test a few figures of each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtcal.backends.sessions import open_session
from trtcal.config import Tasks
from trtcal.data import Dataset, Feeds, batch_for
from trtcal.data.dataset import CarriedFeeds, digests_of
from trtcal.data.issues import WARNING, DataIssue
from trtcal.data.slices import Attribute, classes_of, read_attributes
from trtcal.errors import DATA, BackendError, InputError
from trtcal.evaluate.accuracy import AccuracyMeter, MeanCollector, noise_shares, rounded, sqnr_db
from trtcal.evaluate.clues import GraphFacts
from trtcal.evaluate.constant_answers import ConstantAnswers
from trtcal.evaluate.equality import hold_against
from trtcal.evaluate.groups import GroupAccumulator, Worst
from trtcal.evaluate.latency import GLANCED
from trtcal.evaluate.mean_precision import PrecisionCollector
from trtcal.evaluate.metrics import OwnMetric, load_metric
from trtcal.evaluate.outputs import Figures, UnsampledError
from trtcal.evaluate.overflow import find_overflow, joined, judge_findings, of_outputs
from trtcal.evaluate.per_sample import Labels, NotFiniteError, Values, class_labels
from trtcal.evaluate.replay import Batch, Kept, Outputs, Run, replay, runner
from trtcal.evaluate.tasks import PRECISIONS, Rows, Task, TaskReader, check_limits
from trtcal.evaluate.variant_limits import Contest
from trtcal.evaluate.variants import Variant
from trtcal.metrics import LOGARITHMS, METRICS, OF_OUTPUTS, SQNR, WORST, check_known, finding_kinds
from trtcal.model import Model
from trtcal.stats import Mask, OfMany

if TYPE_CHECKING:
    from trtcal.check.evaluation_data import EvaluationCheck

CLASSES, SLICES = "classes", "slices"
PROBED = 8  # samples that a task is read from


def read_task(
    reference: Variant,
    dataset: Dataset,
    batch: int,
    name: Tasks = None,
    outputs: Sequence[str] = (),
) -> tuple[Task, int]:
    """Return the task of a reference, read from its outputs for the first samples, and the batch size.

    That is 1 where the outputs' rows are not samples, as after a NonMaxSuppression. `InputError` as
    `find_task`.
    """
    run = reference.runner([spec.name for spec in reference.outputs])
    reader = TaskReader(name, tuple(outputs), graph=reference.graph)
    is_fixed = any(isinstance(size, int) for spec in reference.inputs for size in spec.shape[:1])
    with naming(reference):
        return _read(run, dataset, (dataset.batch or batch, is_fixed), reader)


@contextmanager
def naming(reference: Variant) -> Iterator[None]:
    """Say of which model an output is not finite, as the variants' ones are made finite before."""
    try:
        yield
    except NotFiniteError as error:
        if reference.narrow_model and reference.narrow_model.path.is_file():
            command = f"trtcal diagnose --model {reference.narrow_model.path} --data {DATA}"
            error.hint = f"find what overflows float16: `{command}`"
        raise InputError(f"the reference {reference.name}: {error.message}", error.hint) from error


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
    size, batch_dims = batch_for(model, 0), {spec.shape[:1] for spec in model.inputs}
    states = getattr(dataset, "states", {})
    reader.graph = replace(GraphFacts.of(model.outputs, model.proto), states=states)
    is_other = any(output.shape[:1] not in batch_dims for output in model.outputs)
    if reader.batch is None and not size and is_other:
        run = runner(open_session(model.reference), [spec.name for spec in model.outputs])
        reader.known, reader.batch = _read(run, dataset, (most, False), reader)
        reader.known.check_labels(dataset.labels)
    return size or min(reader.batch or most, most)


def _probe(run: Run, dataset: Dataset, size: int, reader: TaskReader) -> Task:
    feeds = next(dataset.batches(size))
    first = next(replay(run, (), [feeds], dataset.labels))
    reader.graph = replace(reader.graph, states=getattr(feeds, "states", {}))
    return reader.find(first)


@dataclass
class Contrast:
    """How near the outputs for one sample are to those for another: what a limit has to distinguish.

    A limit that the outputs of other samples hold too, or those of a model that lies halfway to them,
    shows nothing. The figures are of the reference: the samples of the first batch beside each other,
    and those of ever fewer later ones beside the first, since samples often come in order.
    """

    meter: AccuracyMeter
    batches: int = 0
    first: Rows | None = None
    boxless: Values = field(default_factory=lambda: np.zeros(2))  # samples without boxes, and all

    def add(self, rows: Rows) -> None:
        """Take in a batch of the reference's rows."""
        number, size = self.batches, len(rows[0])
        self.batches += 1
        boxes = [len(sample.scores) for each in rows if isinstance(each, list) for sample in each]
        self.boxless += [boxes.count(0), len(boxes)]
        if not _is_due(number):
            return
        if self.first is None:
            self.first = rows
            others = None if size == 1 else [_rolled(values, 1) for values in rows]
        else:  # moved, since samples may come in turns that a batch is a multiple of
            size = min(size, len(self.first[0]))
            rows = [values[:size] for values in rows]
            others = [_rolled(values[:size], number % size) for values in self.first]
        if others is None or not all(map(_are_alike, rows, others)):
            return
        self.meter.update(rows, others, None)

    def result(self) -> dict[str, float]:
        """Return the figures halfway between the same outputs and those of other samples."""
        means = self.meter.means
        if not means.samples:
            return {}
        sums = means.sums.items()
        halfway = {n: ((WORST.get(n) == "least") + total / means.samples) / 2 for n, total in sums}
        powers = (output.powers[:2].tolist() for output in self.meter.outputs.values())
        ratios = [sqnr_db(signal, error / 2) for signal, error in powers]
        known = [ratio for ratio in ratios if ratio is not None]
        halfway |= {SQNR: min(known)} if known else {}
        if self.boxless[1]:  # who finds nothing agrees where there is nothing
            alike = (1 + self.boxless[0] / self.boxless[1]) / 2
            halfway["agreement"] = max(halfway["agreement"], float(alike))
        return {name: rounded(value) for name, value in halfway.items()}


def _is_due(number: int) -> bool:
    """Whether a batch is held beside the first: up to four between two powers of two."""
    below = 1 << max(number.bit_length() - 1, 0)
    return number == 0 or (number - below) % max(below // 4, 1) == 0


def _rolled(rows: Any, by: int) -> Any:
    if isinstance(rows, list):
        return [*rows[len(rows) - by :], *rows[: len(rows) - by]]
    return np.roll(rows, by, axis=0)


def _are_alike(rows: Any, others: Any) -> bool:
    if isinstance(rows, list):
        return [cell.shape for cell in rows[0].cells] == [cell.shape for cell in others[0].cells]
    return bool(rows.shape == others.shape)


class TaskReplay:
    """A replay of which every output is read as the rows of a task, copies of samples left out.

    What is of the reference alone, or of all samples together, is collected here: the contrast of its
    outputs, the figures of constant answers, and the boxes of the last `judged` models where labels are
    annotations. `checker` sees the reference's outputs. `not_finite` counts the samples of each variant
    (from 1 on) that give NaN or infinity; those `stopped` are not run any more. `times_ms` are those of
    the first batches that are whole.
    """

    def __init__(
        self, task: Task, dataset: Dataset, judged: int, checker: EvaluationCheck | None = None
    ) -> None:
        self.task, self.judged, self.contrast = task, judged, Contrast(AccuracyMeter(task))
        self.precision, self.checker, self.dataset = PrecisionCollector.of(task), checker, dataset
        self.constant = ConstantAnswers(task.labelled, dataset.labels)
        self.known, self.is_new = set[bytes](), np.zeros(0, bool)
        self.samples, self.distinct = 0, 0
        self.not_finite, self.stopped = Counter[int](), set[int | None]()
        self.times_ms = list[Sequence[float]]()

    def batches(
        self, runs: Sequence[Run], size: int, progress: Callable[[int], None]
    ) -> Iterator[tuple[Batch, list[Rows]]]:
        """Yield each batch, and everybody's rows, the reference's first; a batch of copies is empty."""
        read = self._marked(self.dataset.batches(size))
        for batch in replay(runs[0], runs[1:], read, self.dataset.labels, progress, self.stopped):
            if self.checker is not None:
                self.checker.see(batch)
            self.samples += batch.size
            if len(self.times_ms) < GLANCED:
                self.times_ms.append(batch.times_ms if batch.size == size else ())
            finite = tuple(
                self._finite(n, each, batch.size) for n, each in enumerate(batch.outputs, 1)
            )
            batch = replace(batch, outputs=finite)  # it is read through
            outputs = (batch.expected, *batch.outputs)
            if self.precision is not None and batch.labels is not None:
                judged = outputs[: self.judged] if self.judged > 0 else outputs[self.judged :]
                self.precision.add(judged, batch.size, batch.labels, self.is_new)
            rows = [self.task.rows(values, batch.size) for values in outputs]
            if not self.is_new.all():
                rows = [[_taken(values, self.is_new) for values in each] for each in rows]
                batch = batch.at(self.is_new)
            self.distinct += batch.size
            if batch.size:
                self._add(batch, rows[0])
            yield batch, rows

    def _add(self, batch: Batch, reference: Rows) -> None:
        self.contrast.add(reference)
        if batch.labels is not None:
            own = self.task.of_labels(reference, reference, batch.labels)
            self.constant.add(own, batch.labels)

    def _marked(self, batches: Iterable[Feeds]) -> Iterator[Feeds]:
        """Yield batches, each after it is known which of its samples are no copies of others."""
        for feeds in batches:
            self.is_new = np.ones(len(next(iter(feeds.values()))), bool)
            if not isinstance(feeds, CarriedFeeds):  # there, what follows depends on copies too
                for row, digest in enumerate(digests_of(feeds)):
                    self.is_new[row] = digest.tobytes() not in self.known
                    self.known.add(digest.tobytes())
            yield feeds

    def _finite(self, place: int, outputs: Outputs, size: int) -> Outputs:
        """Return outputs with 0 in place of what is not finite, and count the samples that have it."""
        floats = {name: array for name, array in outputs.items() if array.dtype.kind == "f"}
        masks = {name: ~np.isfinite(array) for name, array in floats.items()}
        masks = {name: mask for name, mask in masks.items() if mask.any()}
        rows = [m.reshape(size, -1).any(1) for m in masks.values() if m.shape[:1] == (size,)]
        if masks:
            self.not_finite[place] += int(np.any(rows, axis=0).sum()) if rows else size
        return outputs | {name: np.where(mask, 0, outputs[name]) for name, mask in masks.items()}

    def contrasts(self) -> dict[str, float]:
        """Return the figures of what shows nothing, so far."""
        precision = self.precision.contrast() if self.precision else {}
        return self.contrast.result() | self.constant.halfway() | precision

    def issues(self) -> tuple[DataIssue, ...]:
        """Return what is wrong with the data, so far."""
        checked = self.checker.issues() if self.checker else ()
        boxes = self.precision.issues() if self.precision else ()
        issues = (*checked, *self.constant.issues(), *boxes)
        return (*issues, self._copies()) if self.distinct < self.samples else issues

    def _copies(self) -> DataIssue:
        what = f"{self.samples:,} samples, {self.distinct:,} distinct"
        what += ": copies are left out of all figures and intervals"
        counts = {"samples": float(self.samples), "distinct": float(self.distinct)}
        fix = "remove the copies, and give more samples"
        return DataIssue("repeated_samples", "samples", what, counts, fix, severity=WARNING)


def _taken(values: Any, where: Mask) -> Any:
    return [*compress(values, where)] if isinstance(values, list) else values[where]


@dataclass
class SampleFigures:
    """Figure -> the values of A and B for each sample, in the order of the samples.

    `top1` and `top5` need labels. With a reference there are `agreement`, `cosine` and `kl` of each
    with it; without one they are of B with A, which agrees with itself.
    """

    replay: TaskReplay
    own: OwnMetric | None = None
    parts: dict[str, list[tuple[Values, Values]]] = field(default_factory=lambda: defaultdict(list))
    powers: dict[str, list[Values]] = field(default_factory=lambda: defaultdict(list))
    numbers: list[Labels] = field(default_factory=list)

    def add(self, batch: Batch, rows: Sequence[Rows]) -> None:
        """Take in a batch, whose last two outputs are those of A and B; an empty one says nothing."""
        if not batch.size:
            return
        task = self.replay.task
        by_output = [task.by_output(rows[0], actual) for actual in rows[-2:]]
        pairs = zip(rows[-2:], by_output, strict=True)
        a, b = (task.compare(rows[0], actual, batch.labels, each) for actual, each in pairs)
        names = [metric.name for metric in OF_OUTPUTS if metric.is_tested]
        if self.own is not None:
            pair = (batch.expected, *batch.outputs)[-2:]
            ours, theirs = (own_figures(self.own, outputs, batch.labels) for outputs in pair)
            a, b, names = {**a, **ours}, {**b, **theirs}, [*names, *ours]
        for name in names:
            if name in a and name in b:
                self.parts[name].append((a[name], b[name]))
        for name, figures in by_output[1].items():
            if "error" in figures:
                errors = (figures["signal"], by_output[0][name]["error"], figures["error"])
                self.powers[name].append(np.stack(errors))
        self.numbers.append(batch.numbers)

    def whole(self) -> dict[str, tuple[Values, Values] | OfMany]:
        """Return each figure that every sample has, both of shape (samples,), and those of all samples.

        Of `sqnr_db` it is the share of noise in the output that has most, see `noise_shares`.
        """
        figures: dict[str, tuple[Values, Values] | OfMany] = {}
        for name, pairs in self.parts.items():
            a, b = (np.concatenate(values) for values in zip(*pairs, strict=True))
            if name in LOGARITHMS:
                a, b = (np.exp(each.mean()) * (1 + each - each.mean()) for each in (a, b))
            figures |= {name: (a, b)} if len(a) == self.replay.distinct else {}
        if self.replay.precision is not None:
            corpus = self.replay.precision.corpus
            figures |= {name: partial(corpus, name, (0, 1)) for name in PRECISIONS}
        if self.powers:
            figures[SQNR] = max(map(_noise, self.powers.values()), key=lambda both: both[1].mean())
        return figures


def _noise(powers: Sequence[Values]) -> tuple[Values, Values]:
    signal, a, b = np.concatenate(powers, axis=1)
    return noise_shares(signal, a), noise_shares(signal, b)


@dataclass(frozen=True)
class CollectSettings:
    """What to collect: by slices, by the user's own metric, in float simulation, of which task.

    `task` and `outputs` are the user's, else they are read from the reference's outputs. `checker`
    checks the data, `kept` has the reference's outputs from an evaluation before. Who can't win
    `contest` any more is not run to the end.
    """

    attributes: tuple[Attribute, ...] = ()
    own: OwnMetric | None = None
    simulate: bool = True
    task: Tasks = None
    outputs: tuple[str, ...] = ()
    checker: EvaluationCheck | None = None
    kept: Kept | None = None
    contest: Contest = field(default_factory=Contest)

    def keeping(self, reference: Run) -> Run:
        """Return what runs the reference, or reads what is kept but for the batches that are timed."""
        return reference if self.kept is None else self.kept.of(reference, GLANCED)

    def reading(self, data: Dataset, slices: Path | None, metric: Path | None) -> CollectSettings:
        """Return it with what files say: a CSV of slices, and a Python file with a metric."""
        attributes = read_attributes(slices, len(data), data.files) if slices else ()
        return replace(self, attributes=attributes, own=load_metric(metric) if metric else None)


Evaluation = dict[str, Any]
"""What was collected of one variant, by the fields of a comparison's row."""


@dataclass
class _OfVariant:
    """Collects what one variant's outputs show, by its place among all outputs of a batch.

    `simulated` is the place of its Q/DQ executed in float, None if there is none. The meters compare it
    with the reference, the simulation with the reference, and it with the simulation.
    """

    place: int
    simulated: int | None
    accumulators: dict[str, GroupAccumulator]
    worst: Worst
    meters: tuple[AccuracyMeter, AccuracyMeter, AccuracyMeter]
    means: MeanCollector = field(default_factory=MeanCollector)
    own: set[str] = field(default_factory=set)

    def measure(self, batch: Batch, rows: Sequence[Rows], own: OwnMetric | None) -> Figures:
        """Take in a batch, the reference's rows first, and return the variant's figures."""
        meter, literal, to_literal = self.meters
        figures = meter.update(rows[0], rows[self.place], batch.labels)
        self.worst.add(batch.numbers, figures, (rows[0], rows[self.place]), batch.labels)
        if self.simulated is not None:
            literal.update(rows[0], rows[self.simulated], batch.labels)
            to_literal.update(rows[self.simulated], rows[self.place], batch.labels)
        mine = own_figures(own, (batch.expected, *batch.outputs)[self.place], batch.labels)
        self.own |= {*mine}
        return figures | mine

    def add(self, numbers: Labels, reference: Figures, figures: Figures) -> None:
        """Take in a batch's figures beside the reference's."""
        self.means.add(reference, figures)
        first = "top1" if "top1" in figures else "agreement"
        names = [name for name in (first, *sorted(self.own)) if name in figures]
        grouped = {name: (reference[name], figures[name]) for name in names}
        for accumulator in self.accumulators.values():
            accumulator.add(numbers, grouped)

    def result(self) -> Evaluation:
        """Return what was collected."""
        accuracy, *simulated = [meter.result() for meter in self.meters if meter.means.samples]
        groups = [part for by, each in self.accumulators.items() for part in each.result(by)]
        return {
            "accuracy": accuracy,
            "outputs": self.meters[0].by_output(),
            "means": self.means.result(accuracy.samples),
            "simulation": hold_against(accuracy, *simulated) if simulated else None,
            "own": tuple(map(self.accumulators[SLICES].whole, sorted(self.own))),
            "breakdowns": tuple(groups),
            "worst": self.worst.result(),
        }


def own_figures(own: OwnMetric | None, outputs: Outputs, labels: Labels | None) -> Figures:
    """Return the figures of an own metric; `InputError` if one has a name of trtcal's."""
    figures = {} if own is None else own(outputs, labels)
    taken = sorted({*figures} & {*METRICS, *finding_kinds(), "signal", "error"})
    if own is not None and taken:
        hint = "choose another name for your figure"
        raise InputError(f"{own.path}: {taken[0]!r} is the name of a figure of trtcal", hint)
    return figures


def check_question(
    task: Task, metrics: Sequence[str], own: OwnMetric | None, data: tuple[Variant, Dataset, int]
) -> None:
    """`InputError` if a metric is unknown, or metrics or labels fit no output.

    An own metric is called for the first sample if it was not yet. `data` are the reference, the
    dataset and its batch size.
    """
    reference, dataset, batch = data
    if own is not None and not own.known:
        run = reference.runner([spec.name for spec in reference.outputs])
        first = {name: values[:1] for name, values in run(next(dataset.batches(batch))).items()}
        own_figures(own, first, None if dataset.labels is None else dataset.labels[:1])
    check_known(metrics, own.known if own else ())
    check_limits(task, metrics)
    if own is None:
        task.check_labels(dataset.labels)


def evaluate(
    everyone: Sequence[Variant],
    dataset: Dataset,
    batch: int,
    task: Task,
    question: CollectSettings,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[Evaluation], TaskReplay]:
    """Return what everyone's outputs show, the first being the reference, and their replay."""
    names = [spec.name for spec in everyone[0].outputs]
    runs = [variant.runner(names) for variant in everyone]
    runs[0] = question.keeping(runs[0])
    labels, collectors = class_labels(dataset.labels), list[_OfVariant]()
    for place, variant in enumerate(everyone):
        simulation = variant.simulation(names) if question.simulate else None
        accumulators = {SLICES: GroupAccumulator(question.attributes if place else ())}
        if labels is not None and place:
            accumulators[CLASSES] = GroupAccumulator((classes_of(labels),))
        simulated = None if simulation is None else len(runs)
        runs += [] if simulation is None else [simulation]
        meters = (AccuracyMeter(task), AccuracyMeter(task), AccuracyMeter(task))
        worst = Worst(dataset.files)
        collectors.append(_OfVariant(place, simulated, accumulators, worst, meters))
    replayed, contest = TaskReplay(task, dataset, len(everyone), question.checker), question.contest
    overflow = [find_overflow(variant.narrow_model, dataset, batch) for variant in everyone]
    contest.out |= {n for n, f in enumerate(overflow) if replayed.precision or judge_findings(f)}
    with naming(everyone[0]):
        for part, rows in replayed.batches(runs, batch, progress):
            if not part.size:
                continue
            figures = dict[int, Figures]()
            for each in (each for each in collectors if each.place not in replayed.stopped):
                figures[each.place] = each.measure(part, rows, question.own)
                each.add(part.numbers, figures[0], figures[each.place])
            contest.add(figures, replayed)
            replayed.stopped.update(*({n, collectors[n].simulated} for n in contest.stopped))
    evaluations = [collector.result() for collector in collectors]
    for place, evaluation in enumerate(evaluations):
        infinite = of_outputs(replayed.not_finite[place], len(dataset))
        evaluation["findings"] = joined(overflow[place], infinite)
        evaluation["stopped"] = contest.stopped.get(place, "")
        if replayed.precision is not None:
            evaluation["means"] |= replayed.precision.means(place)
    return evaluations, replayed
