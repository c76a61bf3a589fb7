"""Few values are counted by NumPy, which imports faster: the counts are the same to the last one."""

import numpy as np
import pytest

from calibrators import Histogram
from calibrators.histogram import VALUES_KEPT
from calibrators.imports import Compiled

SPECIAL = np.array([0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3e38, -3e38])


@pytest.mark.parametrize("count", [0, 5, VALUES_KEPT + 70_000])
def test_numpy_and_compiled_code_count_the_same(monkeypatch, count):
    random = np.random.default_rng(count)
    values = random.standard_normal(count) * 10.0 ** random.integers(-40, 30, count)
    values[::3] = random.choice(SPECIAL, values[::3].shape)
    histograms = []
    for left in (1 << 60, -1):
        monkeypatch.setattr(Compiled, "left", left)
        histogram = Histogram()
        for part in np.array_split(values.astype(np.float32), 3):
            other = Histogram()
            other.update(part)
            histogram.update(part)
            histogram.merge(other)
        histogram.compact()
        histograms.append((histogram.digest(), [a.tobytes() for a in histogram.magnitudes()]))
    assert histograms[0] == histograms[1]
