"""What an engine's layers tell: shares, copies, chains, estimates, findings, and differences."""

from trtcal.engine.chains import Chain, find_chains
from trtcal.engine.difference import Difference, compare_engines
from trtcal.engine.flow import Flow, follow
from trtcal.engine.judging import examine, judge
from trtcal.engine.reading import Engine, read_engine
from trtcal.engine.reformats import Reformat, Unfused, find_reformats, find_unfused
from trtcal.engine.roofline import Estimate, Target, estimate, find_target, target_names
from trtcal.engine.shares import Share, share_by_kind, share_by_precision
from trtcal.engine.words import tell

__all__ = [
    "Chain",
    "Difference",
    "Engine",
    "Estimate",
    "Flow",
    "Reformat",
    "Share",
    "Target",
    "Unfused",
    "compare_engines",
    "estimate",
    "examine",
    "find_chains",
    "find_reformats",
    "find_target",
    "find_unfused",
    "follow",
    "judge",
    "read_engine",
    "share_by_kind",
    "share_by_precision",
    "target_names",
    "tell",
]
