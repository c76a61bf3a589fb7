"""Can B take the place of A? What the data say to each limit, and the verdict that follows.

Each limit is judged on an interval (`trtcal.limits`): equivalence testing by intervals, D. Schuirmann,
J. Pharmacokinet. Biopharm. 15 (1987). Several limits share the error by Bonferroni's correction of the
intervals' level, every slice that is held to a limit being one of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np

from trtcal.data.issues import DataIssue
from trtcal.documents.overview import NEUTRAL, Overview, Shown
from trtcal.errors import InputError
from trtcal.evaluate.accuracy import Mean, doubted, of_ratio, sqnr_interval
from trtcal.evaluate.tasks import (
    SUGGESTED,
    Kinds,
    as_suggestions,
    default_limits,
    no_limit_on,
    unlimited,
)
from trtcal.limits import (
    BROKEN,
    COLUMNS,
    DO_NOT,
    INCONCLUSIVE,
    SHIP,
    TONES,
    UNDECIDED,
    WITH_CARE,
    Figure,
    Judgement,
    Limit,
    parse_limit,
    parse_limits,
)
from trtcal.metrics import LOGARITHMS, METRICS, OUTPUTS, PERCENT, SQNR, TIMES, WORST, metric_of
from trtcal.stats import (
    ALPHA,
    LEAST_SLICE,
    Interval,
    Mask,
    Moments,
    OfMany,
    Paired,
    Values,
    compare_means,
    holm,
    ratio_of_blocks,
)

CLASSES: Kinds = {"output": "classes"}
SPEED, TIMES_UNIT = "speed-up", "times"
DROP = "-1.0"  # points, where no limit is given

Slices = Mapping[str, Mask]
Figures = Mapping[str, "tuple[Values, Values] | OfMany"]
"""Figure -> the baseline's and the candidate's of each sample, each of shape (samples,); or of many."""


@dataclass(frozen=True)
class Rule(Shown):
    """What B must hold, at which error rate of it all, and the metric that decides.

    `metric` must have a limit, else nothing is decided. `alone`: agreement, cosine and KL are measured
    against the baseline itself. `suggested` are shown as limits and decide nothing, for the outputs
    `without` a limit; where the limits were given these are warned of.
    """

    limits: tuple[Limit, ...]
    metric: str = "top1"
    alpha: float = ALPHA
    alone: bool = True
    suggested: tuple[Limit, ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise InputError(
                f"{self.alpha} is not an error rate", "give a number between 0 and 1, such as 0.05"
            )

    @property
    def judges_speed(self) -> bool:
        """Whether times are needed."""
        return any(limit.about.of == TIMES for limit in self.limits)


def is_tested(limit: Limit, device: str = "") -> bool:
    """Tell whether a limit is about what an A/B test measures, figures of own metrics included.

    Times are those of this machine, or of the device that the test is timed on.
    """
    is_here = limit.device in ("", device)
    return limit.about.of in (OUTPUTS, TIMES) and limit.about.is_tested and is_here


def rule_for(
    limits: Sequence[Limit],
    metric: str | None,
    labelled: Collection[str] = (),
    alpha: float = ALPHA,
    kinds: Kinds = CLASSES,
) -> Rule:
    """Return the rule of an A/B test.

    `labelled` are the metrics that the labels give, `kinds` those of the outputs that count.

    Without a metric, the first one with a limit decides. Where no limit on the outputs is given there
    are those of `default_limits`; top-1, top-5 and agreement may fall by one point.
    """
    limited = _of_whole(limits)
    usual = default_limits(kinds, labelled) if metric is None and not limited else ()
    if metric in PERCENT and metric not in limited:
        usual = (f"{metric} >= {DROP}",)
    limits = (*parse_limits(usual), *limits)
    judged = _of_whole(limits)
    left = tuple(unlimited(kinds, judged or filter(None, [metric])))
    suggested = (parse_limit(SUGGESTED),) if left and not limited and metric is None else ()
    first = [*judged, *(limit.metric for limit in suggested), "agreement"]
    return Rule(limits, metric or first[0], alpha, suggested=suggested, without=left)


def _of_whole(limits: Iterable[Limit]) -> list[str]:
    """Return the metrics of limits on the outputs for all samples together."""
    return [limit.metric for limit in limits if limit.about.of != TIMES and not limit.in_slices]


@dataclass(frozen=True)
class Answer(Shown):
    """One comparison: both figures, by how much B's is higher (how many times as fast), and p."""

    name: str
    unit: str
    samples: int
    baseline: float
    candidate: float
    difference: Interval
    p: float
    mid_p: float | None = None
    adjusted_p: float | None = None

    @property
    def is_change(self) -> bool:
        """Whether there is a difference at all, all comparisons counted."""
        return (self.p if self.adjusted_p is None else self.adjusted_p) < ALPHA

    @property
    def effect(self) -> str:
        """By how much B's figure is higher, or how many times as fast it is."""
        value = self.difference.value
        return f"{value:.3g} times" if self.unit == TIMES_UNIT else f"{value:+.3g}"

    @property
    def warning(self) -> str:
        """What to know before shipping: that B is really lower, where that is worse; else empty.

        Two models are never one: a distance from another model, or the agreement of a baseline with
        itself, is lower of any candidate.
        """
        metric = self.name.partition(" of ")[0]
        is_alone = metric == "agreement" and self.baseline >= 100.0
        if self.unit == TIMES_UNIT or metric_of(metric).is_distance or is_alone:
            return ""
        if not self.is_change or self.difference.high >= 0:
            return ""
        lower = f"{self.name} is lower by {-self.difference.value:.3g} {self.unit}".rstrip()
        return f"{lower} (p {self.adjusted_p:.2g}, {self.samples:,} samples)"

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form; ends that are not finite are null."""
        ends = {k: end if math.isfinite(end) else None for k, end in vars(self.difference).items()}
        return {**asdict(self), "difference": ends, "is_change": self.is_change}


@dataclass(frozen=True)
class Answers:
    """All comparisons, and every limit held against what was measured."""

    comparisons: tuple[Answer, ...]
    judgements: tuple[Judgement, ...]
    untested: tuple[str, ...] = ()
    issues: tuple[DataIssue, ...] = ()


@dataclass(frozen=True)
class Verdict(Shown):
    """The answer to the whole: a word, a sentence with why, and what it rests on."""

    word: str
    sentence: str
    rule: Rule
    answers: tuple[Answer, ...]
    limits: tuple[Judgement, ...]
    warnings: tuple[str, ...] = ()
    samples_needed: int | None = None

    def overview(self) -> Overview:
        """Return the answer with its warnings, and the limits."""
        title, tone = f"{self.word}: {self.sentence}", TONES.get(self.word, NEUTRAL)
        return Overview(title, self.warnings, things=self.limits, columns=COLUMNS, tone=tone)

    @property
    def is_good(self) -> bool:
        """Whether B may ship."""
        return self.word in (SHIP, WITH_CARE)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        names = ("word", "sentence", "samples_needed")
        return {name: getattr(self, name) for name in names} | {
            "metric": self.rule.metric,
            "alpha": self.rule.alpha,
            "answers": [answer.to_document() for answer in self.answers],
            "limits": [judgement.to_document() for judgement in self.limits],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class _Data:
    """What is known so far; `slices` has those that are large enough in the whole dataset."""

    rule: Rule
    figures: Figures
    slices: Slices
    times: tuple[Values, Values] | None
    contrast: Mapping[str, float] = field(default_factory=dict)
    issues: tuple[DataIssue, ...] = ()

    @property
    def level(self) -> float:
        """The level at which all limits hold together."""
        questions = sum(len(self.slices) if limit.in_slices else 1 for limit in self.rule.limits)
        return 1 - self.rule.alpha / max(questions, 1)

    @property
    def level_of_slices(self) -> float:
        """The level of slices, which share the error also where no limit is about them."""
        alpha = self.rule.alpha / max(len(self.slices), 1)
        return min(1 - alpha, 1.0) if self.slices else self.level

    def is_against_itself(self, metric: str) -> bool:
        """Tell whether the baseline has the best value that there is, since it is the reference."""
        return self.rule.alone and WORST.get(metric) == "least"

    def of_each(self, metric: str, where: Mask | None) -> tuple[Values, Values]:
        """Return A's and B's figures of each sample, in a slice or of all."""
        before, after = cast("tuple[Values, Values]", self.figures[metric])
        return (before, after) if where is None else (before[where], after[where])

    def base_of(self, metric: str) -> float:
        """Return A's figure for all samples."""
        return 0.0 if metric == SQNR else self.compared(metric, None, self.level).baseline

    def reach(self, metric: str, where: Mask | None) -> float | None:
        """Return how far a sample that was not seen may lie from a mean, None if the values tell."""
        if metric not in LOGARITHMS:
            return metric_of(metric).reach
        before, after = self.of_each(metric, where)
        return 4 * float((after - before).std())

    def compared(self, metric: str, where: Mask | None, level: float) -> Paired:
        """Compare a metric, in a slice or in all samples."""
        reach, figure = self.reach(metric, where), self.figures[metric]
        if isinstance(figure, tuple):
            pair = self.of_each(metric, where)
            paired = compare_means(*pair, level, reach, self.is_against_itself(metric))
        else:
            paired = figure(where).compare(level, reach or math.inf)
        if metric not in PERCENT:
            return paired
        return replace(paired, difference=paired.difference.within(-1.0, 1.0))

    def mean(self, metric: str, where: Mask | None) -> Mean:
        """Return B's mean of a metric, and its change."""
        figure = self.figures[metric]
        if isinstance(figure, tuple):
            mean = Mean.of(*self.of_each(metric, where))
            reach = self.reach(metric, where) if metric in LOGARITHMS else None
            return mean if reach is None else replace(mean, reach=reach)
        corpus = figure(where)
        return Mean(corpus.candidate, corpus.change, 1.0)


def ask(
    rule: Rule,
    figures: Figures,
    slices: Slices | None = None,
    times: tuple[Values, Values] | None = None,
    sizes: Mapping[str, int] | None = None,
    contrast: Mapping[str, float] | None = None,
    issues: tuple[DataIssue, ...] = (),
) -> Answers:
    """Return the comparisons (the deciding metric first, then the others, slices, speed) and limits.

    `slices` gives which samples are in each, `sizes` how many that will be at the end, where not all
    were seen; `times` are the blocks' times of both, `contrast` the figures of what shows nothing, see
    `trtcal.evaluate.collectors.Contrast`, `issues` are those of the data. `InputError` if a limit is
    about no figure.
    """
    _check_figures(rule, figures)
    slices = slices or {}
    final = sizes or {name: int(where.sum()) for name, where in slices.items()}
    large = {name: where for name, where in slices.items() if final[name] >= LEAST_SLICE}
    data = _Data(rule, figures, large, times, contrast or {}, issues)
    names = [name for name in dict.fromkeys((rule.metric, *figures)) if name in figures]
    known = (name for name in names if name != SQNR)
    answers = [_answer(name, name, data.compared(name, None, data.level)) for name in known]
    if rule.metric in figures and rule.metric != SQNR:
        for name, where in slices.items():
            if where.any():
                paired = data.compared(rule.metric, where, data.level_of_slices)
                answers.append(_answer(f"{rule.metric} of {name}", rule.metric, paired))
    if times is not None:
        ratio, p = ratio_of_blocks(*times, data.level)
        before, after = (float(np.median(each)) for each in times)
        answers.append(Answer(SPEED, TIMES_UNIT, len(times[0]), before, after, ratio, p))
    adjusted = holm([answer.p for answer in answers])
    judgements = [judgement for limit in rule.limits for judgement in _judge(limit, data)]
    suggestions = (judgement for limit in rule.suggested for judgement in _judge(limit, data))
    judgements += as_suggestions(suggestions, rule.without)
    return Answers(
        tuple(replace(answer, adjusted_p=p) for answer, p in zip(answers, adjusted, strict=True)),
        tuple(judgements),
        tuple(sorted({*slices} - {*large})) if any(each.in_slices for each in rule.limits) else (),
        issues,
    )


def _check_figures(rule: Rule, figures: Figures) -> None:
    times = (metric.name for metric in METRICS.values() if metric.of == TIMES and metric.is_tested)
    known = {*figures, *times}
    for name in (rule.metric, *(limit.metric for limit in rule.limits)):
        if name not in known:
            hint = f"known: {', '.join(sorted(known))}; top-1 needs labels and class scores"
            raise InputError(f"the metric {name!r} is not known for these outputs", hint)


def _answer(name: str, metric: str, paired: Paired) -> Answer:
    unit, factor = "points" if metric in PERCENT else "", metric_of(metric).factor
    means = (factor * paired.baseline, factor * paired.candidate)
    difference = paired.difference.scaled(factor)
    return Answer(name, unit, paired.samples, *means, difference, paired.p, paired.mid_p)


def _judge(limit: Limit, data: _Data) -> list[Judgement]:
    """Hold B to one limit; to one about slices in every slice that is large enough to be judged."""
    if not limit.about.has_baseline and (limit.is_change or limit.in_slices):
        reason = "it is a figure of B alone: give the bound without a sign"
        return [Judgement(limit, "", None, reason)]
    if limit.in_slices:
        why = "none of its samples were evaluated yet"
        return [
            _held(limit, data, name, where) if where.any() else Judgement(limit, name, None, why)
            for name, where in data.slices.items()
        ]
    if limit.about.of != TIMES:
        return [_held(limit, data)]
    if data.times is None:
        return [Judgement(limit, "", None, "no times were measured")]
    return [Judgement(limit, "", _time(limit, data.times, data.level))]


def _held(limit: Limit, data: _Data, subject: str = "", where: Mask | None = None) -> Judgement:
    """Hold B to a limit on its outputs, for all samples or those of a slice."""
    level = data.level
    if limit.metric != SQNR:
        mean = data.mean(limit.metric, where)
        count, level = mean.value.count, mean.level(limit, level)
        ends = mean.held(limit, level, data.is_against_itself(limit.metric))
    else:
        noise = Moments.of(data.of_each(SQNR, None)[1])
        count, ends = noise.count, sqnr_interval(noise, level)
    if ends is None:
        return Judgement(limit, subject, None, "it is 0 for A, of which nothing is a percentage")
    judgement = Judgement(limit, subject, Figure(ends.value, ends.low, ends.high, count, level))
    return doubted(judgement, data.contrast, data.base_of, data.issues)


def _time(limit: Limit, times: tuple[Values, Values], level: float) -> Figure:
    ratio, _ = ratio_of_blocks(*times, level)
    ends = of_ratio(limit, ratio, *(float(np.median(each)) for each in times))
    return Figure(ends.value, ends.low, ends.high, len(times[0]), level)


def decide(rule: Rule, answers: Answers, warnings: Sequence[str] = ()) -> Verdict:
    """Return the verdict that follows from the limits; `warnings` make it one with care.

    So do issues of the data; with one that is an error nothing is decided.
    """
    judgements, error = answers.judgements, DataIssue.error_of(answers.issues)
    few = f"has fewer than {LEAST_SLICE} samples, so no limit was judged on it"
    untested = (f"slice {name} {few}" for name in answers.untested)
    own = (answer.warning for answer in answers.comparisons if answer.warning)
    warnings = (*own, *untested, *warnings, *map(str, answers.issues))
    if rule.without and not rule.suggested:
        warnings = (*warnings, no_limit_on(rule.without))
    verdict = Verdict(INCONCLUSIVE, "", rule, answers.comparisons, judgements, warnings)
    broken = [judgement for judgement in judgements if judgement.gate == BROKEN]
    undecided = [judgement for judgement in judgements if judgement.gate == UNDECIDED]
    if broken:
        return replace(verdict, word=DO_NOT, sentence=_sentence(broken))
    if error is not None:
        return replace(verdict, sentence=error.answer)
    if not any(limit.metric == rule.metric for limit in (*rule.limits, *rule.suggested)):
        sentence = (
            f"{rule.metric!r} decides the test but has no limit. Give one in its unit, such as "
            f'--limit "{rule.metric} >= -0.01" (at most 0.01 lower than A).'
        )
        return replace(verdict, sentence=sentence)
    if undecided:
        needed = [judgement.samples_needed for judgement in undecided]
        total = None if None in needed else max(filter(None, needed))
        return replace(verdict, sentence=_sentence(undecided), samples_needed=total)
    word = WITH_CARE if warnings else SHIP
    sentence = f"B holds every limit: {'; '.join(map(str, judgements))}."
    return replace(verdict, word=word, sentence=sentence)


def _sentence(judgements: Sequence[Judgement]) -> str:
    return f"B {', and '.join(judgement.predicate for judgement in judgements)}."
