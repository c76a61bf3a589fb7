"""Whether data fit a model: checked on the FP32 model before time is spent on them."""

from trtcal.check.check import check_data
from trtcal.check.issues import DataCheck, DataIssue

__all__ = ["DataCheck", "DataIssue", "check_data"]
