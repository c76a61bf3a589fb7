"""The history of runs: figures and digests over time, what changed, and since when."""

from trtcal.history.against import against_last
from trtcal.history.changes import Shift, find_shifts
from trtcal.history.difference import RunDifference, compare_runs
from trtcal.history.figures import digests_of_run, figures_of_run
from trtcal.history.rules import Breach, parse_rule
from trtcal.history.store import Entry, History, default_path

__all__ = [
    "Breach",
    "Entry",
    "History",
    "RunDifference",
    "Shift",
    "against_last",
    "compare_runs",
    "default_path",
    "digests_of_run",
    "figures_of_run",
    "find_shifts",
    "parse_rule",
]
