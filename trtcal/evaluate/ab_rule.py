"""Should B take the place of A? The rule, its margins, and what the data say to each part of it.

Every question has an interval and a limit. A limit holds if the whole interval lies on its good side,
fails if none of it does, and is open in between: a small test set never passes by luck.
Equivalence testing by intervals: D. Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987); several
questions share the error by Bonferroni's correction of the intervals' level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.errors import InputError
from trtcal.stats import Interval, Paired, compare_means, holm, ratio_of_blocks

Values = npt.NDArray[np.float64]

SHIP, CARE, BACK, OPEN = "SHIP", "SHIP WITH CARE", "ROLL BACK", "INCONCLUSIVE"
HOLDS, FAILS, UNDECIDED = "holds", "fails", "open"
ALPHA = 0.05
HOPELESS = 300.0  # half-widths from the limit beyond which no number of samples is named
LEAST_SLICE = 30  # samples of a slice below which it is shown and not judged
DISTANCES = frozenset({"cosine", "kl", "l0", "l1", "l2", "linf", "error", "signal"})
PERCENT = frozenset({"top1", "top5", "agreement"})


@dataclass(frozen=True)
class Rule:
    """What B must hold: at most so many points lower, in all and in every slice; at least so fast.

    `max_drop` is of the metric that decides, in its unit (points for top-1); `max_slice_drop` of the
    same in a slice, None where slices only warn. `min_speedup` None does not judge speed.
    """

    metric: str = "top1"
    max_drop: float = 1.0
    min_speedup: float | None = None
    max_slice_drop: float | None = None
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        for name in ("max_drop", "min_speedup", "max_slice_drop"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"the limit {name} is {value}", "give a number from 0 up")
        if not 0 < self.alpha < 0.5:
            raise InputError(f"the error rate {self.alpha} is none", "give one like 0.05")


@dataclass(frozen=True)
class Answer:
    """One question: what was measured, its interval, the limit if it has one, and what follows."""

    name: str
    unit: str
    samples: int
    baseline: float
    candidate: float
    difference: Interval
    p: float
    limit: float | None = None
    is_floor: bool = True
    adjusted_p: float | None = None

    @property
    def state(self) -> str | None:
        """`holds`, `fails` or `open`; None without a limit."""
        if self.limit is None:
            return None
        if self.difference.low >= self.limit:
            return HOLDS
        return FAILS if self.difference.high < self.limit else UNDECIDED

    @property
    def is_change(self) -> bool:
        """Whether there is a difference at all, all questions counted."""
        return (self.p if self.adjusted_p is None else self.adjusted_p) < ALPHA

    @property
    def more_samples(self) -> int | None:
        """Roughly how many more would decide, if the figure stays where it is; None if none would."""
        if self.state != UNDECIDED or self.limit is None:
            return None
        gap = abs(self.difference.value - self.limit)
        above = self.difference.value >= self.limit
        half = (
            self.difference.value - self.difference.low
            if above
            else self.difference.high - self.difference.value
        )
        if gap <= 0 or not math.isfinite(half) or half / gap > HOPELESS:
            return None
        return max(math.ceil(self.samples * ((half / gap) ** 2 - 1)), 1)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, with what follows from the numbers."""
        return {
            **asdict(self),
            "state": self.state,
            "is_change": self.is_change,
            "more_samples": self.more_samples,
        }


@dataclass(frozen=True)
class Verdict:
    """The answer to the whole: a word, a sentence with why, and the answers behind it."""

    word: str
    sentence: str
    rule: Rule
    answers: tuple[Answer, ...]
    warnings: tuple[str, ...] = ()
    more_samples: int | None = None

    @property
    def is_good(self) -> bool:
        """Whether B may ship."""
        return self.word in (SHIP, CARE)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "word": self.word,
            "sentence": self.sentence,
            "rule": asdict(self.rule),
            "answers": [answer.to_document() for answer in self.answers],
            "warnings": list(self.warnings),
            "more_samples": self.more_samples,
        }


Figures = Mapping[str, tuple[Values, Values]]
"""Figure of one sample -> the baseline's and the candidate's, each of shape (samples,)."""


def ask(
    rule: Rule,
    figures: Figures,
    slices: Mapping[str, npt.NDArray[np.bool_]] | None = None,
    times: tuple[Values, Values] | None = None,
    seed: int = 0,
) -> tuple[Answer, ...]:
    """Return the answers: the deciding metric first, then the others, the slices, the speed.

    `slices` gives which samples are in each; `times` are the blocks' times of both. `InputError` if
    the rule's metric is none of the figures.
    """
    if rule.metric not in figures:
        raise InputError(
            f"the metric {rule.metric!r} is not known here",
            f"known: {', '.join(sorted(figures))}; top-1 needs labels",
        )
    names = [rule.metric, *(name for name in figures if name != rule.metric)]
    judged = [name for name, where in (slices or {}).items() if where.sum() >= LEAST_SLICE]
    questions = 1 + (rule.min_speedup is not None) + len(judged) * (rule.max_slice_drop is not None)
    level = 1 - rule.alpha / questions
    made = [_metric(name, figures[name], rule, level, seed) for name in names]
    made += [
        _slice(
            name, figures[rule.metric], where, rule, 1 - rule.alpha / max(len(judged), questions)
        )
        for name, where in (slices or {}).items()
        if where.any()
    ]
    if times is not None:
        made.append(_speed(times, rule, level))
    return _adjusted(made)


def _metric(name: str, both: tuple[Values, Values], rule: Rule, level: float, seed: int) -> Answer:
    limit = -rule.max_drop if name == rule.metric else None
    return _answer(name, name, compare_means(*both, level, seed), limit)


def _slice(
    name: str,
    both: tuple[Values, Values],
    where: npt.NDArray[np.bool_],
    rule: Rule,
    level: float,
) -> Answer:
    enough = int(where.sum()) >= LEAST_SLICE
    limit = -rule.max_slice_drop if enough and rule.max_slice_drop is not None else None
    found = compare_means(both[0][where], both[1][where], level)
    return _answer(f"{rule.metric} of {name}", rule.metric, found, limit)


def _answer(name: str, metric: str, found: Paired, limit: float | None) -> Answer:
    unit, factor = ("points", 100.0) if metric in PERCENT else ("", 1.0)
    return Answer(
        name,
        unit,
        found.samples,
        factor * found.baseline,
        factor * found.candidate,
        found.difference.scaled(factor),
        found.p,
        limit,
    )


def _speed(times: tuple[Values, Values], rule: Rule, level: float) -> Answer:
    ratio, p = ratio_of_blocks(*times, level)
    before, after = (float(np.median(one)) for one in times)
    return Answer("speed-up", "times", len(times[0]), before, after, ratio, p, rule.min_speedup)


def _adjusted(answers: Sequence[Answer]) -> tuple[Answer, ...]:
    ps = holm([answer.p for answer in answers])
    fields = [{**vars(answer), "adjusted_p": p} for answer, p in zip(answers, ps, strict=True)]
    return tuple(Answer(**one) for one in fields)


def decide(rule: Rule, answers: Sequence[Answer], warnings: Sequence[str] = ()) -> Verdict:
    """Return the verdict that the rule gives to its answers; `warnings` make it one with care."""
    limited = [answer for answer in answers if answer.state is not None]
    failing = [answer for answer in limited if answer.state == FAILS]
    undecided = [answer for answer in limited if answer.state == UNDECIDED]
    warnings = (*_warnings(answers), *warnings)
    told = tuple(answers)
    if failing:
        sentence = f"B fails: {'; '.join(map(_sentence, failing))}."
        return Verdict(BACK, sentence, rule, told, warnings)
    if undecided:
        more = [answer.more_samples for answer in undecided]
        needed = None if None in more else max(one for one in more if one is not None)
        sentence = (
            f"Not decided: {'; '.join(map(_sentence, undecided))}.{_advice(undecided, needed)}"
        )
        return Verdict(OPEN, sentence, rule, told, warnings, needed)
    sentence = f"B holds every limit: {'; '.join(map(_sentence, limited))}."
    return Verdict(CARE if warnings else SHIP, sentence, rule, told, warnings)


def _sentence(answer: Answer) -> str:
    sign = "" if answer.unit == "times" else "+"
    found = answer.difference
    value, low, high = (f"{one:{sign}.3g}" for one in (found.value, found.low, found.high))
    unit = f" {answer.unit}" if answer.unit else ""
    return f"{answer.name} {value}{unit} (interval {low} to {high}, limit {answer.limit:g})"


def _advice(undecided: Sequence[Answer], needed: int | None) -> str:
    if needed is None:
        return " It lies on the limit: no number of samples is sure to decide."
    what = "blocks of runs" if undecided[0].unit == "times" else "samples"
    return f" About {needed:,} more {what} would decide, if it stays where it is."


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
    alone = metric == "agreement" and answer.baseline == 100.0  # the baseline agrees with itself
    return answer.unit != "times" and metric not in DISTANCES and not alone
