"""Per layer: the loss of quantizing it alone, and of leaving it alone in float."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from trtcal.calibration import Calibration
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.errors import InputError
from trtcal.model import Model
from trtcal.quantize import find_layers, quantize
from trtcal.search.losses import Loss
from trtcal.search.memory import Memory
from trtcal.search.rerun import Rerun
from trtcal.search.segments import Twins

SAMPLES = 64
BATCH = 8
TOLERANCE = 0.1  # relative standard error of a layer's mean error power, or of its equal share


@dataclass(frozen=True)
class Sensitivity:
    """One layer: `alone` is the loss with nothing else quantized, `left` with all others quantized.

    `whole` is that with all quantized, on the samples of `left`.
    """

    layer: str
    op: str
    alone: Loss
    left: Loss
    whole: Loss

    def share(self, measure: str) -> float:
        """Return the layer's part of the whole loss: the mean of what it adds first and last."""
        last = max(self.whole.of(measure) - self.left.of(measure), 0.0)
        return (max(self.alone.of(measure), 0.0) + last) / 2

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        losses = {name: getattr(self, name).to_document() for name in ("alone", "left", "whole")}
        return {"layer": self.layer, "op": self.op, **losses}


@dataclass(frozen=True)
class Sensitivities:
    """All layers that a plan decides on, in graph order, and the loss with all of them in INT8."""

    layers: tuple[Sensitivity, ...]
    whole: Loss


def measure_sensitivities(
    model: Model,
    calibration: Calibration,
    dataset: Dataset,
    samples: int = SAMPLES,
    memory: Memory | None = None,
    progress: Callable[[int], None] = lambda done: None,
    tolerance: float = TOLERANCE,
) -> Sensitivities:
    """Measure every layer of a prepared model on the first samples of a dataset.

    A layer whose loss is known to `tolerance` earlier is not run on all of them; 0 runs all.
    Nodes that are quantized only because their neighbours are stay quantized in `left`.
    """
    memory = memory or Memory(None, {})
    quantized = quantize(model, calibration)
    twins = Twins(model, quantized.proto)
    ops = {one.name: one.op for one in find_layers(model).layers if one.name in twins.quantizable}
    if not ops:
        raise InputError("no layer has the ranges to be quantized", "calibrate the model again")
    size = fixed_batch(model) or BATCH
    found = dict[str, Sensitivity]()
    with Rerun(twins, list(ops), dataset, samples, size, tolerance) as rerun:
        of = {"calibration": calibration.digest, "samples": rerun.samples, "tolerance": tolerance}
        for name, alone, left in _measured(rerun, twins.quantizable, memory, of):
            found[name] = Sensitivity(name, ops[name], alone, left, rerun.whole(left.samples))
            progress(1)
        whole = rerun.whole()
    return Sensitivities(tuple(found[name] for name in ops), whole)


def _measured(
    rerun: Rerun, quantizable: Collection[str], memory: Memory, of: dict[str, Any]
) -> Iterator[tuple[str, Loss, Loss]]:
    for place, segment in rerun.segments():
        for name in segment.units:
            others = set(quantizable) - {name}
            alone = memory.recall(
                {**of, "alone": name}, partial(rerun.loss, "float", place, {name})
            )
            left = memory.recall({**of, "left": name}, partial(rerun.loss, "int8", place, others))
            yield name, alone, left
