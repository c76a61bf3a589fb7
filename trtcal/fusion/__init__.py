"""The fusion check: what should become one kernel, what breaks it, and what a compiler made of it."""

from trtcal.fusion.checking import Fusions, check_fusions
from trtcal.fusion.difference import Difference, diff_fusions, read_standings
from trtcal.fusion.evidence import LayerList, Seen, read_layers
from trtcal.fusion.matching import Match
from trtcal.fusion.mending import Mended, mend
from trtcal.fusion.patterns import Patterns, read_patterns

__all__ = [
    "Difference",
    "Fusions",
    "LayerList",
    "Match",
    "Mended",
    "Patterns",
    "Seen",
    "check_fusions",
    "diff_fusions",
    "mend",
    "read_layers",
    "read_patterns",
    "read_standings",
]
