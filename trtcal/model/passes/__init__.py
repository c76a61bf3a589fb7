"""Small passes that make a float model ready for Q/DQ without changing what it computes."""

from trtcal.model.passes.base import BrokenPassError, Pass, PassRecord
from trtcal.model.passes.preparation import PASSES, Prepared, prepare, prepare_with_record
from trtcal.model.passes.upgrade import raised
