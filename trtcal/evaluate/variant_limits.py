"""The limits of a comparison, held against every variant's figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trtcal.errors import InputError
from trtcal.limits import HOLDS, METRICS, Figure, Judgement, Limit, overall, parse_limit
from trtcal.stats import LEVEL, Interval, holm_levels, one_sided, paired_difference, proportion

if TYPE_CHECKING:
    from trtcal.evaluate.comparison import Comparison, Row
    from trtcal.evaluate.groups import Group

ACCURACY = ("top1", "top5", "agreement", "sqnr_db", "cosine", "kl", "l0", "l1", "l2", "linf")
PERCENTILES = {"latency_p50": "p50_ms", "latency_p90": "p90_ms", "latency_p99": "p99_ms"}
COMPARED = (*ACCURACY, "top1_drop", "speedup", *PERCENTILES, "size_bytes")
"""The metrics that a comparison measures, beside the user's own."""
DEFAULT = ("top1 >= -1.0", "agreement >= -1.0")
"""The limit on accuracy where none is given: with labels, without."""

Judged = dict[str, tuple[Judgement, ...]]
"""Variant -> its limits."""


def is_compared(limit: Limit) -> bool:
    """Tell whether a limit is about what a comparison measures, figures of own metrics included."""
    return limit.metric in COMPARED or (limit.metric not in METRICS and not limit.is_of_findings)


def with_default(limits: Sequence[Limit], reference: Row) -> tuple[Limit, ...]:
    """Return the limits, with the default one on accuracy if none is about the outputs."""
    about_outputs = [limit for limit in limits if limit.metric not in _TIMED]
    if any(map(is_compared, about_outputs)) or reference.accuracy.agreement is None:
        return tuple(limits)
    return (parse_limit(DEFAULT[reference.accuracy.top1 is None]), *limits)


def judge_variants(comparison: Comparison) -> Judged:
    """Hold every variant to the limits, at levels at which all of the k variants hold together.

    The best of k variants holds by chance more often than one does: Holm's correction, see
    `trtcal.stats.holm_levels`. `InputError` if a limit is about a variant that there is not.
    """
    reference, *rows = comparison.rows
    limits = list(filter(is_compared, with_default(comparison.limits, reference)))
    _check_variants(limits, [row.name for row in rows])

    def judged(index: int, level: float) -> tuple[Judgement, ...]:
        return judge_row(limits, rows[index], reference, level)

    levels = holm_levels(lambda i, level: overall(judged(i, level)) == HOLDS, len(rows))
    return {row.name: judged(i, levels[i]) for i, row in enumerate(rows)}


def _check_variants(limits: Iterable[Limit], names: Sequence[str]) -> None:
    for limit in limits:
        if limit.variant is not None and limit.variant not in names:
            hint = f"compared are {', '.join(names)}"
            raise InputError(f"the limit {limit} is about no variant", hint)


def judge_row(
    limits: Sequence[Limit], row: Row, reference: Row, level: float = LEVEL
) -> tuple[Judgement, ...]:
    """Hold one variant to the limits that are about it."""
    found = []
    for limit in limits:
        if limit.is_about(row.name):
            own = one_sided(level) if _is_of_pairs(limit) else level
            ends = _ends(limit, row, reference, own)
            samples = None if limit.metric in _TIMED else row.accuracy.samples
            figure = None if ends is None else Figure(*_triple(ends), samples, own)
            reason = "" if figure else _reason(limit, row)
            found.append(Judgement(limit, row.name, figure, reason))
    return tuple(found)


WITHOUT_INTERVAL = ("top5", "cosine", "kl", "l0", "l1", "l2", "linf")
"""Metrics of which a comparison keeps the mean alone, which decides nothing."""
_TIMED = ("speedup", *PERCENTILES, "size_bytes")


def _is_of_pairs(limit: Limit) -> bool:
    """Tell whether a limit is about pairs of right and wrong answers, as an A/B test judges them."""
    return limit.metric == "top1_drop" or (
        limit.is_change and limit.metric in ("top1", "agreement")
    )


def _triple(ends: Interval) -> tuple[float, float, float]:
    return ends.value, ends.low, ends.high


def _reason(limit: Limit, row: Row) -> str:
    if limit.in_slices:
        return "compare judges no slices: `trtcal ab --slices` does"
    if limit.metric in WITHOUT_INTERVAL and getattr(row.accuracy, limit.metric) is not None:
        return "compare keeps no interval of it: `trtcal ab` judges it"
    if limit.metric in ("top1", "top5", "top1_drop"):
        return (
            "the data have no labels" if row.accuracy.agreement is not None else "no class scores"
        )
    if limit.metric in METRICS:
        return "the first output has no class scores"
    if any(group.name == limit.metric for group in row.own):
        return "compare keeps the interval of its change alone: give the bound a sign"
    return "no such figure: --metric-file gives one's own"


def _ends(limit: Limit, row: Row, reference: Row, level: float) -> Interval | None:
    """Return the figure that a limit is about, with its interval; None if it was not measured."""
    if limit.in_slices:
        return None
    if limit.metric == "speedup" or (limit.metric == "latency_p50" and limit.is_relative):
        return _speed(limit, row, level)
    if _is_of_pairs(limit):
        return _change_of_pairs(limit, row, reference, level)
    own = next((group for group in row.own if group.name == limit.metric), None)
    if own is not None:
        return _of_own(limit, own, level)
    if limit.metric in ("top1", "top5", "agreement") and not limit.is_change:
        return _right(_value(limit.metric, row), row.accuracy.samples, level)
    if limit.metric in WITHOUT_INTERVAL:
        return None
    return _plain(limit, _value(limit.metric, row), _value(limit.metric, reference))


def _of_own(limit: Limit, own: Group, level: float) -> Interval | None:
    """Return the change of a figure of an own metric; of the figure itself no interval is kept."""
    if not limit.is_change or limit.is_relative:
        return None
    return Interval(own.drop, *own.interval).scaled(-1.0).at_level(level)


def _right(percent: float | None, samples: int, level: float) -> Interval | None:
    """Return a share of right answers with its exact interval, in percent."""
    if percent is None:
        return None
    return proportion(round(percent * samples / 100), samples, level).scaled(100.0)


def _speed(limit: Limit, row: Row, level: float) -> Interval:
    logs = [
        math.log(max(one, 1e-9)) for one in (row.latency.speedup, *row.latency.speedup_interval)
    ]
    ends = Interval(*logs).at_level(level)
    ratio = [math.exp(one) for one in _triple(ends)]
    if limit.metric == "latency_p50":
        value, low, high = (100.0 * (1.0 / one - 1.0) for one in (ratio[0], ratio[2], ratio[1]))
        return Interval(value, low, high)
    start, factor = (1.0 if limit.is_change else 0.0), (100.0 if limit.is_relative else 1.0)
    return Interval(*(factor * (one - start) for one in ratio))


def _change_of_pairs(limit: Limit, row: Row, reference: Row, level: float) -> Interval | None:
    """Return the change of top-1 or agreement (the reference's is 100 %), in points or in percent."""
    accuracy = row.accuracy
    if limit.metric == "agreement":
        if accuracy.agreement is None:
            return None
        lost = accuracy.samples - round(accuracy.agreement * accuracy.samples / 100)
        drop = paired_difference(lost, 0, accuracy.samples, level, strict=True)
        return drop.within(min(0.0, drop.value), 1.0).scaled(-100.0)
    if accuracy.top1_lost is None or accuracy.top1_won is None:
        return None
    counts = (accuracy.top1_lost, accuracy.top1_won, accuracy.samples)
    drop = paired_difference(*counts, level, strict=True).scaled(100.0)
    base = reference.accuracy.top1
    if limit.metric == "top1_drop":
        return drop
    return drop.scaled(-100.0 / base if limit.is_relative and base else -1.0)


def _value(metric: str, row: Row) -> float | None:
    if metric == "size_bytes":
        return float(row.size_bytes)
    if metric in PERCENTILES:
        return float(getattr(row.latency, PERCENTILES[metric]))
    if metric == "sqnr_db" and row.accuracy.sqnr_db is None:
        return math.inf  # no error at all
    return getattr(row.accuracy, metric, None)


def _plain(limit: Limit, value: float | None, base: float | None) -> Interval | None:
    """Return a figure without an interval, or its change."""
    if value is None or (limit.is_change and base is None):
        return None
    if limit.is_change and base is not None:
        value = 100.0 * (value / base - 1.0) if limit.is_relative and base else value - base
    return None if math.isnan(value) else Interval(value, value, value)
