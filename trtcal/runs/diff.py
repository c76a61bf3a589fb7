"""A run held against the last one of its model, and against limits: what changed, and which hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from trtcal.documents import Document, parsing
from trtcal.errors import InputError
from trtcal.limits import Figure, Judgement, Limit
from trtcal.metrics import COST, COSTS, HIGHER, OUTPUTS, TIMES, check_known, metric_of
from trtcal.runs.figures import PRICED, Figures, reference_of, width_of
from trtcal.runs.history import Entry, History, entry_of

Width = Callable[[str, str], float]
"""Width of the interval of a variant's figure."""
Inputs = dict[str, tuple[str | None, str | None]]
"""What a run was made of -> what it was and what it is, None where it is missing."""


@dataclass(frozen=True)
class Changed:
    """A figure that both runs have and that differs; `share` is relative, None from zero.

    `is_noise` if it may be chance: the intervals overlap, or it is a time of two runs of the same, or
    one that differs by no more than 5 %.
    """

    variant: str
    figure: str
    before: float
    after: float
    is_noise: bool = field(default=False, kw_only=True)

    @property
    def share(self) -> float | None:
        """Relative change: 0.05 is 5 % more."""
        return self.after / self.before - 1.0 if self.before else None

    @property
    def is_better(self) -> bool | None:
        """Whether the change is for the better; None where it is neither."""
        better = metric_of(self.figure).better
        if better is None or self.is_noise:
            return None
        return (self.after > self.before) == (better == HIGHER)

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {**vars(self), "share": self.share, "is_better": self.is_better}


@dataclass(frozen=True)
class RunDifference:
    """Two runs: figures that differ, variants that only one has, and inputs that changed."""

    before: int
    after: int
    changed: tuple[Changed, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]
    inputs: Inputs

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {**vars(self), "changed": [change.to_document() for change in self.changed]}


def compare_runs(
    before: Entry, after: Entry, width: Width = lambda variant, figure: 0.0
) -> RunDifference:
    """Compare two runs, the largest relative change first; `width` is that of the later intervals.

    Those of the earlier run, which the history does not have, are taken to be as wide.
    """
    inputs, figures = changed_inputs(before, after), _comparable(before, after)
    changed = [
        Changed(*key, value, now, is_noise=_is_noise(key[1], value, now, inputs, width(*key)))
        for key, value in figures.items()
        if (now := after.figures.get(key, value)) != value
    ]
    first, second = ({variant for variant, _ in each} for each in (figures, after.figures))
    changed.sort(key=lambda change: -abs(change.share or 1.0))
    only = tuple(sorted(first - second)), tuple(sorted(second - first))
    return RunDifference(before.number, after.number, tuple(changed), *only, inputs)


def _comparable(before: Entry, after: Entry) -> Figures:
    """Return the figures of a run that another's are compared with, no cost in another currency.

    FP32 gets the name that it has in the other run, whose model file may be called differently.
    """
    reference, name = reference_of(before.figures), reference_of(after.figures)

    def renamed(variant: str) -> str:
        model, *target = variant.split(" for ", 1)
        return " for ".join([name or model if model == reference else model, *target])

    prices = [run.digests.get(PRICED, "").split(",")[0].split() for run in (before, after)]
    is_one_currency = prices[0][1:] == prices[1][1:]
    return {
        (renamed(variant), figure): value
        for (variant, figure), value in before.figures.items()
        if is_one_currency or figure != COST
    }


def _is_noise(figure: str, before: float, after: float, inputs: Inputs, width: float) -> bool:
    """Tell whether two intervals overlap, or a time changed by 5 %, or though nothing else did."""
    is_near = bool(before) and abs(after / before - 1.0) <= NOISE
    is_time = metric_of(figure).of in (TIMES, COSTS)
    return abs(after - before) < width or (is_time and (not inputs or is_near))


def changed_inputs(before: Entry, after: Entry) -> Inputs:
    """Return what of the digests and versions differs."""
    names = dict.fromkeys((*before.digests, *after.digests))
    pairs = {name: (before.digests.get(name), after.digests.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


NOISE = 0.05  # of times: two runs of the same thing may differ by that


def against_last(history: History, report: Document, project: str | None = None) -> Document | None:
    """Return plain JSON on a report and the run that it is compared with, None if there is none.

    That is the last baseline, else the last run that shipped, else the last one, of the same project or
    FP32 model. `figures` are those that differ, the verdict's variant first, then the largest relative
    change; `better` is None where that cannot be said: it may be chance, or is neither. `changed` and
    `same` name what both were made of: data, model, calibration, plans, packages, machine. `worse` are
    sentences on the watched figures that fell, `failing` is one that says that FP32 itself fails. A
    report without a comparison is held against none. `InputError` if the report lacks a field.
    """
    if report.get("comparison", {}) is None:
        return None
    now: Entry = parsing(Path("the report"), lambda: entry_of(report, project))
    if (before := history.before(now)) is None:
        return None
    width = partial(width_of, report)
    difference = compare_runs(before, now, width)
    own = sorted(difference.changed, key=lambda change: change.variant != now.variant)
    changed, reference = difference.inputs, report["comparison"]["rows"][0]["name"]
    watched = _watched(own, (reference, now.variant))
    label = f"run {before.number} of {before.name}"
    fallen = (change for change in watched if change.variant == reference)
    failed = [change for change in fallen if _fails(change, width(reference, change.figure))]
    return {
        "run": {
            "number": before.number,
            "label": label,
            "time": before.made_at,
            "digest": before.report,
            "verdict": before.verdict,
        },
        "since": before.standing,
        "figures": [_figure(change) for change in own],
        "changed": [{"what": k, "before": was, "now": now} for k, (was, now) in changed.items()],
        "same": [what for what in now.digests if what not in changed],
        "worse": [_worse(change, reference, TEST_DATA in changed) for change in watched],
        "failing": _failing(failed[0], label, changed) if failed else None,
    }


TEST_DATA = "evaluation data"


def _watched(changed: Sequence[Changed], variants: Sequence[str | None]) -> list[Changed]:
    """Return the watched figures of FP32 and a variant that got worse, each once.

    What FP32 lost the variant lost with it; slower FP32 is a slower machine.
    """
    worse = [each for each in changed if each.is_better is False]
    worse = [each for each in worse if metric_of(each.figure).is_watched]
    fallen = [each for each in worse if each.variant == variants[0]]
    common = {each.figure for each in fallen}
    own = [each for each in worse if each.variant.partition(" for ")[0] == variants[1]]
    of_machine = (TIMES, COSTS)
    return [each for each in fallen if metric_of(each.figure).of not in of_machine] + [
        each for each in own if each.figure not in common
    ]


def _worse(change: Changed, reference: str, is_of_other_data: bool) -> str:
    """Return a sentence on a figure that got worse; on other data it did not fall, it differs."""
    metric = metric_of(change.figure)
    name = "FP32" if change.variant == reference else change.variant
    before, now = (f"{value:{metric.digits}}" for value in (change.before, change.after))
    figure, unit = f"{metric.heading.partition(',')[0]} of {name}", f" {metric.unit}".rstrip()
    if is_of_other_data and metric.of == OUTPUTS:
        return f"{figure} is {now}{unit}; it was {before}{unit} on other test data."
    changed = "rose" if change.after > change.before else "fell"
    return f"{figure} {changed} from {before} to {now}{unit}."


def _fails(change: Changed, width: float) -> bool:
    """Tell whether less than half of what was right is right, by the upper end of the interval."""
    metric = metric_of(change.figure)
    return metric.is_share and metric.needs_labels and change.after + width < change.before / 2


def _failing(change: Changed, label: str, inputs: Inputs) -> str:
    metric = metric_of(change.figure)
    changed = [name for name in ("model", TEST_DATA) if name in inputs]
    cause = " and ".join(changed) or "neither model nor evaluation data"
    figures = f"{metric.title} is {change.after:.2f} %; it was {change.before:.2f} % in {label}"
    what = f"FP32 itself fails: {figures}"
    return f"{what}. Changed since then: {cause}. Compare them with that run."


def _figure(change: Changed) -> Document:
    metric = metric_of(change.figure)
    return {
        "name": f"{change.variant}: {metric.title}",
        "variant": change.variant,
        "figure": change.figure,
        "unit": metric.unit,
        "before": change.before,
        "now": change.after,
        "change": change.share,
        "better": change.is_better,
    }


NO_BASELINE = "no baseline run has this figure"


def judge_run(limits: Sequence[Limit], before: Entry | None, after: Entry) -> tuple[Judgement, ...]:
    """Hold a run's figures to limits; `InputError` if it has no such figure.

    A limit on change is undecided without a baseline, or where that lacks the figure.
    """
    return tuple(judgement for limit in limits for judgement in _judge(limit, before, after))


def _judge(limit: Limit, before: Entry | None, after: Entry) -> list[Judgement]:
    figures = {figure for _, figure in after.figures}
    check_known([limit.metric], figures)
    keys = [key for key in after.figures if key[1] == limit.name and limit.is_about(key[0])]
    if not keys or limit.in_slices:
        known = ", ".join(sorted(figures))
        raise InputError(f"run {after.number} has no figure for {limit}", f"known: {known}")
    judgements = []
    for key in keys:
        was = _comparable(before, after).get(key) if before else None
        value = _value(limit, was, after.figures[key])
        figure = None if value is None else Figure.exact(value)
        judgements.append(Judgement(limit, key[0], figure, "" if figure else NO_BASELINE))
    return judgements


def _value(limit: Limit, was: float | None, now: float) -> float | None:
    if not limit.is_change:
        return now
    if was is None or (limit.is_relative and not was):
        return None
    return 100.0 * (now / was - 1.0) if limit.is_relative else now - was
