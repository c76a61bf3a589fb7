"""Ship or not: one word, one sentence with its numbers, and the rule that gave it.

The rule works on intervals, never on bare estimates: a variant holds a limit if its whole
interval does, fails it if none of it does, and is undecided in between. It knows the limits of one
comparison and what builds say of the same models; it does not know what a lost point costs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from trtcal.data.issues import ERROR, DataIssue
from trtcal.documents import Document, from_fields
from trtcal.errors import InputError, some
from trtcal.evaluate.comparison import Comparison, Row, unjudged
from trtcal.evaluate.overflow import as_text, low_risks
from trtcal.evaluate.target_times import Speed, best_known, speed_of
from trtcal.evaluate.variant_limits import is_compared, judge_row, judge_variants, time_for
from trtcal.evidence.diagnosis.failure import ends_build, line_of
from trtcal.evidence.explanations import Explanation, explain
from trtcal.evidence.findings import Finding
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.evidence.manifest import Build
from trtcal.evidence.times import DEVICE, INT8, pays
from trtcal.formats import NARROW, WEIGHTS_ONLY, spelled
from trtcal.limits import (
    BROKEN,
    DO_NOT,
    HOLDS,
    INCONCLUSIVE,
    SHIP,
    UNDECIDED,
    WITH_CARE,
    Figure,
    Judgement,
    overall,
)
from trtcal.metrics import OUTPUTS, PERCENT, PSNR, TIMES, labelled, metric_of
from trtcal.quantization.weighted_ops import QUANTIZED
from trtcal.reporting import text
from trtcal.reporting.engines import CPU

REASON_SHOWN = 200
LONGEST = 400  # characters of what was found in data
FLOATS = ("fp32", "fp16", "bf16")
COMMAND = re.compile("`[^`]*`")
CODE = re.compile(r"\w::\w|\bAssertion |\bnullptr\b|\w\(\)")
"""What only code has."""
DEAD, DEAD_SAMPLES = 0.4, 32  # share of channels, and samples, from which on it is said
REACHES = 3.0  # times as far as the next sample
STRETCHED = 2  # tensors that one sample stretches


@dataclass(frozen=True)
class Pays:
    """Whether a variant pays over FP16 on a target: `answer` is int8, fp16 or device, and why.

    `file` is that of the FP16 model where FP16 does as well.
    """

    target: str
    answer: str
    sentence: str
    file: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The answer: `reasons` are the warnings, `limits` those of the variant it is about.

    `estimates` is how fast that is on the targets beside FP32 and FP16, measured or estimated, and
    `pays` whether it is worth it.
    """

    word: str
    variant: str | None
    sentence: str
    rule: str
    reasons: tuple[str, ...] = ()
    limits: tuple[Judgement, ...] = ()
    estimates: tuple[Speed, ...] = ()
    pays: tuple[Pays, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        limits = [judgement.to_document() for judgement in self.limits]
        estimates = [estimate.to_document() for estimate in self.estimates]
        lists = {"reasons": list(self.reasons), "limits": limits, "estimates": estimates}
        return {**vars(self), **lists, "pays": [vars(answer) for answer in self.pays]}


@dataclass(frozen=True)
class _Judged:
    row: Row
    limits: tuple[Judgement, ...]
    breaches: tuple[str, ...] = ()

    @property
    def accuracy(self) -> Judgement | None:
        """The first limit on what the outputs are."""
        return next((limit for limit in self.limits if limit.limit.about.of == OUTPUTS), None)

    @property
    def judges_speed(self) -> bool:
        """Whether a limit is about speed."""
        return any(limit.limit.about.of == TIMES for limit in self.limits)

    @property
    def state(self) -> str:
        """Whether all limits hold; without one on the outputs, nothing holds."""
        state = BROKEN if self.breaches else overall(self.limits)
        return UNDECIDED if state == HOLDS and self.accuracy is None else state

    @property
    def shortfall(self) -> float:
        """What is missing from each limit, as a share of it (of 1, where the limit is smaller)."""
        figures = ((limit, limit.figure) for limit in self.limits if limit.figure is not None)
        exact = (replace(limit, figure=Figure.exact(figure.value)) for limit, figure in figures)
        missing = (min(each.margin or 0.0, 0.0) / max(abs(each.limit.bound), 1.0) for each in exact)
        return len(self.breaches) - sum(missing)


def judge(
    comparison: Comparison,
    builds: Sequence[Build] = (),
    failed_builds: Mapping[str, str] | None = None,
    breaches: Mapping[str, Sequence[str]] | None = None,
    issues: Sequence[DataIssue] = (),
    tails: Sequence[Document] = (),
) -> Verdict:
    """Return the verdict on the best variant.

    Of those that hold every limit the best has the highest speed-up if speed is judged, else the
    smallest drop beyond chance, then the highest agreement and SQNR. `failed_builds` gives what was not
    built, and why, `breaches` for a model's fingerprint the limits that its builds break, `issues` what
    looks wrong in the calibration data, and `tails` which of their samples reach farthest.
    """
    broken = breaches or {}
    rows = [row for row in comparison.candidates if not row.stopped]
    limits = judge_variants(comparison) if rows else {}
    judged = [_Judged(row, limits[row.name], tuple(broken.get(row.model, ()))) for row in rows]
    crashes = [f"{crash['variant']} does not run: {crash['why']}." for crash in comparison.crashes]
    if not judged:
        word = DO_NOT if crashes else INCONCLUSIVE
        sentence = " ".join(crashes) or "Nothing was compared with FP32."
        return Verdict(word, None, sentence, _rule(comparison))
    holding = [variant for variant in judged if variant.state == HOLDS]
    undecided = [variant for variant in judged if variant.state == UNDECIDED]
    if holding or undecided:
        best = max(holding or undecided, key=_merit(holding or undecided, bool(holding)))
    else:
        best = min(judged, key=lambda variant: variant.shortfall)
    others = [row for row in (comparison.rows[0], comparison.alternative) if row is not None]
    speeds = tuple(speeds_of(best.row, others))
    answers = tuple(_pays(speeds, best.row, comparison.alternative))
    timed = {speed.time.target for speed in speeds if speed.time.is_measured}
    timed |= {""} if best.judges_speed and not best.row.times else set()
    reasons = warnings(best.row, timed, builds, failed_builds or {}, comparison.rows[0].model)
    if not best.judges_speed:
        reasons = (*_slower(best.row), *reasons)
    if holding or undecided:
        reasons = (*unjudged(comparison), *reasons)
    reasons += (*(each.sentence for each in answers if each.answer != INT8), *crashes)
    reasons += tuple(
        f"{row.name}: {as_text(finding)}."
        for row in comparison.rows[1:]
        for finding in row.findings
        if row is not best.row and finding.cost.risk == "high"
    )
    reasons += tuple(_of_data("calibration", issue) for issue in issues)
    reasons += tuple(_of_data("evaluation", issue) for issue in comparison.issues)
    reasons += (*_dead_channels(best.row), *_outlier(best.row, tails))
    word, sentence = _answer(comparison, best, bool(reasons))
    about_inputs = (issue for issue in issues if issue.subject != "labels")
    error = DataIssue.error_of((*comparison.issues, *about_inputs))
    if error is not None and best.state != BROKEN:
        word, sentence = INCONCLUSIVE, f"{error.answer[0].upper()}{error.answer[1:]}"
    known = (_rule(comparison, best), reasons, best.limits, speeds, answers)
    return Verdict(word, best.row.name, sentence, *known)


def lowered(verdict: Document, changes: Document | None) -> Document:
    """Return a report's verdict with what got worse since the run that it is compared with.

    Where FP32 itself fails, what it is the reference of shows nothing. `changes` is None without a run.
    """
    worse, failing = ((changes or {}).get(key) for key in ("worse", "failing"))
    reasons, word = verdict["reasons"], verdict["word"]
    if failing and word in (SHIP, WITH_CARE):
        return {**verdict, "word": INCONCLUSIVE, "sentence": failing}
    if failing:
        return {**verdict, "reasons": [failing, *reasons]}
    if changes is None or not worse:
        return verdict
    fallen = f"Worse since {changes['run']['label']}, {changes['since']}: {' '.join(worse)}"
    word = WITH_CARE if word == SHIP else word
    return {**verdict, "word": word, "reasons": [fallen, *reasons]}


def _dead_channels(row: Row) -> Iterator[str]:
    layers = row.layers
    for figure in layers.figures if layers and layers.samples >= DEAD_SAMPLES else ():
        if figure.dead_channels > DEAD * figure.channels:
            channels = f"{figure.dead_channels} of {figure.channels} channels"
            yield f"{channels} of {figure.tensor} are dead: each has one value in all samples."


def _outlier(row: Row, tails: Sequence[Document]) -> Iterator[str]:
    reaches = [reach for tail in tails for reach in tail["tensors"].values() if len(reach) > 1]
    far = [reach[0] for reach in reaches if reach[0]["value"] > REACHES * reach[1]["value"] > 0]
    samples = Counter(reach["name"] or f"{reach['index']}" for reach in far)
    for sample, count in samples.most_common(1):
        if count >= STRETCHED and row.quantization.get("method") == "minmax":
            yield (
                f"Calibration sample {sample} stretches the ranges of {count} tensors to more than "
                f"{REACHES:.0f} times those of the others, which minmax follows."
            )


def _of_data(which: str, issue: DataIssue) -> str:
    start = f"The {which} data look wrong" if issue.severity == ERROR else f"The {which} data"
    return f"{start}: {text.shorten(issue.sentence, LONGEST)}."


def with_builds(comparison: Comparison, builds: Sequence[Build]) -> Comparison:
    """Return a comparison with what the builds for GPUs say of times: measured before estimated."""
    engines = [build for build in builds if not build.is_for_cpu]
    rows = (
        replace(row, times=best_known(row.times, (e for e in engines if e.model == row.model)))
        for row in comparison.rows
    )
    return replace(comparison, rows=tuple(rows))


def speeds_of(row: Row, others: Iterable[Row]) -> Iterator[Speed]:
    """Yield how a variant stands beside others on each target, by layers of one compiler."""
    for time, other in itertools.product(row.times, others):
        for slow in other.times:
            if (slow.target, slow.compiler) == (time.target, time.compiler):
                yield speed_of(time, slow, other.name)


def _pays(speeds: Iterable[Speed], row: Row, fp16: Row | None) -> Iterator[Pays]:
    for speed in speeds:
        on_cpu = speed.time.latency is not None and not speed.time.latency.is_gpu
        if fp16 is not None and speed.against == fp16.name and not on_cpu:
            answer, why, file = _answer_over(speed, row, fp16)
            figures = "" if speed.is_too_small else f": {speed.sentence} ({speed.time.source})"
            yield Pays(speed.time.target, answer, f"On {speed.time.where}, {why}{figures}.", file)


def _answer_over(speed: Speed, row: Row, fp16: Row) -> tuple[str, str, str | None]:
    answer, name = DEVICE if speed.is_too_small else pays(speed), row.name
    if answer == DEVICE:
        return DEVICE, f"only the device decides whether {name} is faster than FP16", None
    if answer == INT8:
        return INT8, f"{name} pays over FP16", None
    if _decibels(fp16) < _decibels(row):
        return INT8, f"{name} is not faster than FP16, which loses more accuracy", None
    file = f"models/{fp16.name}.onnx"
    return answer, f"FP16 does as well as {name}, so ship {file}", file


def _decibels(row: Row) -> float:
    """Return the SQNR, infinite without any error; a model that overflows has none."""
    if any(finding.cost.risk == "high" for finding in row.findings):
        return -math.inf
    accuracy = row.accuracy
    exact = math.inf if accuracy.cosine == 1 else -math.inf
    return exact if accuracy.sqnr_db is None else accuracy.sqnr_db


def without_comparison(builds: Sequence[Build], failed: Sequence[Document]) -> Verdict:
    """Return the verdict on builds that nothing was compared of; `failed` are those that made none."""
    if not failed:
        sentence = "Engines were built, but none was compared with FP32."
        reasons = [reason for build in builds for reason in _build_warnings(build)]
        rule = "A verdict needs accuracy and speed beside FP32: run `trtcal compare`."
        return Verdict(INCONCLUSIVE, None, sentence, rule, tuple(reasons))
    sentences = [_failed_build(failure) for failure in failed]
    rule = "Without an engine there is nothing to ship."
    return Verdict(DO_NOT, None, sentences[0], rule, tuple(sentences[1:]))


def _failed_build(failed: Document) -> str:
    """Return what a failed build's log gives as the cause: the layer, the line, the likely fix."""
    findings = (from_fields(Finding, item) for item in failed["diagnosis"]["findings"])
    cause = next(filter(ends_build, findings), None)
    where = "" if failed["where"] == "." else f" in {text.shorten(failed['where'], REASON_SHOWN)}"
    if cause is None:
        return f"No engine: the build{where} ended and its log gives no reason."
    line = line_of(cause)
    at = f" (line {line} of its log)" if line else ""
    cause_text = cause.why if CODE.search(cause.what) else cause.what
    what = text.shorten(cause_text, REASON_SHOWN).rstrip(".:")
    return f"No engine: the build{where} failed: {what}{at}. {cause.fix}"


def _merit(variants: Sequence[_Judged], is_holding: bool) -> Callable[[_Judged], tuple[float, ...]]:
    """Return the key of which the best variant has the greatest value.

    Variants whose right answers differ by no more than two standard deviations of chance from the best
    count alike there.
    """
    most = max(map(_right, variants), default=(0, 0))
    times = [{time.target: time.ms for time in variant.row.times} for variant in variants]
    target = next((each for each in times[0] if all(each in known for known in times)), None)

    def merit(variant: _Judged) -> tuple[float, ...]:
        accuracy, first = variant.row.accuracy, variant.accuracy
        kept = -math.inf
        if first is not None and first.figure is not None:
            kept = first.figure.value if first.limit.relation == ">=" else -first.figure.value
            (more, differing), (best, most_differing) = _right(variant), most
            is_chance = best - more <= max(1.0, 2 * math.sqrt(most_differing + differing))
            if first.limit.metric in ("top1", "top1_drop") and is_chance:
                kept = math.inf
        row = variant.row
        fast = next((-time.ms for time in row.times if time.target == target), row.latency.speedup)
        speed = (fast,) if is_holding and variant.judges_speed else ()
        sqnr = math.inf if accuracy.sqnr_db is None else accuracy.sqnr_db
        return (*speed, kept, accuracy.agreement or 0.0, sqnr)

    return merit


def _right(variant: _Judged) -> tuple[int, int]:
    """Return how many more samples a variant has right than FP32, and in how many they differ."""
    won, lost = (variant.row.accuracy.top1_won or 0, variant.row.accuracy.top1_lost or 0)
    return won - lost, won + lost


def _answer(comparison: Comparison, best: _Judged, has_warnings: bool) -> tuple[str, str]:
    if best.state == HOLDS:
        sentence = _holding_sentence(comparison.rows[0], best.row, best.judges_speed)
        return WITH_CARE if has_warnings else SHIP, sentence
    if best.state == UNDECIDED:
        return INCONCLUSIVE, _undecided_sentence(best)
    sentence = _broken_sentence(best, is_only=len(comparison.candidates) == 1)
    return DO_NOT, f"{sentence}{_fp16_instead(comparison, best)}"


def _fp16_instead(comparison: Comparison, best: _Judged) -> str:
    """Return a sentence where FP16 holds the limits that variants are judged by, else nothing."""
    reference, fp16 = comparison.rows[0], comparison.alternative
    limits = [judgement.limit for judgement in best.limits if is_compared(judgement.limit)]
    if fp16 is None or any(finding.cost.risk == "high" for finding in fp16.findings):
        return ""
    judged = _Judged(fp16, judge_row(limits, fp16, reference))
    return f" FP16 ({fp16.name}) holds the limits." if judged.state == HOLDS else ""


def _holding_sentence(reference: Row, row: Row, judges_speed: bool) -> str:
    accuracy = row.accuracy
    share = row.size_bytes / max(reference.size_bytes, 1)
    samples = text.count(accuracy.samples, "sample")
    if accuracy.top1 is not None and reference.accuracy.top1 is not None:
        ours, theirs = text.number(accuracy.top1), text.number(reference.accuracy.top1)
        first = f"gets {ours} % of {samples} right; FP32 gets {theirs} %"
    elif shares := [metric for metric in labelled().values() if {metric} & PERCENT & {*row.means}]:
        means = (side.means[shares[0]].value.mean for side in (row, reference))
        ours, theirs = (text.number(100 * mean) for mean in means)
        label = metric_of(shares[0]).title
        first = f"reaches {label} {ours} % on {samples}; FP32 reaches {theirs} %"
    elif accuracy.agreement is not None:
        first = _agreeing(row)
    elif PSNR in row.means:
        psnr = text.number(row.means[PSNR].value.mean)
        first = f"gives pictures with a PSNR of {psnr} dB to FP32's on {samples}"
    else:
        cosine = text.number(accuracy.cosine, 5)
        first = f"gives outputs with a cosine of {cosine} to FP32's on {samples}"
    size = f"Its model file has {text.number(100 * share, 0)} % of FP32's size."
    latency = row.times[0].latency if row.times else row.latency
    if judges_speed and latency:
        speedup = text.number(latency.speedup)
        size = f"It runs at {speedup} times the speed of FP32 on {latency.where}. {size}"
    return f"{row.name} {first}. {size}"


def _agreeing(row: Row) -> str:
    accuracy = row.accuracy
    samples, share = text.count(accuracy.samples, "sample"), text.number(accuracy.agreement)
    if [output.kind for output in row.outputs] in ([], ["classes"]):
        return f"gives the same answer as FP32 on {share} % of {samples}"
    return f"makes {share} % of FP32's decisions, the mean over {samples}"


def warnings(
    row: Row, timed: Set[str], builds: Sequence[Build], failed: Mapping[str, str], reference: str
) -> tuple[str, ...]:
    """Return what should be known before shipping a variant that holds its limits.

    `timed` are the targets that its speed was measured on, "" for all. `reference` is the fingerprint
    of the FP32 model, beside whose engines its own are held.
    """
    own = [build for build in builds if build.model == row.model]
    targets = sorted({build.target for build in own if not build.is_for_cpu})
    targets = targets or refused_targets(failed) or [t.target for t in row.times]
    unknown = [target for target in targets if target not in timed]
    is_known = "" in timed or (targets and not unknown)
    reasons = [] if is_known else [_speed_warning(row, unknown)]
    reasons += [
        f"The times on {latency.where} were disturbed: {latency.warnings[0]}."
        for latency in (time.latency for time in row.times)
        if latency and latency.is_gpu and latency.warnings
    ]
    shared = row.shared_samples and f"{row.shared_samples}; the loss on new data may be higher."
    cut = row.cut and f"{row.cut[0].upper()}{row.cut[1:]}."
    reasons += [sentence for sentence in (*low_risks(row.findings), shared, cut) if sentence]
    if not own:
        what = f"No engine was built from {row.name}"
        reasons.append(f"{what}: the precision of its layers is not known.")
        if row.coverage and row.coverage.is_low:
            reasons.append(f"Only {row.coverage.headline}.")
    for build in own:
        if not build.is_for_cpu or not targets:  # a CPU's kernels say nothing of a GPU's
            reasons += _build_warnings(build)
    reasons += _larger_engines(row.name, own, builds, reference)
    reasons_of = (item for build in own for item in build.skipped.items())
    skipped = {node for node, reason in reasons_of if reason != QUANTIZED}
    if skipped:
        layers = text.count(len(skipped), "layer was", "layers were")
        reasons.append(f"{layers} not quantized: {some(sorted(skipped))}.")
    return (*reasons, *_not_built(failed))


def _not_built(failed: Mapping[str, str]) -> Iterator[str]:
    """Yield why there are no engines: once for all models that a target refuses for one reason."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for what, why in failed.items():
        model, _, target = what.rpartition(" for ")
        plain = COMMAND.sub("", why)  # it names the model's file
        alike.setdefault((target, plain), []).append((model, why))
    for (target, _), several in alike.items():
        of = some([model for model, _ in several])
        where = f"for {target} from {of}" if of else f"in {target}"
        yield f"No engine {where}: {text.shorten(_plain(several[0][1]), 2 * REASON_SHOWN)}."


def _plain(why: str) -> str:
    """Return what a failure means where its text is an assertion of the compiler's code."""
    if CODE.search(why) is None:
        return why
    known: tuple[Explanation, ...] = ()
    with contextlib.suppress(InputError):
        known = explain(why)
    meanings = [each.meaning.rstrip(".") for each in known if each.name != "unknown"]
    return (*meanings, "the compiler ended with an internal error, which its log has")[0]


def refused_targets(failed: Iterable[str]) -> list[str]:
    """Return the targets, but a CPU, for which something could not be built: `model for sm89`."""
    return sorted({what.rpartition(" for ")[2] for what in failed if " for " in what} - {CPU})


def _larger_engines(
    name: str, own: Sequence[Build], builds: Sequence[Build], reference: str
) -> Iterator[str]:
    floats = (build for build in builds if build.model == reference)
    plain = {build.target: build.measured.get("engine_bytes") for build in floats}
    for build in own:
        size, other = build.measured.get("engine_bytes"), plain.get(build.target)
        if not build.is_for_cpu and size and other and size > other:
            sizes = f"{text.size(size)} against {text.size(other)}"
            yield f"The engine of {name} for {build.target} is larger than FP32's: {sizes}."


def _speed_warning(row: Row, targets: Sequence[str]) -> str:
    sentence = f"The speed on {', '.join(targets) or 'the target'} was not measured"
    if not targets and row.latency.speedup_interval[1] < 1.0:
        return f"{sentence}. On this machine {row.name} is slower than FP32."
    return f"{sentence}."


def _slower(row: Row) -> Iterator[str]:
    """Yield where a variant was measured to be slower than FP32 on a device."""
    for latency in (time.latency for time in row.times):
        if latency and latency.speedup_interval[1] < 1.0:
            ratio, (low, high) = latency.speedup, latency.speedup_interval
            speed = f"{ratio:.3g} times its speed ({low:.3g} to {high:.3g})"
            yield f"On {latency.where}, {row.name} is slower than FP32: {speed}."


def _build_warnings(build: Build) -> Iterator[str]:
    outcomes = [outcome for outcome in build.outcomes if outcome.asked in NARROW]
    unknown = [outcome.node for outcome in outcomes if outcome.got not in (*FLOATS, *NARROW)]
    total, where = text.count(len(outcomes), "layer"), f"{build.target} ({build.backend})"
    if build.coverage and build.coverage.is_low:
        yield f"On {where}, only {build.coverage.headline}."
    yield from _lost(outcomes, where)
    if unknown:
        names = some(unknown)
        yield f"The precision of {len(unknown)} of {total} on {where} is not known: {names}."


def _lost(outcomes: Sequence[Outcome], where: str) -> Iterator[str]:
    """Yield which of the layers asked in narrow formats got float: to multiply in, or as weights."""
    for is_weights, what in ((False, "run in float"), (True, "have weights expanded to float")):
        own = [outcome for outcome in outcomes if (outcome.asked in WEIGHTS_ONLY) == is_weights]
        lost = [outcome.node for outcome in own if outcome.got in FLOATS]
        total, formats = text.count(len(own), "layer"), spelled({outcome.asked for outcome in own})
        if lost:
            yield f"{len(lost)} of {total} requested in {formats} {what} on {where}: {some(lost)}."


def _undecided_sentence(best: _Judged) -> str:
    name = best.row.name
    judgement = next((limit for limit in best.limits if limit.gate == UNDECIDED), None)
    if judgement is None:
        return f"No limit is on the outputs of {name}; the table Variants has its figures."
    figure, sentence = judgement.figure, f"{name} {judgement.predicate}."
    if figure is None or judgement.reason or judgement.samples_needed is not None:
        return sentence
    time = time_for(judgement.limit, best.row, best.row)
    if judgement.limit.about.of == TIMES and time and not time.latency:
        return f"{sentence} It is an estimate; only a measurement on the device decides."
    if judgement.limit.about.of != OUTPUTS:
        return f"{sentence} More rounds on an idle machine narrow the interval."
    if math.isfinite(figure.high - figure.low):
        return f"{sentence} The figure is at the limit, so more samples may not settle it."
    return f"{sentence} More samples would settle it."


def _broken_sentence(best: _Judged, is_only: bool) -> str:
    subject = "The only variant," if is_only else "No variant holds the limits. The closest,"
    broken = [limit.predicate for limit in best.limits if limit.gate == BROKEN]
    parts = [f"{subject} {best.row.name}, {', and '.join(broken) or 'breaks a limit on builds'}"]
    parts += [f"{breach[0].upper()}{breach[1:]}" for breach in best.breaches]
    return f"{'. '.join(parts)}."


def _rule(comparison: Comparison, best: _Judged | None = None) -> str:
    parts = [f"{each.limit}" for each in best.limits] if best else map(str, comparison.limits)
    chosen = "smallest loss beyond chance, then the highest agreement and SQNR,"
    chosen = "the fastest" if best and best.judges_speed else f"the one with the {chosen}"
    rule = f"A variant passes if its whole interval holds every limit: {'; '.join(parts)}. Of the "
    rule += f"variants that pass, {chosen} is chosen."
    if len(comparison.candidates) > 1:
        variants = "the number of variants that can pass (Holm's correction)"
        rule += f" The intervals are widened for {variants}."
    return rule
