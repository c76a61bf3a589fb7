"""Run variants beside the FP32 reference on one dataset, and keep what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from trtcal.backends.sessions import CPU, run_session
from trtcal.backends.targets import machine
from trtcal.backends.trial import crashes_as_warnings
from trtcal.data import Dataset
from trtcal.data.issues import DataIssue
from trtcal.data.overlap import Overlap, numbers_of
from trtcal.documents import Document, Sealed, from_fields, seal
from trtcal.documents.overview import Columns, Overview, Shown
from trtcal.errors import InputError, __version__, some
from trtcal.evaluate.accuracy import Accuracy, Mean, OutputFigures
from trtcal.evaluate.collectors import CollectSettings, check_question, evaluate, read_task
from trtcal.evaluate.equality import Simulation
from trtcal.evaluate.groups import SUSPECT, WORSE, Breakdown, Group, Sample
from trtcal.evaluate.latency import (
    GLANCE,
    ROUNDS,
    RUNS_AT_A_SIZE,
    Latency,
    glance,
    measure,
    measure_on_device,
    throughput,
)
from trtcal.evaluate.layerwise import Layerwise, compare_layers
from trtcal.evaluate.overflow import as_text
from trtcal.evaluate.target_times import TargetTime, of_latency
from trtcal.evaluate.tasks import Task, TaskRecord, no_limit_on
from trtcal.evaluate.variant_limits import about_outputs, judge_variants, without_limit
from trtcal.evaluate.variants import Crashes, Variant, check_places, check_variants
from trtcal.evidence.findings import Finding
from trtcal.limits import Limit, parse_limits
from trtcal.metrics import METRICS, TIMES, Metric
from trtcal.model import Model
from trtcal.model.structure import structure_of
from trtcal.quantization.coverage import Coverage

MEASURED = ("latency", "size_bytes", "times")
PLAIN = ("dataset", "dataset_name", "samples", "batch")


@dataclass(frozen=True)
class Row(Shown):
    """One variant's results; `size_bytes` is its file's.

    `outputs` are the figures of each output that counts, `means` those over samples with what their
    intervals take, by metric.
    `simulation` is None where there are no Q/DQ to simulate or it was not asked for. `own` has the
    user's own figures, `breakdowns` the figures by slices and classes, `worst` the samples of the
    largest error, `layers` the quantized tensors in the graph's order, None if they were not asked for.
    `coverage` is how much of the compute is in INT8, `cut` says who computes outputs after a cut, and
    which layers with Q/DQ this CPU computes in float for their form,
    `shared_samples` how many of the samples are calibration samples. `is_alternative` is what stands
    beside the others and is no candidate, as FP16 beside INT8. `findings` say what float16 is too small
    for in it, `times` are those on the targets. `stopped` says that it was stopped early and why.
    """

    name: str
    model: str
    quantization: dict[str, Any]
    accuracy: Accuracy
    latency: Latency
    size_bytes: int
    outputs: tuple[OutputFigures, ...] = ()
    means: dict[str, Mean] = field(default_factory=dict)
    simulation: Simulation | None = None
    own: tuple[Group, ...] = ()
    breakdowns: tuple[Breakdown, ...] = ()
    worst: tuple[Sample, ...] = ()
    layers: Layerwise | None = None
    coverage: Coverage | None = None
    cut: str | None = None
    shared_samples: Overlap | None = None
    is_alternative: bool = False
    findings: tuple[Finding, ...] = ()
    times: tuple[TargetTime, ...] = ()
    stopped: str = ""

    def figure(self, metric: Metric) -> float | None:
        """Return a figure of the outputs in the metric's unit, None where the variant has none."""
        value: float | None = getattr(self.accuracy, metric.name, None)
        if value is None and metric.name in self.means:
            value = metric.factor * self.means[metric.name].value.mean
        return value

    def text(self, metric: Metric) -> str:
        """Return a figure of the outputs as text."""
        value = self.figure(metric)
        return "-" if value is None else format(value, metric.digits)

    def overview(self) -> Overview:
        """Return the first figure of the outputs that is known, and the times."""
        known = (each for each in METRICS.values() if each.column and self.figure(each) is not None)
        metric = next(known)
        figure = f"{metric.title} {self.text(metric)} {metric.unit}"
        return Overview(f"{self.name}: {figure}, {self.latency.speedup:.2f} times as fast")

    def lasting(self) -> dict[str, Any]:
        """Return the JSON form of what does not rest on times."""
        fields = dataclasses.asdict(self)
        coverage = {"coverage": self.coverage and self.coverage.to_document()}
        left_out = {*MEASURED, *(name for name in ("findings", "stopped") if not fields[name])}
        return {k: value for k, value in (fields | coverage).items() if k not in left_out}

    def measured(self) -> dict[str, Any]:
        """Return the JSON form of what rests on times, and of sizes."""
        fields = dataclasses.asdict(self)
        return {name: fields[name] for name in MEASURED}


@dataclass(frozen=True)
class Comparison(Sealed, kind="comparison", command="trtcal compare", version=3):
    """All variants on one dataset; the first row is the reference itself.

    `structure` is the result of `structure_of` for the reference, without weights; empty if
    unknown. `crashes` has `variant`, `kind` ("native_crash"), `signal`, `ops` and `why` of each variant
    that could not be opened, `issues` what is wrong with the data.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> int8 = quantize(digits, calibrate(digits, data))
    >>> comparison = compare(digits, {"int8": int8}, "samples/digits/test.npz", rounds=3)
    >>> comparison.samples, [row.name for row in comparison.candidates]
    (500, ['int8'])
    """

    dataset: str
    dataset_name: str
    samples: int
    batch: int
    task: TaskRecord
    limits: tuple[Limit, ...]
    rows: tuple[Row, ...]
    machine: dict[str, Any] = field(default_factory=dict)
    structure: str = ""
    crashes: tuple[Document, ...] = ()
    issues: tuple[DataIssue, ...] = ()

    @property
    def candidates(self) -> tuple[Row, ...]:
        """The variants that are judged."""
        return tuple(row for row in self.rows[1:] if not row.is_alternative)

    @property
    def alternative(self) -> Row | None:
        """The variant that the others stand beside, None if there is none."""
        return next((row for row in self.rows if row.is_alternative), None)

    @property
    def is_rough(self) -> bool:
        """Whether nobody asked for times: a few runs of each were timed."""
        return self.rows[0].latency.runs <= GLANCE

    def to_document(self) -> Document:
        """Return the comparison as a sealed document, with times and sizes under `measured`."""
        measured = {row.name: row.measured() for row in self.rows}
        body = {name: getattr(self, name) for name in (*PLAIN, "structure")} | {
            "trtcal": __version__,
            "task": dataclasses.asdict(self.task),
            "limits": [str(limit) for limit in self.limits],
            "rows": [row.lasting() for row in self.rows],
            "measured": {
                "variants": measured,
                "limits": [it.to_document() for row in judge_variants(self).values() for it in row],
                "machine": self.machine,
            },
        }
        if self.crashes:
            body["crashes"] = list(self.crashes)
        if self.issues:
            body["issues"] = [vars(issue) for issue in self.issues]
        return seal({"kind": self.kind, "schema_version": self.schema_version, **body})

    @classmethod
    def from_document(cls, document: Document) -> Comparison:
        """Return what a document describes; `LookupError` or `TypeError` if a field does not fit."""
        measured = document["measured"]
        items = ({**item, **measured["variants"][item["name"]]} for item in document["rows"])
        rows = tuple(from_fields(Row, item) for item in items)
        plain = {key: document[key] for key in PLAIN}
        limits = parse_limits(document["limits"])
        task = from_fields(TaskRecord, document["task"])
        plain["structure"] = document.get("structure", "")
        plain["crashes"] = tuple(document.get("crashes", ()))
        plain["issues"] = tuple(from_fields(DataIssue, it) for it in document.get("issues", ()))
        return cls(limits=limits, rows=rows, machine=measured["machine"], task=task, **plain)

    def joined(self, later: Comparison) -> Comparison:
        """Return the comparison with the variants of a later one of the same reference and samples.

        Each speed-up is that beside the reference in its own pass.
        """
        crashes = (*self.crashes, *later.crashes)
        return replace(self, rows=(*self.rows, *later.rows[1:]), crashes=crashes)

    def of(self, names: Collection[str]) -> Comparison:
        """Return the comparison with some of its variants, by their names."""
        rows = (self.rows[0], *(row for row in self.rows[1:] if row.name in names))
        crashes = tuple(crash for crash in self.crashes if crash["variant"] in names)
        return replace(self, rows=rows, crashes=crashes)

    def with_times(self, times: Mapping[str, tuple[TargetTime, ...]]) -> Comparison:
        """Return the comparison with further times of models, by their fingerprints."""
        rows = (replace(row, times=row.times + times.get(row.model, ())) for row in self.rows)
        return replace(self, rows=tuple(rows))

    def columns(self) -> dict[str, Callable[[Row], str]]:
        """Return by heading what gives a figure of the outputs as text, of those that any row has."""
        kinds = {*self.task.outputs.values()}
        return {
            metric.column: partial(Row.text, metric=metric)
            for metric in METRICS.values()
            if metric.column
            and (not metric.column_of or kinds & {*metric.column_of})
            and any(row.figure(metric) is not None for row in self.rows)
        }

    def overview(self) -> Overview:
        """Return a row for each variant, and the figures that say most of each."""
        columns: Columns = {
            "variant": "{name}",
            **self.columns(),
            "p50 ms": "{latency.p50_ms:.3f}",
            "speed-up": "{latency.speedup:.2f}",
            "MB": lambda row: f"{row.size_bytes / 1e6:.4g}",
        }
        count = len(self.rows) - 1
        title = f"Comparison of {count} variant{'s' * (count != 1)} with {self.rows[0].name} on "
        title += f"{self.samples:,} samples of {self.dataset_name!r}"
        brief = (row.overview().title for row in self.rows[1:] + self.rows[:1])
        return Overview(title, brief=brief, things=self.rows, columns=columns)


@dataclass(frozen=True)
class CompareSettings(Shown):
    """What `compare` runs, collects and times.

    `batch` is in samples. `rounds` are the runs timed of each, more if the speed-ups' intervals are to
    have a relative `width`; without them it is `ROUNDS` if a limit is about times, else a few.
    `batch_sizes` are those to measure throughput at, `alternative` is the variant that is no candidate,
    `crashes` are variants that could not be opened.
    """

    batch: int = 32
    rounds: int | None = None
    wanted: CollectSettings = field(default_factory=CollectSettings)
    width: float | None = None
    batch_sizes: Sequence[int] = ()
    alternative: str | None = None
    crashes: Crashes = ()


def compare(
    reference: Variant,
    variants: Sequence[Variant],
    dataset: Dataset,
    limits: tuple[Limit, ...],
    settings: CompareSettings | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Comparison:
    """Measure accuracy on all of the dataset and latency on its first batch, in turns.

    `InputError` if two variants bear one name or their inputs differ from the reference's, or a batch
    size can't be had.
    """
    settings = settings or CompareSettings()
    everyone = [reference, *variants]
    check_variants(everyone)
    check_places(everyone)
    check_sizes(reference, dataset, settings.batch_sizes)
    task, batch = checked_task(reference, dataset, limits, settings)
    evaluations, replayed = evaluate(everyone, dataset, batch, task, settings.wanted, progress)
    is_timed = any(limit.about.of == TIMES and not limit.device for limit in limits)
    is_asked = settings.width or settings.batch_sizes or is_timed
    rounds = settings.rounds or (ROUNDS if is_asked else None)
    is_here = not any(each.timed or each.session.device or each.cut for each in everyone)
    times = replayed.times_ms if is_here and rounds is None else ()
    latencies = glance([row[: len(everyone)] for row in times], batch)
    latencies = latencies or _measure(everyone, dataset, batch, rounds, settings.width)
    for size in settings.batch_sizes:
        rates = throughput(_measure(everyone, dataset, size, RUNS_AT_A_SIZE))
        pairs = zip(latencies, rates, strict=True)
        latencies = [replace(each, throughput=(*each.throughput, rate)) for each, rate in pairs]
    feeds, numbers = next(dataset.batches(settings.batch)), numbers_of(dataset)
    sizes = {name: (1, *array.shape[1:]) if array.ndim else () for name, array in feeds.items()}
    rows = tuple(
        Row(
            variant.name,
            variant.model,
            variant.quantization,
            latency=latency,
            size_bytes=variant.size_bytes,
            coverage=variant.coverage(sizes),
            cut="; ".join(filter(None, (variant.cut, variant.floats))) or None,
            shared_samples=variant.shared_with(numbers),
            is_alternative=variant.name == settings.alternative,
            times=(of_latency(latency),) if latency.on else (),
            **evaluation,
        )
        for variant, evaluation, latency in zip(everyone, evaluations, latencies, strict=True)
    )
    data = (dataset.fingerprint, dataset.name, len(dataset))
    providers = {variant.session.get_providers()[0] for variant in everyone}
    timed_on = latencies[0].on or ("CPU" if CPU in providers else "GPU")
    where = {**machine(), "timed_on": timed_on}
    if any(variant.session.rounds for variant in everyone):
        where["float16"] = ROUNDED
    record = task.record(replayed.contrasts())
    source = reference.source
    structure = "" if source is None else structure_of(source.weightless().proto)
    crashes = tuple(
        {"variant": name, "kind": "native_crash", "signal": crash.signal, "ops": list(crash.ops)}
        | {"why": crash.message}
        for name, crash in settings.crashes
    )
    issues = replayed.issues()
    return Comparison(*data, batch, record, limits, rows, where, structure, crashes, issues)


def checked_task(
    reference: Variant, dataset: Dataset, limits: Sequence[Limit], settings: CompareSettings
) -> tuple[Task, int]:
    """Return the task and the batch size; `InputError` if limits or labels fit no output."""
    collected = settings.wanted
    task, batch = read_task(reference, dataset, settings.batch, collected.task, collected.outputs)
    metrics = [limit.metric for limit in limits]
    check_question(task, metrics, collected.own, (reference, dataset, batch))
    return task, batch


def _measure(
    everyone: Sequence[Variant],
    dataset: Dataset,
    batch: int,
    count: int | None,
    width: float | None = None,
) -> list[Latency]:
    """Time all where they run: on their device, else here."""
    feeds = next(dataset.batches(batch))
    sessions: list[Any] = [variant.timed or variant.session for variant in everyone]
    if sessions[0].device:
        return measure_on_device(sessions, feeds, count, width)
    runs = [partial(run_session, session, None, feeds) for session in sessions]
    return measure(runs, len(next(iter(feeds.values()))), count, width)


def check_sizes(reference: Variant, dataset: Dataset, sizes: Sequence[int]) -> None:
    """`InputError` if there is a batch size that the model does not take or the data do not fill."""
    firsts = [spec.shape[0] for spec in reference.inputs if spec.shape]
    fixed = [first for first in firsts if isinstance(first, int)]
    for size in sizes:
        if len(fixed) == len(firsts) and set(fixed) - {size}:
            why = f"the model is fixed to a batch of {max(fixed)}"
            hint = "export it with a dynamic first axis"
            raise InputError(f"batches of {size} cannot be measured: {why}", hint)
        if size > len(dataset):
            what = f"batches of {size} cannot be measured with {len(dataset)} samples"
            raise InputError(what, "give more data, or a smaller --batch")


def with_layers(
    comparison: Comparison,
    reference: Model,
    variants: Mapping[str, Model],
    dataset: Dataset,
    progress: Callable[[int], None] = lambda done: None,
    samples: int | None = None,
) -> Comparison:
    """Add the figures of every quantized tensor to the rows of variants, models with Q/DQ by name.

    They are taken on the first samples, all if None.
    """
    layers = list[Layerwise | None]()
    with crashes_as_warnings():
        layers = compare_layers(reference, [*variants.values()], dataset, progress, samples)
    by_name = dict(zip(variants, layers, strict=False))  # none where the reference crashes
    rows = tuple(replace(row, layers=by_name.get(row.name)) for row in comparison.rows)
    return replace(comparison, rows=rows)


NAMED = 3
ROUNDED = "rounded after every operator, added up in float32"


def warnings(comparison: Comparison, with_times: bool = True) -> tuple[str, ...]:
    """Return one sentence for each thing that the table of means does not show, of times if asked."""
    accuracy = [f"{row.name}: {what}" for row in comparison.rows for what in _of_row(row)]
    times = _of_latency(comparison) if with_times else ()
    if arithmetic := comparison.machine.get("float16"):
        accuracy += [f"float16 is {arithmetic}; a GPU may add up in float16, or round less often"]
    crashes = (f"{each['variant']} is not compared: {each['why']}" for each in comparison.crashes)
    issues = map(str, comparison.issues)
    return (*crashes, *issues, *unjudged(comparison), *accuracy, *times)


def unjudged(comparison: Comparison) -> tuple[str, ...]:
    """Return the warning of outputs that no limit given is about."""
    left = without_limit(comparison) if about_outputs(comparison.limits) else []
    return (no_limit_on(left),) if left else ()


def _of_row(row: Row) -> Iterator[str]:
    if row.shared_samples is not None:
        yield f"{row.shared_samples}; the loss on new data may be higher"
    if row.cut is not None:
        yield row.cut
    yield from map(as_text, row.findings)
    if row.simulation is not None and row.simulation.differs and not row.simulation.may_be_chance:
        gap = _gap(row.simulation, row.accuracy.samples)
        yield f"the INT8 kernels of this CPU do not agree with simulated INT8 {gap}"
    for breakdown in row.breakdowns:
        yield from _dropped(breakdown)


def _of_latency(comparison: Comparison) -> Iterator[str]:
    """Say where times were taken and, unless they are rough anyway, which were disturbed."""
    first = comparison.rows[0].latency
    if not first.is_gpu and (first.on or comparison.machine.get("timed_on") == "CPU"):
        rough = f" ({first.runs} runs each, a rough measure; use --rounds 60)"
        cpu = f"the CPU of {first.on}" if first.on else f"this CPU{rough * comparison.is_rough}"
        yield f"the times are those of ONNX Runtime on {cpu}; a GPU has other times"
    disturbed = [(r.name, r.latency.warnings) for r in comparison.rows if r.latency.warnings]
    if disturbed and not comparison.is_rough:
        names = some((name for name, _ in disturbed), NAMED)
        yield f"latency of {names} was disturbed: {disturbed[0][1][0]}"


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield who was stopped early, and who differs from its simulation by what may be chance."""
    yield from (f"{row.name}: {row.stopped}" for row in comparison.rows if row.stopped)
    for row in comparison.rows:
        if row.simulation is not None and row.simulation.differs and row.simulation.may_be_chance:
            gap = _gap(row.simulation, row.accuracy.samples)
            yield f"{row.name}: INT8 kernels and simulated INT8 agree within noise {gap}"


def _gap(simulation: Simulation, samples: int) -> str:
    unit = "dB" if simulation.measure == "SQNR" else "points"
    interval = ""
    if simulation.gap_interval is not None:
        low, high = simulation.gap_interval
        interval = f", 95 % interval {low:+.2f} to {high:+.2f}, {samples:,} samples"
    return f"({simulation.gap:+.2f} {unit} of {simulation.measure}{interval})"


def _dropped(breakdown: Breakdown) -> Iterator[str]:
    worse, suspect = breakdown.ranked(WORSE), breakdown.ranked(SUSPECT)
    if worse:
        yield f"{breakdown.figure} fell more than in the other groups in {_some(worse, breakdown.unit)}"
    elif suspect:
        where = _some(suspect, breakdown.unit)
        yield f"{breakdown.figure} may have fallen more in {where}; use more samples to exclude chance"


def _some(groups: Sequence[Group], unit: str) -> str:
    named = []
    for group in groups[:NAMED]:
        p = group.adjusted_p if group.rank == WORSE else group.p
        drop = f"{group.name} by {group.drop:.3g} {unit}".rstrip()
        named.append(f"{drop} of {group.samples:,} samples (p {p:.2g})")
    more = len(groups) - NAMED
    return "; ".join([*named, f"{more} more"] if more > 0 else named)
