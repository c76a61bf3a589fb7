import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators import Histogram
from calibrators import histogram as histograms
from calibrators.counting import BINS, MANTISSA_BITS, SHIFT
from tests.fixtures.fails import fails

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


@pytest.fixture(
    params=[histograms.VALUES_KEPT, 10],
    ids=["few values", "many values"],
    autouse=True,
    scope="module",
)
def kept(request):
    """Every law holds below, above and across the number of values that are kept exactly."""
    before = histograms.VALUES_KEPT
    histograms.VALUES_KEPT = request.param
    yield request.param
    histograms.VALUES_KEPT = before


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


def counted(a):
    """Return what `add_counts` takes of some values, by NumPy."""
    finite = a[np.isfinite(a)]
    bins = finite[finite != 0].view(np.uint32) >> SHIFT
    counts = np.bincount(bins, minlength=BINS).astype(np.uint32)
    scalars = [(a == 0).sum(), np.isnan(a).sum(), np.isposinf(a).sum(), np.isneginf(a).sum()]
    return counts, [int(number) for number in scalars], *extent(finite)


def extent(finite):
    """Return the lowest and highest key, which orders float32 values as integers."""
    bits = (np.sort(finite)[[0, -1]] + np.float32(0)).view(np.int32) if finite.size else (1, 0)
    return [int(key) if key >= 0 else int(key) ^ 0x7FFFFFFF for key in bits]


@given(values, values)
def test_adding_counts_equals_counting_the_values(kept, a, b):
    made, finite = histogram(a), np.concatenate([a, b])[np.isfinite(np.concatenate([a, b]))]
    if np.isfinite(b[b != 0]).any() and np.count_nonzero(finite) <= kept:
        with fails(ValueError, "counts"):
            made.add_counts(*counted(b))
    else:
        made.add_counts(*counted(b))
        assert made == histogram(a, b)
        made.update(b)
        assert made == histogram(a, b, b)


def test_counts_are_taken_from_one_value_more_than_are_kept_on(kept):
    few = np.ones(kept, np.float32)
    with fails(ValueError, "counts"):
        Histogram().add_counts(*counted(few))
    made = histogram(few)
    made.add_counts(*counted(few[:1]))
    assert made == histogram(few, few[:1])


def test_counts_that_do_not_fit_together_are_refused():
    ends = np.array([-2.5, 0, 3.5], np.float32)
    counts, scalars, low, high = counted(np.repeat(ends, histograms.VALUES_KEPT))
    infinite = counts.copy()
    infinite[0x7F800000 >> SHIFT] = 1
    none = np.zeros(BINS, np.uint32)
    for wrong in (
        (counts.astype(np.int64), scalars, low, high),
        (counts[:-1], scalars, low, high),
        (counts, scalars[:3], low, high),
        (counts, [-1, 0, 0, 0], low, high),
        (counts, scalars, low, high + (1 << SHIFT)),
        (counts, scalars, low - (1 << SHIFT), high),
        (counts, scalars, high, low),
        (infinite, scalars, low, high),
        (none, [0, 1, 1, 1], 0, 0),
        (none, [1, 0, 0, 0], 1, 0),
    ):
        with pytest.raises(ValueError, match=r"^(counts|scalars)"):
            Histogram().add_counts(*wrong)
    made, before = Histogram(), counts.copy()
    made.add_counts(counts, scalars, low, high)
    assert (made.minimum, made.maximum) == (-2.5, 3.5)
    np.testing.assert_array_equal(counts, before)


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
    with fails(TypeError, "float64"):
        Histogram().update(np.zeros(3))


def test_nonsense_arrays_are_refused():
    made = histogram(np.ones(3, np.float32)).to_arrays()
    for wrong in (
        {**made, "counts": -made["counts"]},
        {**made, "counts": made["counts"].astype(np.float64)},
        {**made, "counts": np.array([1, 2])},
        {**made, "bins": np.array([0x7F800000], np.uint32)},
        {**made, "bins": np.array([0xFFC00000], np.uint32)},
        {**made, "bins": np.array([[1]], np.uint32), "counts": np.array([[1]])},
        {**made, "bins": np.array([2, 1], np.uint32), "counts": np.array([1, 1])},
        {**made, "bins": np.array([1, 1], np.uint32), "counts": np.array([1, 1])},
        {**made, "bins": np.array([1], np.uint32), "counts": np.array([10**6])},
    ):
        with pytest.raises(ValueError, match=r"^bins"):
            Histogram.from_arrays(wrong)


def test_few_values_are_counted_exactly():
    few = np.random.default_rng(0).standard_normal(histograms.VALUES_KEPT).astype(np.float32)
    low, high, counts = histogram(few).magnitudes()
    assert (low == high).all()
    np.testing.assert_array_equal(np.repeat(low, counts), np.sort(np.abs(few)).astype(np.float64))
    one_more = histogram(few, few[:1])
    assert (one_more.magnitudes()[0] != one_more.magnitudes()[1]).any()


def test_counts_that_would_overflow_are_moved_in_time(monkeypatch):
    monkeypatch.setattr(histograms, "COUNT_LIMIT", 2**31)
    ones = np.ones(2**17 + 1, np.float32)
    made = histogram(ones)
    made._dense[made._dense > 0] = 2**32 - 1  # as if there had been so many
    made._room = 5
    made.update(ones)
    assert made.count == 2**32 - 1 + ones.size
