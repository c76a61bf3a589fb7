"""Whether data look right to a model, asked before any time is spent on them."""

from trtcal.check.check import CORRECTED, SAMPLES, check_data
from trtcal.check.issues import DataIssue

__all__ = ["CORRECTED", "SAMPLES", "DataIssue", "check_data"]
