"""What is tried on a model, what is found, and how much is wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from trtcal.evaluate.metrics import Loss, OwnMetric
from trtcal.model import Model
from trtcal.model.model import Int8Overrides
from trtcal.ptq.artifact import Changes, Optimizations
from trtcal.quantization import QuantizedModel, quantize
from trtcal.ranges import Calibration

QUICK = (
    "equalization",
    "smoothing",
    "splitting",
    "zero-centering",
    "bias correction",
)  # for `fast`


@dataclass(frozen=True)
class State:
    """What a model is after some optimizations: ranges, what changed in float, and what is for INT8 alone.

    `tables` are the ranges by method, before anything was found for INT8 alone.
    """

    calibration: Calibration
    tables: Mapping[str, Calibration] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    overrides: Int8Overrides = field(default_factory=Int8Overrides)

    @property
    def float_only(self) -> State:
        """The same without what is for INT8 alone."""
        return replace(self, overrides=Int8Overrides(moved=self.overrides.moved))


@dataclass(frozen=True)
class Try:
    """One optimization that was tried: what it is by which source, and the loss with it."""

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
    """The best that was found: optimizations, the model with them, and ranges for it."""

    optimizations: Optimizations
    optimized: Model
    calibration: Calibration
    tries: tuple[Try, ...]
    warnings: tuple[str, ...]

    @cached_property
    def quantized(self) -> QuantizedModel:
        """The optimized model with Q/DQ on every layer that takes INT8."""
        return quantize(self.optimized, self.calibration)


@dataclass(frozen=True)
class Wanted:
    """How much to try (`fast` or `best`), for how long (s), and what for."""

    effort: str = "fast"
    seconds: float = 600.0
    objective: str = "sqnr"
    metric: OwnMetric | None = None
    leave_out: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None

    def takes(self, optimization: str) -> bool:
        """Tell whether a optimization is to be tried."""
        within = QUICK if self.effort == "fast" else (optimization,)
        chosen = self.only is None or optimization in self.only
        return optimization in within and chosen and optimization not in self.leave_out
