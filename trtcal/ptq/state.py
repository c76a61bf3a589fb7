"""What is tried on a model, what is found, and how much is wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from trtcal.evaluate.metrics import OwnMetric
from trtcal.evaluate.search.losses import Loss
from trtcal.model import Model
from trtcal.model.overrides import Overlay
from trtcal.ptq.artifact import Changes, Repairs
from trtcal.quantization import QuantizedModel, quantize
from trtcal.ranges import Calibration

QUICK = ("equalization", "smoothing", "splitting", "centring", "bias correction")  # for `fast`


@dataclass(frozen=True)
class State:
    """What a model is after some repairs: ranges, what changed in float, and what is for INT8 alone.

    `tables` are the ranges by method, before anything was found for INT8 alone.
    """

    calibration: Calibration
    tables: Mapping[str, Calibration] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    overlay: Overlay = field(default_factory=Overlay)

    @property
    def float_only(self) -> State:
        """The same without what is for INT8 alone."""
        return replace(self, overlay=Overlay(moved=self.overlay.moved))


@dataclass(frozen=True)
class Try:
    """One repair that was tried: what it is by which source, and the loss with it."""

    name: str
    what: str
    loss: Loss
    value: float
    kept: bool
    seconds: float

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form of what does not change from run to run."""
        value = self.value if math.isfinite(self.value) else None
        fields = {"name": self.name, "what": self.what, "kept": self.kept, "value": value}
        return {**fields, "loss": self.loss.to_document()}


@dataclass(frozen=True)
class Improved:
    """The best that was found: repairs, the model with them, and ranges for it."""

    repairs: Repairs
    repaired: Model
    calibration: Calibration
    tries: tuple[Try, ...]
    warnings: tuple[str, ...]

    @cached_property
    def quantized(self) -> QuantizedModel:
        """The repaired model with Q/DQ on every layer that takes INT8."""
        return quantize(self.repaired, self.calibration)


@dataclass(frozen=True)
class Wanted:
    """How much to try (`fast` or `best`), for how long (s), and what for."""

    effort: str = "fast"
    seconds: float = 600.0
    objective: str = "sqnr"
    metric: OwnMetric | None = None
    leave_out: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None

    def takes(self, repair: str) -> bool:
        """Tell whether a repair is to be tried."""
        within = QUICK if self.effort == "fast" else (repair,)
        chosen = self.only is None or repair in self.only
        return repair in within and chosen and repair not in self.leave_out
