"""Second moments of what a layer reads: all that its least squares and its rounding need to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trtcal.improve.patches import Form
from trtcal.improve.tokens import Shares
from trtcal.overlay import Floats

ROWS = 8192  # of a layer's input, at most
ROWS_A_WEIGHT = 4  # or so many for each weight of an output, if that is more


@dataclass(frozen=True)
class Moments:
    """Means of q qᵀ (`gram`) and x qᵀ (`cross`), each (groups, d, d), q quantized and x in float."""

    gram: Floats
    cross: Floats

    def with_other(self, other: Moments) -> Moments:
        """Return the means over both halves."""
        return Moments((self.gram + other.gram) / 2, (self.cross + other.cross) / 2)


Read = Callable[[int], tuple[Floats, Floats]]
"""Gives a batch of a layer's input in float and quantized."""


def measure_moments(
    form: Form, batches: Sequence[int], read: Read, centred: bool, shares: Shares = None
) -> Moments:
    """Return the moments over batches, `centred` on the means where a bias makes up for these.

    Rows count by their `shares`. The means of the first batch are taken off before: float32 could not
    tell a small spread from a large mean. Of many rows it takes a part, evenly from all batches and
    drawn from a fixed seed.
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
        chosen = _drawn(form.places(x), most, generator)
        rows, snapped = form.rows(x, chosen), form.rows(q, chosen)
        if centred:
            offsets = offsets or [one.mean(axis=1, keepdims=True) for one in (rows, snapped)]
            rows, snapped = rows - offsets[0], snapped - offsets[1]
        counted = np.ones(len(chosen)) if shares is None else shares[number][chosen]
        weighted = snapped * counted.astype(np.float32)[:, None]
        gram += snapped.transpose(0, 2, 1) @ weighted
        cross += rows.transpose(0, 2, 1) @ weighted
        sums += [np.einsum("n,gnw->gw", counted, one) for one in (rows, snapped)]
        count += counted.sum()
    gram, cross = gram / np.float32(count), cross / np.float32(count)
    if centred:
        x_mean, q_mean = (sums / count).astype(np.float32)
        gram -= q_mean[:, :, None] * q_mean[:, None, :]
        cross -= x_mean[:, :, None] * q_mean[:, None, :]
    return Moments(gram, cross)


def _drawn(places: int, most: int, generator: np.random.Generator) -> np.ndarray:
    if places <= most:
        return np.arange(places)
    return np.sort(generator.choice(places, most, replace=False))
