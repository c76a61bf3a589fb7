"""Calibration algorithms: a histogram in, a range out.

This package imports nothing of `trtcal` and runs no network. A *calibrator* is a pure function from
the `Histogram` of one tensor to its `Range`; the same histogram serves every calibrator.

    >>> import numpy as np
    >>> from calibrators import Histogram, create
    >>> histogram = Histogram()
    >>> largest = histogram.update(np.linspace(-1.0, 3.0, 1001, dtype=np.float32))
    >>> create("minmax")(histogram).amax
    3.0

`calibrators.cuda_histogram` counts tensors where they lie in a GPU's memory, into the same histograms.
TensorRT's own calibration, inside its builder and up to TensorRT 10, is `calibrators.tensorrt_builder`.
"""

from calibrators.histogram import Histogram
from calibrators.range import Calibrator, EmptyHistogramError, Range
from calibrators.registry import UnknownCalibratorError, create, names, register

__all__ = [
    "Calibrator",
    "EmptyHistogramError",
    "Histogram",
    "Range",
    "UnknownCalibratorError",
    "create",
    "names",
    "register",
]
