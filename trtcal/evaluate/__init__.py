"""Candidates against the FP32 reference: accuracy, agreement, latency, with intervals."""

from trtcal.evaluate.comparison import Comparison, Gates, compare, read_comparison, write_comparison
from trtcal.evaluate.variants import Candidate, open_candidate

__all__ = [
    "Candidate",
    "Comparison",
    "Gates",
    "compare",
    "open_candidate",
    "read_comparison",
    "write_comparison",
]
