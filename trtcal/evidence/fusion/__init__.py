"""The fusion check: what should become one kernel, what breaks it, and what a compiler made of it."""

from trtcal.evidence.fusion.blockers import FixedModel, fix_fusions
from trtcal.evidence.fusion.check import Fusions, Seen, check_fusions
from trtcal.evidence.fusion.diff import diff_fusions, read_standings
from trtcal.evidence.fusion.matching import Match
from trtcal.evidence.fusion.patterns import Patterns, read_patterns

__all__ = [
    "FixedModel",
    "Fusions",
    "Match",
    "Patterns",
    "Seen",
    "check_fusions",
    "diff_fusions",
    "fix_fusions",
    "read_patterns",
    "read_standings",
]
