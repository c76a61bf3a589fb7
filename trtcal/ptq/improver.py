"""Try optimizations one after another on one model, and keep those that help on samples held back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from time import monotonic as now
from typing import Any

from trtcal.backends.sessions import give_back
from trtcal.calibration import calibrate
from trtcal.data import Dataset, held_back
from trtcal.data.dataset import batch_for, size_ranges, whole_batches
from trtcal.documents import Document, write_document
from trtcal.documents.overview import Columns, Overview, Shown
from trtcal.errors import InputError, __version__
from trtcal.evaluate.fragile import find_fragile
from trtcal.evaluate.judging import Judge, Verdict, leading
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.range_choice import AUTO, MOST_TRIALS, ranges_by
from trtcal.evaluate.replay import Reporter
from trtcal.formats import NARROW
from trtcal.model import Model
from trtcal.ptq.artifact import (
    OPTIMIZATIONS_KIND,
    Optimizations,
    layer_changes,
    read_optimizations,
    write_optimizations,
)
from trtcal.ptq.changes import Changes
from trtcal.ptq.optimizations import (
    NEAREST,
    OPTIMIZATIONS,
    RANGES,
    Context,
    ImproveOptions,
    Optimization,
    OutOfTimeError,
    State,
)
from trtcal.ptq.reconstruction import samples_in_memory
from trtcal.quantization import (
    Plan,
    QuantizedModel,
    find_layers,
    plan_of,
    quantize,
    tensors_to_observe,
)
from trtcal.quantization.qdq import without_ranges
from trtcal.ranges import Calibration

HELD_BACK = (16, 128)  # samples, at least and at most; a quarter between
LEAST_SAMPLES = 8  # in all
FEW = 64
FLOATS = "layers in float"
FITTED = {"fast": 64, "best": 256}  # samples that optimizations are fitted to, at most


@dataclass(frozen=True)
class Try(Shown):
    """One optimization that was tried, with its description and the loss with it."""

    name: str
    what: str
    loss: Loss
    value: float
    kept: bool
    seconds: float

    def to_document(self) -> Document:
        """Return the JSON form of what does not change from run to run."""
        value = self.value if math.isfinite(self.value) else None
        fields = {"name": self.name, "what": self.what, "kept": self.kept, "value": value}
        return {**fields, "loss": self.loss.to_document()}


@dataclass(frozen=True)
class Improved(Shown):
    """The best model: its optimizations, the model with them, its ranges, and all that was tried.

    `plan` is the one that they were found for, with the layers that have to stay in float beside them.
    There are no ranges if it quantizes weights only.

    >>> improved = improve("samples/digits/digits.onnx", "samples/digits/calibration.npz")
    >>> improved.tries[0].kept
    True
    """

    optimizations: Optimizations
    optimized: Model
    calibration: Calibration
    tries: tuple[Try, ...]
    warnings: tuple[str, ...]
    plan: Plan

    def overview(self) -> Overview:
        """Return the optimizations that were tried, and which of them are kept."""
        view = tries_overview(self.optimizations.record)
        title = f"Improved {self.optimized.name}: {view.title}"
        return replace(view, title=title, facts=(*view.facts, *self.warnings))

    @cached_property
    def quantized(self) -> QuantizedModel:
        """The optimized model with Q/DQ by the plan."""
        return quantize(self.optimized, self.calibration, self.plan)

    def write(self, optimizations: Path, record: Path, ranges: Path) -> None:
        """Write optimizations, the record of them and the ranges, if any, to these files."""
        write_document(record, write_optimizations(optimizations, self.optimizations))
        if self.plan.ranged:
            self.calibration.write(ranges)


def tries_overview(record: Document) -> Overview:
    """Return what the record of optimizations says that was tried, and which of it is kept."""
    loss = {"sqnr": "noise dB, worst output", "kl": "KL, nats"}.get(record["objective"], "-metric")
    columns: Columns = {
        "optimization": "{name}",
        loss: "{value:.4g}",
        "SQNR dB": lambda row: _decibels(row["loss"]["noise"]),
        "disagreement %": "{loss[disagreement]:.2f}",
        "": lambda row: "kept" if row["kept"] else "not kept",
    }
    tries = record["tries"]
    kept = [row for row in tries if row["kept"]]
    first, last = (_decibels(row["loss"]["noise"]) for row in (tries[0], kept[-1]))
    gain = f"SQNR {first} dB, then {last} dB with " + ", ".join(row["name"] for row in kept)
    title = f"{len(kept)} of {len(tries)} tries kept"
    return Overview(title, [gain], things=tries, columns=columns)


def _decibels(noise: float | None) -> str:
    return f"{-10 * math.log10(noise):.2f}" if noise else "-"


@dataclass(frozen=True)
class _Attempt:
    """States of which the best one is to be kept if it is better than what there is."""

    name: str
    what: str
    states: Sequence[State]
    started: float
    finer: bool = False


@dataclass(frozen=True)
class _Progress:
    """What was tried so far, and the best state with its verdict, None before the first one."""

    best: State
    verdict: Verdict | None = None
    tries: tuple[Try, ...] = ()
    untried: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    def keeps(self, verdict: Verdict, finer: bool) -> bool:
        """Tell whether a state with this verdict takes the place of the best one."""
        if self.verdict is None:
            return True
        if finer and verdict.is_finite:
            return not self.verdict.is_better(verdict)
        return verdict.is_better(self.verdict)


def improve(
    prepared: Model, dataset: Dataset, options: ImproveOptions, reporter: Reporter
) -> Improved:
    """Find the ranges and optimizations with which a prepared model loses least by the plan.

    A quarter of the samples (16 to 128) is held back: every try is judged on them, and nothing else
    uses them. `InputError` for fewer than 8 samples, and for a plan that quantizes nothing.
    """
    if options.plan.asked.isdisjoint(NARROW):
        hint = f"ask for {', '.join(NARROW)} in a layer, or leave --improve out"
        raise InputError("the plan quantizes nothing, so that there is nothing to improve", hint)
    fit, selection = split_samples(prepared, dataset)
    give_back()  # what a check of the data has left
    with Judge(prepared, selection, options.objective, options.metric) as judge:
        context = _context(prepared, fit, options, reporter)
        progress = _try_all(context, judge, selection)
        progress, plan = _leave_floats(progress, context, judge, selection)
    best = progress.best
    warnings = (*_warnings(len(fit), len(selection)), *progress.failures)
    counts = {"fitted": context.in_memory, "calibration": len(fit), "selection": len(selection)}
    record = {
        "kind": OPTIMIZATIONS_KIND,
        "schema_version": 1,
        "trtcal": __version__,
        "model": prepared.fingerprint,
        "dataset": dataset.fingerprint,
        "effort": options.effort,
        "objective": "metric" if options.metric else options.objective,
        **({} if options.plan == Plan() else {"plan": options.plan.to_document()["digest"]}),
        **({} if plan == options.plan else {"float_layers": plan.layers}),
        "samples": counts,
        "tries": [attempt.to_document() for attempt in progress.tries],
        "untried": list(progress.untried),
        "layers": layer_changes(context.model(best), best.calibration),
        "warnings": list(warnings),
        "measured": {"seconds": [round(attempt.seconds, 3) for attempt in progress.tries]},
    }
    optimizations = Optimizations(prepared.fingerprint, best.changes, best.overrides, record)
    optimized = optimizations.apply(prepared)
    calibration = without_ranges(optimized)
    if options.plan.ranged:
        sizes = size_ranges(prepared, dataset)
        calibration = replace(best.calibration, model=optimized.fingerprint, sizes=sizes)
    return Improved(optimizations, optimized, calibration, progress.tries, warnings, plan)


def split_samples(model: Model, dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Return the samples to fit to and those to judge by; `InputError` if there are too few."""
    samples = len(dataset)
    if samples < LEAST_SAMPLES:
        raise InputError(
            f"{samples} samples are too few to improve a model, because some are held back to judge "
            "the result",
            f"give at least {LEAST_SAMPLES}, better {4 * FEW}",
        )
    unit = batch_for(model, 1)
    least = HELD_BACK[0] if samples >= 2 * HELD_BACK[0] else samples // 3
    samples_held_back = min(max(samples // 4, least), HELD_BACK[1])
    return held_back(dataset, max(samples_held_back // unit, 1) * unit, unit)


def _warnings(fit: int, judged: int) -> tuple[str, ...]:
    if fit + judged >= FEW:
        return ()
    return (
        f"the optimizations use only {fit} samples to fit and {judged} to judge, so the result may not "
        f"hold on other data; give {2 * FEW} samples or more",
    )


def _context(prepared: Model, fit: Dataset, options: ImproveOptions, reporter: Reporter) -> Context:
    most = min(FITTED[options.effort], len(fit))
    in_memory = samples_in_memory(prepared, fit, most) if options.effort == "fast" else most

    def whole(samples: int) -> int:
        return min(whole_batches(samples, prepared), len(fit))

    @lru_cache(maxsize=1)  # the next try mostly begins with the last changes
    def build(changes: Changes) -> Any:
        return changes.of(prepared.proto)

    until = now() + options.seconds
    return Context(prepared, fit, whole(most), whole(in_memory), options, until, reporter, build)


def _try_all(context: Context, judge: Judge, selection: Dataset) -> _Progress:
    """Try the best ranges, whatever time there is, and then every optimization in its order."""
    started, state = now(), State(_first_ranges(context, selection))
    name = f"{RANGES}{state.calibration.method}" if context.plan.ranged else NEAREST
    first = _Attempt(name, "", [state], started)
    progress = _judged(_Progress(state), context, judge, first)
    for each in filter(context.options.takes, OPTIMIZATIONS):
        progress = _tried(progress, context, judge, each)
    return progress


def _first_ranges(context: Context, selection: Dataset) -> Calibration:
    """Return the ranges by which INT8 loses least on the samples held back, if the plan has INT8."""
    model = context.prepared
    if not context.plan.ranged:
        return without_ranges(model)
    tensors = tensors_to_observe(find_layers(model))
    observation = context.observe(model, tensors, context.reporter)
    if "int8" not in context.plan.asked:
        return calibrate(observation, AUTO)
    with context.reporter("judging ranges", MOST_TRIALS) as advance:
        return ranges_by(AUTO, None, model, selection, observation, advance=advance)


def _tried(
    progress: _Progress, context: Context, judge: Judge, optimization: Optimization
) -> _Progress:
    """Return the progress after an optimization; one that fails is reported and ends nothing."""
    name, what, started = optimization.name, optimization.what, now()
    try:
        context.check_time()
        states = optimization.apply(context, progress.best)
        source = f"{what} ({optimization.source})"
        attempt = _Attempt(name, source, states, started, optimization.finer)
        return _judged(progress, context, judge, attempt)
    except OutOfTimeError:
        return replace(progress, untried=(*progress.untried, name))
    except Exception as error:  # of any kind: all that was found before would be lost
        nothing = Try(name, what, Loss(0, math.inf), math.inf, False, now() - started)
        line = f"{name} was not kept: {str(error) or type(error).__name__}"
        tries, failures = (*progress.tries, nothing), (*progress.failures, line)
        return replace(progress, tries=tries, failures=failures)


def _judged(progress: _Progress, context: Context, judge: Judge, attempt: _Attempt) -> _Progress:
    """Measure the states of an attempt while there is time, and keep the best one if it is better."""
    give_back()  # what finding them has left
    if not attempt.states:
        return progress
    first, *others = attempt.states
    plan = context.plan
    in_time = itertools.takewhile(lambda _: now() <= context.until, others)

    def measured(state: State) -> tuple[Verdict, State]:
        return judge.measure(quantize(context.model(state), state.calibration, plan).proto), state

    verdict, state = leading(map(measured, itertools.chain([first], in_time)))
    give_back()
    kept = progress.keeps(verdict, attempt.finer)
    seconds = now() - attempt.started
    infinite = f"{attempt.name}: the INT8 outputs have NaN or infinite values"
    failures = () if math.isfinite(verdict.value) else (infinite,)
    tried = Try(attempt.name, attempt.what, verdict.loss, verdict.value, kept, seconds)
    return replace(
        progress,
        best=state if kept else progress.best,
        verdict=verdict if kept else progress.verdict,
        tries=(*progress.tries, tried),
        failures=(*progress.failures, *failures),
    )


def _leave_floats(
    progress: _Progress, context: Context, judge: Judge, selection: Dataset
) -> tuple[_Progress, Plan]:
    """Return the plan with the layers in float that still pay, where it names and rules nothing."""
    plan, best = context.options.plan, progress.best
    if plan.layers or plan.rules or now() > context.until:
        return progress, plan
    model, started, reference = context.model(best), now(), context.prepared
    try:
        fragile = find_fragile(model, best.calibration, selection, plan, reference=reference)
        if not fragile.groups:
            return progress, plan
        quantized = quantize(model, best.calibration, fragile.plan.without_fp16)
        verdict = judge.measure(quantized.proto)
    except Exception as error:  # of any kind, as in `_tried`
        line = f"{FLOATS} were not looked for: {str(error) or type(error).__name__}"
        return replace(progress, failures=(*progress.failures, line)), plan
    seconds, value = now() - started, verdict.value
    tried = Try(FLOATS, fragile.sentence, verdict.loss, value, kept=True, seconds=seconds)
    return replace(progress, tries=(*progress.tries, tried), verdict=verdict), fragile.plan


def _files(file: str) -> tuple[str, str, str]:
    name = Path(file).stem
    return file, f"optimizations/{name}.json", f"calibrations/{name}.json"


def write_improved(folder: Path, file: str, improved: Improved) -> None:
    """Write optimizations to a file, and their record and ranges beside it."""
    improved.write(*(folder / file for file in _files(file)))


def improved_digests(file: str, improved: Improved) -> dict[str, str]:
    """Return the digest of each file that `write_improved` writes, by path."""
    changes = improved.optimizations
    digests = (changes.digest, str(changes.document["digest"]), improved.calibration.digest)
    return dict(zip(_files(file)[: 3 if improved.plan.ranged else 2], digests, strict=False))


def read_improved(folder: Path, file: str, prepared: Model, plan: Plan) -> Improved:
    """Return what `write_improved` wrote, without its tries."""
    optimizations = read_optimizations(folder / file)
    floats = plan_of({"layers": optimizations.record.get("float_layers", {})}, file).layers
    plan = replace(plan, layers={**plan.layers, **floats})
    optimized = optimizations.apply(prepared)
    ranges = folder / _files(file)[2]
    calibration = Calibration.read(ranges) if plan.ranged else without_ranges(optimized)
    return Improved(optimizations, optimized, calibration, (), (), plan)
