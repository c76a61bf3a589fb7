"""An A/B test from beginning to end: run both on the data, time them, ask, decide; stop early or not.

Sequential: the error rate is spent over a few looks, little at first (the spending function of K. Lan
and D. DeMets, Biometrika 70, 1983, that resembles O'Brien and Fleming's bounds). Each look is judged at
its own share, so that the whole errs no more often than agreed, whenever it stops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from trtcal import __version__
from trtcal.backends.sessions import run_session
from trtcal.data import Dataset
from trtcal.documents import Document, seal
from trtcal.evaluate.ab_rule import OPEN, Rule, Verdict, ask, decide
from trtcal.evaluate.collectors import SampleFigures, sample_figures
from trtcal.evaluate.latency import Blocks, measure_until
from trtcal.evaluate.metrics import OwnMetric
from trtcal.evaluate.variants import Variant, check_variants

KIND = "ab"
LOOKS = 5

Slices = Mapping[str, npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class Timing:
    """The blocks, and what one run was: samples in it."""

    blocks: Blocks
    batch: int

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form: latency in milliseconds for one batch, samples a second."""
        return {
            "batch": self.batch,
            "blocks": len(self.blocks.baseline),
            "warm_up": self.blocks.warm_up,
            "outliers": self.blocks.outliers,
            "drift": self.blocks.drift,
            "baseline": self._figures(self.blocks.baseline_ms),
            "candidate": self._figures(self.blocks.candidate_ms),
        }

    def _figures(self, times: npt.NDArray[np.float64]) -> dict[str, float]:
        p50, p90, p99 = (float(one) for one in np.quantile(times, [0.5, 0.9, 0.99]))
        rate = 1e3 * self.batch / p50
        return {"p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "samples_per_s": rate}


@dataclass(frozen=True)
class ABTest:
    """Everything about one test: who, on what, the verdict, and how it came about."""

    baseline: str
    candidate: str
    dataset: str
    dataset_name: str
    samples: int
    seen: int
    verdict: Verdict
    timing: Timing | None = None
    looks: tuple[dict[str, Any], ...] = field(default=())

    def to_document(self) -> Document:
        """Return the sealed JSON form; times, and what rests on them, stand under `measured`."""
        body = {
            "trtcal": __version__,
            "baseline": self.baseline,
            "candidate": self.candidate,
            "dataset": self.dataset,
            "dataset_name": self.dataset_name,
            "samples": self.samples,
            "seen": self.seen,
            "looks": list(self.looks),
            "measured": {
                "verdict": self.verdict.to_document(),
                "latency": self.timing.to_document() if self.timing else None,
            },
        }
        return seal({"kind": KIND, "schema_version": 1, **body})


def ab_test(
    baseline: Variant,
    candidate: Variant,
    dataset: Dataset,
    rule: Rule,
    batch: int = 32,
    slices: Slices | None = None,
    reference: Variant | None = None,
    own: OwnMetric | None = None,
    sequential: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> ABTest:
    """Test whether the candidate may take the baseline's place.

    Speed is measured first, if the rule judges it, on the first batch. `sequential` looks five times
    and stops as soon as the rule is decided.
    """
    check_variants([baseline, candidate, *([reference] if reference else [])])
    timing = _time(baseline, candidate, dataset, batch) if rule.min_speedup is not None else None
    times = (timing.blocks.baseline, timing.blocks.candidate) if timing else None
    warnings = timing.blocks.warnings if timing else ()
    looks = _Responses(rule, len(dataset), LOOKS if sequential else 1)
    made: list[dict[str, Any]] = []
    verdict, seen = None, 0
    for found in sample_figures((baseline, candidate), dataset, batch, reference, own, progress):
        if not looks.is_due(found):
            continue
        seen, now = found.samples, looks.rule()
        here = {name: where[:seen] for name, where in (slices or {}).items()}
        verdict = decide(now, ask(now, found.whole(), here, times), warnings)
        verdict = replace(verdict, rule=rule)
        made.append({"samples": seen, "alpha": now.alpha, "word": verdict.word})
        if verdict.word != OPEN:
            break
    if verdict is None:
        raise AssertionError("a dataset has samples")
    names = (baseline.name, candidate.name)
    told = tuple(made) if sequential else ()
    return ABTest(
        *names, dataset.fingerprint, dataset.name, len(dataset), seen, verdict, timing, told
    )


class _Responses:
    """When to look at the figures, and at which error rate."""

    def __init__(self, rule: Rule, samples: int, count: int) -> None:
        self.whole, self.samples, self.count = rule, samples, count
        self.taken = 0

    def is_due(self, found: SampleFigures) -> bool:
        """Whether enough samples were seen for the next look."""
        return found.samples >= math.ceil(self.samples * (self.taken + 1) / self.count)

    def rule(self) -> Rule:
        """Return the rule at the error rate of this look; the next call is for the next look."""
        before, self.taken = self.taken, self.taken + 1
        shares = [_spent(self.whole.alpha, look / self.count) for look in (before, self.taken)]
        return replace(self.whole, alpha=shares[1] - shares[0])


def _spent(alpha: float, part: float) -> float:
    """Return the error rate that may be spent once this part of the samples was seen."""
    if part <= 0:
        return 0.0
    return float(2 * stats.norm.sf(stats.norm.isf(alpha / 2) / math.sqrt(part)))


def _time(baseline: Variant, candidate: Variant, dataset: Dataset, batch: int) -> Timing:
    """Time both on the first batch, in as many blocks as the wanted width takes."""
    feeds = next(dataset.batches(batch))
    runs = [lambda one=one: run_session(one.session, None, feeds) for one in (baseline, candidate)]
    blocks = measure_until(runs[0], runs[1])
    return Timing(blocks, len(next(iter(feeds.values()))))
