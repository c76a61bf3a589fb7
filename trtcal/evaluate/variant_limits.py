"""The limits of a comparison, held against every variant's figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trtcal.errors import InputError
from trtcal.evaluate.accuracy import PERCENT, REACH, Mean, blind, sqnr_interval
from trtcal.evaluate.tasks import LEAST, SUGGESTED, default_limits, no_usual_limit, unlimited
from trtcal.limits import (
    BROKEN,
    HOLDS,
    METRICS,
    SHARES,
    Figure,
    Judgement,
    Limit,
    overall,
    parse_limit,
    parse_limits,
)
from trtcal.stats import LEVEL, Interval, holm_levels, one_sided, paired_difference

if TYPE_CHECKING:
    from trtcal.evaluate.comparison import Comparison, Row

OF_ERRORS = ("cosine", "relative_error", "score_error", "kl", "l0", "l1", "l2", "linf")
BY_LABELS = ("jaccard", "map", "map50", "miou", "mae")
ACCURACY = ("top1", "top5", *BY_LABELS, "agreement", "sqnr_db", *OF_ERRORS)
PERCENTILES = {"latency_p50": "p50_ms", "latency_p90": "p90_ms", "latency_p99": "p99_ms"}
COMPARED = (*ACCURACY, "top1_drop", "speedup", *PERCENTILES, "size_bytes", *SHARES)
"""The metrics that a comparison measures, beside the user's own."""
Judged = dict[str, tuple[Judgement, ...]]
"""Variant -> its limits."""


def is_compared(limit: Limit) -> bool:
    """Tell whether a limit is about what a comparison measures, figures of own metrics included."""
    return limit.metric in COMPARED or (limit.metric not in METRICS and not limit.is_of_findings)


def with_default(comparison: Comparison) -> tuple[Limit, ...]:
    """Return the limits, with the default ones of the task if none is about the outputs."""
    if about_outputs(comparison.limits):
        return comparison.limits
    first = comparison.rows[0]
    known = {*first.means} | ({"top1"} if first.accuracy.top1 is not None else set())
    return (*parse_limits(default_limits(comparison.task.outputs, known)), *comparison.limits)


def is_about_times(limit: Limit) -> bool:
    """Tell whether a limit is about how long a variant takes."""
    return limit.metric == "speedup" or limit.metric in PERCENTILES


def about_outputs(limits: Iterable[Limit]) -> list[Limit]:
    """Return the limits that are about what the outputs are."""
    return [limit for limit in limits if limit.metric not in NOT_OF_OUTPUTS and is_compared(limit)]


def without_limit(comparison: Comparison) -> list[str]:
    """Return the outputs that no limit is about."""
    metrics = [limit.metric for limit in about_outputs(with_default(comparison))]
    return unlimited(comparison.task.outputs, metrics)


def judge_variants(comparison: Comparison) -> Judged:
    """Hold every variant to the limits, at levels at which all of the k variants hold together.

    The best of k variants holds by chance more often than one does: Holm's correction, see
    `trtcal.stats.holm_levels`. Without limits on the outputs those that have no default one are held
    to a suggested one, which decides nothing. `InputError` if a limit is about an unknown variant.
    """
    reference, rows = comparison.rows[0], comparison.candidates
    limits = list(filter(is_compared, with_default(comparison)))
    _check_variants(limits, [row.name for row in rows])
    suggested = [] if about_outputs(comparison.limits) else without_limit(comparison)

    def judged(index: int, level: float) -> tuple[Judgement, ...]:
        found = judge_row(limits, rows[index], reference, level)
        found = tuple(_contrasted(one, comparison) for one in found)
        return (*found, *_suggested(suggested, rows[index], reference, level))

    levels = holm_levels(lambda i, level: overall(judged(i, level)) == HOLDS, len(rows))
    return {row.name: judged(i, levels[i]) for i, row in enumerate(rows)}


def _suggested(
    outputs: Sequence[str], row: Row, reference: Row, level: float
) -> tuple[Judgement, ...]:
    if not outputs:
        return ()
    found = judge_row([parse_limit(SUGGESTED)], row, reference, level)
    return tuple(replace(one, reason=no_usual_limit(outputs)) for one in found)


def _contrasted(one: Judgement, comparison: Comparison) -> Judgement:
    """Return a judgement that decides nothing where the outputs for other samples would hold too."""
    value = comparison.task.contrast.get(one.limit.metric)
    if value is None or one.figure is None or one.state == BROKEN:
        return one
    means = comparison.rows[0].means
    base = means[one.limit.metric].value.mean if one.limit.metric in means else 0.0
    return replace(one, reason=blind(one.limit, value, base))


def _check_variants(limits: Iterable[Limit], names: Sequence[str]) -> None:
    for limit in limits:
        if limit.variant is not None and limit.variant not in names:
            hint = f"the compared variants are: {', '.join(names)}"
            raise InputError(f"the limit {limit} names a variant that is not compared", hint)


def judge_row(
    limits: Sequence[Limit], row: Row, reference: Row, level: float = LEVEL
) -> tuple[Judgement, ...]:
    """Hold one variant to the limits that are about it."""
    found = []
    for limit in limits:
        if limit.is_about(row.name):
            own = one_sided(level) if _is_of_pairs(limit, row) else level
            ends = _ends(limit, row, reference, own)
            samples = None if limit.metric in NOT_OF_OUTPUTS else row.accuracy.samples
            figure = None if ends is None else Figure(*_triple(ends), samples, own)
            reason = "" if figure else _reason(limit, row)
            found.append(Judgement(limit, row.name, figure, reason))
    return tuple(found)


NOT_OF_OUTPUTS = ("speedup", *PERCENTILES, "size_bytes", *SHARES)
"""Metrics that say nothing of what the outputs are."""


def _is_of_pairs(limit: Limit, row: Row) -> bool:
    """Tell whether a limit is about pairs of right and wrong answers, as an A/B test judges them."""
    if limit.metric == "top1_drop" or (limit.is_change and limit.metric == "top1"):
        return True
    mean = row.means.get(limit.metric)
    return limit.is_change and mean is not None and mean.lost is not None


def _triple(ends: Interval) -> tuple[float, float, float]:
    return ends.value, ends.low, ends.high


def _reason(limit: Limit, row: Row) -> str:
    if limit.in_slices:
        return "compare does not judge slices; use `trtcal ab --slices`"
    if limit.metric == "linf" and row.accuracy.linf is not None:
        return "a maximum has no interval; use a limit on l2, which has one"
    if limit.metric == "sqnr_db" and limit.is_change:
        return "FP32 has no SQNR that could change: give the bound without a sign"
    if limit.metric in ("top1", "top5", "top1_drop"):
        has_classes = any(one.kind == "classes" for one in row.outputs)
        return "the data have no labels" if has_classes else "no output has class scores"
    if limit.metric in SHARES:
        return "the multiply-accumulates of this variant are not known"
    if limit.metric in BY_LABELS:
        return "the data have no labels that fit an output"
    if limit.metric in METRICS:
        return "no judged output has this figure"
    return "there is no such figure; define your own with --metric-file"


def _ends(limit: Limit, row: Row, reference: Row, level: float) -> Interval | None:
    """Return the figure that a limit is about, with its interval; None if it was not measured."""
    if limit.in_slices:
        return None
    if limit.metric == "speedup" or (limit.metric == "latency_p50" and limit.is_relative):
        return _speed(limit, row, level)
    if limit.metric in ("top1", "top1_drop") and _is_of_pairs(limit, row):
        return _change_of_pairs(limit, row, reference, level)
    if limit.metric == "sqnr_db":
        return _sqnr(limit, row, level)
    if limit.metric in row.means:
        return _of_mean(limit, row.means[limit.metric], level)
    if limit.metric in SHARES and (row.coverage is None or row.coverage.share is None):
        return None
    if limit.metric in NOT_OF_OUTPUTS:
        return _plain(limit, _value(limit.metric, row), _value(limit.metric, reference))
    return None


def _of_mean(limit: Limit, mean: Mean, level: float) -> Interval | None:
    """Return a mean over samples or its change, in the limit's unit."""
    factor, reach = 100.0 if limit.metric in PERCENT else 1.0, REACH.get(limit.metric)
    if not limit.is_change:
        return mean.interval(level, reach).scaled(factor)
    found = mean.difference(level, reach, limit.metric in LEAST)
    if limit.metric in PERCENT:
        found = found.within(-1.0, 1.0)
    if limit.is_relative:
        base = mean.value.mean - mean.change.mean
        return found.scaled(100.0 / abs(base)) if base else None
    return found.scaled(factor)


def _sqnr(limit: Limit, row: Row, level: float) -> Interval | None:
    """Return the SQNR of the worst output."""
    noises = [one.noise for one in row.outputs if one.noise is not None]
    if limit.is_change or not noises:
        return None
    return sqnr_interval(max(noises, key=lambda one: one.mean), level)


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
    """Return the change of top-1, in points or in percent."""
    accuracy = row.accuracy
    if accuracy.top1_lost is None or accuracy.top1_won is None:
        return None
    counts = (accuracy.top1_lost, accuracy.top1_won, accuracy.samples)
    drop = paired_difference(*counts, level, strict=True).scaled(100.0)
    base = reference.accuracy.top1
    if limit.metric == "top1_drop":
        return drop
    return drop.scaled(-100.0 / base if limit.is_relative and base else -1.0)


def _value(metric: str, row: Row) -> float:
    if metric == "size_bytes":
        return float(row.size_bytes)
    if metric in SHARES:
        figure = row.coverage.figures[metric] if row.coverage else None
        return figure.value if figure else 0.0
    return float(getattr(row.latency, PERCENTILES[metric]))


def _plain(limit: Limit, value: float, base: float) -> Interval | None:
    """Return a figure without an interval, or its change."""
    if limit.is_change:
        value = 100.0 * (value / base - 1.0) if limit.is_relative and base else value - base
    return None if math.isnan(value) else Interval(value, value, value)
