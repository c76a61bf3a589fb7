"""Ship or not: one word, one sentence with its numbers, and the rule that gave it.

The rule works on 95 % intervals, never on bare estimates: a variant holds a limit if its whole
interval does, fails it if none of it does, and is undecided in between. It knows the limits of one
comparison and what builds say of the same models; it does not know what a lost point costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtcal.documents import Document
from trtcal.evaluate.comparison import Comparison, Gates, Row
from trtcal.evidence.diagnosis import FAILING
from trtcal.evidence.manifest import Build
from trtcal.reporting import text
from trtcal.reporting.layer_view import CPU
from trtcal.reporting.limits import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Check,
    check_limits,
    overall,
    samples_to_decide,
)

SHIP, WITH_CARE, DO_NOT, INCONCLUSIVE = "SHIP", "SHIP WITH CARE", "DO NOT SHIP", "INCONCLUSIVE"
REASON_SHOWN = 200
FLOATS = ("fp32", "fp16", "bf16")
NAMED_FIRST = "no_implementation"  # of what ended a build: it names the layer


@dataclass(frozen=True)
class Verdict:
    """The answer: `reasons` are the warnings, `checks` the limits of the variant it is about."""

    word: str
    variant: str | None
    sentence: str
    rule: str
    reasons: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        plain = {"word": self.word, "variant": self.variant, "sentence": self.sentence}
        checks = [check.to_document() for check in self.checks]
        return {**plain, "rule": self.rule, "reasons": list(self.reasons), "checks": checks}


@dataclass(frozen=True)
class _Judged:
    row: Row
    checks: tuple[Check, ...]
    breaches: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        return FAILS if self.breaches else overall(self.checks)

    @property
    def shortfall(self) -> float:
        """What is missing from each limit, as a share of it (of 1, where the limit is smaller)."""
        beyond = (max(check.excess, 0.0) / max(check.limit, 1.0) for check in self.checks)
        return len(self.breaches) + sum(beyond)


def judge(
    comparison: Comparison,
    builds: Sequence[Build] = (),
    failed_builds: Mapping[str, str] | None = None,
    breaches: Mapping[str, Sequence[str]] | None = None,
) -> Verdict:
    """Return the verdict on the best variant.

    Of those that hold every limit the best has the highest speed-up if speed is judged, else the
    smallest drop, then the highest SQNR. `failed_builds` gives what was not built, and why, `breaches`
    for a model's fingerprint the limits that its builds break.
    """
    broken = breaches or {}
    known = (builds, failed_builds, comparison.rows[0].model)
    judged = [
        _Judged(row, check_limits(row, comparison.gates), tuple(broken.get(row.model, ())))
        for row in comparison.rows[1:]
    ]
    if not judged:
        return Verdict(INCONCLUSIVE, None, "Nothing was compared with FP32.", _rule(comparison))
    holding = [one for one in judged if one.state == HOLDS]
    undecided = [one for one in judged if one.state == UNDECIDED]
    if not (holding or undecided):
        nearest = min(judged, key=lambda one: one.shortfall)
        reasons = warnings(nearest.row, comparison.gates, *known)
        return _do_not_ship(comparison, nearest, reasons)
    best = max(holding or undecided, key=_merit(comparison.gates if holding else Gates()))
    reasons = warnings(best.row, comparison.gates, *known)
    return (_ship if holding else _inconclusive)(comparison, best, reasons)


def without_comparison(builds: Sequence[Build], failed: Sequence[Document]) -> Verdict:
    """Return the verdict on builds that nothing was compared of; `failed` are those that made none."""
    if not failed:
        sentence = "Engines were built, and none was compared with FP32."
        reasons = [reason for build in builds for reason in _build_warnings(build)]
        rule = "Without accuracy and speed beside FP32 there is no verdict: `trtcal compare`."
        return Verdict(INCONCLUSIVE, None, sentence, rule, tuple(reasons))
    told = [_failed_build(one) for one in failed]
    return Verdict(DO_NOT, None, told[0], "Without an engine nothing can ship.", tuple(told[1:]))


def _failed_build(failed: Document) -> str:
    """Return what a failed build's log gives as the cause: the layer, the line, the likely fix."""
    findings = [one for one in failed["diagnosis"]["findings"] if one["kind"] in FAILING]
    where = "" if failed["where"] == "." else f" in {text.shorten(failed['where'], REASON_SHOWN)}"
    if not findings:
        return f"No engine: the build{where} ended, and its log does not say why."
    first = min(findings, key=lambda one: (one["kind"] != NAMED_FIRST, _line_of(one)))
    at = f" (line {_line_of(first)} of its log)"
    if first["subject"]:
        layer = text.shorten(first["subject"], REASON_SHOWN)
        return f"No engine: the build{where} failed at {layer!r}{at}. {first['why']} {first['fix']}"
    told = text.shorten(first["what"], REASON_SHOWN).rstrip(".")
    return f"No engine: the build{where} failed: {told}{at}. {first['fix']}"


def _line_of(finding: Document) -> int:
    """Return the first line of a log that a finding rests on: what comes first causes the rest."""
    places = (one["place"] for one in finding["evidence"] if one["source"] == "log")
    lines = [
        int(place.rpartition(":")[2]) for place in places if place.rpartition(":")[2].isdigit()
    ]
    return min(lines, default=0)


def _merit(gates: Gates) -> Callable[[_Judged], tuple[float, ...]]:
    """Return the key of which the best variant has the greatest value."""

    def merit(one: _Judged) -> tuple[float, ...]:
        accuracy = one.row.accuracy
        drop = next((check.value for check in one.checks if check.at_most), math.inf)
        sqnr = math.inf if accuracy.sqnr_db is None else accuracy.sqnr_db
        speed = (one.row.latency.speedup,) if gates.min_speedup is not None else ()
        return (*speed, -drop, sqnr)

    return merit


def _ship(comparison: Comparison, best: _Judged, reasons: tuple[str, ...]) -> Verdict:
    sentence = _holding_sentence(comparison.rows[0], best.row)
    word = WITH_CARE if reasons else SHIP
    rule = _rule(comparison, best.checks)
    return Verdict(word, best.row.name, sentence, rule, reasons, best.checks)


def _holding_sentence(reference: Row, row: Row) -> str:
    accuracy = row.accuracy
    share = row.size_bytes / max(reference.size_bytes, 1)
    if accuracy.top1 is not None and reference.accuracy.top1 is not None:
        first = (
            f"gets {text.number(accuracy.top1)} % of {accuracy.samples:,} samples right, "
            f"where FP32 gets {text.number(reference.accuracy.top1)} %"
        )
    else:
        agreement = text.number(accuracy.agreement)
        first = f"answers like FP32 on {agreement} % of {accuracy.samples:,} samples"
    speed = f"runs at {text.number(row.latency.speedup)} times its speed on this machine"
    return f"{row.name} {first}; it {speed} and takes {text.number(100 * share, 0)} % of its size."


def warnings(
    row: Row,
    gates: Gates,
    builds: Sequence[Build] = (),
    failed_builds: Mapping[str, str] | None = None,
    reference: str | None = None,
) -> tuple[str, ...]:
    """Return what should be known before shipping a variant that holds its limits.

    `reference` is the fingerprint of the FP32 model, beside whose engines its own are held.
    """
    own = [build for build in builds if build.model == row.model]
    targets = sorted({build.target for build in own} - {CPU})
    reasons = [] if gates.min_speedup is not None else [_speed_warning(row, targets)]
    if not own:
        reasons.append("No engine was built from it: which layers get INT8 is not known.")
    for build in own:
        if build.target != CPU or not targets:  # a CPU's kernels say nothing of a GPU's
            reasons += _build_warnings(build)
    reasons += _larger_engines(own, builds, reference)
    skipped = {node for build in own for node in build.skipped}
    if skipped:
        layers = text.count(len(skipped), "layer")
        reasons.append(f"{layers} could not be quantized: {text.some(sorted(skipped))}.")
    for what, why in (failed_builds or {}).items():
        reasons.append(f"Could not be built: {what} ({text.shorten(why, REASON_SHOWN)}).")
    return tuple(reasons)


def _larger_engines(
    own: Sequence[Build], builds: Sequence[Build], reference: str | None
) -> list[str]:
    """Return for which targets the engine is larger than that of the FP32 reference."""
    plain = {
        build.target: build.measured.get("engine_bytes")
        for build in builds
        if build.model == reference
    }
    found = []
    for build in own:
        size, other = build.measured.get("engine_bytes"), plain.get(build.target)
        if build.target != CPU and size and other and size > other:
            sizes = f"{text.size(size)}, FP32's {text.size(other)}"
            found.append(f"Its engine for {build.target} is larger than FP32's: {sizes}.")
    return found


def _speed_warning(row: Row, targets: Sequence[str]) -> str:
    told = f"Speed on {', '.join(targets) or 'the target'} was not measured here"
    if row.latency.speedup_interval[1] < 1.0:
        return f"{told}; on this machine it is slower than FP32."
    return f"{told}."


def _build_warnings(build: Build) -> list[str]:
    asked = [outcome for outcome in build.outcomes if outcome.asked == "int8"]
    lost = [outcome.node for outcome in asked if outcome.got in FLOATS]
    unknown = [outcome.node for outcome in asked if outcome.got not in (*FLOATS, "int8")]
    total, where = text.count(len(asked), "layer"), f"{build.target} ({build.backend})"
    reasons = []
    if lost:
        names = text.some(lost)
        reasons.append(f"{len(lost)} of {total} asked in INT8 run in float on {where}: {names}.")
    if unknown:
        names = text.some(unknown)
        reasons.append(f"What {len(unknown)} of {total} got on {where} is not known: {names}.")
    return reasons


def _inconclusive(comparison: Comparison, best: _Judged, reasons: tuple[str, ...]) -> Verdict:
    open_checks = [check for check in best.checks if check.state == UNDECIDED]
    if open_checks:
        sentence = _undecided_sentence(best.row, open_checks[0])
    else:
        sentence = (
            f"{best.row.name} has no classes in its first output, so neither top-1 nor agreement "
            "can be held to the limit; the table gives its SQNR and cosine."
        )
    rule = _rule(comparison, best.checks)
    return Verdict(INCONCLUSIVE, best.row.name, sentence, rule, reasons, best.checks)


def _undecided_sentence(row: Row, check: Check) -> str:
    span = f"{text.number(check.value)}, 95 % interval {text.between(check.low, check.high)}"
    if not check.at_most:
        return (
            f"The timing does not tell whether {row.name} is {text.number(check.limit)} times as "
            f"fast as FP32: the speed-up is {span}. More rounds on a quiet machine would."
        )
    samples = row.accuracy.samples
    needed = samples_to_decide(check, samples)
    advice = "It lies on the limit, so no number of samples is sure to decide."
    if needed is not None:
        advice = f"Roughly {needed:,} samples would, if the figure stays where it is."
    return (
        f"{text.count(samples, 'sample')} cannot tell whether {row.name} stays within "
        f"{text.number(check.limit)} points: {check.measure} is {span}. {advice}"
    )


def _do_not_ship(comparison: Comparison, nearest: _Judged, reasons: tuple[str, ...]) -> Verdict:
    failing = [check for check in nearest.checks if check.state == FAILS]
    one = "The only variant" if len(comparison.rows) == 2 else "The nearest variant"
    parts = " and ".join([*map(_failure, failing), *nearest.breaches])
    sentence = f"{one}, {nearest.row.name}, fails: {parts}."
    rule = _rule(comparison, nearest.checks)
    return Verdict(DO_NOT, nearest.row.name, sentence, rule, reasons, nearest.checks)


def _failure(check: Check) -> str:
    unit = " points" if check.at_most else ""
    relation = "over the limit of" if check.at_most else "short of the limit of"
    return (
        f"its {check.measure} is {text.number(check.value)}{unit} "
        f"(95 % interval {text.between(check.low, check.high)}), "
        f"{text.margin(check.excess)} {relation} {text.number(check.limit)}"
    )


def _rule(comparison: Comparison, checks: Sequence[Check] = ()) -> str:
    gates = comparison.gates
    accuracy = next((check for check in checks if check.at_most), None)
    speed = next((check for check in checks if not check.at_most), None)
    measure = accuracy.measure if accuracy else "drop of top-1"
    parts = [
        f"the upper end of the 95 % interval of its {measure} is at most "
        f"{text.number(gates.max_top1_drop)} points{_here(accuracy)}"
    ]
    if gates.min_speedup is not None:
        limit = text.number(gates.min_speedup)
        parts.append(
            f"the lower end of the 95 % interval of its speed-up is at least {limit}{_here(speed)}"
        )
    best = (
        "the fastest"
        if gates.min_speedup is not None
        else "the one with the smallest drop, then the highest SQNR,"
    )
    return f"A variant holds if {', and '.join(parts)}. Of those that hold, {best} is taken."


def _here(check: Check | None) -> str:
    if check is None:
        return ""
    end = check.high if check.at_most else check.low
    words = "margin" if check.margin >= 0 else "missed by"
    return f" (here {text.number(end)}, {words} {text.margin(check.margin)})"
