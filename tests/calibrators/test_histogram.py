import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators import Histogram
from calibrators.histogram import MANTISSA_BITS

values = arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))


def histogram(*parts: np.ndarray) -> Histogram:
    made = Histogram()
    for part in parts:
        made.update(part)
    return made


def merged(first: Histogram, second: Histogram) -> Histogram:
    result = Histogram()
    result.merge(first)
    result.merge(second)
    return result


@given(values, values)
def test_merging_equals_counting_everything_at_once(a, b):
    assert merged(histogram(a), histogram(b)) == histogram(np.concatenate([a, b]))


@given(values, values)
def test_merging_commutes(a, b):
    assert merged(histogram(a), histogram(b)) == merged(histogram(b), histogram(a))


@given(values, values, values)
def test_merging_is_associative(a, b, c):
    x, y, z = histogram(a), histogram(b), histogram(c)
    assert merged(merged(x, y), z) == merged(x, merged(y, z))


@given(values)
def test_the_empty_histogram_is_the_unit(a):
    assert merged(histogram(a), Histogram()) == histogram(a)


@given(values)
def test_order_and_split_do_not_matter(a):
    assert histogram(*np.array_split(a[::-1], 4)) == histogram(a)


@given(values)
def test_everything_is_counted_once(a):
    made = histogram(a)
    finite = a[np.isfinite(a)]
    assert made.count == finite.size
    assert made.zeros == (finite == 0).sum()
    assert made.nan == np.isnan(a).sum()
    assert made.positive_inf == np.isposinf(a).sum()
    assert made.negative_inf == np.isneginf(a).sum()
    assert made.amax == (np.abs(finite).max() if finite.size else 0.0)
    assert made.magnitudes()[2].sum() == finite.size - made.zeros


@given(values)
def test_survives_being_written_and_read(a):
    made = histogram(a)
    assert Histogram.from_arrays(made.to_arrays()) == made


@given(arrays(np.float32, st.integers(1, 60), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_bins_hold_their_values(a):
    low, high, counts = histogram(a).magnitudes()
    nonzero = np.sort(np.abs(a[a != 0]).astype(np.float64))
    assert (np.repeat(low, counts) <= nonzero).all()
    assert (nonzero <= np.repeat(high, counts)).all()


def test_bins_are_at_least_as_fine_as_2048_linear_ones():
    made = histogram(np.geomspace(1e-3, 5.0, 100_000).astype(np.float32))
    low, high, _ = made.magnitudes()
    assert (high - low).max() <= made.amax / 2048 * (1 + 1e-6)
    assert MANTISSA_BITS == 11


def test_extent_is_exact_and_signed():
    made = histogram(np.array([-3.25, 0.1, 2.5], np.float32))
    assert (made.minimum, made.maximum) == (-3.25, 2.5)
    assert (Histogram().minimum, Histogram().maximum) == (math.inf, -math.inf)


def test_half_precision_is_counted_exactly():
    a = np.array([0.1, -65504, 6e-8], np.float16)
    assert histogram(a) == histogram(a.astype(np.float32))


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="float64"):
        Histogram().update(np.zeros(3))


def test_nonsense_arrays_are_refused():
    made = histogram(np.ones(3, np.float32)).to_arrays()
    for wrong in (
        {**made, "counts": -made["counts"]},
        {**made, "index": np.array([2**31], np.uint32)},
        {**made, "counts": np.array([1, 2])},
    ):
        with pytest.raises(ValueError, match="bin numbers"):
            Histogram.from_arrays(wrong)
