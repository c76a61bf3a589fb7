"""Whether the channels lie where the model takes them to be, told from how smooth the images are.

Neighbouring pixels of real images are alike. Channels-last values that were only reshaped to
channels-first (or the other way round) put other channels and far rows beside each other.
"""

from __future__ import annotations

import numpy as np

from trtcal.data.fingerprint import Array
from trtcal.suspicion.drawing import Images
from trtcal.suspicion.words import Suspicion

SMOOTHER = 0.6  # roughness after mending over that before, at most
SHARE = 0.9  # of the samples for which that has to hold


def relaid(images: Images, array: Array) -> Array:
    """Return an input whose values were reshaped instead of transposed, transposed."""
    n, *sizes = array.shape
    if images.channels_last:
        height, width, channels = sizes
        return np.moveaxis(array.reshape(n, channels, height, width), 1, -1)
    channels, height, width = sizes
    return np.moveaxis(array.reshape(n, height, width, channels), -1, 1)


def check_layout(images: Images, array: Array) -> Suspicion | None:
    """Return the suspicion that an input was reshaped where it had to be transposed."""
    planes = images.planes(array)
    if planes.shape[1] == 1 or min(planes.shape[2:]) < 4:
        return None
    other = images.planes(relaid(images, array))
    given, mended = roughness(planes), roughness(other)
    smoother = (mended < SMOOTHER * given) & (steps(other) < steps(planes))
    if np.mean(smoother) < SHARE:
        return None
    wanted, had = ("NHWC", "NCHW") if images.channels_last else ("NCHW", "NHWC")
    return Suspicion(
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
