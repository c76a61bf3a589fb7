"""The whole search for one model: sensitivities, costs, plans, builds, and the document of it all."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from trtcal.backends.base import Backend
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.trial import crashes_as_warnings
from trtcal.data import Dataset
from trtcal.data.dataset import batch_for, whole_batches
from trtcal.data.overlap import Overlap, numbers_of, overlap
from trtcal.data.subsets import Subset
from trtcal.documents import Workplace
from trtcal.documents.overview import Columns, Overview, Shown
from trtcal.errors import BackendError, InputError
from trtcal.evaluate.ab import ABOptions, ABTest, Question, ab_test
from trtcal.evaluate.ab_rule import Answer, is_tested
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.fragile import find_fragile
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.overflow import tensor_peaks
from trtcal.evaluate.replay import Reporter, silent
from trtcal.evaluate.search.exchange import EVALUATIONS, Found, Search
from trtcal.evaluate.search.limits import FASTEST, Limits, Plan, Point, split, unit_of
from trtcal.evaluate.search.plan_loss import Evaluator, Plans, Reference
from trtcal.evaluate.search.plan_time import FLOAT, Costs, Listed, Times, listed_times, work_of
from trtcal.evaluate.search.sensitivity import (
    SAMPLES,
    Sampling,
    Sensitivities,
    measure_sensitivities,
)
from trtcal.evaluate.tasks import TaskReader
from trtcal.evidence.gpus import DEFAULT_GPU, find_target
from trtcal.evidence.times import SpeedupEstimate
from trtcal.model import Model
from trtcal.quantization import Plan as NarrowPlan
from trtcal.quantization import QuantizedModel, find_layers
from trtcal.quantization.fp16 import BEYOND
from trtcal.ranges import Calibration
from trtcal.stats import ALPHA, LEVEL, one_sided, unseen

FEWEST = 16  # samples that were held back, below which the recommended plan is tested on the others
BATCH = 32
MOST, LEFT = 512, 64  # samples that plans are measured on, unless more are asked for


@dataclass(frozen=True)
class Compiled(Shown):
    """What a compiler made of one quantized model, or why it failed.

    `float_heavy` is the number of nodes asked in INT8 that did not get it. `layers` are in order: the
    nodes that each comes from, and the bytes that it reads and writes.
    """

    float_heavy: int | None = None
    layers: tuple[tuple[tuple[str, ...], int], ...] = ()
    failed: str | None = None

    @property
    def bytes_moved(self) -> int | None:
        """What all layers read and write, None where it failed."""
        return None if self.failed else sum(size_bytes for _, size_bytes in self.layers)


Compile = Callable[[QuantizedModel], Compiled]


def compiler(backend: Backend, options: BuildOptions, model: Model) -> Compile:
    """Return what builds a quantized form of a model and lists its layers."""

    def compile_(quantized: QuantizedModel) -> Compiled:
        with Workplace() as folder:
            variant = replace(model, proto=quantized.proto)
            engine = build(variant, backend, options, Path(folder))
        lost = sum(outcome.asked == "int8" and outcome.is_lost for outcome in engine.outcomes)
        return Compiled(lost, tuple((row.nodes, row.bytes_moved or 0) for row in engine.layers))

    return compile_


@dataclass(frozen=True)
class SearchOptions(Shown):
    """How to search: see `trtcal search --help`.

    `gpu` is the GPU to estimate times for: a name, or a TOML file of datasheet numbers. `samples`
    is the number for sensitivities, `evaluated` that for whole plans, see `searched_on`; `batch` is
    the batch size of times. `build` compiles a quantized model, `reader` has the task that is judged.
    `precisions` are those that layers may have besides float; `goal` is fastest or smallest, within
    the limits. `improve` optimizes INT8 first: where it falls short (auto), always (fast, best), or
    never (off). `device` times layers and plans (`Backend.trials`). `tests` are A/B tests of plans that
    were done, with their models.

    >>> SearchOptions(gpu="l4").gpu
    'l4'
    """

    limits: Limits = field(default_factory=Limits)
    gpu: str = DEFAULT_GPU
    precision: str = "fp16"
    samples: int = SAMPLES
    evaluated: int | None = None
    evaluations: int = EVALUATIONS
    time_limit_s: float = math.inf
    batch: int = 1
    times: Times = field(default_factory=dict)
    build: Compile | None = None
    clock: Callable[[], float] = time.monotonic
    reader: TaskReader = field(default_factory=TaskReader)
    precisions: tuple[str, ...] = ("int8",)
    goal: str = FASTEST
    improve: str = "auto"
    device: Any = None
    tests: dict[Any, tuple[Model, ABTest]] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Result(Shown):
    """Everything that was found; `builds` by plan, where a compiler was given.

    Plans are of the prepared `model`, optimized where INT8 falls short, with its `calibration`.
    Layers in `beyond` reach values beyond float16: outside INT8 they stay in float32.
    `missing` is what there was no time for. `tested` holds the recommended plan against the limits as
    `trtcal ab` does, on samples that had no part in the search (`is_held_back`), or where there are
    none on those of the search; `shared_samples` are calibration samples.
    `sensitivities` are those of the first precision, `others` those of further ones. `beside` is the
    recommended plan beside all in INT8: times as fast by the times here, and the change of accuracy.
    """

    model: Model
    calibration: Calibration
    sensitivities: Sensitivities
    measure: str
    costs: Costs
    found: Found
    builds: dict[Plan, Compiled]
    beyond: frozenset[str]
    is_held_back: bool
    missing: tuple[str, ...]
    seconds: float
    tested: ABTest | None = None
    shared_samples: Overlap | None = None
    others: Mapping[str, Sensitivities] = field(default_factory=dict)
    beside: tuple[SpeedupEstimate, Answer] | None = None

    def overview(self) -> Overview:
        """Return the plans from the fastest to the most accurate, and which one is recommended."""
        best, count = self.found.recommended, len(self.layers)
        columns: Columns = {
            "plan": lambda point: "recommended" if point is best else "",
            "layers quantized": lambda point: f"{len(point.plan)} of {count}",
            "ms": "{cost_ms:.4g}",
            "speed-up": "{speedup:.3g}",
            "SQNR dB": "{loss.sqnr_db:.2f}",
            "INT8 MACs %": "{int8_macs:.3g}",
        }
        advice = f"{len(best.plan)} of {count} layers quantized: " if best else "no plan: "
        facts = [f"recommended: {advice}{self.found.reason}"]
        facts += [self.tested.verdict.overview().title] if self.tested else []
        title = f"Search of {len(self.found.measured)} plans for {self.model.name}"
        return Overview(title, facts, things=self.found.front, columns=columns)

    @property
    def layers(self) -> list[str]:
        """All layers that a plan decides on, in graph order for each precision."""
        seen = (self.sensitivities, *self.others.values())
        return list(dict.fromkeys(name for layers in seen for name in layers.names))


def cache_beside(
    folder: Path, model: Model, dataset: Dataset, reader: TaskReader | None = None
) -> EvaluationCache:
    """Return what was measured by earlier searches with this output folder."""
    of = {"model": model.fingerprint, "data": dataset.fingerprint}
    return EvaluationCache(folder / "evaluations.jsonl", of | (reader.key if reader else {}))


def find_plans(
    model: Model,
    calibration: Calibration,
    dataset: Dataset,
    settings: SearchOptions,
    cache: EvaluationCache,
    reporter: Reporter = silent,
) -> Result:
    """Search for the plans of a prepared model that are worth having.

    `InputError` if a limit is about labels or class scores that there are not.
    """
    started = settings.clock()

    def may() -> bool:
        return settings.clock() < started + settings.time_limit_s

    if settings.precision == "fp16" and not calibration.peaks:
        calibration = replace(calibration, peaks=tensor_peaks(model, dataset))
    every = _sensitivities(model, calibration, dataset, settings, cache, reporter, may)
    seen, *_ = every.values()
    settings = replace(settings, limits=_limits(seen, settings))
    measure = _measure(seen, settings.limits)
    shares = {
        unit_of(name, precision): share
        for precision, layers_of in every.items()
        for name, share in layers_of.shares(measure).items()
    }
    layers = {split(share).layer for share in shares}
    plans, device = Plans(model, calibration, list(shares), settings.precision), settings.device
    costs = _costs(plans, layers, tuple(every), dataset, settings)
    evaluated = searched_on(len(dataset), settings, model)
    span, is_held_back = _test_span(plans, len(dataset), evaluated)
    with Reference(model, dataset, evaluated, 0, settings.reader) as reference:
        evaluator = Evaluator(plans, reference, cache)
        if settings.build is not None and not costs.times:
            costs = _as_built(costs, plans, settings.build, may)
        with reporter("measuring plans", settings.evaluations) as advance:

            def evaluate(plan: Plan) -> Loss:
                loss = evaluator.loss(plan)
                advance(1)
                return loss

            mixed = _mixed(plans, dataset, settings) if may() else None
            budget = (settings.evaluations, may, settings.goal, mixed)
            limits = _to_hold(settings.limits, span if is_held_back else (0, 0))
            searches = (Search(shares, costs, evaluate, measure, of, *budget) for of in limits)
            findings, search = _first_found(searches)
        builds = _build_all(findings.front, plans, settings, reporter, may)
        missing = tuple(_missing(seen, findings, builds, settings))
        findings = _without_dominated(findings, builds, measure, search.limits)
        whole = frozenset(unit for unit in shares if split(unit).precision == costs.precisions[0])
        if not settings.limits.asked and settings.goal == FASTEST:
            searched = samples_searched(dataset, settings, model)
            test = partial(hold, plans, whole, searched, settings)
            findings = _with_all(findings, whole, costs.precisions[0], test)
        if device is not None:
            feeds = next(dataset.batches(settings.batch))
            findings = device.settle(findings, search, plans, feeds)
    tested = beside = None
    if findings.recommended is not None:
        samples = Subset(dataset.name, dataset, (span,))
        with crashes_as_warnings():
            tested = hold(plans, findings.recommended.plan, samples, settings)
            beside = _beside(plans, (whole, findings.recommended), costs, samples, settings)
    shared = overlap(calibration.sample_digests, numbers_of(dataset))
    seconds = settings.clock() - started
    skipped = plans.quantized(frozenset()).fp16_subgraphs.skipped
    beyond = frozenset(name for name, why in skipped.items() if BEYOND in why)
    known = findings, builds, beyond, is_held_back, missing, seconds, tested, shared
    others = {name: layers_of for name, layers_of in every.items() if layers_of is not seen}
    return Result(model, calibration, seen, measure, costs, *known, others, beside)


def _mixed(plans: Plans, dataset: Dataset, settings: SearchOptions) -> Plan | None:
    """Return the plan without the layers that must not be quantized, None where there are none.

    One layer at a time does not show them: two that are as bad alone as both bring nothing alone.
    """
    model, precision = plans.model, settings.precisions[0]
    searched = samples_searched(dataset, settings, model)
    fragile = find_fragile(model, plans.calibration, searched, NarrowPlan(precision), settings.gpu)
    left = (unit for unit in plans.units if split(unit).precision == precision)
    quantized = frozenset(unit for unit in left if split(unit).layer not in fragile.plan.layers)
    return quantized if fragile.groups and quantized else None


def _costs(
    plans: Plans,
    layers: Collection[str],
    precisions: tuple[str, ...],
    dataset: Dataset,
    settings: SearchOptions,
) -> Costs:
    """Return what plans cost: by times that are given, or of the device's layers, else estimates."""
    feeds, device = next(dataset.batches(settings.batch)), settings.device
    times = settings.times or (device.layer_times(plans, layers, feeds) if device else {})
    work, gpu = work_of(plans.model, layers, feeds), find_target(settings.gpu)
    costs = Costs(work, gpu, settings.precision, times, precisions=precisions)
    where = "as given" if settings.times or not device else f"measured on {device.target}"
    return replace(costs, source=f"layer times {where}") if times else costs


def samples_searched(dataset: Dataset, settings: SearchOptions, model: Model) -> Dataset:
    """Return the samples that plans are measured on."""
    count = min(searched_on(len(dataset), settings, model), len(dataset))
    return Subset(dataset.name, dataset, ((0, count),))


def searched_on(samples: int, settings: SearchOptions, model: Model) -> int:
    """Return on how many samples plans are measured: 512 or half, or all where half are too few.

    Fewer where the others can then decide the limit in points, of one point where none is given, of
    half for a goal that has it.
    """
    half, asked = samples // 2, settings.limits.losses.asked
    bounds = [-limit.bound for limit in asked if limit.is_change and -100 < limit.bound < 0]
    least = min(bounds, default=1.0 if asked or settings.goal == FASTEST else 0.5)  # as `_limits`
    left = samples - math.ceil(math.log(ALPHA) / math.log1p(-least / 100))
    usual = min(MOST, half, left if left >= LEFT else half) if half >= FEWEST else samples
    return whole_batches(settings.evaluated or usual, model)


def whole_test(
    model: Model, calibration: Calibration, searched: Dataset, settings: SearchOptions
) -> ABTest:
    """Test INT8 throughout by the limits, else the task's, on samples that plans are measured on."""
    return hold(Plans(model, calibration), frozenset(), searched, settings)


def _with_all(findings: Found, whole: Plan, precision: str, test: Callable[[], ABTest]) -> Found:
    """Return what was found, with all layers in a precision recommended where that is good enough."""
    point = next((point for point in findings.measured if point.plan == whole), None)
    if point is None or not (findings.int8_pays and point.loss.is_fit):
        return findings
    with crashes_as_warnings():
        tested = test()
        if tested.keeps_all and tested.verdict.is_good:
            why = f"with all in {precision.upper()}, {tested.verdict.sentence}".rstrip(".")
            reason = f"no layer has to be left in float: {why}"
            front = findings.front if point in findings.front else (point, *findings.front)
            return replace(findings, front=front, recommended=point, reason=reason)
    return findings


def _sensitivities(
    model: Model,
    calibration: Calibration,
    dataset: Dataset,
    settings: SearchOptions,
    cache: EvaluationCache,
    reporter: Reporter,
    may: Callable[[], bool],
) -> dict[str, Sensitivities]:
    """Measure the layers in every precision that any of them can have."""
    layers = len(list(find_layers(model).layers))
    sampling = Sampling(settings.samples, may=may, reader=settings.reader)
    by_precision, failed = dict[str, Sensitivities](), list[InputError]()
    for precision in settings.precisions:
        what = "sensitivity of layers" + ("" if precision == "int8" else f" in {precision}")
        with reporter(what, layers) as advance:
            try:
                by_precision[precision] = measure_sensitivities(
                    model, calibration, dataset, sampling, cache, advance, precision
                )
            except InputError as error:
                failed.append(error)
    if not by_precision:
        raise failed[0]
    return by_precision


def _limits(seen: Sensitivities, settings: SearchOptions) -> Limits:
    """Return the limits; those of a goal are half a point where none is about what is lost."""
    if settings.goal == FASTEST or settings.limits.on_loss:
        return settings.limits
    for metric, lost in (("top1", seen.finite.top1_drop), ("agreement", seen.finite.disagreement)):
        if lost is not None:
            asked = (*settings.limits.asked, *Limits.of(f"{metric} >= -0.5").asked)
            return replace(settings.limits, asked=asked)
    hint = 'give one, such as --limit "sqnr_db >= 30"'
    raise InputError(f"the goal {settings.goal!r} needs a limit on what is lost", hint)


def _first_found(searches: Iterable[Search]) -> tuple[Found, Search]:
    """Return the first search that recommends a quantized plan, else the last, with its result."""
    for search in searches:
        findings = search.run()
        if findings.recommended is not None and findings.recommended.plan:
            break
    return findings, search


def _to_hold(limits: Limits, span: tuple[int, int]) -> Iterator[Limits]:
    """Yield the limits with a margin for the samples of a test, if they can decide, then as asked."""
    samples = span[1] - span[0]
    shares = [limit for limit in limits.losses.asked if limit.is_change]
    if samples and limits.on_loss:
        least = 100 * unseen(samples, one_sided(LEVEL))  # with nothing lost
        if all(least <= -limit.bound for limit in shares):
            yield replace(limits, tested=samples)
    yield limits


def _test_span(plans: Plans, samples: int, evaluated: int) -> tuple[tuple[int, int], bool]:
    """Return on which samples to test the recommended plan, and whether they were held back.

    These are all after the first `evaluated`, in whole batches where the model prescribes their size;
    the first ones where fewer than `FEWEST` are left.
    """
    count = max(samples - evaluated, 0)
    count -= count % batch_for(plans.model, 1)
    if count < FEWEST:
        return (0, min(evaluated, samples)), False
    return (evaluated, evaluated + count), True


def hold(plans: Plans, plan: Plan, dataset: Dataset, settings: SearchOptions) -> ABTest:
    """Test once as `trtcal ab` does whether a plan can replace FP32: by its limits, else the task's.

    Limits on times are left out, as times are estimates here. Outputs are those of the whole model.
    """
    limits = tuple(limit for limit in settings.limits.losses.asked if is_tested(limit))
    what = plans.plan(plan).to_document()["digest"], dataset.fingerprint, limits, id(plans.model)
    if what not in settings.tests:
        tested = _test(plans, (None, plan), dataset, Question(limits), settings.reader)
        settings.tests[what] = plans.model, tested
    return settings.tests[what][1]


def _beside(
    plans: Plans, pair: tuple[Plan, Point], costs: Costs, dataset: Dataset, settings: SearchOptions
) -> tuple[SpeedupEstimate, Answer] | None:
    """Return what a plan brings beside all in INT8, by the task's first figure."""
    whole, best = pair
    if best.plan in (frozenset(), whole):
        return None
    tested = _test(plans, (whole, best.plan, None), dataset, Question(), settings.reader)
    answer = tested.verdict.answers[0]
    timed = settings.device.timed if settings.device else {}
    if best.plan in timed:
        return timed[best.plan][1], answer
    return costs.over(costs.estimate(whole), best.plan), answer


def _test(
    plans: Plans,
    chosen: Sequence[Plan | None],
    dataset: Dataset,
    question: Question,
    reader: TaskReader,
) -> ABTest:
    """Test the second of some plans beside the first; a third is what agreement is measured with.

    None is FP32.
    """
    baseline, candidate, *others = map(plans.variant, chosen)
    if others:  # its overflow is known from its test beside FP32
        candidate = replace(candidate, narrow_model=None)
    known = [spec.name for spec in baseline.outputs]  # others are those of a body
    outputs = tuple(name for name in reader.outputs if name in known)
    reference = next(iter(others), None)
    options = ABOptions(BATCH, reference=reference, task=reader.name, outputs=outputs)
    return ab_test(baseline, candidate, dataset, question, options)


def _missing(
    seen: Sensitivities, findings: Found, builds: Mapping[Plan, Compiled], settings: SearchOptions
) -> Iterator[str]:
    if seen.missing:
        layers = len(seen.layers) + len(seen.missing)
        yield f"the sensitivities of {len(seen.missing)} of {layers} layers"
    if not findings.complete:
        yield "plans"
    if settings.build is not None and len(builds) < len(findings.front):
        yield f"builds of {len(findings.front) - len(builds)} of {len(findings.front)} plans"


def _measure(seen: Sensitivities, limits: Limits) -> str:
    """Return what to add up: divergence where outputs are class scores, else noise."""
    for metric, lost in (("top1", seen.finite.top1_drop), ("agreement", seen.finite.disagreement)):
        if limits.bound(metric) is not None and lost is None:
            raise InputError(
                f"{metric} is not known for these data: it needs labels, or outputs that are decisions",
                'use --limit "sqnr_db >= 30", or name the task: --task',
            )
    return seen.measure if limits.bound("sqnr_db") is None else "noise"


def _as_built(costs: Costs, plans: Plans, build: Compile, may: Callable[[], bool]) -> Costs:
    """Return the costs of the layers that a compiler makes, of all INT8, all float and all FP32.

    Where there is no time to build them, they are those given.
    """
    plans_to_build: dict[str, tuple[Plan, str | None]] = {
        precision: (frozenset(u for u in plans.units if split(u).precision == precision), None)
        for precision in costs.precisions
    }
    plans_to_build |= {FLOAT: (frozenset(), None), "fp32": (frozenset(), "fp32")}
    layers: dict[str, Listed] = {}
    for name, (plan, precision) in plans_to_build.items():
        if not may():
            source = f"{costs.source}, because the time limit left no time to build"
            return replace(costs, source=source)
        layers[name] = build(plans.quantized(plan, precision)).layers
    plain = layers.pop("fp32")
    slow = replace(costs, precision="fp32")
    slow = replace(slow, times=listed_times(slow, {**layers, FLOAT: plain}))
    times = listed_times(costs, layers)
    source = "layers that the compiler lists for --target"
    return replace(costs, times=times, source=source, in_fp32=slow)


def _build_all(
    front: Sequence[Point],
    plans: Plans,
    settings: SearchOptions,
    reporter: Reporter,
    may: Callable[[], bool],
) -> dict[Plan, Compiled]:
    if settings.build is None:
        return {}
    builds = {}
    with reporter("building the front", len(front)) as advance:
        for point in itertools.takewhile(lambda _: may(), front):
            try:
                builds[point.plan] = settings.build(plans.quantized(point.plan))
            except BackendError as error:
                builds[point.plan] = Compiled(failed=error.message)
            advance(1)
    return builds


def _without_dominated(
    findings: Found, builds: dict[Plan, Compiled], measure: str, limits: Limits
) -> Found:
    """Return the front without plans for which the compiler moves more bytes than for a better one.

    If the recommended plan is one of them, the better one that holds the limits takes its place.
    """
    beaten = {
        point.plan: rivals
        for point in findings.front
        if (rivals := [rival for rival in findings.front if _beats(rival, point, builds, measure)])
    }
    best, reason = findings.recommended, findings.reason
    if best is not None and best.plan in beaten:
        holding = [rival for rival in beaten[best.plan] if rival.plan and not limits.broken(rival)]
        if holding:
            best = min(holding, key=lambda rival: (_bytes(builds, rival), rival.loss.of(measure)))
            reason += "; replaced by a plan that loses less and moves fewer bytes in its engine"
    front = tuple(rival for rival in findings.front if rival.plan not in beaten or rival is best)
    return replace(findings, front=front, recommended=best, reason=reason)


def _beats(point: Point, other: Point, builds: dict[Plan, Compiled], measure: str) -> bool:
    moved = _bytes(builds, point), _bytes(builds, other)
    if point is other or moved[0] is None or moved[1] is None:
        return False
    return point.loss.of(measure) <= other.loss.of(measure) and moved[0] < moved[1]


def _bytes(builds: dict[Plan, Compiled], point: Point) -> int | None:
    built = builds.get(point.plan)
    return None if built is None else built.bytes_moved
