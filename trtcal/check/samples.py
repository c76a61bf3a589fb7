"""Whether the channels lie where the model takes them to be, told from how smooth the images are.

Neighbouring pixels of real images are alike. Channels-last values that were only reshaped to
channels-first (or the other way round) put other channels and far rows beside each other.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from trtcal.check.evidence import ENOUGH, P
from trtcal.check.issues import DataIssue
from trtcal.check.probe import Response
from trtcal.check.sampling import Drawn, Images
from trtcal.data.dataset import Array, Feeds
from trtcal.evaluate.per_sample import Labels
from trtcal.stats import mcnemar

FEWEST = 16  # samples below which ranges hang on single ones
SHARE = 0.05  # of the samples looked at; a blank or repeated one now and then is life
SMALLEST = 16  # values below which an input may well be constant: a mask, a size


def check_plain(drawn: Drawn) -> list[DataIssue]:
    """Return what is wrong with the samples themselves."""
    found = []
    if drawn.total < FEWEST:
        found.append(
            DataIssue(
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
            DataIssue(
                "repeated_samples",
                f"{repeated} of {len(drawn)} samples looked at are exact copies of others among them",
                "drop the copies: they narrow what ranges are chosen from",
            )
        )
    return found


def _constant(zeros: Array, constant: Array) -> DataIssue:
    all_zero = zeros.sum() > constant.sum() / 2
    what = "nothing but zeros" if all_zero else "one value everywhere in each channel"
    return DataIssue(
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


SHUFFLES = 999
AS_GOOD = 0.05  # p-value above which labels are no better than shuffled ones
PART = 0.5  # of what the model is sure of: other numbers have to be right in more
GAP = 0.2  # between what the model is sure of and the most that labels may grant it


def check_numbers(look: Response, labels: Labels) -> DataIssue | None:
    """Return the issue that labels are numbered from another class than the model's first."""
    if look.classes is None or look.sureness is None or len(labels) < ENOUGH:
        return None
    least = PART * look.sureness.mean()
    right = look.classes == labels
    for offset in (1, -1):
        moved = look.classes == labels + offset
        won, lost = int((moved & ~right).sum()), int((right & ~moved).sum())
        clear = won > lost and mcnemar(lost, won) < P and moved.mean() > least
        if clear and not _like_shuffled(look.classes, labels + offset):
            return _moved(offset, int(right.sum()), int(moved.sum()), len(labels))
    return None


def check_labels(look: Response, labels: Labels) -> DataIssue | None:
    """Return the issue that labels are not those of the samples."""
    if look.classes is None or look.sureness is None or len(labels) < ENOUGH:
        return None
    right, expected = int((look.classes == labels).sum()), float(look.sureness.mean())
    if expected - _most(right, len(labels)) > GAP and _like_shuffled(look.classes, labels):
        return _unlike(right, len(labels), expected)
    return None


def _most(right: int, samples: int) -> float:
    """Return the highest accuracy that the samples leave open, at 99 %."""
    return float(stats.binomtest(right, samples).proportion_ci(0.98, "exact").high)


def _like_shuffled(classes: Labels, labels: Labels) -> bool:
    """Tell whether the labels fit the classes no better than the same labels in another order."""
    rng = np.random.default_rng(0)
    right = int((classes == labels).sum())
    others = [int((classes == rng.permutation(labels)).sum()) for _ in range(SHUFFLES)]
    return (1 + sum(other >= right for other in others)) / (1 + SHUFFLES) > AS_GOOD


def _moved(offset: int, right: int, moved: int, samples: int) -> DataIssue:
    return DataIssue(
        "labels_off_by_one",
        f"the FP32 model agrees with {right} of {samples} labels, and with {moved} if "
        f"{'1 is added to' if offset > 0 else '1 is taken from'} each",
        "number the classes as the model does: it may count from 0, or have a class for background",
    )


def _unlike(right: int, samples: int, expected: float) -> DataIssue:
    return DataIssue(
        "labels_disagree",
        f"the FP32 model agrees with {right} of {samples} labels, no more than with the same labels in "
        f"another order, though it is sure of its classes to {expected:.0%}",
        "check that labels and samples are in the same order and numbered as the model's classes",
    )


SMOOTHER = 0.6  # roughness after mending over that before, at most
LABEL_SHARE = 0.9  # of the samples for which that has to hold


def relaid(images: Images, array: Array) -> Array:
    """Return an input whose values were reshaped instead of transposed, transposed."""
    n, *sizes = array.shape
    if images.channels_last:
        height, width, channels = sizes
        return np.moveaxis(array.reshape(n, channels, height, width), 1, -1)
    channels, height, width = sizes
    return np.moveaxis(array.reshape(n, height, width, channels), -1, 1)


def check_layout(images: Images, array: Array) -> DataIssue | None:
    """Return the issue that an input was reshaped where it had to be transposed."""
    planes = images.planes(array)
    if planes.shape[1] == 1 or min(planes.shape[2:]) < 4:
        return None
    other = images.planes(relaid(images, array))
    given, mended = roughness(planes), roughness(other)
    smoother = (mended < SMOOTHER * given) & (steps(other) < steps(planes))
    if np.mean(smoother) < LABEL_SHARE:
        return None
    wanted, had = ("NHWC", "NCHW") if images.channels_last else ("NCHW", "NHWC")
    return DataIssue(
        "layout",
        f"{images.name!r} looks like {had} values read as {wanted}: neighbouring pixels differ by "
        f"{np.median(given):.2f} of the images' spread, read as {had} by {np.median(mended):.2f}",
        f"transpose the images from {had} to {wanted} instead of reshaping them",
    )


def roughness(planes: Array) -> Array:
    """Return, for each sample, how far neighbours are apart over how far any two pixels are.

    0 for a smooth image, 1 for noise; 0 for a constant one.
    """
    spread = 2 * planes.var((2, 3), dtype=np.float64).mean(1)
    zeros = np.zeros(len(planes))
    rough: Array = np.sqrt(np.divide(steps(planes), spread, out=zeros, where=spread > 0))
    return rough


def steps(planes: Array) -> Array:
    """Return, for each sample, the mean square of the differences of neighbours."""
    values = planes.astype(np.float64)
    squares = [np.square(np.diff(values, axis=axis)).mean((1, 2, 3)) for axis in (2, 3)]
    return np.asarray(np.mean(squares, axis=0))
