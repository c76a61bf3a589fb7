import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy as kullback_leibler

import calibrators
from calibrators import EmptyHistogramError, Histogram, Range, UnknownCalibratorError, create
from calibrators.histogram import VALUES_KEPT
from calibrators.methods import linear_bins, squared_errors
from calibrators.range import FLOOR
from tests.fixtures.fails import fails
from tests.fixtures.slow import slow_but
from tests.fixtures.tables import each


def histogram(values: np.ndarray) -> Histogram:
    made = Histogram()
    made.update(values.astype(np.float32))
    return made


def draw(seed: int, size: int = 20_000) -> np.ndarray:
    """One of several shapes of distribution, by seed, rounded to float32."""
    rng = np.random.default_rng(seed)
    shapes = (
        lambda: rng.standard_normal(size),
        lambda: rng.laplace(size=size) * 3,
        lambda: np.maximum(rng.standard_normal(size), 0),
        lambda: rng.exponential(size=size),
        lambda: rng.standard_t(3, size),
        lambda: rng.uniform(-1, 2, size),
        lambda: np.concatenate([rng.standard_normal(size), [40.0]]),
    )
    return shapes[seed % len(shapes)]().astype(np.float32)


def literal_divergences(values: np.ndarray, bins: int = 2048, levels: int = 128) -> np.ndarray:
    """The published procedure, one step after another, on the values themselves."""
    magnitudes = np.abs(values[values != 0]).astype(np.float64)
    counts, _ = np.histogram(magnitudes, bins, (0, magnitudes.max()))
    divergences = []
    for kept in range(levels, bins + 1):
        p = counts[:kept].astype(np.float64)
        if counts[kept:].any() and p[-1] == 0:
            p[-1] = 1  # see Entropy's docstring: Q gets one value in an empty last bin
        group = np.arange(kept) * levels // kept
        occupied = (p > 0).astype(np.float64)
        mass = np.bincount(group, p, levels)
        number = np.bincount(group, occupied, levels)
        q = occupied * (mass / np.maximum(number, 1))[group]
        p[-1] = counts[kept - 1 :].sum()
        divergences.append(kullback_leibler(p, q))
    return np.array(divergences)


@each("seed", range(14))
def test_minmax_is_the_exact_largest_magnitude(seed):
    values = draw(seed)
    assert create("minmax")(histogram(values)).amax == np.abs(values).max()


@given(st.integers(0, 13), st.sampled_from([1, 25, 50, 90, 99, 99.9, 99.99, 100]))
def test_percentile_is_numpys_within_one_bin(seed, percent):
    values = draw(seed, 3000)
    exact = np.quantile(np.abs(values).astype(np.float64), percent / 100)
    chosen = create("percentile", percentile=percent)(histogram(values)).amax
    assert exact * (1 - 1e-6) <= max(chosen, exact * (1 - 1e-6)) <= max(exact, FLOOR) * (1 + 2**-10)
    assert chosen >= exact * (1 - 1e-6)


@pytest.mark.parametrize("seed", slow_but(range(50), *range(5)))
def test_entropy_of_few_values_is_the_literal_optimum(seed):
    values = draw(seed)
    literal = 128 + int(np.argmin(literal_divergences(values)))
    width = np.abs(values).max() / 2048
    assert abs(create("entropy")(histogram(values)).amax - (literal + 0.5) * width) <= width


@pytest.mark.parametrize("seed", slow_but(range(7), 0, 1))
def test_entropy_of_many_values_loses_hardly_more_than_the_literal_optimum(seed):
    values = draw(seed, 2 * VALUES_KEPT)
    divergences = literal_divergences(values)
    amax = create("entropy")(histogram(values)).amax
    kept = round(amax / np.abs(values).max() * 2048 - 0.5)
    near = divergences[max(kept - 130, 0) : kept - 125]  # a bin's values may lie in its neighbour
    assert near.min() <= divergences.min() * 1.05 + 1e-9


@pytest.mark.parametrize("levels", [None, 17])
def test_entropy_of_unclipped_data_of_any_values_is_half_a_bin_above_the_maximum(levels):
    rng = np.random.default_rng(0)
    made = histogram(rng.random(100_000) if not levels else rng.integers(0, levels, 30_000) / 16)
    assert create("entropy")(made).amax == made.amax * 2048.5 / 2048


def test_entropy_clips_outliers_and_never_more_than_it_may():
    rng = np.random.default_rng(0)
    made = histogram(np.concatenate([rng.standard_normal(100_000), [60.0]]))
    assert create("entropy")(made).amax < 15
    assert create("minmax")(made).amax == 60
    gap = np.concatenate([np.random.default_rng(0).integers(0, 17, 30_000) / 16, [256.0] * 3])
    assert create("entropy")(histogram(gap)).amax < 17
    values = np.concatenate([np.full(900, 0.1), np.linspace(0.2, 10, 100)])
    amax = create("entropy", max_clipped=0.02)(histogram(values)).amax
    assert (values > amax).mean() <= 0.02


def test_entropy_ignores_exact_zeros():
    values = np.random.default_rng(0).standard_normal(50_000)
    with_zeros = np.concatenate([values, np.zeros(500_000)])
    assert create("entropy")(histogram(with_zeros)) == create("entropy")(histogram(values))


@given(st.integers(0, 13), st.integers(64, 4096))
def test_linear_bins_keep_the_number_of_values(seed, bins):
    values = draw(seed, 2000)
    made = histogram(values)
    assert linear_bins(made, bins).sum() == pytest.approx(made.count - made.zeros)


def squared_error(values: np.ndarray, amax: float) -> float:
    step = amax / 127
    quantized = np.clip(np.rint(values / step), -127, 127) * step
    return float(np.square(values.astype(np.float64) - quantized).mean())


@pytest.mark.parametrize("seed", slow_but(range(14), *range(4)))
def test_mse_finds_the_least_squared_error(seed):
    values = draw(seed)
    amax = create("mse")(histogram(values)).amax
    tried = np.linspace(0, np.abs(values).max(), 400)[1:]
    best = min(squared_error(values, threshold) for threshold in tried)
    assert squared_error(values, amax) <= best * 1.02


@given(st.integers(0, 99), st.sampled_from([5, 40, 3000]))
def test_mse_takes_the_largest_of_all_candidates_with_the_least_error(seed, size):
    made = histogram(draw(seed, size))
    tried = np.linspace(0, made.amax, 257)[1:]
    errors = squared_errors(made, tried)
    assert create("mse")(made).amax == tried[errors <= errors.min() * (1 + 1e-12)][-1]


def test_auto_clips_only_where_it_pays_and_says_so():
    plain = create("auto")(histogram(np.random.default_rng(0).uniform(-1, 1, 20_000)))
    assert plain.note.startswith("minmax: ")
    normal = np.random.default_rng(0).standard_normal(200_000)
    outlier = create("auto")(histogram(np.concatenate([normal, [50.0]])))
    assert "better than minmax" in outlier.note
    assert outlier.amax < 50
    never = create("auto", min_gain_db=100)(histogram(np.concatenate([normal, [50.0]])))
    assert never.amax == 50


@each("method", ["minmax", "percentile", "entropy", "mse", "auto"])
def test_odd_data_give_usable_ranges_with_a_note(method):
    zeros = create(method)(histogram(np.zeros(10)))
    assert zeros.amax == FLOOR
    assert "zero" in zeros.note
    constant = create(method)(histogram(np.full(10, -3.0)))
    assert constant.amax == pytest.approx(3.0, rel=1e-3)
    assert "all 10 values are -3" in constant.note
    denormal = create(method)(histogram(np.array([1e-40, 1e-41])))
    assert denormal.amax == FLOOR
    assert "floor" in denormal.note
    with pytest.raises(EmptyHistogramError):
        create(method)(Histogram())
    with pytest.raises(EmptyHistogramError):
        create(method)(histogram(np.array([np.nan, np.inf])))


@each("wrong", [0, -1, 100.1, "many"])
def test_impossible_percentiles_are_refused(wrong):
    with fails(ValueError, "percentile"):
        create("percentile", percentile=wrong)


def test_unknown_names_and_parameters_are_refused():
    with pytest.raises(UnknownCalibratorError):
        create("magic")
    with fails(ValueError, "minmax"):
        create("minmax", percentile=3)


def test_a_registered_calibrator_is_found():
    calibrators.register("half", lambda: lambda made: Range(made.amax / 2))
    try:
        assert "half" in calibrators.names()
        assert create("half")(histogram(np.array([4.0]))).amax == 2
    finally:
        from calibrators import registry

        del registry._registered["half"]


def test_the_package_exports_exactly_this():
    assert sorted(calibrators.__all__) == [
        "Calibrator", "EmptyHistogramError", "Histogram", "Range", "UnknownCalibratorError",
        "create", "names", "register",
    ]  # fmt: skip
