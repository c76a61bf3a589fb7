"""Small passes that make a float model ready for Q/DQ without changing what it computes."""

from trtcal.passes.base import BrokenPassError, Pass, PassRecord
from trtcal.passes.preparing import PASSES, Prepared, prepare, prepare_with_record
from trtcal.passes.upgrade import raised_for_half

__all__ = [
    "PASSES",
    "BrokenPassError",
    "Pass",
    "PassRecord",
    "Prepared",
    "prepare",
    "prepare_with_record",
    "raised_for_half",
]
