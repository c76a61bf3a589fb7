"""Adaptive rounding: integers for a layer's weights chosen together, by the layer's output error.

The objective is the layer's mean squared output error on quantized inputs against its output in
float: M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization" (2020), with the
asymmetric reconstruction of its section 4. It is solved column by column, each error compensated in the
columns that are still open: E. Frantar et al., "GPTQ" (2022), algorithm 1. All that it needs are the
second moments of the layer's input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from trtcal.formats import Precision
from trtcal.model.model import Floats
from trtcal.ptq.layer_inputs import MatrixForm, TokenWeights

ROWS = 8192  # of a layer's input, at most
ROWS_A_WEIGHT = 4  # or so many for each weight of an output, if that is more
BLOCK = 64  # columns whose errors are passed on together to those behind
DAMPING = 0.1  # of the mean power of the inputs, for rounding
RIDGES = (0.03, 0.3, 3.0, 30.0)  # tried, of the same; an infinite one keeps the weights as they are
WIDE = 2048  # weights of an output, from which on only the middle ones are tried
TINY = 1e-30  # a mean power below it is none

ReadBatch = Callable[[int], tuple[Floats, Floats]]
"""Gives a batch of a layer's input in float and quantized."""


@dataclass(frozen=True)
class Moments:
    """Means of q qᵀ (`gram`) and x qᵀ (`cross`), each (groups, d, d), q quantized and x in float."""

    gram: Floats
    cross: Floats

    @property
    def is_finite(self) -> bool:
        """Whether the inputs had neither NaN nor values whose squares overflow."""
        return bool(np.isfinite(self.gram).all() and np.isfinite(self.cross).all())

    def with_other(self, other: Moments) -> Moments:
        """Return the means over both halves."""
        return Moments((self.gram + other.gram) / 2, (self.cross + other.cross) / 2)


def measure_moments(
    form: MatrixForm,
    batches: Sequence[int],
    read: ReadBatch,
    centered: bool,
    weights: TokenWeights = None,
) -> Moments:
    """Return the moments over batches, `centered` on the means if a bias compensates these.

    Rows count by their `weights`. The means of the first batch are subtracted before: float32 could
    not resolve a small variance beside a large mean. Of many rows it takes a random part with a fixed
    seed, as many from each batch.
    """
    most = max(ROWS, ROWS_A_WEIGHT * form.width) // max(len(batches), 1)
    generator = np.random.default_rng(0)
    shape = (form.groups, form.width, form.width)
    gram: Floats = np.zeros(shape, np.float32)
    cross: Floats = np.zeros(shape, np.float32)
    sums = np.zeros((2, *shape[:2]), np.float64)
    count, offsets = 0.0, list[Floats]()
    for number in batches:
        x, q = read(number)
        chosen = np.arange(form.row_count(x))
        if len(chosen) > most:
            chosen = np.sort(generator.choice(chosen, most, replace=False))
        rows, quantized = form.rows(x, chosen), form.rows(q, chosen)
        if centered:
            offsets = offsets or [v.mean(axis=1, keepdims=True) for v in (rows, quantized)]
            rows, quantized = rows - offsets[0], quantized - offsets[1]
        counted = np.ones(len(chosen)) if weights is None else weights[number][chosen]
        weighted = quantized * counted.astype(np.float32)[:, None]
        gram += quantized.transpose(0, 2, 1) @ weighted
        cross += rows.transpose(0, 2, 1) @ weighted
        sums += [np.einsum("n,gnw->gw", counted, values) for values in (rows, quantized)]
        count += counted.sum()
    gram, cross = gram / np.float32(count), cross / np.float32(count)
    if centered:
        x_mean, q_mean = (sums / count).astype(np.float32)
        gram -= q_mean[:, :, None] * q_mean[:, None, :]
        cross -= x_mean[:, :, None] * q_mean[:, None, :]
    return Moments(gram, cross)


def compensated(weights: Floats, halves: Sequence[Moments]) -> Floats:
    """Return weights (groups, outputs, d) that compensate the quantization error of the inputs.

    The ridge is the one with the largest gain on the other half of the data; without a gain the
    weights stay.
    """
    first, second = halves
    tried = RIDGES if weights.shape[2] < WIDE else RIDGES[1:3]
    gains = [
        _gain(weights, _least_squares(weights, a, ridge), b)
        for ridge in tried
        for a, b in ((first, second), (second, first))
    ]
    totals = [gains[i] + gains[i + 1] for i in range(0, len(gains), 2)]
    best = int(np.argmax(totals))
    if totals[best] <= 0:
        return weights
    return _least_squares(weights, first.with_other(second), tried[best])


def _gain(weights: Floats, rounded: Floats, on: Moments) -> float:
    """Return by how much less |W x - W' q|² is than |W x - W q|², in the mean."""
    change = rounded - weights
    moved = change @ on.gram
    return float(2 * np.vdot(change, weights @ (on.cross - on.gram)) - np.vdot(moved, change))


def _least_squares(weights: Floats, moments: Moments, ridge: float) -> Floats:
    lacking = weights @ (moments.cross - moments.gram)
    change = np.linalg.solve(_damped(moments.gram, ridge), lacking.swapaxes(1, 2))
    return np.asarray(weights + change.swapaxes(1, 2))


def rounded_steps(weights: Floats, scales: Floats, gram: Floats, kind: Precision) -> Floats:
    """Return steps of a format for weights (groups, outputs, d) at scales that broadcast to them.

    Columns with the most power are rounded first; each passes its error on to those behind.
    """
    rounded, scales = np.zeros_like(weights), np.broadcast_to(scales, weights.shape)
    for group, own in enumerate(gram):
        order = np.argsort(-np.diag(own), kind="stable")
        factor = _inverse_factor(_damped(own[np.ix_(order, order)], DAMPING))
        exact, steps = weights[group][:, order], scales[group][:, order]
        rounded[group][:, order] = _columns(exact, steps, factor, kind)
    return rounded


def nearest_steps(exact: Floats, kind: Precision) -> Floats:
    """Return weights, in steps of their scales, on the grid of a format: int8 has no -128."""
    return kind.floats(np.maximum(exact, -kind.top) if kind.by_channel else exact)


def _damped(gram: Floats, part: float) -> Floats:
    """Return a matrix, or several (groups, d, d), with part of its mean power on the diagonal."""
    mean = np.diagonal(gram, axis1=-2, axis2=-1).mean(axis=-1, dtype=np.float64)
    strength = np.where(mean > TINY, part * mean, 1.0).astype(np.float32)[..., None, None]
    return np.asarray(gram + strength * np.eye(gram.shape[-1], dtype=np.float32))


def _inverse_factor(gram: Floats) -> Floats:
    """Return the upper Cholesky factor of the inverse."""
    identity = np.eye(len(gram), dtype=np.float32)
    inverse = scipy.linalg.solve(gram, identity, assume_a="pos", check_finite=False)
    return np.asarray(scipy.linalg.cholesky((inverse + inverse.T) / 2, check_finite=False))


def _columns(exact: Floats, scales: Floats, factor: Floats, kind: Precision) -> Floats:
    """Return the steps of a matrix (outputs, d) at scales of the same shape, column by column.

    The first argument is changed.
    """
    steps = np.empty_like(exact)
    for start in range(0, exact.shape[1], BLOCK):
        stop = min(start + BLOCK, exact.shape[1])
        errors = np.empty((len(exact), stop - start), exact.dtype)
        for i in range(start, stop):
            steps[:, i] = nearest_steps(exact[:, i] / scales[:, i], kind)
            error = (exact[:, i] - steps[:, i] * scales[:, i]) / factor[i, i]
            exact[:, i + 1 : stop] -= np.outer(error, factor[i, i + 1 : stop])
            errors[:, i - start] = error
        exact[:, stop:] -= errors @ factor[start:stop, stop:]
    return steps
