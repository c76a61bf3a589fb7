"""Which layers to leave out of INT8: what each loses and costs, and the plans worth having."""

from trtcal.evaluate.metrics import Loss
from trtcal.evaluate.search.limits import Limits, Point, Relief
from trtcal.evaluate.search.methods import MethodSettings, choose_methods
from trtcal.evaluate.search.pipeline import Result, Settings, cache_beside, find_plans
from trtcal.evaluate.search.sensitivity import (
    Sampling,
    Sensitivities,
    Sensitivity,
    measure_sensitivities,
)

__all__ = [
    "Limits",
    "Loss",
    "MethodSettings",
    "Point",
    "Relief",
    "Result",
    "Sampling",
    "Sensitivities",
    "Sensitivity",
    "Settings",
    "cache_beside",
    "choose_methods",
    "find_plans",
    "measure_sensitivities",
]
