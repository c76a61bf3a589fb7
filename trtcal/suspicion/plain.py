"""Faults that data have whatever the model: too few, constant, or the same again and again."""

from __future__ import annotations

import numpy as np

from trtcal.data.fingerprint import Array, Feeds
from trtcal.suspicion.drawing import Drawn
from trtcal.suspicion.words import Suspicion

FEWEST = 16  # samples below which ranges hang on single ones
SHARE = 0.05  # of the samples looked at; a blank or repeated one now and then is life
SMALLEST = 16  # values below which an input may well be constant: a mask, a size


def check_plain(drawn: Drawn) -> list[Suspicion]:
    """Return what is wrong with the samples themselves."""
    found = []
    if drawn.total < FEWEST:
        found.append(
            Suspicion(
                "too_few_samples",
                f"there are only {drawn.total} samples",
                f"give at least {FEWEST}, better some hundreds, of all that the model will see",
            )
        )
    zeros, constant = _still(drawn.feeds)
    if constant.mean() > SHARE and constant.sum() > 1:
        found.append(_constant(zeros, constant))
    own = np.zeros(len(drawn), bool)
    own[different(drawn.feeds)] = True
    repeated = int((~own & ~constant).sum())
    if repeated > SHARE * len(drawn) and repeated > 1:
        found.append(
            Suspicion(
                "repeated_samples",
                f"{repeated} of {len(drawn)} samples looked at are exact copies of others among them",
                "drop the copies: they narrow what ranges are chosen from",
            )
        )
    return found


def _constant(zeros: Array, constant: Array) -> Suspicion:
    all_zero = zeros.sum() > constant.sum() / 2
    what = "nothing but zeros" if all_zero else "one value everywhere in each channel"
    return Suspicion(
        "zero_samples" if all_zero else "constant_samples",
        f"{int(constant.sum())} of {len(constant)} samples looked at have {what}",
        "check how they are read and prepared: that is no content to choose ranges from",
    )


def _still(feeds: Feeds) -> tuple[Array, Array]:
    """Tell for each sample whether all its float inputs are zero, and whether they are constant."""
    size = len(next(iter(feeds.values())))
    float_inputs = [a for a in feeds.values() if a.dtype.kind == "f" and a[0].size >= SMALLEST]
    if not float_inputs:
        return np.zeros(size, bool), np.zeros(size, bool)
    zeros = np.logical_and.reduce([(a == 0).reshape(size, -1).all(1) for a in float_inputs])
    constant = np.logical_and.reduce([_constant_rows(a) for a in float_inputs])
    return zeros, constant


def _constant_rows(array: Array) -> Array:
    """Tell for each sample whether its every channel, of an image on whichever axis, is constant."""
    flat = array.reshape(len(array), -1)
    still: Array = np.ptp(flat, axis=1) == 0
    if array.ndim == 4 and min(array.shape[2:]) > 1 and array.shape[1] in (1, 3):
        still = still | (np.ptp(array, axis=(2, 3)) == 0).all(1)
    if array.ndim == 4 and min(array.shape[1:3]) > 1 and array.shape[3] in (1, 3):
        still = still | (np.ptp(array, axis=(1, 2)) == 0).all(1)
    return still


def different(feeds: Feeds) -> Array:
    """Return the places of the samples without those that are copies of an earlier one."""
    first = dict[bytes, int]()
    for i in range(len(next(iter(feeds.values())))):
        first.setdefault(b"".join(array[i].tobytes() for array in feeds.values()), i)
    return np.array(list(first.values()))
