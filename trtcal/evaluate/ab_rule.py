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

from trtcal.errors import InputError
from trtcal.evaluate.accuracy import blind, sqnr_interval
from trtcal.evaluate.tasks import (
    SUGGESTED,
    Kinds,
    default_limits,
    no_limit_on,
    no_usual_limit,
    unlimited,
)
from trtcal.limits import (
    BROKEN,
    UNDECIDED,
    Figure,
    Judgement,
    Limit,
    parse_limit,
    parse_limits,
)
from trtcal.metrics import METRICS, OUTPUTS, PERCENT, SQNR, TIMES, WORST, metric_of
from trtcal.stats import (
    ALPHA,
    LEAST_SLICE,
    Corpus,
    Interval,
    Mask,
    Moments,
    OfMany,
    Paired,
    Values,
    compare_means,
    holm,
    is_binary,
    mean_interval,
    one_sided,
    paired_difference,
    proportion,
    ratio_of_blocks,
    share_lost,
)

SHIP, CARE, BACK, OPEN = "SHIP", "SHIP WITH CARE", "DO NOT SHIP", "INCONCLUSIVE"
CLASSES: Kinds = {"output": "classes"}
SPEED, TIMES_UNIT = "speed-up", "times"
DROP = "-1.0"  # points, where no limit is given

Slices = Mapping[str, Mask]
Figures = Mapping[str, "tuple[Values, Values] | OfMany"]
"""Figure -> the baseline's and the candidate's of each sample, each of shape (samples,); or of many."""


@dataclass(frozen=True)
class Rule:
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

    @property
    def judges_slices(self) -> bool:
        """Whether slices are held to a limit."""
        return any(limit.in_slices for limit in self.limits)


def is_tested(limit: Limit) -> bool:
    """Tell whether a limit is about what an A/B test measures, figures of own metrics included."""
    return limit.about.of in (OUTPUTS, TIMES) and limit.about.is_tested


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
    return [one.metric for one in limits if one.about.of != TIMES and not one.in_slices]


@dataclass(frozen=True)
class Answer:
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

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form; ends that are not finite are null."""
        ends = {
            name: one if math.isfinite(one) else None for name, one in vars(self.difference).items()
        }
        return {**asdict(self), "difference": ends, "is_change": self.is_change}


@dataclass(frozen=True)
class Answers:
    """All comparisons, and every limit held against what was measured."""

    comparisons: tuple[Answer, ...]
    judgements: tuple[Judgement, ...]
    untested: tuple[str, ...] = ()

    def __iter__(self) -> Any:
        return iter(self.comparisons)


@dataclass(frozen=True)
class Verdict:
    """The answer to the whole: a word, a sentence with why, and what it rests on."""

    word: str
    sentence: str
    rule: Rule
    answers: tuple[Answer, ...]
    limits: tuple[Judgement, ...]
    warnings: tuple[str, ...] = ()
    samples_needed: int | None = None

    @property
    def is_good(self) -> bool:
        """Whether B may ship."""
        return self.word in (SHIP, CARE)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "word": self.word,
            "sentence": self.sentence,
            "metric": self.rule.metric,
            "alpha": self.rule.alpha,
            "answers": [answer.to_document() for answer in self.answers],
            "limits": [judgement.to_document() for judgement in self.limits],
            "warnings": list(self.warnings),
            "samples_needed": self.samples_needed,
        }


@dataclass(frozen=True)
class _Data:
    """What is known so far; `slices` has those that are large enough in the whole dataset."""

    rule: Rule
    figures: Figures
    slices: Slices
    times: tuple[Values, Values] | None
    contrast: Mapping[str, float] = field(default_factory=dict)

    @property
    def level(self) -> float:
        """The level at which all limits hold together."""
        questions = sum(len(self.slices) if one.in_slices else 1 for one in self.rule.limits)
        return 1 - self.rule.alpha / max(questions, 1)

    @property
    def level_of_slices(self) -> float:
        """The level of slices, which share the error also where no limit is about them."""
        return (
            min(1 - self.rule.alpha / max(len(self.slices), 1), 1.0) if self.slices else self.level
        )

    def change(self, metric: str, where: Mask | None) -> tuple[Paired, float]:
        """Return the change of a metric for a limit, and the level of its interval.

        Means of figures that are not right or wrong keep the wider interval: theirs is no exact one.
        """
        found = self.compared(metric, where, self.level)
        if found.mid_p is None:
            return found, self.level
        level = one_sided(self.level)
        lost, won = self.discordant(metric, where)
        if self.is_against_itself(metric):
            return replace(found, difference=share_lost(lost, found.samples, level)), level
        strict = paired_difference(won, lost, found.samples, level, strict=True)
        return replace(found, difference=strict), level

    def of_many(self, metric: str, where: Mask | None) -> Corpus | None:
        """Return a figure that is of all samples together, or of a slice; None of one of each."""
        found = self.figures[metric]
        return None if isinstance(found, tuple) else found(where)

    def of_each(self, metric: str, where: Mask | None) -> tuple[Values, Values]:
        """Return A's and B's figures of each sample, in a slice or of all."""
        before, after = cast("tuple[Values, Values]", self.figures[metric])
        return (before, after) if where is None else (before[where], after[where])

    def discordant(self, metric: str, where: Mask | None) -> tuple[int, int]:
        """Return how many samples only A has right, and how many only B."""
        before, after = self.of_each(metric, where)
        differences = after - before
        return int((differences < 0).sum()), int((differences > 0).sum())

    def is_against_itself(self, metric: str) -> bool:
        """Tell whether the baseline has the best value that there is, since it is the reference."""
        return self.rule.alone and WORST.get(metric) == "least"

    def compared(self, metric: str, where: Mask | None, level: float) -> Paired:
        """Compare a metric, in a slice or in all samples."""
        reach = metric_of(metric).reach
        if (corpus := self.of_many(metric, where)) is not None:
            paired = corpus.compare(level, reach or math.inf)
        else:
            pair = self.of_each(metric, where)
            paired = compare_means(*pair, level, reach, self.is_against_itself(metric))
        if metric not in PERCENT:
            return paired
        return replace(paired, difference=paired.difference.within(-1.0, 1.0))


def ask(
    rule: Rule,
    figures: Figures,
    slices: Slices | None = None,
    times: tuple[Values, Values] | None = None,
    sizes: Mapping[str, int] | None = None,
    contrast: Mapping[str, float] | None = None,
) -> Answers:
    """Return the comparisons (the deciding metric first, then the others, slices, speed) and limits.

    `slices` gives which samples are in each, `sizes` how many that will be at the end, where not all
    were seen; `times` are the blocks' times of both, `contrast` the figures of what shows nothing, see
    `trtcal.evaluate.collectors.Contrast`. `InputError` if a limit is about no figure.
    """
    known = [*figures, *(one.name for one in METRICS.values() if one.of == TIMES and one.is_tested)]
    for name in (rule.metric, *(limit.metric for limit in rule.limits)):
        if name not in known:
            hint = f"known: {', '.join(sorted(known))}; top-1 needs labels and class scores"
            raise InputError(f"the metric {name!r} is not known for these outputs", hint)
    slices = slices or {}
    final = sizes or {name: int(where.sum()) for name, where in slices.items()}
    large = {name: where for name, where in slices.items() if final[name] >= LEAST_SLICE}
    data = _Data(rule, figures, large, times, contrast or {})
    names = [rule.metric, *(name for name in figures if name != rule.metric)]
    names = [name for name in names if name in figures and name != SQNR]
    made = [_answer(name, name, data.compared(name, None, data.level)) for name in names]
    if rule.metric in figures and rule.metric != SQNR:
        made += [
            _answer(
                f"{rule.metric} of {name}",
                rule.metric,
                data.compared(rule.metric, where, data.level_of_slices),
            )
            for name, where in slices.items()
            if where.any()
        ]
    if times is not None:
        made.append(_speed(times, data.level))
    judged = [one for limit in rule.limits for one in _judge(limit, data)]
    reason = no_usual_limit(rule.without)
    for limit in rule.suggested:
        judged += [replace(one, reason=reason) for one in _judge(limit, data)]
    small = tuple(set(slices) - set(large)) if rule.judges_slices else ()
    return Answers(_adjusted(made), tuple(judged), tuple(sorted(small)))


def _answer(name: str, metric: str, found: Paired) -> Answer:
    unit, factor = ("points" if metric in PERCENT else "", metric_of(metric).factor)
    return Answer(
        name,
        unit,
        found.samples,
        factor * found.baseline,
        factor * found.candidate,
        found.difference.scaled(factor),
        found.p,
        found.mid_p,
    )


def _speed(times: tuple[Values, Values], level: float) -> Answer:
    ratio, p = ratio_of_blocks(*times, level)
    before, after = (float(np.median(one)) for one in times)
    return Answer(SPEED, TIMES_UNIT, len(times[0]), before, after, ratio, p)


def _adjusted(answers: Sequence[Answer]) -> tuple[Answer, ...]:
    ps = holm([answer.p for answer in answers])
    return tuple(replace(one, adjusted_p=p) for one, p in zip(answers, ps, strict=True))


def _judge(limit: Limit, data: _Data) -> list[Judgement]:
    """Hold B to one limit; to one about slices in every slice that is large enough to be judged."""
    if not limit.about.has_baseline and (limit.is_change or limit.in_slices):
        return [
            Judgement(limit, "", None, "it is a figure of B alone: give the bound without a sign")
        ]
    if limit.in_slices:
        return [
            _contrasted(Judgement(limit, name, _figure(limit, data, where)), data)
            if where.any()
            else Judgement(limit, name, None, UNSEEN)
            for name, where in data.slices.items()
        ]
    if limit.about.of != TIMES:
        return [_contrasted(Judgement(limit, "", _figure(limit, data, None)), data)]
    if data.times is None:
        return [Judgement(limit, "", None, "no times were measured")]
    return [Judgement(limit, "", _time(limit, data.times, data.level))]


def _contrasted(one: Judgement, data: _Data) -> Judgement:
    """Return a judgement that decides nothing where the outputs for other samples would hold too."""
    metric = one.limit.metric
    if metric not in data.contrast or one.state == BROKEN:
        return one
    base = 0.0 if metric == SQNR else data.compared(metric, None, data.level).baseline
    return replace(one, reason=blind(one.limit, data.contrast[metric], base))


UNSEEN = "none of its samples were evaluated yet"


def _figure(limit: Limit, data: _Data, where: Mask | None) -> Figure:
    """Return B's figure, or its change against A's, in the unit of the limit."""
    if limit.metric == SQNR:
        noise = Moments.of(data.of_each(SQNR, None)[1])
        ends = sqnr_interval(noise, data.level)
        return Figure(ends.value, ends.low, ends.high, noise.count, data.level)
    factor = limit.about.factor
    if limit.is_change:
        found, level = data.change(limit.metric, where)
        change = found.difference
        if limit.is_relative:
            factor = 100.0 / found.baseline if found.baseline else math.nan
        ends = change.scaled(factor)
    else:
        found, level = data.compared(limit.metric, where, data.level), data.level
        ends = _own(data, limit.metric, where).scaled(factor)
    return Figure(ends.value, ends.low, ends.high, found.samples, level)


def _own(data: _Data, metric: str, where: Mask | None) -> Interval:
    """Return B's figure with its interval."""
    level = data.level
    if (many := data.of_many(metric, where)) is not None:
        return many.candidate.interval(level, metric_of(metric).reach or math.inf).within(0.0, 1.0)
    values = data.of_each(metric, where)[1]
    if is_binary(values):
        return proportion(int(values.sum()), len(values), level)
    seen = float(np.ptp(values)) or float(np.abs(values).max()) or math.inf
    found = mean_interval(values, level, metric_of(metric).reach or seen)
    return found.within(-1.0, 1.0) if metric == "cosine" else found


def _time(limit: Limit, times: tuple[Values, Values], level: float) -> Figure:
    """Return the speed-up, or the change of the median latency."""
    ratio, _ = ratio_of_blocks(*times, level)
    before, after = (float(np.median(one)) for one in times)
    if limit.metric == "speedup":
        step = 1.0 if limit.is_change else 0.0
        ends = [one - step for one in (ratio.value, ratio.low, ratio.high)]
    else:
        slower = [_inverse(one) for one in (ratio.value, ratio.high, ratio.low)]
        start, scale = float(limit.is_change), 1.0 if limit.is_relative else before
        ends = [(one - start) * scale for one in slower]
        ends[0] = ends[0] if limit.is_change else after
    factor = 100.0 if limit.is_relative else 1.0
    value, low, high = (factor * one for one in ends)
    return Figure(value, low, high, len(times[0]), level)


def _inverse(ratio: float) -> float:
    return math.inf if ratio == 0.0 else 1.0 / ratio


def decide(rule: Rule, answers: Answers, warnings: Sequence[str] = ()) -> Verdict:
    """Return the verdict that follows from the limits; `warnings` make it one with care."""
    judged = answers.judgements
    warnings = (*_warnings(answers.comparisons), *map(_untested, answers.untested), *warnings)
    if rule.without and not rule.suggested:
        warnings = (*warnings, no_limit_on(rule.without))
    verdict = Verdict(OPEN, "", rule, answers.comparisons, judged, warnings)
    broken = [one for one in judged if one.state == BROKEN]
    undecided = [one for one in judged if one.state == UNDECIDED]
    if broken:
        return replace(verdict, word=BACK, sentence=f"B fails: {_listed(broken)}.")
    if not any(limit.metric == rule.metric for limit in (*rule.limits, *rule.suggested)):
        return replace(verdict, sentence=_without_limit(rule.metric))
    if undecided:
        needed = [one.samples_needed for one in undecided]
        total = None if None in needed else max(one for one in needed if one is not None)
        sentence = f"Undecided: {_listed(undecided)}.{_advice(undecided, total)}"
        return replace(verdict, sentence=sentence, samples_needed=total)
    word = CARE if warnings else SHIP
    return replace(verdict, word=word, sentence=f"B holds every limit: {_listed(judged)}.")


def _without_limit(metric: str) -> str:
    return (
        f"{metric!r} decides the test but has no limit. Give one in its unit, such as "
        f'--limit "{metric} >= -0.01" (at most 0.01 lower than A).'
    )


def _listed(judgements: Sequence[Judgement]) -> str:
    return "; ".join(map(str, judgements))


def _advice(undecided: Sequence[Judgement], needed: int | None) -> str:
    if all(one.reason for one in undecided):
        return ""
    if needed is None:
        return " More samples may not decide."
    what = "blocks of runs" if undecided[0].limit.about.of == TIMES else "samples"
    return f" About {needed:,} {what} in total decide, if the figure stays where it is."


def _untested(name: str) -> str:
    return f"slice {name} has fewer than {LEAST_SLICE} samples, so no limit was judged on it"


def _warnings(answers: Sequence[Answer]) -> list[str]:
    """Return what to know before shipping: what is really lower, within its limit or without one."""
    return [
        f"{answer.name} is lower by {-answer.difference.value:.3g} {answer.unit}".rstrip()
        + f" (p {answer.adjusted_p:.2g}, {answer.samples:,} samples)"
        for answer in answers
        if answer.is_change and answer.difference.high < 0 and _is_telling(answer)
    ]


def _is_telling(answer: Answer) -> bool:
    """Tell whether to be lower is worse, and more than that two models are not one."""
    metric = answer.name.partition(" of ")[0]
    alone = metric == "agreement" and answer.baseline >= 100.0  # the baseline agrees with itself
    return answer.unit != TIMES_UNIT and not metric_of(metric).is_distance and not alone
