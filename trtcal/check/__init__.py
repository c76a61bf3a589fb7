"""Whether data look right to a model, asked before any time is spent on them."""

from trtcal.check.check import CORRECTED, SAMPLES, check_data
from trtcal.check.issues import Suspicion

__all__ = ["CORRECTED", "SAMPLES", "Suspicion", "check_data"]
