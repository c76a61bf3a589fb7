import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.fails import fails
from trtcal.errors import InputError
from trtcal.evaluate.accuracy import AccuracyMeter
from trtcal.evaluate.per_sample import class_scores, compare_rows
from trtcal.evaluate.tasks import find_task
from trtcal.stats import median_interval, paired_difference


def measured(reference, variant, labels, split=3):
    task = None if labels is None else "classification"
    meter = AccuracyMeter(find_task({"y": reference}, len(reference), tasks=task))
    pieces = zip(np.array_split(reference, split), np.array_split(variant, split), strict=True)
    offset = 0
    for a, b in pieces:
        part = None if labels is None else labels[offset : offset + len(a)]
        offset += len(a)
        meter.update([a], [b], part)
    return meter.result()


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_figures_are_those_of_numpy_whatever_the_batches(seed, split):
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal((40, 6)).astype(np.float32)
    variant = reference + 0.3 * rng.standard_normal((40, 6)).astype(np.float32)
    labels = rng.integers(0, 6, 40)
    result = measured(reference, variant, labels, split)
    right = (variant.argmax(1) == labels).mean() * 100
    before = (reference.argmax(1) == labels).mean() * 100
    error = np.square(reference.astype(float) - variant).sum()
    norms = np.linalg.norm(reference, axis=1) * np.linalg.norm(variant, axis=1)
    assert result.top1 == pytest.approx(right)
    assert result.top1_drop == pytest.approx(before - right, abs=1e-4)
    same = (variant.argmax(1) == reference.argmax(1)).mean() * 100
    assert result.agreement == pytest.approx(same)
    signal = np.square(reference.astype(float)).sum()
    assert result.sqnr_db == pytest.approx(10 * np.log10(signal / error), rel=1e-5)
    assert result.cosine == pytest.approx(np.mean((reference * variant).sum(1) / norms), rel=1e-4)


def test_the_same_outputs_have_no_error():
    outputs = np.eye(4, dtype=np.float32)
    result = measured(outputs, outputs, np.arange(4))
    assert (result.top1, result.top1_drop, result.agreement) == (100, 0, 100)
    assert (result.sqnr_db, result.cosine) == (None, 1)


def test_without_labels_or_classes_only_what_can_be_known():
    outputs = 5 + np.random.default_rng(0).standard_normal((9, 1, 4, 4)).astype(np.float32)
    result = measured(outputs, outputs * 1.01, None)
    assert (result.top1, result.agreement) == (None, None)
    assert result.sqnr_db == pytest.approx(40, abs=1e-3)
    assert measured(outputs[:, :, 0, 0], outputs[:, :, 0, 0], None).top1 is None


@pytest.mark.parametrize("shape", [(5, 1000), (5, 1000, 1, 1)])
def test_class_scores_may_have_trailing_ones(shape):
    assert class_scores(np.zeros(shape, np.float32)).shape == (5, 1000)


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3, 2)])
def test_other_outputs_are_not_class_scores(shape):
    assert class_scores(np.zeros(shape, np.float32)) is None


def test_the_paired_interval_covers_the_truth():
    rng, covered, trials = np.random.default_rng(0), 0, 1000
    for _ in range(trials):
        lost, won, _ = rng.multinomial(500, [0.03, 0.01, 0.96])
        interval = paired_difference(int(lost), int(won), 500)
        covered += interval.low <= 0.02 <= interval.high
    assert 0.93 <= covered / trials <= 0.98


def test_the_median_interval_covers_the_truth():
    rng, covered, trials = np.random.default_rng(0), 0, 1000
    for _ in range(trials):
        interval = median_interval(rng.exponential(size=40))
        covered += interval.low <= np.log(2) <= interval.high
    assert 0.93 <= covered / trials <= 0.99


def test_labels_outside_the_classes_are_refused():
    outputs = np.eye(5, dtype=np.float32)
    for wrong in ([0, 1, 2, 3, 5], [-1, 0, 1, 2, 3]):
        with fails(InputError, "5"):
            measured(outputs, outputs, np.array(wrong), 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_outputs_that_are_not_numbers_are_refused(bad):
    outputs = np.eye(5, dtype=np.float32)
    broken = outputs.copy()
    broken[2, 2] = bad
    with fails(InputError, "NaN"):
        measured(outputs, broken, None)


@pytest.mark.parametrize("outputs", [[np.float32(1.0)], [np.ones((4, 3)), np.float32(1.0)]])
def test_a_single_number_is_no_row_a_sample(outputs):
    arrays = [np.asarray(one, np.float32) for one in outputs]
    with fails(InputError, "()"):
        compare_rows(arrays, arrays)
