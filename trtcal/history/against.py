"""A run held against the last one of its model: what got better, what worse, and what had changed."""

from __future__ import annotations

from pathlib import Path

from trtcal.history.difference import Changed, changed_inputs, compare_runs
from trtcal.history.figures import LABELS
from trtcal.history.store import Entry, History, entry_of
from trtcal.storage import Document, parsing

TIMED = ("latency_p50", "latency_p90", "latency_p99", "speedup")
NOISE = 0.05  # of times: two runs of the same thing may differ by that


def against_last(history: History, report: Document) -> Document | None:
    """Return plain JSON on a report and the last run before it, None if there was none.

    That is the run made last before it, of the same name or the same FP32 model. `figures` are those
    that differ, the verdict's candidate first, then the largest relative change; `better` is None where
    that cannot be said: a time within 5 %, or a count that is neither. `changed` and `same` name what
    both were made of: data, model, calibration, plans, packages, machine. A report without a comparison
    is held against none. `InputError` if the report lacks a field.
    """
    if report.get("comparison", {}) is None:
        return None
    now: Entry = parsing(Path("the report"), lambda: entry_of(report))
    before = history.before(now)
    if before is None:
        return None
    difference = compare_runs(before, now)
    own = sorted(difference.changed, key=lambda one: one.candidate != now.candidate)
    changed = changed_inputs(before, now)
    return {
        "run": {
            "number": before.number,
            "label": f"run {before.number} of {before.name}",
            "time": before.made_at,
            "digest": before.report,
            "verdict": before.verdict,
        },
        "figures": [_figure(one) for one in own],
        "changed": [
            {"what": what, "before": was, "now": now} for what, (was, now) in changed.items()
        ],
        "same": [what for what in now.digests if what not in changed],
    }


def _figure(one: Changed) -> Document:
    label, unit = LABELS.get(one.figure, (one.figure, ""))
    is_noise = one.figure in TIMED and one.share is not None and abs(one.share) <= NOISE
    return {
        "name": f"{one.candidate}: {label}",
        "candidate": one.candidate,
        "figure": one.figure,
        "unit": unit,
        "before": one.before,
        "now": one.after,
        "change": one.share,
        "better": None if is_noise else one.is_better,
    }
