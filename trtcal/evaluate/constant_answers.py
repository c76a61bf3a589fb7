"""The best answers that are the same for every sample: what labels show without a network.

A network that is not clearly better does not work on these data, or their labels are wrong. A limit
that such an answer holds distinguishes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from trtcal.data.issues import WARNING, DataIssue
from trtcal.evaluate.accuracy import MeanCollector, rounded
from trtcal.evaluate.per_sample import (
    IGNORED,
    TOP,
    Array,
    Labels,
    Values,
    absolute_error,
    jaccard,
    mean_iou,
)
from trtcal.metrics import HIGHER, Metric, metric_of
from trtcal.stats import LEVEL, one_sided

READ = 1 << 22  # values of labels that a constant answer is chosen by, at most
UNBALANCED = 0.8  # share of one class from which top-1 says little of the others
CHECK = (
    "check the labels (their order, the numbers of the classes) and how the inputs are prepared; data "
    "without labels are judged by agreement with FP32"
)

Judged = Callable[[Labels], Values]
"""The figure of a constant answer for labels, of shape (samples,)."""


def _ranked(labels: Labels) -> Labels:
    """Return the classes, the most frequent first."""
    classes, counts = np.unique(labels, return_counts=True)
    return classes[np.argsort(-counts, kind="stable")]


def _most_frequent(labels: Labels, top: int = 1) -> Judged:
    classes = _ranked(labels)[:top]
    return lambda rows: np.isin(rows, classes).reshape(len(rows), -1).mean(1)


def _most_labels(labels: Labels) -> Judged:
    rows = labels.reshape(len(labels), -1)
    order = np.argsort(-rows.mean(0), kind="stable")
    answers = [np.isin(np.arange(len(order)), order[:count]) for count in range(TOP + 1)]
    best = max(answers, key=lambda on: jaccard(np.broadcast_to(on, rows.shape), rows).mean())
    return lambda rows: jaccard(np.broadcast_to(best, rows.reshape(len(rows), -1).shape), rows)


def _one_class(labels: Labels) -> Judged:
    most = next(iter(_ranked(labels[(labels >= 0) & (labels != IGNORED)])), 0)
    return lambda rows: mean_iou(np.full_like(rows, most), rows)


def _median(labels: Array) -> Judged:
    median = np.median(labels, axis=0)
    return lambda rows: absolute_error(np.broadcast_to(median, rows.shape), rows)


ANSWERS: dict[str, Callable[[Labels], Judged]] = {
    "top1": _most_frequent,
    "top5": lambda labels: _most_frequent(labels, TOP),
    "jaccard": _most_labels,
    "miou": _one_class,
    "mae": _median,
}
"""Metric of labels -> the best constant answer to them."""


class ConstantAnswers:
    """Collects what FP32 gets beside the best constant answers to labels, batch by batch.

    `metrics` are those that the labels give, if there are any.
    """

    def __init__(self, metrics: Collection[str], labels: Labels | None) -> None:
        self.means, self.samples = MeanCollector(), 0
        self.answers = dict[str, Judged]()
        if labels is not None:
            seen = labels[:: -(-labels.size // READ)]
            self.answers = {name: ANSWERS[name](seen) for name in metrics if name in ANSWERS}

    def add(self, reference: dict[str, Values], labels: Labels) -> None:
        """Take in a batch: the reference's figures, and the labels."""
        self.samples += len(labels)
        constant = {name: judged(labels) for name, judged in self.answers.items()}
        self.means.add(constant, {name: reference[name] for name in constant if name in reference})

    def halfway(self) -> dict[str, float]:
        """Return by metric the figure halfway between FP32's and the constant answer's."""
        means = self.means.result(self.samples).items()
        return {name: rounded(of.value.mean - of.change.mean / 2) for name, of in means}

    def issues(self) -> tuple[DataIssue, ...]:
        """Return that FP32 is not clearly better, or that most labels are of one class."""
        known = self.means.result(self.samples)
        name = next((name for name in ANSWERS if name in known), None)
        if name is None:
            return ()
        metric, mean = metric_of(name), known[name]
        change = mean.difference(one_sided(LEVEL), metric.reach)
        is_better = change.low > 0 if metric.better == HIGHER else change.high < 0
        share = mean.value.mean - mean.change.mean
        if is_better:
            return (_unbalanced(share, self.samples),) * (name == "top1" and share >= UNBALANCED)
        own = mean.value.mean
        return (no_better(metric, own, share, self.samples, "the best constant answer"),)


def no_better(metric: Metric, own: float, other: float, samples: int, what: str) -> DataIssue:
    """Return the issue that FP32 is not clearly better than an answer that no network is needed for."""
    unit = f" {metric.unit}".rstrip()
    is_same = metric.better == HIGHER and round(other, 6) == 1
    why = "all labels are the same" if is_same else "are the labels right?"
    ours, theirs = (f"{metric.factor * value:.4g}{unit}" for value in (own, other))
    reached = f"FP32 reaches a {metric.title} of {ours} on {samples:,} samples"
    reached += f", not clearly better than the {theirs} of {what} ({why})"
    figures = {"fp32": own, "constant": other, "samples": float(samples)}
    fix = "give data with other labels too" if is_same else CHECK
    return DataIssue("no_better_than_constant", "labels", reached, figures, fix)


def _unbalanced(share: float, samples: int) -> DataIssue:
    what = f"{100 * share:.4g} % of {samples:,} labels are of one class"
    what += ": top-1 says little of the others"
    figures = {"share": share, "samples": float(samples)}
    fix = "give data with more samples of the other classes"
    return DataIssue("class_imbalance", "labels", what, figures, fix, severity=WARNING)
