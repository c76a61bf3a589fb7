"""Candidates against the FP32 reference: accuracy, agreement, latency, with intervals."""

from trtcal.compare.comparison import (
    Candidate,
    Comparison,
    Gates,
    compare,
    open_candidate,
    read_comparison,
    write_comparison,
)

__all__ = [
    "Candidate",
    "Comparison",
    "Gates",
    "compare",
    "open_candidate",
    "read_comparison",
    "write_comparison",
]
