"""`trtcal ab`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.advice import advise_after_success, advise_on_loss
from trtcal.cli.options import ON, EvaluationOptions, VerdictOptions, argument, option
from trtcal.cli.output import print_limits, print_overview, progress, say

if TYPE_CHECKING:
    from trtcal.evaluate.ab import ABTest


class Ab(
    EvaluationOptions,
    VerdictOptions,
    example="trtcal ab int8.onnx mixed.onnx --data test.npz "
    "--limit 'top1 >= -0.5' --limit 'speedup >= 1.3'",
):
    """Test whether CANDIDATE can replace BASELINE, on the same samples.

    A limit is about the figures of each sample, as in "top1 >= -0.5" (or "top1@slices >= -3" for
    every slice), or about "speedup" or "latency_p50". The default limit depends on the task: top1
    and agreement may fall by 1 point, the cosine of embeddings to 0.99. Other outputs need a
    limit.

    The status is 1 unless the verdict is SHIP or SHIP WITH CARE.
    """

    baseline: Path = argument()
    candidate: Path = argument()
    metric: str | None = option(
        "Metric that decides: top1, top5, map, agreement, cosine, relative_error, sqnr_db, or a "
        "name from --metric-file.  [default: that of the first limit, else the task's]"
    )
    reference: Path | None = option(
        "Model that agreement, cosine and KL are measured against.  [default: BASELINE]"
    )
    alpha: float = option("Error rate of all limits together.", default=0.05)
    on: str | None = option(ON, metavar="NAME")
    sequential: bool = option("Look at the data five times, and stop when the test is decided.")
    output: Path = option("JSON file for the test.", "-o", default=Path("ab.json"))

    def _run(self) -> None:
        from trtcal.check.evaluation_data import EvaluationCheck
        from trtcal.data.slices import read_slices
        from trtcal.documents import write_document
        from trtcal.evaluate.ab import ABOptions, Question, ab_test
        from trtcal.evaluate.ab_rule import is_tested
        from trtcal.evaluate.metrics import load_metric
        from trtcal.evaluate.on_device import open_on
        from trtcal.evaluate.overflow import cure_in
        from trtcal.evaluate.variants import open_variant
        from trtcal.model import load_model
        from trtcal.model.loaders import is_model

        model = load_model(self.baseline)
        dataset = self.open_data(model, self.config.evaluation)
        device = f"@{self.on.removeprefix('@')}" if self.on else ""
        limits = self.limits_of(partial(is_tested, device=device))
        question = Question(limits, self.metric, self.alpha)
        pair = zip("AB", (self.baseline, self.candidate), strict=True)
        sources = [(path, f"{letter} {path.stem}") for letter, path in pair]
        baseline, candidate = open_on(self.on, sources, model, dataset, self.trust)
        slices, against = self.slices, self.reference
        reference_model = load_model(against) if against and is_model(against) else model
        with progress("testing", len(dataset), "samples") as advance:
            settings = ABOptions(
                self.test_batch,
                read_slices(slices, len(dataset), dataset.files) if slices else None,
                open_variant(against, trust=self.trust, reference=model) if against else None,
                load_metric(self.metric_file) if self.metric_file else None,
                self.sequential,
                advance,
                self.chosen_task,
                self.chosen_outputs,
                EvaluationCheck(reference_model, dataset),
            )
            result = ab_test(baseline, candidate, dataset, question, settings)
        document = write_document(self.output, result.to_document())
        self.present(document, lambda: show(result), self.output)
        if result.verdict.is_good:
            advise_after_success(self, self.baseline, self.candidate)
        else:
            advise_on_loss(self, self.baseline, {self.candidate: result.verdict.limits})
        hint = cure_in(result.verdict.limits) or (
            "keep the baseline, or run `trtcal search`; docs/statistics.md, Tasks, has the limits"
        )
        self.refuse(result.verdict.word, result.verdict.sentence, hint)


command = Ab.command()


def show(result: ABTest) -> None:
    """Print the comparisons, the limits and the verdict."""
    say(*result.task.lines)
    on = f"; times of {result.timing.on}" if result.timing and result.timing.on else ""
    title = f"{result.seen} of {result.samples} samples of {result.dataset_name}{on}"
    print_overview(result.overview(), title)
    for look in result.interim:
        say(f"look at {look['samples']} samples, error rate {look['alpha']:.2g}: {look['word']}")
    verdict = result.verdict
    print_limits(verdict.limits, f"limits, error rate {verdict.rule.alpha:g} for all together")
    say(*result.verdict.warnings, head="warning: ")
    say(f"{result.verdict.word}: {result.verdict.sentence}")
