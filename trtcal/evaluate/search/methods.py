"""Which calibrator where: a method for each tensor, by what it does to the outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trtcal.calibration import Observation, calibrate
from trtcal.data import Dataset
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.search.plan_loss import Evaluator, Plans, Reference
from trtcal.evaluate.search.segments import Rerun
from trtcal.evaluate.search.sensitivity import SAMPLES
from trtcal.evaluate.tasks import TaskReader
from trtcal.model import Model
from trtcal.ranges import Calibration, TensorRange

METHODS = ("percentile", "minmax", "entropy", "mse")
NAME = "searched"
SAME = 0.01  # ranges that differ by less are one


@dataclass(frozen=True)
class Choice:
    """One tensor's method, and the loss of the whole INT8 model with each that was tried there."""

    tensor: str
    method: str
    losses: Mapping[str, float]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"tensor": self.tensor, "method": self.method, "losses": dict(self.losses)}


@dataclass(frozen=True)
class Chosen:
    """The calibration that loses least, what the others lose, and the choices tensor by tensor."""

    calibration: Calibration
    losses: Mapping[str, Loss]
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class MethodSettings:
    """The methods to choose from; on how many samples tensors are judged, and whole tables.

    `reader` has the task that is judged.
    """

    methods: Sequence[str] = METHODS
    samples: int = SAMPLES
    evaluated: int = 512
    reader: TaskReader = field(default_factory=TaskReader)


def choose_methods(
    model: Model,
    observation: Observation,
    dataset: Dataset,
    cache: EvaluationCache,
    settings: MethodSettings | None = None,
) -> Chosen:
    """Choose tensor by tensor, all others as the best of the methods has them, then judge the whole.

    Tables are judged with every layer in INT8. Where the choices together lose more than one method
    everywhere, that method's ranges are returned.
    """
    wanted = settings or MethodSettings()
    tables = {method: calibrate(observation, method) for method in wanted.methods}
    with Reference(model, dataset, wanted.evaluated, reader=wanted.reader) as reference:

        def judge(table: Calibration) -> Loss:
            return Evaluator(Plans(model, table), reference, cache).loss()

        losses = {name: judge(table) for name, table in tables.items()}
        measure = "noise" if losses[wanted.methods[0]].kl is None else "kl"
        order = sorted(tables, key=lambda name: losses[name].of(measure))
        tables = {name: tables[name] for name in order}
        with Rerun(model, tables[order[0]], dataset, wanted.samples, reader=wanted.reader) as rerun:
            choices = tuple(_choices(rerun, tables, measure, cache))
        made = _assembled(tables, choices)
        losses[NAME] = judge(made)
    best = min(losses, key=lambda name: losses[name].of(measure))
    return Chosen(made if best == NAME else tables[best], losses, choices)


def _choices(
    rerun: Rerun, tables: Mapping[str, Calibration], measure: str, cache: EvaluationCache
) -> Iterator[Choice]:
    first, *others = tables
    for source, scales in rerun.ranges():
        losses = {first: 0.0}
        for method in others:
            amax = tables[method].ranges[source].amax
            if abs(amax / tables[first].ranges[source].amax - 1) < SAME:
                continue
            key = {"tensor": source, "amax": amax, "beside": tables[first].digest}
            loss = cache.recall(key, partial(rerun.loss_with_range, scales, amax))
            usual = rerun.whole(loss.samples)
            losses[method] = loss.of(measure) - usual.of(measure)
        yield Choice(source, min(losses, key=lambda name: losses[name]), losses)


def _assembled(tables: Mapping[str, Calibration], choices: Sequence[Choice]) -> Calibration:
    """Return the table with each tensor's range from its method, which the note names."""
    first = next(iter(tables.values()))
    ranges = dict(first.ranges)
    for choice in choices:
        chosen: TensorRange = tables[choice.method].ranges[choice.tensor]
        note = "; ".join(
            filter(None, [f"{choice.method}, by what it does to the outputs", chosen.note])
        )
        ranges[choice.tensor] = dataclasses.replace(chosen, note=note)
    parameters: dict[str, int | float | str] = {"methods": " ".join(tables)}
    return dataclasses.replace(first, method=NAME, parameters=parameters, ranges=ranges)
