"""The limits of a history: the figures of the last run, and their changes against a baseline run."""

from __future__ import annotations

from collections.abc import Sequence

from trtcal.errors import InputError
from trtcal.limits import Figure, Judgement, Limit
from trtcal.runs.history import Entry

NO_BASELINE = "there is no baseline run with this figure"


def judge_run(limits: Sequence[Limit], before: Entry | None, after: Entry) -> tuple[Judgement, ...]:
    """Hold a run's figures to limits; `InputError` if it has no such figure.

    A limit on change is undecided without a baseline, or where that lacks the figure.
    """
    return tuple(one for limit in limits for one in _judge(limit, before, after))


def _judge(limit: Limit, before: Entry | None, after: Entry) -> list[Judgement]:
    keys = [key for key in after.figures if key[1] == limit.metric and limit.is_about(key[0])]
    if not keys or limit.in_slices:
        known = ", ".join(sorted({figure for _, figure in after.figures}))
        raise InputError(f"run {after.number} has no figure for {limit}", f"known: {known}")
    found = []
    for key in keys:
        value = _value(limit, before.figures.get(key) if before else None, after.figures[key])
        figure = None if value is None else Figure.exact(value)
        found.append(Judgement(limit, key[0], figure, "" if figure else NO_BASELINE))
    return found


def _value(limit: Limit, was: float | None, now: float) -> float | None:
    if not limit.is_change:
        return now
    if was is None or (limit.is_relative and not was):
        return None
    return 100.0 * (now / was - 1.0) if limit.is_relative else now - was
