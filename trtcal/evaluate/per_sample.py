"""How far one model's outputs are from another's, sample by sample: what everything else is made of.

All figures are of one sample and depend on no other, so that batches, slices and resampling can take
them as they are. Rows are samples; several outputs of a model count as one long row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.data.dataset import PADDING
from trtcal.errors import InputError

Array = npt.NDArray[Any]
Values = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

TOP = 5
IGNORED = 255  # the label of pixels that do not count, of many data sets
SUM_TOLERANCE = 1e-3  # of rows that are probabilities already
LARGEST_PSNR = 100.0  # dB, of pictures without a difference
LEAST_PROBABILITY = 1e-12  # what a class counts as at least, so that KL stays finite


def compare_rows(
    reference: Sequence[Array], variant: Sequence[Array], labels: Labels | None = None
) -> dict[str, Values]:
    """Return all figures that can be known, each of shape (samples,), float64.

    `top1` and `top5` need labels, and like `agreement` and `kl` a first output of class scores.
    `InputError` if outputs differ in shape, have NaN or infinite values, or other than one row for each
    label.
    """
    size = next(iter(reference[0].shape), 0)
    for before, after in zip(reference, variant, strict=True):
        are_alike = before.shape == after.shape and before.shape[:1] == (size,)
        if not are_alike or before.dtype.kind not in "fiub":
            what = f"outputs of shapes {before.shape} and {after.shape} can't be compared"
            hint = "every output needs one row per sample, the same in reference and variant"
            raise InputError(what, hint)
        check_finite(before, after)
    return distances(reference, variant, size) | by_class(reference[0], variant[0], labels)


def by_class(reference: Array, variant: Array, labels: Labels | None = None) -> dict[str, Values]:
    """Return `agreement`, `kl` and with labels `top1` and `top5` of class scores, nothing of others."""
    expected, actual = class_scores(reference), class_scores(variant)
    labels = class_labels(labels)
    if expected is None or actual is None:
        return {}
    alike = np.equal(actual.argmax(1), expected.argmax(1)).astype(np.float64)
    figures = {"agreement": alike, "kl": divergence(expected, actual)}
    if labels is not None:
        if len(labels) != len(actual):
            what = f"{len(labels)} labels for {len(actual)} rows of the first output"
            hint = "labels need an output with one row per sample; leave them out otherwise"
            raise InputError(what, hint)
        check_labels(labels, actual.shape[1])
        figures.update(correctness(actual, labels))
    return figures


def class_labels(labels: Labels | None) -> Labels | None:
    """Return labels if they are one class a sample."""
    is_one = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
    return labels if is_one else None


def mean_iou(classes: Array, labels: Labels) -> Values:
    """Return the mean intersection over union of the classes that a sample has, of shape (samples,).

    A class counts that its labels or its pixels have; negative labels and 255 are left out.
    """
    means = np.zeros(len(classes))
    for place, (actual, expected) in enumerate(zip(classes, labels, strict=True)):
        kept = (expected >= 0) & (expected != IGNORED)
        actual, expected = actual[kept], expected[kept]
        names, codes = np.unique(np.concatenate([actual, expected]), return_inverse=True)
        a, b = codes.reshape(2, -1)
        both = np.bincount(a[a == b], minlength=len(names))
        either = np.bincount(a, minlength=len(names)) + np.bincount(b, minlength=len(names)) - both
        means[place] = float((both / either).mean()) if len(names) else 1.0
    return means


def jaccard(actual: Array, labels: Array) -> Values:
    """Return the share of the labels that either gives which both give, 1 where neither gives any.

    `InputError` if a label is not 0 or 1.
    """
    a, b = (rows.reshape(len(rows), -1) for rows in (actual, labels))
    if not np.isin(b, (0, 1)).all():
        raise InputError(
            f"label {b[~np.isin(b, (0, 1))][0]} is neither 0 nor 1, which labels of several classes "
            "per sample need",
            "give one column of 0 and 1 for each label of the model",
        )
    either, both = ((a | (b == 1)).sum(1), (a & (b == 1)).sum(1))
    return np.asarray(np.divide(both, either, out=np.ones(len(a)), where=either > 0))


def absolute_error(values: Array, labels: Labels) -> Values:
    """Return the mean absolute difference from labels, of shape (samples,)."""
    rows = [np.asarray(each, np.float64).reshape(len(each), -1) for each in (values, labels)]
    return np.asarray(np.abs(rows[0] - rows[1]).mean(1))


def cross_entropy(scores: Array, labels: Labels) -> Values:
    """Return the mean cross entropy (nats) of the tokens with a label, of shape (samples,).

    `scores` are of shape (samples, tokens, classes); 0 for a sample of which no token has a label.
    """
    labels = labels.reshape(len(labels), -1)[:, : scores.shape[1]]
    known = labels != PADDING
    check_labels(labels[known], scores.shape[2])
    rows = scores[known].astype(np.float64)
    shares = _probabilities(rows, are_probabilities(rows))
    entropies = np.zeros(labels.shape)
    entropies[known] = -np.log(shares[np.arange(len(rows)), labels[known]])
    return np.asarray(entropies.sum(1) / np.maximum(known.sum(1), 1))


def correctness(scores: Array, labels: Labels) -> dict[str, Values]:
    """Return `top1`, and `top5` where there are more than five classes, of shape (samples,).

    Among equal scores the first class wins, as with argmax.
    """
    right = {"top1": np.equal(scores.argmax(1), labels).astype(np.float64)}
    if scores.shape[1] > TOP:
        own = np.take_along_axis(scores, labels[:, None], 1)
        before = np.arange(scores.shape[1]) < labels[:, None]
        rank = ((scores > own) | ((scores == own) & before)).sum(1)
        right["top5"] = (rank < TOP).astype(np.float64)
    return right


def divergence(expected: Array, actual: Array) -> Values:
    """Return KL(expected || actual) of each row's class probabilities, in nats.

    Rows that are no probabilities are taken for logits.
    """
    rows = expected.astype(np.float64)
    are_shares = are_probabilities(rows)
    p, q = (_probabilities(scores.astype(np.float64), are_shares) for scores in (expected, actual))
    return np.asarray(np.maximum((p * (np.log(p) - np.log(q))).sum(1), 0.0))


def are_probabilities(rows: Values) -> bool:
    """Tell whether all rows sum to 1, without a negative value."""
    return bool((rows >= 0).all() and (np.abs(rows.sum(1) - 1) <= SUM_TOLERANCE).all())


def _probabilities(rows: Values, are_shares: bool) -> Values:
    """Return rows as probabilities: those given, or the softmax of logits."""
    powers = np.maximum(rows, 0.0) if are_shares else np.exp(rows - rows.max(1, keepdims=True))
    powers = np.maximum(powers, LEAST_PROBABILITY)
    return np.asarray(powers / powers.sum(1, keepdims=True))


def peak_signal(error: Values, peak: float) -> Values:
    """Return the PSNR (dB) of mean squared errors, of shape (samples,), at most `LARGEST_PSNR`."""
    share = np.maximum(error / (peak**2 or 1.0), 10 ** (-LARGEST_PSNR / 10))
    return np.asarray(-10 * np.log10(share))


def distances(reference: Sequence[Array], variant: Sequence[Array], size: int) -> dict[str, Values]:
    """Return the distances of all outputs as one long row for each sample.

    `signal` is the sum of the reference's squares, `error` that of the squared differences.
    """
    expected, actual = (
        np.concatenate([each.astype(np.float64).reshape(size, -1) for each in outputs], axis=1)
        for outputs in (reference, variant)
    )
    difference = np.abs(expected - actual)
    squares = np.square(difference).sum(1)
    norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(actual, axis=1)
    same = np.where((difference == 0).all(1), 1.0, 0.0)
    dots = np.einsum("ij,ij->i", expected, actual)
    return {
        "cosine": np.divide(dots, norms, out=same, where=norms > 0),
        "l0": (difference > 0).mean(1),
        "l1": difference.mean(1),
        "l2": np.sqrt(squares),
        "linf": difference.max(1, initial=0.0),
        "signal": np.square(expected).sum(1),
        "error": squares,
    }


def class_scores(output: Array) -> Array | None:
    """Return an output as scores of shape (samples, classes), None if it is not shaped like that."""
    if output.dtype.kind != "f" or output.ndim < 2 or any(size != 1 for size in output.shape[2:]):
        return None
    return output.reshape(len(output), -1) if output.shape[1] > 1 else None


class NotFiniteError(InputError):
    """An output has NaN or infinite values."""


def check_finite(*outputs: Array, name: str = "") -> None:
    """`NotFiniteError` if an output has NaN or infinite values."""
    if not all(np.isfinite(output).all() for output in outputs):
        what = f"{f'output {name!r}' if name else 'an output'} has NaN or infinite values"
        hint = "run each model alone on these data to find out whether weights or data are broken"
        raise NotFiniteError(what, hint)


def check_labels(labels: Labels, classes: int) -> None:
    """`InputError` if a label is none of the classes."""
    if not ((labels >= 0) & (labels < classes)).all():
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise InputError(
            f"label {wrong} is not one of the {classes} classes of the model (0 to {classes - 1})",
            "number the labels as the model does",
        )
