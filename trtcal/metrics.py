"""The table of metrics: one row for each figure of trtcal, with all that the rooms need to know of it.

Limits, comparison, A/B test, history, dashboard and report read it. To add a metric of outputs, add its
row here and the function that computes it for each sample (`trtcal.evaluate.per_sample`). A count of
findings of one kind, or a figure that is computed already, takes its row alone.

A figure that has no row is either a kind of finding (`evidence/kinds.toml`), whose number a build is
held to, or a figure of the user's own metric. Any other name is an error: `check_known`.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtcal.errors import InputError

OUTPUTS, TIMES, FILES, COSTS = "outputs", "times", "files", "costs"
COVERAGE, BUILDS, FINDINGS, DATA = "coverage", "builds", "findings", "data"
"""What a figure is of."""
HIGHER, LOWER = "higher", "lower"
DECIDING = ("classes", "labels", "boxes", "pixels", "tokens", "language")
RAW, UNJUDGED = "raw", "unjudged"
FLOATING = ("values", "vectors", "signal", "image", RAW)
"""The kinds of outputs: those with decisions, and those that are values alone."""
ARRAYS = tuple(kind for kind in (*DECIDING, *FLOATING) if kind != "boxes")
"""The kinds of outputs that are compared value by value."""


@dataclass(frozen=True)
class Metric:
    """What is known of a figure.

    `better` is None where neither more nor less of it is. A share is computed in 0..1 and shown in
    percent; of what `is_log` the logarithm is computed, whose mean counts. `reach` is how far a value
    that was not seen may lie from the mean. `kinds` are the kinds of outputs that it is about;
    `is_of_first` takes the first output of a kind alone. Of several outputs a sample has the value of
    the worst one, `worst` being "least" or "most". `defaults` has the limit where none is given, by
    kind of output.

    `drop_of` is the share whose losses it is. Without `has_baseline` FP32 has none that could change;
    an extreme has no mean. An A/B test takes those that are `is_tested`; to be lower in a distance is
    not worse. The history has those that are `is_recorded`, and follows those that are `is_watched`.
    `column` is its heading in a table of variants, where it has one, for the kinds of outputs in
    `column_of`, all if empty; `timing` its name in a variant's
    times, `counts` the kind of finding that it counts, and `lacks` says why it may not be there.
    `aliases` are other words for it, which an error answers with its name.
    """

    name: str
    title: str
    unit: str = ""
    better: str | None = LOWER
    of: str = OUTPUTS
    is_share: bool = False
    is_log: bool = False
    reach: float | None = None
    kinds: tuple[str, ...] = ()
    is_of_first: bool = False
    needs_labels: bool = False
    worst: str | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    drop_of: str | None = None
    has_baseline: bool = True
    has_mean: bool = True
    is_tested: bool = True
    is_distance: bool = False
    is_recorded: bool = True
    is_watched: bool = False
    column: str = ""
    column_of: tuple[str, ...] = ()
    digits: str = ".4g"
    timing: str = ""
    counts: str = ""
    lacks: str = "no judged output has this figure"
    aliases: tuple[str, ...] = ()

    @property
    def factor(self) -> float:
        """What the computed value is multiplied by to be in the metric's unit."""
        return 100.0 if self.is_share else 1.0

    @property
    def heading(self) -> str:
        """The title with a capital, and the unit."""
        title = self.title if self.title[1:2].isupper() else self.title[:1].upper() + self.title[1:]
        return f"{title}, {self.unit}" if self.unit not in ("", "x") else title


NO_CLASSES = "no output has class scores"
NO_LABELS = "the data have no labels that fit an output"
NO_MACS = "the multiply-accumulates of this variant are not known"
COST = "cost_per_million"
INT8_MACS, NARROW_MACS = SHARES = ("int8_macs", "narrow_macs")
SQNR, PSNR = "sqnr_db", "psnr_db"

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "top1", "top-1", "%", HIGHER, is_share=True, kinds=("classes",), is_of_first=True,
            needs_labels=True, defaults={"classes": ">= -1.0"}, is_watched=True, column="top-1 %",
            digits=".2f", lacks=NO_CLASSES, aliases=("accuracy",),
        ),
        Metric(
            "top1_drop", "drop of top-1", "points", kinds=("classes",), is_of_first=True,
            needs_labels=True, drop_of="top1", is_tested=False,
            lacks=NO_CLASSES,
        ),
        Metric(
            "top5", "top-5", "%", HIGHER, is_share=True, kinds=("classes",), is_of_first=True,
            needs_labels=True, lacks=NO_CLASSES,
        ),
        Metric(
            "jaccard", "Jaccard index of the labels", "%", HIGHER, is_share=True, reach=1.0,
            kinds=("labels",), is_of_first=True, needs_labels=True, defaults={"labels": ">= -1.0"},
            is_watched=True, column="Jaccard %", digits=".2f", lacks=NO_LABELS,
        ),
        Metric(
            "map", "mAP", "%", HIGHER, is_share=True, reach=1.0, kinds=("boxes",), needs_labels=True,
            defaults={"boxes": ">= -1.0"}, is_watched=True, column="mAP %", digits=".2f",
            lacks=NO_LABELS,
        ),
        Metric(
            "map50", "mAP50", "%", HIGHER, is_share=True, reach=1.0, kinds=("boxes",),
            needs_labels=True, column="mAP50 %", digits=".2f", lacks=NO_LABELS,
        ),
        Metric(
            "miou", "mean IoU", "%", HIGHER, is_share=True, reach=1.0, kinds=("pixels",),
            is_of_first=True, needs_labels=True, defaults={"pixels": ">= -1.0"}, is_watched=True,
            column="mIoU %", digits=".2f", lacks=NO_LABELS,
        ),
        Metric(
            "mae", "mean absolute error", kinds=("values",), is_of_first=True, needs_labels=True,
            is_distance=True, column="MAE", lacks=NO_LABELS,
        ),
        Metric(
            "perplexity", "perplexity", is_log=True, kinds=("tokens", "language"), is_of_first=True,
            needs_labels=True, defaults=dict.fromkeys(("tokens", "language"), "<= +1%"),
            is_watched=True, column="perplexity", lacks=NO_LABELS, aliases=("ppl", "cross_entropy"),
        ),
        Metric(
            "agreement", "agreement with FP32", "%", HIGHER, is_share=True, reach=1.0,
            kinds=DECIDING, worst="least", defaults=dict.fromkeys(DECIDING, ">= -1.0"),
            is_watched=True, column="agree %", digits=".2f",
        ),
        Metric(
            SQNR, "SQNR", "dB", HIGHER, kinds=ARRAYS, has_baseline=False,
            defaults={"signal": ">= 30"}, is_watched=True, column="SQNR dB", digits=".1f",
        ),
        Metric(
            PSNR, "PSNR", "dB", HIGHER, reach=20.0, kinds=("image",), worst="least", has_baseline=False,
            defaults={"image": ">= 40"}, is_distance=True, column="PSNR dB", digits=".1f",
            lacks="no output is a picture", aliases=("psnr",),
        ),
        Metric(
            "cosine", "cosine", "", HIGHER, reach=1.0, kinds=ARRAYS, worst="least",
            defaults={"vectors": ">= 0.99"}, is_distance=True, column="cosine", digits=".5f",
        ),
        Metric(
            "kl", "KL divergence", "nats", kinds=("classes",), is_of_first=True, is_distance=True,
            lacks=NO_CLASSES,
        ),
        Metric(
            "relative_error", "relative error", kinds=ARRAYS, worst="most", is_distance=True,
            column="rel. error", digits=".4f",
        ),
        Metric(
            "score_error", "error of scores", kinds=("boxes",), worst="most", is_distance=True,
            column="score error", digits=".4f",
        ),
        Metric(
            "l0", "share of outputs that differ", kinds=ARRAYS, is_tested=False, is_recorded=False
        ),
        Metric("l1", "mean absolute difference", kinds=ARRAYS, is_tested=False, is_recorded=False),
        Metric("l2", "norm of the difference", kinds=ARRAYS, is_tested=False, is_recorded=False),
        Metric(
            "linf", "largest difference", kinds=ARRAYS, has_mean=False, is_tested=False,
            is_recorded=False, column="largest diff.", column_of=("image",),
            lacks="a maximum has no interval; use a limit on l2, which has one",
        ),
        Metric("latency_p50", "median latency", "ms", of=TIMES, timing="p50_ms", is_watched=True),
        Metric(
            "latency_p90", "90th percentile of latency", "ms", of=TIMES, timing="p90_ms",
            is_tested=False,
        ),
        Metric(
            "latency_p99", "99th percentile of latency", "ms", of=TIMES, timing="p99_ms",
            is_tested=False,
        ),
        Metric(
            "speedup", "speed-up over FP32", "x", HIGHER, of=TIMES, timing="speedup",
            is_watched=True, aliases=("speed",),
        ),
        Metric(
            "energy", "energy of an inference", "mJ", of=TIMES, timing="energy_mj",
            is_tested=False, is_watched=True, aliases=("power",),
        ),
        Metric(COST, "cost of a million inferences", of=COSTS, is_watched=True),
        Metric("size_bytes", "file size", "bytes", of=FILES),
        Metric("engine_bytes", "engine size", "bytes", of=BUILDS),
        Metric(
            INT8_MACS, "share of multiply-accumulates in INT8", "%", HIGHER, of=COVERAGE,
            is_watched=True, lacks=NO_MACS,
        ),
        Metric(
            NARROW_MACS, "share of multiply-accumulates in narrow formats", "%", HIGHER,
            of=COVERAGE, lacks=NO_MACS,
        ),
        Metric("layers", "engine layers", better=None, of=BUILDS, is_watched=True),
        Metric("asked", "layers asked in a narrow format", better=None, of=BUILDS),
        Metric("met", "layers that got the narrow format asked for", better=HIGHER, of=BUILDS),
        Metric(
            "broken_fusions", "broken fusions", of=FINDINGS, counts="broken_fusion", is_watched=True
        ),
        Metric("findings", "findings of the diagnosis", of=FINDINGS, is_watched=True),
        Metric(
            "silent_fallbacks", "silent fallbacks", of=FINDINGS, counts="silent_fallback",
            is_watched=True,
        ),
        Metric(
            "uncalibrated", "tensors without range", of=FINDINGS, counts="missing_range",
            is_watched=True,
        ),
        Metric("log_findings", "findings in the log", of=BUILDS),
        Metric("data_issues", "issues of the calibration data", of=DATA, is_watched=True),
    )
}  # fmt: skip
"""The figures of trtcal's own."""

OF_OUTPUTS = tuple(metric for metric in METRICS.values() if metric.of == OUTPUTS)
PERCENT = frozenset(metric.name for metric in METRICS.values() if metric.is_share)
"""Metrics that are computed as shares."""
LOGARITHMS = frozenset(metric.name for metric in METRICS.values() if metric.is_log)
"""Metrics that are computed as logarithms."""
WORST = {metric.name: metric.worst for metric in OF_OUTPUTS if metric.worst}
"""Metric -> whether the worst of several outputs has the least or the most of it."""
COUNTED = {metric.name: metric.counts for metric in METRICS.values() if metric.counts}
"""Metric -> the kind of finding that it counts."""


def labelled() -> dict[str, str]:
    """Return by kind of output the metric of its first output that needs labels."""
    rows = [metric for metric in OF_OUTPUTS if metric.needs_labels]
    return {kind: metric.name for metric in reversed(rows) for kind in metric.kinds}


@functools.cache
def finding_kinds() -> frozenset[str]:
    """Return the kinds of findings."""
    path = Path(__file__).parent / "evidence" / "kinds.toml"
    return frozenset(re.findall(r"^\[(\w+)\]$", path.read_text(encoding="utf-8"), re.MULTILINE))


def metric_of(name: str) -> Metric:
    """Return a metric's row; that of a kind of finding or of an own metric has its name as title.

    The row of a figure measured on a device, `metric@device`, has that in its title.
    """
    metric, at, device = name.partition("@")
    if metric in METRICS:
        row = METRICS[metric]
        return replace(row, name=name, title=f"{row.title} on @{device}") if at else row
    title = name.replace("_", " ")
    if name in finding_kinds():
        return Metric(name, title, better=None, of=FINDINGS, counts=name)
    return Metric(name, title, better=None)


def check_known(names: Iterable[str], own: Collection[str] | None = ()) -> None:
    """`InputError`, with the nearest name, for a figure that nothing measures.

    `own` are the figures of the user's own metric, None while that was not run yet.
    """
    for name in names:
        known = {*METRICS, *finding_kinds(), *(own or ())}
        if name in known or own is None:
            continue
        aliases = {alias: metric.name for metric in METRICS.values() for alias in metric.aliases}
        words = difflib.get_close_matches(name, sorted({*known, *aliases}), n=2)
        near = dict.fromkeys(word if word in known else aliases[word] for word in words)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(
            f"{name!r} is not a metric",
            f"{hint}docs/statistics.md lists the metrics; --metric-file adds your own",
        )
