"""Whether data look right to a model, asked before any time is spent on them."""

from trtcal.suspicion.checking import CORRECTED, SAMPLES, check_data
from trtcal.suspicion.words import Suspicion

__all__ = ["CORRECTED", "SAMPLES", "Suspicion", "check_data"]
