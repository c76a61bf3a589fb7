"""Variants against the FP32 reference: accuracy, agreement, latency, with intervals."""

from trtcal.evaluate.comparison import (
    CompareSettings,
    Comparison,
    compare,
    read_comparison,
    write_comparison,
)
from trtcal.evaluate.variants import Variant, open_variant

__all__ = [
    "CompareSettings",
    "Comparison",
    "Variant",
    "compare",
    "open_variant",
    "read_comparison",
    "write_comparison",
]
