"""Adaptive rounding: integers for a layer's weights by what the layer computes, not one by one.

The objective is the layer's mean squared output error on quantized inputs against what it computes in
float: M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization" (2020), with the
asymmetric reconstruction of its section 4. It is solved column by column, each error passed on to the
columns that are still open: E. Frantar et al., "GPTQ" (2022), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import linalg

from trtcal.model.model import Floats
from trtcal.ptq.bias_correction import Moments

BLOCK = 64  # columns whose errors are passed on together to those behind
LEVELS = 127
DAMPING = 0.1  # of the mean power of the inputs, where roundings are passed on
RIDGES = (0.03, 0.3, 3.0, 30.0)  # tried, of the same; without end is the weights as they are
WIDE = 2048  # weights of an output, from which on only the middle ones are tried
TINY = 1e-30  # a mean power below it is none
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)  # of the largest weight


def adapted(weights: Floats, halves: Sequence[Moments]) -> Floats:
    """Return weights (groups, outputs, d) that make up for what quantization did to the inputs.

    How far they may go is what serves the other half of the data best: not at all, if nothing does.
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


def _gain(weights: Floats, found: Floats, on: Moments) -> float:
    """Return by how much less |W x - W' q|² is than |W x - W q|², in the mean."""
    change = found - weights
    moved = change @ on.gram
    return float(2 * np.vdot(change, weights @ (on.cross - on.gram)) - np.vdot(moved, change))


def _least_squares(weights: Floats, moments: Moments, ridge: float) -> Floats:
    lacking = weights @ (moments.cross - moments.gram)
    change = np.linalg.solve(_damped(moments.gram, ridge), lacking.swapaxes(1, 2))
    return np.asarray(weights + change.swapaxes(1, 2))


def clipped(weights: Floats, scale: Floats, gram: Floats) -> Floats:
    """Return the scales (groups, outputs), each that of `CLIPS` with the least output error.

    Source: R. Banner et al., "Post training 4-bit quantization" (2019), section 2, by trial.
    """
    best, least = scale, np.full(scale.shape, np.inf)
    for part in CLIPS:
        tried = np.asarray(scale * part, np.float32)
        steps = np.clip(np.rint(weights / tried[:, :, None]), -LEVELS, LEVELS)
        error = steps * tried[:, :, None] - weights
        power = ((error @ gram) * error).sum(axis=2)
        best = np.where(power < least, tried, best)
        least = np.minimum(power, least)
    return best


def rounded(weights: Floats, scale: Floats, gram: Floats) -> npt.NDArray[np.int8]:
    """Return integers (groups, outputs, d) for weights at scales (groups, outputs).

    Columns with the most power are rounded first; each passes its error on to those behind.
    """
    found = np.zeros(weights.shape, np.int8)
    for group, own in enumerate(gram):
        order = np.argsort(-np.diag(own), kind="stable")
        passing = _passing(_damped(own[np.ix_(order, order)], DAMPING))
        exact = weights[group][:, order] / scale[group][:, None]
        found[group][:, order] = _columns(exact, passing)
    return found


def _damped(gram: Floats, share: float) -> Floats:
    """Return a matrix, or several (groups, d, d), with part of its mean power on the diagonal."""
    mean = np.diagonal(gram, axis1=-2, axis2=-1).mean(axis=-1, dtype=np.float64)
    strength = np.where(mean > TINY, share * mean, 1.0).astype(np.float32)[..., None, None]
    return np.asarray(gram + strength * np.eye(gram.shape[-1], dtype=np.float32))


def _passing(gram: Floats) -> Floats:
    """Return the upper Cholesky factor of the inverse."""
    identity = np.eye(len(gram), dtype=np.float32)
    inverse = linalg.solve(gram, identity, assume_a="pos", check_finite=False)
    return np.asarray(linalg.cholesky((inverse + inverse.T) / 2, check_finite=False))


def _columns(exact: Floats, passing: Floats) -> npt.NDArray[np.int8]:
    """Round a matrix (outputs, d), in steps of its scales, column by column."""
    exact = np.array(exact)
    steps = np.empty(exact.shape, np.int8)
    for start in range(0, exact.shape[1], BLOCK):
        stop = min(start + BLOCK, exact.shape[1])
        errors = np.empty((len(exact), stop - start), exact.dtype)
        for i in range(start, stop):
            column = np.clip(np.rint(exact[:, i]), -LEVELS, LEVELS)
            error = (exact[:, i] - column) / passing[i, i]
            exact[:, i + 1 : stop] -= np.outer(error, passing[i, i + 1 : stop])
            steps[:, i], errors[:, i - start] = column, error
        exact[:, stop:] -= errors @ passing[start:stop, stop:]
    return steps
