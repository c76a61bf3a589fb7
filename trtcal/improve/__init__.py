"""Repairs: what can be changed in a model's constants so that INT8 loses less, tried and judged."""

from trtcal.improve.changes import layer_changes
from trtcal.improve.improving import improve, samples_to_hold_back
from trtcal.improve.repairs import Repairs, in_float, read_repairs, write_repairs
from trtcal.improve.saved import write_improved
from trtcal.improve.state import Improved, Try, Wanted

__all__ = [
    "Improved",
    "Repairs",
    "Try",
    "Wanted",
    "improve",
    "in_float",
    "layer_changes",
    "read_repairs",
    "samples_to_hold_back",
    "write_improved",
    "write_repairs",
]
