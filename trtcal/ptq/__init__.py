"""Post-training optimization: changes without training with which INT8 loses less accuracy."""

from trtcal.ptq.artifact import Optimizations, in_float, read_optimizations, write_optimizations
from trtcal.ptq.improver import MIN_SAMPLES, Improved, Try, improve, split_samples, write_improved
from trtcal.ptq.optimizations import OPTIMIZATIONS, ImproveOptions, Optimization

__all__ = [
    "MIN_SAMPLES",
    "OPTIMIZATIONS",
    "ImproveOptions",
    "Improved",
    "Optimization",
    "Optimizations",
    "Try",
    "improve",
    "in_float",
    "read_optimizations",
    "split_samples",
    "write_improved",
    "write_optimizations",
]
