"""Repairs: what can be changed in a model's constants so that INT8 loses less, tried and judged."""

from trtcal.improve.changes import layer_changes
from trtcal.improve.choosing import METHODS, Choice, choose_method
from trtcal.improve.improving import LEAST, improve, parted
from trtcal.improve.repairs import Repairs, in_float, read_repairs, write_repairs
from trtcal.improve.saved import write_improved
from trtcal.improve.state import Improved, Try, Wanted

__all__ = [
    "LEAST",
    "METHODS",
    "Choice",
    "Improved",
    "Repairs",
    "Try",
    "Wanted",
    "choose_method",
    "improve",
    "in_float",
    "layer_changes",
    "parted",
    "read_repairs",
    "write_improved",
    "write_repairs",
]
