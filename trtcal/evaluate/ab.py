"""An A/B test from beginning to end: run both on the data, time them, judge, decide; stop early or not.

Sequential: the error rate is spent over a few interim analyses, little at first, at bounds of their
joint distribution (`trtcal.stats.sequential_levels`), so that the whole errs no more often than agreed,
whenever it stops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trtcal.backends.sessions import run_session
from trtcal.config import Tasks
from trtcal.data import Dataset
from trtcal.data.issues import DataIssue
from trtcal.data.overlap import numbers_of
from trtcal.documents import Document, seal
from trtcal.documents.overview import Columns, Overview, Shown
from trtcal.errors import InputError, __version__
from trtcal.evaluate.ab_rule import Figures, Rule, Slices, Verdict, ask, decide, rule_for
from trtcal.evaluate.collectors import (
    SampleFigures,
    TaskReplay,
    check_question,
    naming,
    read_task,
)
from trtcal.evaluate.latency import (
    FIRST_ROUNDS,
    WIDTH,
    Blocks,
    place,
    rounds_on_device,
    time_rounds,
)
from trtcal.evaluate.metrics import OwnMetric
from trtcal.evaluate.overflow import find_overflow, joined, judge_findings, low_risks, of_outputs
from trtcal.evaluate.per_sample import Labels
from trtcal.evaluate.tasks import TaskRecord
from trtcal.evaluate.variants import Variant, check_places, check_variants
from trtcal.evidence.findings import Finding
from trtcal.limits import INCONCLUSIVE, Limit
from trtcal.stats import ALPHA, Values, sequential_levels

if TYPE_CHECKING:
    from trtcal.check.evaluation_data import EvaluationCheck

AB_KIND = "ab"
ANALYSES = 5


@dataclass(frozen=True)
class Timing(Shown):
    """The blocks, and what one run was: samples in it, and the device, "CPU @NAME" or "@NAME"."""

    blocks: Blocks
    batch: int
    on: str = ""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form: latency in milliseconds for one batch, samples a second."""
        return {
            "on": self.on,
            "batch": self.batch,
            "blocks": len(self.blocks.baseline),
            "warm_up": self.blocks.warm_up,
            "outliers": self.blocks.outliers,
            "drift": self.blocks.drift,
            "baseline": self._figures(self.blocks.baseline_ms),
            "candidate": self._figures(self.blocks.candidate_ms),
        }

    def _figures(self, times: Values) -> dict[str, float]:
        p50, p90, p99 = (float(quantile) for quantile in np.quantile(times, [0.5, 0.9, 0.99]))
        rate = 1e3 * self.batch / p50
        return {"p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "samples_per_s": rate}


@dataclass(frozen=True)
class ABTest(Shown):
    """Everything about one test: the models, the data, the verdict, and its evidence.

    >>> digits, data = "samples/digits/digits.onnx", "samples/digits/calibration.npz"
    >>> test = ab_test(digits, quantize(digits, calibrate(digits, data)), "samples/digits/test.npz")
    >>> test.samples, test.task.name
    (500, 'classification')
    """

    baseline: str
    candidate: str
    dataset: str
    dataset_name: str
    samples: int
    seen: int
    verdict: Verdict
    task: TaskRecord
    timing: Timing | None = None
    interim: tuple[dict[str, Any], ...] = ()

    @property
    def keeps_all(self) -> bool:
        """Whether the candidate misses no limit that a smaller loss could hold, and no figure is lower.

        Lower is what is lower by more than noise.
        """
        verdict = self.verdict
        lower = any(answer.warning for answer in verdict.answers)
        return not lower and not any(limit.may_improve() for limit in verdict.limits)

    def overview(self) -> Overview:
        """Return the comparisons and the verdict."""
        columns: Columns = {
            "figure": "{name}",
            self.baseline: "{baseline:.5g}",
            self.candidate: "{candidate:.5g}",
            "B against A": lambda row: row.effect,
            "interval": "{difference.low:.3g} to {difference.high:.3g}",
            "p": lambda row: f"{row.p if row.adjusted_p is None else row.adjusted_p:.2g}",
            "mid-p": "{mid_p:.2g}",
        }
        title = f"A/B test of {self.baseline} and {self.candidate} on {self.seen:,} samples of "
        answer = self.verdict.overview()
        facts = (answer.title, *answer.facts)
        title += repr(self.dataset_name)
        rows = self.verdict.answers
        return Overview(title, facts, things=rows, columns=columns, missing="", tone=answer.tone)

    def to_document(self) -> Document:
        """Return the sealed JSON form; times, and what rests on them, stand under `measured`."""
        names = ("baseline", "candidate", "dataset", "dataset_name", "samples", "seen")
        body = {name: getattr(self, name) for name in names} | {
            "trtcal": __version__,
            "task": asdict(self.task),
            "interim": list(self.interim),
            "measured": {
                "verdict": self.verdict.to_document(),
                "latency": self.timing.to_document() if self.timing else None,
            },
        }
        return seal({"kind": AB_KIND, "schema_version": 3, **body})


@dataclass(frozen=True)
class ABOptions(Shown):
    """How a test runs: batch size, slices, the model to measure agreement against, own metrics.

    `sequential` judges at five interim analyses and stops as soon as the limits are decided.
    Without `task` and `outputs` they are guessed from the outputs. `checker` checks the data.

    >>> ABOptions(batch=64, sequential=True).sequential
    True
    """

    batch: int = 32
    slices: Slices | None = None
    reference: Variant | None = None
    own: OwnMetric | None = None
    sequential: bool = False
    progress: Callable[[int], None] = lambda done: None
    task: Tasks = None
    outputs: Sequence[str] = ()
    checker: EvaluationCheck | None = None


@dataclass(frozen=True)
class Question:
    """What B must hold: limits, the metric that decides if one is named, the error rate of it all."""

    limits: tuple[Limit, ...] = ()
    metric: str | None = None
    alpha: float = ALPHA


def ab_test(
    baseline: Variant,
    candidate: Variant,
    dataset: Dataset,
    question: Question,
    options: ABOptions | None = None,
) -> ABTest:
    """Test whether the candidate can replace the baseline, on the same samples.

    A question gets the limits of the task where it has none. Speed is measured first, if a limit is
    about it, on the first batch.
    """
    options = options or ABOptions()
    reference = options.reference
    everyone = [*filter(None, [reference]), baseline, candidate]
    first = everyone[0]
    check_variants(everyone)
    device = check_places((baseline, candidate))
    for limit in question.limits:
        if limit.device not in ("", device):
            what = f"this test measures nothing on {limit.device}, which the limit {limit} is about"
            raise InputError(what, f"`trtcal ab ... --on {limit.device[1:]}` measures it")
    task, batch = read_task(first, dataset, options.batch, options.task, options.outputs)
    asked = question.limits, question.metric
    rule = rule_for(*asked, task.labelled, question.alpha, task.kinds)
    metrics = [rule.metric, *(limit.metric for limit in rule.limits)]
    check_question(task, metrics, options.own, (first, dataset, batch))
    timing = _time(baseline, candidate, dataset, batch) if rule.judges_speed else None
    overflow = find_overflow(candidate.narrow_model, dataset, batch)
    analyses = InterimAnalyses(
        replace(rule, alone=reference is None),
        len(dataset),
        ANALYSES if options.sequential else 1,
        options.slices,
        timing.blocks if timing else None,
        lambda samples: tuple(_known((baseline, candidate), dataset, samples)),
    )
    runs = [variant.runner([spec.name for spec in baseline.outputs]) for variant in everyone]
    replayed = TaskReplay(task, dataset, -2, options.checker)
    seen = SampleFigures(replayed, options.own)
    with naming(first):
        for part, rows in replayed.batches(runs, batch, options.progress):
            seen.add(part, rows)
            if broken := replayed.not_finite[len(everyone) - 2]:  # A's beside another reference
                which = f"{broken} of {replayed.samples} samples"
                what = f"outputs of {baseline.name} are NaN or infinite on {which}"
                raise InputError(what, "test a model whose outputs are finite as the first one")
            if not analyses.is_due(replayed.samples):
                continue
            contrast, numbers = replayed.contrasts(), np.concatenate(seen.numbers)
            count = replayed.not_finite[len(everyone) - 1]
            analyses.findings = joined(overflow, of_outputs(count, replayed.samples))
            seen_so_far = (replayed.samples, seen.whole(), contrast, replayed.issues(), numbers)
            if analyses.judge(*seen_so_far) != INCONCLUSIVE:
                break
    if analyses.verdict is None:
        raise AssertionError("give a dataset with samples")
    return ABTest(
        baseline.name,
        candidate.name,
        dataset.fingerprint,
        dataset.name,
        len(dataset),
        analyses.seen,
        analyses.verdict,
        task.record(contrast),
        timing,
        tuple(analyses.made) if options.sequential else (),
    )


def _known(both: tuple[Variant, Variant], dataset: Dataset, samples: int) -> Iterator[str]:
    """Yield what to know of the first samples of a test: which were calibrated on, where they end."""
    numbers = numbers_of(dataset, samples)
    for letter, variant in zip("AB", both, strict=True):
        shared = variant.shared_with(numbers)
        if shared is not None:
            yield f"{shared} of {letter}; the loss on new data may be higher"
        if variant.cut is not None and variant.cut.startswith("judged"):
            yield f"{letter} is {variant.cut}"
        if variant.floats is not None:
            yield f"{letter}: {variant.floats}"


class InterimAnalyses:
    """When the figures are judged, and at which error rate, so that all together err no more often."""

    def __init__(
        self,
        rule: Rule,
        samples: int,
        count: int = ANALYSES,
        slices: Slices | None = None,
        blocks: Blocks | None = None,
        known: Callable[[int], tuple[str, ...]] = lambda samples: (),
    ) -> None:
        self.rule, self.samples, self.count = rule, samples, count
        self.slices, self.blocks, self.known = slices or {}, blocks, known
        self.findings: Sequence[Finding] = ()
        self.sizes = {name: int(where.sum()) for name, where in self.slices.items()}
        looks = tuple((i + 1) / count for i in range(count))
        self.levels = sequential_levels(2 * rule.alpha, looks)
        self.made: list[dict[str, Any]] = []
        self.verdict: Verdict | None = None
        self.seen = 0

    def is_due(self, samples: int) -> bool:
        """Whether enough samples were seen for the next analysis."""
        return samples >= math.ceil(self.samples * (len(self.made) + 1) / self.count)

    def judge(
        self,
        samples: int,
        figures: Figures,
        contrast: Mapping[str, float] | None = None,
        issues: tuple[DataIssue, ...] = (),
        numbers: Labels | None = None,
    ) -> str:
        """Judge the first samples, or those with `numbers`; return the verdict's word.

        A batch that passes several analyses at once is judged as the last of them.
        """
        due = samples * self.count // self.samples
        alpha = (1 - self.levels[max(due, 1) - 1]) / 2 if self.count > 1 else self.rule.alpha
        seen = np.arange(samples) if numbers is None else numbers
        here = {name: where[seen] for name, where in self.slices.items()}
        times = (self.blocks.baseline, self.blocks.candidate) if self.blocks else None
        rule = replace(self.rule, alpha=alpha)
        answers = ask(rule, figures, here, times, self.sizes, contrast, issues)
        answers = replace(answers, judgements=(*judge_findings(self.findings), *answers.judgements))
        warnings = (*self.known(samples), *low_risks(self.findings))
        warnings += self.blocks.warnings if self.blocks else ()
        decided = decide(self.rule, answers, warnings)
        self.verdict = replace(decided, rule=self.rule)
        self.seen = samples
        self.made.append({"samples": samples, "alpha": alpha, "word": self.verdict.word})
        return self.verdict.word


def _time(baseline: Variant, candidate: Variant, dataset: Dataset, batch: int) -> Timing:
    feeds = next(dataset.batches(batch))
    sessions: list[Any] = [variant.timed or variant.session for variant in (baseline, candidate)]
    first, samples = sessions[0], len(next(iter(feeds.values())))
    if first.device:
        blocks = rounds_on_device(sessions, feeds, FIRST_ROUNDS, WIDTH)[1]
        return Timing(blocks[1], samples, place(first.device, first.is_gpu))
    runs = [partial(run_session, session, None, feeds) for session in sessions]
    return Timing(time_rounds(runs)[1], samples)
