"""Candidates against the FP32 reference: accuracy, agreement, latency, with intervals."""

from trtcal.compare.candidates import Candidate, open_candidate
from trtcal.compare.comparison import (
    Comparison,
    Gates,
    compare,
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
