"""The whole search for one model: sensitivities, costs, plans, builds, and the document of it all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtcal.calibration import Calibration
from trtcal.data import Dataset
from trtcal.engine import Target
from trtcal.errors import BackendError, InputError
from trtcal.model import Model
from trtcal.quantize import QuantizedModel, find_layers
from trtcal.search.costs import Costs, Times, listed_times
from trtcal.search.evaluating import Evaluator
from trtcal.search.gates import Limits, Point
from trtcal.search.losses import Loss
from trtcal.search.memory import Memory
from trtcal.search.searching import EVALUATIONS, Found, Search
from trtcal.search.sensitivity import SAMPLES, Sensitivities, measure_sensitivities
from trtcal.search.work import work_of
from trtcal.tuning import Measured

REMEMBERED = "evaluations.jsonl"
Reporter = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Called with a stage's title and its number of steps; gives what to call as they are done."""


@dataclass(frozen=True)
class Settings:
    """What to search for and with: see `trtcal search --help`.

    `samples` are for sensitivities, `evaluated` for whole plans; `build` compiles a quantized model.
    """

    limits: Limits
    gpu: Target
    precision: str = "fp16"
    samples: int = SAMPLES
    evaluated: int = 512
    evaluations: int = EVALUATIONS
    time_limit_s: float = math.inf
    batch: int = 1
    times: Times = field(default_factory=dict)
    build: Callable[[QuantizedModel], Measured] | None = None


@dataclass(frozen=True)
class Built:
    """A plan that was compiled: heavy layers that did not get INT8, bytes moved, or why it failed."""

    float_heavy: int | None
    bytes_moved: int | None
    failed: str | None = None


@dataclass(frozen=True)
class Result:
    """Everything that was found; `builds` by plan, where a compiler was given."""

    sensitivities: Sensitivities
    measure: str
    costs: Costs
    found: Found
    builds: dict[frozenset[str], Built]
    seconds: float


def silent(title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Report nothing."""
    return nullcontext(lambda done: None)


def memory_beside(folder: Path, model: Model, dataset: Dataset) -> Memory:
    """Return what was measured by earlier searches with this output folder."""
    return Memory(folder / REMEMBERED, {"model": model.fingerprint, "data": dataset.fingerprint})


def find_plans(
    model: Model,
    calibration: Calibration,
    dataset: Dataset,
    settings: Settings,
    memory: Memory,
    reporter: Reporter = silent,
) -> Result:
    """Search for the plans of a prepared model that are worth having.

    `InputError` if a limit is about labels or class scores that there are not.
    """
    started = time.monotonic()
    layers = sum(1 for _ in find_layers(model).layers)
    with reporter("sensitivity of layers", layers) as advance:
        seen = measure_sensitivities(model, calibration, dataset, settings.samples, memory, advance)
    measure = _measure(seen, settings.limits)
    shares = {one.layer: one.share(measure) for one in seen.layers}
    work = work_of(model, shares, next(dataset.batches(settings.batch)))
    costs = Costs(work, settings.gpu, settings.precision, settings.times)
    if settings.times:
        costs = replace(costs, source="layer times as given")
    until = started + settings.time_limit_s
    arguments = (dataset, settings.evaluated, settings.precision, memory)
    with Evaluator(model, calibration, list(shares), *arguments) as evaluator:
        if settings.build is not None and not settings.times:
            costs = _as_built(costs, evaluator, settings.build)
        with reporter("measuring plans", settings.evaluations) as advance:

            def evaluate(int8: frozenset[str]) -> Loss:
                loss = evaluator.loss(int8)
                advance(1)
                return loss

            wanted = (settings.limits, settings.evaluations, until)
            search = Search(shares, costs, evaluate, measure, *wanted)
            found = search.run()
        builds = _build_all(found.front, evaluator, settings, reporter)
    found = _without_dominated(found, builds, measure, search.limits)
    return Result(seen, measure, costs, found, builds, time.monotonic() - started)


def _measure(seen: Sensitivities, limits: Limits) -> str:
    """Return what to add up: divergence where outputs are class scores, else noise."""
    scores = seen.whole.kl is not None
    if limits.max_drop is not None and not scores:
        raise InputError("--max-drop wants class scores, which the outputs are not", "use --sqnr")
    return "kl" if scores and limits.sqnr is None else "noise"


def _as_built(
    costs: Costs, evaluator: Evaluator, build: Callable[[QuantizedModel], Measured]
) -> Costs:
    """Return the costs of the layers that a compiler makes, of all INT8, all float and all FP32."""
    everything = frozenset(evaluator.units)
    int8, floats = (build(evaluator.quantized(plan)).layers for plan in (everything, frozenset()))
    plain = build(evaluator.quantized(frozenset(), "fp32")).layers
    slow = replace(costs, precision="fp32")
    slow = replace(slow, times=listed_times(slow, int8, plain))
    times = listed_times(costs, int8, floats)
    source = "bytes of the layers that the compiler lists"
    return replace(costs, times=times, source=source, fp32_ms=slow.plan_ms(()))


def _build_all(
    front: Sequence[Point], evaluator: Evaluator, settings: Settings, reporter: Reporter
) -> dict[frozenset[str], Built]:
    if settings.build is None:
        return {}
    found = {}
    with reporter("building the front", len(front)) as advance:
        for point in front:
            try:
                made = settings.build(evaluator.quantized(point.int8))
                found[point.int8] = Built(made.float_heavy, made.bytes_moved)
            except BackendError as error:
                found[point.int8] = Built(None, None, error.message)
            advance(1)
    return found


def _without_dominated(
    found: Found, builds: dict[frozenset[str], Built], measure: str, limits: Limits
) -> Found:
    """Return the front without plans for which the compiler moves more bytes than for a better one.

    If the recommended plan is one of them, the better one that holds the limits takes its place.
    """
    beaten = {
        point.int8: rivals
        for point in found.front
        if (rivals := [one for one in found.front if _beats(one, point, builds, measure)])
    }
    best, reason = found.recommended, found.reason
    if best is not None and best.int8 in beaten:
        holding = [one for one in beaten[best.int8] if not limits.broken(one)]
        if holding:
            best = min(holding, key=lambda one: (_bytes(builds, one), one.loss.of(measure)))
            reason += "; of those, the compiler moves fewer bytes for another one, which loses less"
    front = tuple(one for one in found.front if one.int8 not in beaten or one is best)
    return replace(found, front=front, recommended=best, reason=reason)


def _beats(one: Point, other: Point, builds: dict[frozenset[str], Built], measure: str) -> bool:
    moved = _bytes(builds, one), _bytes(builds, other)
    if one is other or moved[0] is None or moved[1] is None:
        return False
    return one.loss.of(measure) <= other.loss.of(measure) and moved[0] < moved[1]


def _bytes(builds: dict[frozenset[str], Built], point: Point) -> int | None:
    built = builds.get(point.int8)
    return None if built is None else built.bytes_moved
