"""The history of runs: figures and digests over time, what changed, and since when."""

from trtcal.runs.diff import RunDifference, against_last, compare_runs
from trtcal.runs.figures import digests_of_run, figures_of_run
from trtcal.runs.history import Entry, History, default_path
from trtcal.runs.limits import judge_run
from trtcal.runs.series import Shift, find_shifts

__all__ = [
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
    "judge_run",
]
