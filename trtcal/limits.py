"""Limits: what a figure must hold, written `[VARIANT:]METRIC RELATION BOUND`, judged on an interval.

    top1 >= -1.0             at most 1 point of top-1 lower than the reference
    int8: speedup >= 1.3     the variant int8 runs at least 1.3 times as fast
    latency_p50 <= +5%       the median latency rises by at most 5 %
    top1@slices >= -3.0      no slice loses more than 3 points
    latency_p50@orin <= 4 ms the median latency measured on the device orin is at most 4 ms
    silent_fallbacks == 0    no layer falls back without a message
    int8_macs >= 80%         four fifths of the multiply-accumulates run in INT8
    narrow_macs >= 80%       four fifths run in INT8, FP8, INT4 or NVFP4

A bound with a sign limits the change against the reference (in a history: against the baseline run),
with % the relative change; one without a sign limits the value. A limit holds if the whole interval
does, is broken if none of it does, and is undecided in between, so that a small test set never passes
by luck. After `@` stands where it is held: a device, or the reserved word `slices`. What a device
measures can be limited there: latencies, speed-up and energy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtcal.documents.overview import Columns
from trtcal.errors import GateFailed, InputError
from trtcal.metrics import FINDINGS, HIGHER, OUTPUTS, TIMES, Metric, metric_of

HOLDS, BROKEN, UNDECIDED = "holds", "broken", "undecided"
SHIP, WITH_CARE, DO_NOT, INCONCLUSIVE = "SHIP", "SHIP WITH CARE", "DO NOT SHIP", "INCONCLUSIVE"
"""The words of a verdict."""
TONES = {SHIP: "#2f9e62", WITH_CARE: "#c78a14", DO_NOT: "#d8504d"}
"""Colors of the words in a notebook, which are seen on white and on black."""
COLUMNS: Columns = {
    "limit": lambda judgement: judgement.title,
    "of": "{subject}",
    "measured": lambda each: each.reason if each.figure is None else each.measured,
    "margin": "{margin:+.4g}",
    "samples needed": "{samples_needed:,}",
    "state": "{state}",
}
"""The table of limits, for judgements."""
SLICES = "@slices"
EXAMPLES = '"top1 >= -1.0", "int8: speedup >= 1.3", "latency_p50 <= +5%" or "silent_fallbacks == 0"'
_SYNTAX = re.compile(
    r"(?:(?P<variant>.*\S)\s*:)?\s*(?P<metric>[A-Za-z_]\w*)(?P<at>@[A-Za-z0-9][\w.-]*)?\s*"
    r"(?P<relation>>=|<=|==)\s*(?P<sign>[+-])?"
    r"(?P<bound>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>%|[A-Za-z]+)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Limit:
    """What a metric must hold; `bound` is in the metric's unit, in percent if `is_relative`.

    `is_change` limits the change against the reference. `variant` None is every variant (of builds:
    every build). `at` is `@slices`, which holds every slice of the samples to it, or a device.
    """

    metric: str
    relation: str
    bound: float
    is_change: bool = False
    is_relative: bool = False
    variant: str | None = None
    at: str = ""

    @property
    def in_slices(self) -> bool:
        """Whether it is about every slice."""
        return self.at == SLICES

    @property
    def device(self) -> str:
        """The device that it is about, as a target, empty if none."""
        return "" if self.in_slices else self.at

    @property
    def about(self) -> Metric:
        """The row of the metric."""
        return metric_of(self.metric + self.device)

    @property
    def unit(self) -> str:
        """The unit of the bound and of the figures judged."""
        unit = "%" if self.is_relative else self.about.unit
        return "points" if unit == "%" and self.is_change and not self.is_relative else unit

    @property
    def name(self) -> str:
        """The metric, and where it is held."""
        return self.metric + self.at

    def __str__(self) -> str:
        variant = "" if self.variant is None else f"{self.variant}: "
        sign = "+" if self.is_change and math.copysign(1.0, self.bound) > 0 else ""
        unit = "%" if self.unit == "%" else f" {self.unit}" if self.unit.isalpha() else ""
        return f"{variant}{self.name} {self.relation} {sign}{_number(self.bound)}{unit}"

    @property
    def plain(self) -> str:
        """The limit as it is typed: without a unit that goes without saying."""
        return str(self).removesuffix(f" {self.unit}")

    def is_about(self, variant: str) -> bool:
        """Tell whether the limit is about a variant."""
        return self.variant in (None, variant)

    def state(self, low: float, high: float) -> str:
        """Return `holds`, `broken` or `undecided` for an interval."""
        if self.relation == "==":
            inside = low <= self.bound <= high
            return HOLDS if low == high == self.bound else UNDECIDED if inside else BROKEN
        if self.relation == ">=":
            return HOLDS if low >= self.bound else BROKEN if high < self.bound else UNDECIDED
        return HOLDS if high <= self.bound else BROKEN if low > self.bound else UNDECIDED


def _number(value: float) -> str:
    """Return a number as Python writes it, whole ones always with one decimal."""
    is_long = value == 0.0 or value != int(value) or abs(value) >= 1e15
    return repr(value) if is_long else f"{int(value)}.0"


def parse_limit(text: str) -> Limit:
    """Read a limit; `InputError` if it is none."""
    parts = _SYNTAX.fullmatch(text.strip())
    is_share = parts is not None and metric_of(parts["metric"]).unit == "%" and not parts["sign"]
    if parts is None or (parts["unit"] == "%" and not parts["sign"] and not is_share):
        hint = f"write a limit like {EXAMPLES}; a bound in % is a change and needs a sign"
        raise InputError(f"{text!r} is not a limit", hint)
    bound = float(parts["bound"])
    if not math.isfinite(bound):
        raise InputError(
            f"{text!r} is not a limit: its bound is not finite", f"give a limit like {EXAMPLES}"
        )
    limit = Limit(
        parts["metric"],
        parts["relation"],
        -bound if parts["sign"] == "-" else bound,
        parts["sign"] is not None,
        parts["unit"] == "%" and not is_share,
        parts["variant"],
        parts["at"] or "",
    )
    if limit.device and limit.about.of != TIMES:
        raise InputError(
            f"{text!r} is not a limit: {limit.metric} is not measured on {limit.device}",
            f"a device has latencies, speedup and energy; each slice is {limit.metric}{SLICES}",
        )
    if parts["unit"] not in (None, "%", limit.unit):
        unit = f"is in {limit.unit}" if limit.unit else "has no unit"
        raise InputError(
            f"{text!r}: {limit.metric} {unit}, not in {parts['unit']}",
            "use the unit of the metric, or leave the unit out",
        )
    return limit


def parse_limits(texts: Iterable[str]) -> tuple[Limit, ...]:
    """Read limits, each once; a string is one limit."""
    return tuple(dict.fromkeys(map(parse_limit, [texts] if isinstance(texts, str) else texts)))


def joined(configured: Sequence[Limit], options: Sequence[Limit]) -> tuple[Limit, ...]:
    """Return the limits of options, and of those configured the ones that they do not replace.

    One replaces another of the same variant, metric and relation.
    """
    replaced = {(limit.variant, limit.name, limit.relation) for limit in options}
    others = (
        limit for limit in configured if (limit.variant, limit.name, limit.relation) not in replaced
    )
    return (*options, *others)


@dataclass(frozen=True)
class Figure:
    """A measured figure and its interval, in the unit of the limit; exact ones have equal ends.

    `samples` is on how many it rests, None for a count; `level` is that of the interval.
    """

    value: float
    low: float
    high: float
    samples: int | None = None
    level: float = 0.95

    @classmethod
    def exact(cls, value: float) -> Figure:
        """Return a figure that is counted, or that no interval is known of."""
        return cls(value, value, value)


@dataclass(frozen=True)
class Judgement:
    """One limit held against one figure; `subject` is the variant, build or slice that it is of.

    Without a figure nothing was measured, and `reason` says why; with one, why it decides nothing; of
    findings it says which they are.
    One that `is_suggested` was not given: it is shown with its state, and gates nothing.
    """

    limit: Limit
    subject: str
    figure: Figure | None
    reason: str = ""
    is_suggested: bool = False

    @property
    def state(self) -> str:
        """`holds`, `broken` or `undecided`."""
        is_open = self.reason and not self.is_suggested and self.limit.about.of != FINDINGS
        if self.figure is None or is_open:
            return UNDECIDED
        return self.limit.state(self.figure.low, self.figure.high)

    @property
    def margin(self) -> float | None:
        """How far the deciding end of the interval lies on the good side, negative on the bad one."""
        if self.figure is None:
            return None
        if self.limit.relation == "==":
            low, high = self.figure.low, self.figure.high
            return min(0.0 - abs(end - self.limit.bound) for end in (low, high))
        if self.limit.relation == ">=":
            return self.figure.low - self.limit.bound
        return self.limit.bound - self.figure.high

    @property
    def gate(self) -> str:
        """The state that a verdict follows: a suggested limit leaves it undecided."""
        return UNDECIDED if self.is_suggested else self.state

    @property
    def title(self) -> str:
        """The limit as written, and whether it is only suggested."""
        return f"{self.limit} (suggested)" if self.is_suggested else str(self.limit)

    def may_improve(self, share: float = 1.0) -> bool:
        """Tell whether a variant that loses less could hold the limit on a share of the samples.

        Not for times, nor where the figure itself is on the good side and one that loses nothing would
        leave the limit undecided too.
        """
        from trtcal.stats import unseen  # SciPy takes a second: no command waits for it

        limit, figure = self.limit, self.figure
        is_open = self.state != HOLDS and (self.is_suggested or not self.reason)
        if figure is None or limit.about.of != OUTPUTS or not is_open:
            return False
        is_beyond = limit.state(figure.value, figure.value) != HOLDS
        if is_beyond or limit.unit != "points" or figure.samples is None:
            return True
        return 100 * unseen(round(share * figure.samples), figure.level) <= abs(limit.bound)

    @property
    def samples_needed(self) -> int | None:
        """Roughly how many samples would decide; None where none would or none are needed."""
        from trtcal.stats import samples_needed  # SciPy takes a second: no command waits for it

        figure = self.figure
        if figure is None or figure.samples is None or self.reason or self.state != UNDECIDED:
            return None
        ends = (figure.value, figure.low, figure.high)
        return samples_needed(ends, self.limit.bound, figure.samples)

    def __str__(self) -> str:
        subject = f"{self.subject}: " if self.subject else ""
        if self.figure is None:
            return f"{subject}{self.limit.name} was not measured: {self.reason}"
        suggested = "suggested " * self.is_suggested
        bound = "".join(str(self.limit).rpartition(self.limit.relation)[1:])
        text = f"{subject}{self.limit.name} is {self.measured} ({suggested}limit {bound})"
        return f"{text}; {self.reason}" if self.reason else text

    @property
    def measured(self) -> str:
        """The figure with its unit and, unless it is exact, its interval."""
        if self.figure is None:
            return "not measured"
        sign = "+" if self.limit.is_change else ""
        value, low, high = (
            f"{end + 0.0:{sign}.4g}"  # 0.0 in place of -0.0
            for end in (self.figure.value, self.figure.low, self.figure.high)
        )
        unit = f" {self.limit.unit}".rstrip()
        if self.figure.low == self.figure.high:
            return f"{value}{unit}"
        return f"{value}{unit}, {100 * self.figure.level:.4g} % interval {low} to {high}"

    @property
    def predicate(self) -> str:
        """What the subject does: `loses 0.6 points of top-1 (95 % interval ...); the limit is 1`.

        Where that is undecided, it ends with the number of samples that would settle it.
        """
        limit, figure, title = self.limit, self.figure, self.limit.about.title
        if limit.about.of == FINDINGS and self.reason:
            return f"has {title}: {self.reason}"
        where = f" on {self.subject}" if limit.in_slices and self.subject else ""
        if figure is None:
            return f"was not judged by the limit {limit}{where}: {self.reason}"
        unit = f" {limit.unit}".rstrip() if limit.unit != "x" else " times"
        sign = "+" if limit.is_change else ""
        amount, bound = f"{abs(figure.value):.4g}{unit}", f"{limit.bound:{sign}.4g}{unit}"
        if not limit.is_change:
            text, bound = f"has {title} {figure.value:.4g}{unit}", f"{limit.relation} {bound}"
        elif limit.about.better != HIGHER:
            text = f"has {title} {'lower' if figure.value < 0 else 'higher'} by {amount}"
        else:
            text = f"{'loses' if figure.value <= 0 else 'gains'} {amount} of {title}"
            if limit.bound <= 0:
                most = f"{-limit.bound:.4g}"
                loss = f"a loss of {most}{unit.removesuffix('s' * (most == '1'))}"
                bound = most if figure.value <= 0 else loss
        if figure.low != figure.high:
            ends = f"{figure.low + 0.0:{sign}.4g} to {figure.high + 0.0:{sign}.4g}"
            where += f" ({100 * figure.level:.4g} % interval {ends})"
        needed = self.samples_needed
        unit = "blocks of runs" if limit.about.of == TIMES else "samples"
        settled = f"about {needed:,} {unit} would settle it" if needed else ""
        known = f"the suggested limit, {bound}, " if self.is_suggested else f"the limit is {bound}"
        known += f"{'is ' * (self.state != HOLDS)}{self.state}" * self.is_suggested
        parts = (f"{text}{where}", known, settled, self.reason)
        return "; ".join(filter(None, parts))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Judgement:
        """Return what `to_document` describes."""
        low, high = (document[end] for end in ("low", "high"))
        ends = (-math.inf if low is None else low, math.inf if high is None else high)
        value, more = document["value"], (document["samples"], document["level"])
        figure = None if value is None else Figure(value, *ends, *more)
        known = (document["reason"], document.get("is_suggested", False))
        return cls(parse_limit(document["limit"]), document["subject"], figure, *known)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form; ends that are not finite are null."""
        limit, names = self.limit, ("value", "low", "high", "level", "samples")
        numbers = {name: getattr(self.figure, name, None) for name in names}
        numbers |= {"margin": self.margin, "samples_needed": self.samples_needed}
        return {
            "limit": str(limit),
            "subject": self.subject,
            "metric": limit.name,
            "label": limit.about.title,
            "relation": limit.relation,
            "bound": limit.bound,
            "unit": limit.unit,
            **{key: n if n is None or math.isfinite(n) else None for key, n in numbers.items()},
            "state": self.state,
            "reason": self.reason,
            **({"is_suggested": True} if self.is_suggested else {}),
        }


def judge_counts(
    limits: Iterable[Limit], counts: Mapping[str, int], subject: str = ""
) -> tuple[Judgement, ...]:
    """Hold counts to the limits that are about them, and about the subject."""
    exact = {name: Figure.exact(number) for name, number in counts.items()}
    return judge_figures(limits, exact, subject)


def judge_figures(
    limits: Iterable[Limit],
    figures: Mapping[str, Figure | None],
    subject: str = "",
    reason: str = "",
) -> tuple[Judgement, ...]:
    """Hold figures to the limits that are about them; `reason` says why one of them is None."""
    return tuple(
        Judgement(limit, subject, (figure := figures[limit.metric]), "" if figure else reason)
        for limit in limits
        if limit.metric in figures and limit.is_about(subject)
    )


def overall(judgements: Sequence[Judgement]) -> str:
    """Return `broken` if any limit is, `holds` if all do and there is one, else `undecided`."""
    states = {judgement.gate for judgement in judgements}
    return BROKEN if BROKEN in states else HOLDS if states == {HOLDS} else UNDECIDED


def require(
    judgements: Iterable[Judgement], hint: str, states: Collection[str] = (BROKEN,)
) -> None:
    """`GateFailed` (exit status 1) if a limit is in one of these states, the worst of them first."""
    every = [judgement for judgement in judgements if not judgement.is_suggested]
    for state in states:
        limits = [judgement for judgement in every if judgement.state == state]
        if limits:
            what = "a limit is" if len(limits) == 1 else f"{len(limits)} limits are"
            raise GateFailed(f"{what} {state}: {'; '.join(map(str, limits))}", hint)
