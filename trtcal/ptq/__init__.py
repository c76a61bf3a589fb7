"""Optimizations: what can be changed in a model's constants so that INT8 loses less, tried and judged."""

from trtcal.ptq.artifact import Optimizations, in_float, read_optimizations, write_optimizations
from trtcal.ptq.improver import LEAST, improve, parted
from trtcal.ptq.records import layer_changes, write_improved
from trtcal.ptq.state import Improved, Try, Wanted

__all__ = [
    "LEAST",
    "Improved",
    "Optimizations",
    "Try",
    "Wanted",
    "improve",
    "in_float",
    "layer_changes",
    "parted",
    "read_optimizations",
    "write_improved",
    "write_optimizations",
]
