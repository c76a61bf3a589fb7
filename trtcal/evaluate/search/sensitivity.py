"""Per layer: the loss of quantizing it alone, and of leaving it alone in float."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trtcal.data import Dataset
from trtcal.data.dataset import whole_batches
from trtcal.documents import Document, from_fields
from trtcal.documents.overview import Columns, Overview, Shown
from trtcal.errors import InputError, __version__, some
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.search.segments import TOLERANCE, Rerun
from trtcal.evaluate.tasks import TaskReader
from trtcal.model import Model
from trtcal.ranges import Calibration

SAMPLES = 64
NAMES = {"kl": "KL", "noise": "noise"}
LOSSES = ("alone", "left", "whole")


@dataclass(frozen=True)
class Sensitivity(Shown):
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
        last = max(0.0, self.whole.of(measure) - self.left.of(measure))  # 0 if both are infinite
        return (max(self.alone.of(measure), 0.0) + last) / 2

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        losses = {name: getattr(self, name).to_document() for name in LOSSES}
        return {"layer": self.layer, "op": self.op, **losses}


def shares_in(document: Document, key: str = "layers") -> dict[str, float]:
    """Return each layer's part of the loss of all INT8, from a document with sensitivities at `key`.

    Layers whose loss is infinite are left out.
    """
    shares, measure = dict[str, float](), str(document["measure"])
    for row in document[key]:
        if all(row[name]["noise"] is not None for name in LOSSES):
            losses = {name: from_fields(Loss, row[name]) for name in LOSSES}
            layer = Sensitivity(row["layer"], row["op"], **losses)
            shares[layer.layer] = layer.share(measure) / (layer.whole.of(measure) or 1.0)
    return shares


@dataclass(frozen=True)
class Sensitivities(Shown):
    """All layers that a plan decides on, in graph order, and the loss with all of them in INT8.

    `missing` are the last of them, which there was no time to measure.
    """

    layers: tuple[Sensitivity, ...]
    whole: Loss
    missing: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The layers, those not measured too."""
        return [*(layer.layer for layer in self.layers), *self.missing]

    @property
    def measure(self) -> str:
        """What adds up best: divergence where outputs are class scores, else noise."""
        return "noise" if self.finite.kl is None else "kl"

    @property
    def finite(self) -> Loss:
        """The first loss with finite outputs, which has all figures there are; `whole` if none has."""
        losses = [self.whole, *(loss for row in self.layers for loss in (row.alone, row.left))]
        return next((loss for loss in losses if loss.is_fit), self.whole)

    @property
    def ranked(self) -> list[Sensitivity]:
        """The layers, those with the largest share of the loss first."""
        return sorted(self.layers, key=lambda layer: -layer.share(self.measure))

    def overview(self) -> Overview:
        """Return the layers, those with the largest share of the loss first."""
        measure, name = self.measure, NAMES[self.measure]
        total, is_fit = self.whole.of(measure) or 1.0, self.whole.is_fit
        columns: Columns = {
            "layer": "{layer}",
            "op": "{op}",
            "share": lambda row: f"{row.share(measure) / total:.1%}" if is_fit else "-",
            f"{name} alone": lambda row: f"{row.alone.of(measure):.3g}",
            f"{name} with the layer in float": lambda row: f"{row.left.of(measure):.3g}",
            "SQNR dB alone": "{alone.sqnr_db:.2f}",
            "SQNR dB, layer in float": "{left.sqnr_db:.2f}",
            "samples": "{left.samples}",
        }
        facts = (f"the largest share of the loss: {some(row.layer for row in self.ranked)}",)
        title = f"{len(self.layers)} layers; all INT8: {name} {self.whole.of(measure):.3g}, SQNR "
        title += f"{self.whole.sqnr_db:.2f} dB, {self.whole.samples} samples"
        return Overview(title, facts, things=self.ranked, columns=columns, missing="")

    def to_document(self, of: dict[str, Any]) -> Document:
        """Return the JSON form, the layers ranked; `of` says what was measured with what."""
        pairs = [(row, row.share(self.measure)) for row in self.ranked]
        layers = [row.to_document() | {"share": s if s < math.inf else None} for row, s in pairs]
        return {
            "kind": "sensitivity",
            "schema_version": 1,
            "trtcal": __version__,
            **of,
            "measure": self.measure,
            "whole": self.whole.to_document(),
            "layers": layers,
        }

    def shares(self, measure: str) -> dict[str, float]:
        """Return each layer's part of the whole loss; missing ones share evenly what is left of it."""
        shares = {layer.layer: layer.share(measure) for layer in self.layers}
        rest = max(0.0, self.whole.of(measure) - sum(shares.values()))
        return shares | {name: rest / len(self.missing) for name in self.missing}


@dataclass(frozen=True)
class Sampling(Shown):
    """On how many samples layers are measured, the first of a dataset, and for how long.

    A layer whose loss is known to `tolerance` earlier is not run on all of them; 0 runs all. No
    further layer is measured once it `may` not. `reader` has the task that is judged.
    """

    samples: int = SAMPLES
    tolerance: float = TOLERANCE
    may: Callable[[], bool] = lambda: True
    reader: TaskReader = field(default_factory=TaskReader)


def measure_sensitivities(
    model: Model,
    calibration: Calibration,
    dataset: Dataset,
    settings: Sampling | None = None,
    cache: EvaluationCache | None = None,
    progress: Callable[[int], None] = lambda done: None,
    precision: str = "int8",
) -> Sensitivities:
    """Measure every layer of a prepared model that can be quantized to `precision`.

    Nodes that are quantized only because their neighbours are stay quantized in `left`.
    """
    settings, cache = settings or Sampling(), cache or EvaluationCache(None, {})
    tolerance = settings.tolerance
    sensitivities = dict[str, Sensitivity]()
    samples = whole_batches(settings.samples, model)
    options = samples, tolerance, settings.reader, precision
    with Rerun(model, calibration, dataset, *options) as rerun:
        if not rerun.ops:
            word = precision.upper()
            raise InputError(
                f"no layer has the ranges that {word} needs", "calibrate the model again"
            )
        of = {"calibration": calibration.digest, "samples": rerun.samples, "tolerance": tolerance}
        of |= {} if precision == "int8" else {"precision": precision}
        for name, alone, left in _measured(rerun, cache, of, settings.may):
            losses = (alone, left, rerun.whole(left.samples))
            sensitivities[name] = Sensitivity(name, rerun.ops[name], *losses)
            progress(1)
        whole = rerun.whole()
    missing = tuple(name for name in rerun.ops if name not in sensitivities)
    return Sensitivities(tuple(sensitivities.values()), whole, missing)


def _measured(
    rerun: Rerun, cache: EvaluationCache, of: dict[str, Any], may: Callable[[], bool]
) -> Iterator[tuple[str, Loss, Loss]]:
    for place, segment in rerun.segments():
        for name in segment.units:
            first, last = {**of, "alone": name}, {**of, "left": name}
            if not may() and not (cache.knows(first) and cache.knows(last)):
                return
            others = rerun.pair.quantizable - {name}
            alone = cache.recall(first, partial(rerun.loss, "float", place, {name}))
            left = cache.recall(last, partial(rerun.loss, "int8", place, others))
            yield name, alone, left
