"""The limits of a comparison, held against every variant's figures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

from trtcal.errors import InputError
from trtcal.evaluate.accuracy import Mean, MeanCollector, doubted, of_ratio, sqnr_interval
from trtcal.evaluate.outputs import Figures
from trtcal.evaluate.overflow import judge_findings
from trtcal.evaluate.target_times import TargetTime, of_latency, speed_of
from trtcal.evaluate.tasks import SUGGESTED, as_suggestions, default_limits, unlimited
from trtcal.limits import (
    BROKEN,
    HOLDS,
    Figure,
    Judgement,
    Limit,
    overall,
    parse_limit,
    parse_limits,
)
from trtcal.metrics import COVERAGE, FILES, HIGHER, METRICS, OUTPUTS, SQNR, TIMES, metric_of
from trtcal.stats import ALPHA, LEVEL, Interval, holm_levels, spent

if TYPE_CHECKING:
    from trtcal.evaluate.collectors import TaskReplay
    from trtcal.evaluate.comparison import Comparison, Row

LOOKS, LEAST_SPENT = 8, 1e-12
Judged = dict[str, tuple[Judgement, ...]]
"""Variant -> its limits."""


def is_compared(limit: Limit) -> bool:
    """Tell whether a limit is about what a comparison measures, figures of own metrics included."""
    return limit.about.of in READERS


def with_default(comparison: Comparison) -> tuple[Limit, ...]:
    """Return the limits, with the default ones of the task if none is about the outputs."""
    if about_outputs(comparison.limits):
        return comparison.limits
    first = comparison.rows[0]
    known = {*first.means} | ({"top1"} if first.accuracy.top1 is not None else set())
    return (*parse_limits(default_limits(comparison.task.outputs, known)), *comparison.limits)


def about_outputs(limits: Iterable[Limit]) -> list[Limit]:
    """Return the limits that are about what the outputs are."""
    return [limit for limit in limits if limit.about.of == OUTPUTS]


def without_limit(comparison: Comparison) -> list[str]:
    """Return the outputs that no limit is about."""
    metrics = [limit.metric for limit in about_outputs(with_default(comparison))]
    return unlimited(comparison.task.outputs, metrics)


def judge_variants(comparison: Comparison) -> Judged:
    """Hold every variant to the limits, at levels at which all of the k variants hold together.

    The best of k variants holds by chance more often than one does: Holm's correction, see
    `trtcal.stats.holm_levels`. Those that cannot be chosen widen no other's interval: variants that
    plainly break a limit, and those that no limit on the outputs is about. Without limits on the
    outputs those that have no default one are held to a suggested one, which decides nothing.
    `InputError` if a limit is about an unknown variant.
    """
    reference, rows = comparison.rows[0], comparison.candidates
    limits = list(filter(is_compared, with_default(comparison)))
    crashed = [crash["variant"] for crash in comparison.crashes]
    _check_variants(limits, [*(row.name for row in rows), *crashed])
    undefined = [] if about_outputs(comparison.limits) else without_limit(comparison)
    suggested = [parse_limit(SUGGESTED)] if undefined else []
    outputs = [*about_outputs(limits), *suggested]

    def judged(index: int, level: float) -> tuple[Judgement, ...]:
        judgements = judge_row(limits, rows[index], reference, level)
        suggestions = judge_row(suggested, rows[index], reference, level)
        doubts = comparison.task.contrast, base_of, comparison.issues
        known = (doubted(each, *doubts) for each in judgements)
        overflow = judge_findings(rows[index].findings, rows[index].name)
        return (*overflow, *known, *as_suggestions(suggestions, undefined))

    def base_of(metric: str) -> float:
        mean = reference.means.get(metric)
        return mean.value.mean if mean else 0.0

    asked = [i for i, row in enumerate(rows) if any(limit.is_about(row.name) for limit in outputs)]
    levels = holm_levels(
        lambda i, level: overall(judged(asked[i], level)) == HOLDS,
        len(asked),
        fails=lambda i: overall(judged(asked[i], LEVEL)) == BROKEN,
    )
    level_of = dict(zip(asked, levels, strict=True))
    return {row.name: judged(i, level_of.get(i, LEVEL)) for i, row in enumerate(rows)}


def falls_short(comparison: Comparison) -> bool:
    """Tell whether every variant loses more than it may, so that optimizations can help.

    It misses a limit that one with a smaller loss could hold, or a figure of the labels is lower by
    more than noise.
    """
    judged = judge_variants(comparison)
    return bool(judged) and all(
        any(limit.may_improve() for limit in judged[row.name]) or _is_lower(row)
        for row in comparison.candidates
    )


def _is_lower(row: Row) -> bool:
    """Tell whether the whole 95 % interval of the change of a figure of the labels is below zero."""
    metrics = [metric for metric in map(metric_of, row.means) if metric.needs_labels]
    return any(
        row.means[metric.name].difference(LEVEL, metric.reach).high < 0
        for metric in metrics
        if metric.better == HIGHER
    )


def _check_variants(limits: Iterable[Limit], names: Sequence[str]) -> None:
    for limit in limits:
        if limit.variant is not None and limit.variant not in names:
            hint = f"the compared variants are: {', '.join(names)}"
            raise InputError(f"the limit {limit} names a variant that is not compared", hint)


class Contest:
    """Which of the candidates, `running` by their places beside the reference at 0, can still win.

    One cannot whose whole interval breaks a limit while another is better in all limits, by the whole
    interval of their difference on the same samples. All looks at all pairs together err in no more
    than 5 %, of which each look spends a part (`spent`). Nobody stops where a limit is on anything but
    means over samples, on one variant or on slices, or asks for equality. Who is `out` runs to the end.
    """

    def __init__(self, limits: Sequence[Limit] = (), of: Iterable[tuple[int, str]] = ()) -> None:
        self.limits, self.running, self.looks = limits, dict(of), 0
        self.out, self.stopped = set[int](), dict[int, str]()
        self.pairs = defaultdict[tuple[int, int], MeanCollector](MeanCollector)

    def add(self, figures: Mapping[int, Figures], replayed: TaskReplay) -> None:
        """Take in a batch's figures by place; `stopped` says who cannot win after it, and why."""
        out = {*self.out, *replayed.not_finite, *self.stopped}
        self.running = {n: name for n, name in self.running.items() if n not in out}
        if len(self.running) < 2:
            return
        for pair in permutations([0, *self.running], 2):
            self.pairs[pair].add(*(figures[place] for place in pair))
        before, self.looks = self.looks, LOOKS * replayed.samples // len(replayed.dataset)
        share = ALPHA / len(self.pairs)
        alpha = spent(share, self.looks / LOOKS) - spent(share, before / LOOKS)
        if alpha > LEAST_SPENT and self.looks < LOOKS:
            known = self.limits or parse_limits(default_limits(replayed.task.kinds, figures[0]))
            self._stop(known, 1.0 - alpha, replayed)

    def _stop(self, limits: Sequence[Limit], level: float, replayed: TaskReplay) -> None:
        is_open = unlimited(replayed.task.kinds, [limit.metric for limit in limits])
        if is_open or any(each.variant or each.at or each.relation == "==" for each in limits):
            return
        means = {pair: each.result(replayed.distinct) for pair, each in self.pairs.items()}
        beside = [replace(x, bound=0.0, is_change=True, is_relative=False) for x in limits]
        for place, other in permutations(self.running, 2):
            broken = [limit for limit in limits if _breaks(limit, means[0, place], level)]
            if broken and all(_breaks(limit, means[other, place], level) for limit in beside):
                samples = f"{replayed.samples:,} of {len(replayed.dataset):,} samples"
                why = f"it breaks {broken[0]}, and {self.running[other]} loses less"
                self.stopped[place] = f"stopped after {samples}: {why}"


def _breaks(limit: Limit, means: Mapping[str, Mean], level: float) -> bool:
    mean = means.get(limit.about.drop_of or limit.metric)
    ends = mean.held(limit, level) if mean else None
    return ends is not None and limit.state(ends.low, ends.high) == BROKEN


def judge_row(
    limits: Sequence[Limit], row: Row, reference: Row, level: float = LEVEL
) -> tuple[Judgement, ...]:
    """Hold one variant to the limits that are about it."""
    return tuple(_judge(each, row, reference, level) for each in limits if each.is_about(row.name))


def _judge(limit: Limit, row: Row, reference: Row, level: float) -> Judgement:
    mean = row.means.get(limit.about.drop_of or limit.metric)
    level = mean.level(limit, level) if mean else level
    ends = None if limit.in_slices else READERS[limit.about.of](limit, row, reference, level)
    if ends is None:
        return Judgement(limit, row.name, None, _reason(limit, row, reference))
    samples = row.accuracy.samples if limit.about.of == OUTPUTS else None
    time = time_for(limit, row, reference) if limit.about.of == TIMES else None
    level = LEVEL if time and not time.latency else level  # an estimate has its own
    return Judgement(limit, row.name, Figure(ends.value, ends.low, ends.high, samples, level))


def _reason(limit: Limit, row: Row, reference: Row) -> str:
    metric = limit.about
    if metric.of == TIMES:
        return _no_time(limit, row, reference)
    if limit.in_slices:
        return "compare does not judge slices; use `trtcal ab --slices`"
    if limit.is_change and not metric.has_baseline:
        return f"FP32 has no {metric.title} that could change: give the bound without a sign"
    if limit.is_relative and limit.metric in row.means:
        return "it is 0 for FP32, of which nothing is a percentage"
    if limit.metric not in METRICS:
        return "there is no such figure; define your own with --metric-file"
    is_possible = any(output.kind in metric.kinds for output in row.outputs)
    return "the data have no labels" if metric.needs_labels and is_possible else metric.lacks


def _no_time(limit: Limit, row: Row, reference: Row) -> str:
    """Return why a row has no such figure of time or energy, and what measures it."""
    time, target = time_for(limit, row, reference), _target_of(limit, row, reference)
    if time is None:
        how = f"`trtcal compare ... --on {target.removeprefix('@')}` measures it"
        return f"no time on {target} is known; {how}"
    if time.latency:
        has_value = getattr(time.latency, limit.about.timing) is not None
        return (
            f"{'FP32 was not measured on' if has_value else 'no energy is known of'} {time.where}"
        )
    small = f"{time.kernels} kernels are too small to estimate, launch time decides"
    what = "a measurement" if time.is_measured else "an estimate"
    what = small if time.too_small else f"{what} does not give it"
    return f"{what}; measure it on {time.target}"


def _of_outputs(limit: Limit, row: Row, reference: Row, level: float) -> Interval | None:
    """Return a figure of the outputs with its interval; None if it was not measured."""
    if limit.is_change and not limit.about.has_baseline:
        return None
    if limit.metric == SQNR:
        noises = [output.noise for output in row.outputs if output.noise is not None]
        if not noises:
            return None
        return sqnr_interval(max(noises, key=lambda noise: noise.mean), level)
    mean = row.means.get(limit.about.drop_of or limit.metric)
    return mean.held(limit, level, limit.about.worst == "least") if mean else None


def _of_times(limit: Limit, row: Row, reference: Row, level: float) -> Interval | None:
    """Return a time, energy or the speed-up: measured on a device or here, else estimated.

    Of the times of this machine only the speed-up has an interval.
    """
    time, other = (time_for(limit, each, reference) for each in (row, reference))
    is_ratio = limit.metric == "speedup" or (limit.metric == "latency_p50" and limit.is_relative)
    if time is None or (other is None and (is_ratio or limit.is_change)):
        return None
    latency, base = time.latency, other and other.latency
    if other and is_ratio:
        speed = speed_of(time, other, reference.name)
        ends = Interval(speed.ratio, speed.low, speed.high)
        known = of_ratio(limit, _at_level(ends, level) if latency else ends)
        return None if speed.is_too_small else known
    if limit.metric == "latency_p50" and not limit.is_change and not (latency and not latency.on):
        ends = Interval(time.ms, time.low_ms, time.high_ms)
        return _at_level(ends, level) if latency else ends
    value, before = (getattr(each, limit.about.timing, None) for each in (latency, base))
    if value is None or (before is None and limit.is_change):
        return None
    return _plain(limit, value, before or 0.0)


def time_for(limit: Limit, row: Row, reference: Row) -> TargetTime | None:
    """Return the time that a limit is about: on its device, of a GPU's name also the estimate.

    Without a device it is that of the first target, without targets that of this machine. None if
    there is none.
    """
    target = _target_of(limit, row, reference)
    names = (target, target.removeprefix("@"))
    known = {time.target: time for time in row.times} if target else {"": of_latency(row.latency)}
    return next(filter(None, map(known.get, names)), None)


def _target_of(limit: Limit, row: Row, reference: Row) -> str:
    first = next(iter(reference.times or row.times), None)
    return limit.device or (first.target if first else "")


def _at_level(ends: Interval, level: float) -> Interval:
    """Return a positive figure with its 95 % interval at another level, as if its log were normal."""
    logs = (math.log(max(end, 1e-9)) for end in (ends.value, ends.low, ends.high))
    widened = Interval(*logs).at_level(level)
    return Interval(*map(math.exp, (widened.value, widened.low, widened.high)))


def _of_file(limit: Limit, row: Row, reference: Row, level: float) -> Interval | None:
    return _plain(limit, float(row.size_bytes), float(reference.size_bytes))


def _of_coverage(limit: Limit, row: Row, reference: Row, level: float) -> Interval | None:
    coverages = (variant.coverage for variant in (row, reference))
    share, base = (known.figures[limit.metric] if known else None for known in coverages)
    return None if share is None else _plain(limit, share.value, base.value if base else 0.0)


def _plain(limit: Limit, value: float, base: float) -> Interval | None:
    if limit.is_change:
        value = 100.0 * (value / base - 1.0) if limit.is_relative and base else value - base
    return None if math.isnan(value) else Interval(value, value, value)


READERS = {OUTPUTS: _of_outputs, TIMES: _of_times, FILES: _of_file, COVERAGE: _of_coverage}
"""What a figure is of -> what reads it, with its interval, of a variant."""
