"""Which layers to leave out of INT8: what each loses and costs, and the plans worth having."""

from trtcal.search.finding import Result, Settings, find_plans, memory_beside
from trtcal.search.gates import Limits, Point, Relief
from trtcal.search.losses import Loss
from trtcal.search.methods import choose_methods
from trtcal.search.sensitivity import Sensitivities, Sensitivity, measure_sensitivities

__all__ = [
    "Limits",
    "Loss",
    "Point",
    "Relief",
    "Result",
    "Sensitivities",
    "Sensitivity",
    "Settings",
    "choose_methods",
    "find_plans",
    "measure_sensitivities",
    "memory_beside",
]
