"""Figures of one sample: each against scipy's or a plain sum, and alone as in a batch."""

import numpy as np
import pytest
from scipy import special, stats

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evaluate.per_sample import compare_rows, divergence
from trtcal.metrics import METRICS


def outputs(seed, samples=12, classes=9):
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal((samples, classes)).astype(np.float32)
    return reference, reference + 0.4 * rng.standard_normal(reference.shape).astype(np.float32)


def test_all_figures_but_two_sums_are_metrics():
    a, b = outputs(0)
    assert set(compare_rows([a], [b], np.arange(12) % 9)) - {*METRICS} == {"signal", "error"}


@each("seed", range(5))
def test_figures_are_those_of_scipy(seed):
    a, b = outputs(seed)
    labels = np.random.default_rng(seed).integers(0, 9, 12)
    found = compare_rows([a], [b], labels)
    kl = [
        stats.entropy(special.softmax(x), special.softmax(y))
        for x, y in zip(a.astype(float), b, strict=True)
    ]
    assert found["kl"] == pytest.approx(kl, rel=1e-5)
    best = np.argsort(-b, axis=1)[:, :5]
    assert found["top5"].tolist() == [
        float(label in five) for label, five in zip(labels, best, strict=True)
    ]
    for name, order in (("l2", 2), ("linf", np.inf)):
        assert found[name] == pytest.approx(np.linalg.norm(a - b, order, axis=1), rel=1e-5)
    assert found["l1"] == pytest.approx(np.abs(a - b).mean(1), rel=1e-5)


def test_a_sample_alone_gives_what_it_gives_in_a_batch():
    a, b = outputs(1)
    labels = np.arange(12) % 9
    whole = compare_rows([a], [b], labels)
    for i in range(12):
        one = compare_rows([a[i : i + 1]], [b[i : i + 1]], labels[i : i + 1])
        for name, values in one.items():
            assert values[0] == pytest.approx(whole[name][i], rel=1e-12, abs=1e-12)


def test_probabilities_are_taken_as_they_are():
    p = np.array([[0.7, 0.2, 0.1]], np.float32)
    q = np.array([[0.5, 0.25, 0.25]], np.float32)
    assert divergence(p, q) == pytest.approx(stats.entropy(p[0], q[0]), rel=1e-5)
    assert np.isfinite(divergence(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))).all()


def test_equal_scores_are_won_by_the_first_class():
    scores = np.zeros((2, 8), np.float32)
    found = compare_rows([scores], [scores], np.array([0, 6]))
    assert found["top1"].tolist() == [1.0, 0.0]
    assert found["top5"].tolist() == [1.0, 0.0]


def test_several_outputs_count_as_one_row():
    a, b = outputs(2)
    together = compare_rows([a, b], [b, a])
    assert together["error"] == pytest.approx(2 * compare_rows([a], [b])["error"])


def test_without_labels_or_classes_only_distances():
    image = np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32)
    assert "agreement" not in compare_rows([image], [image], np.zeros(3, np.int64))
    a, b = outputs(3)
    assert "top1" not in compare_rows([a], [b])


def test_broken_outputs_and_labels_are_refused():
    a, b = outputs(4)
    with fails(InputError, "NaN"):
        compare_rows([a], [b * np.nan])
    with fails(InputError, "9"):
        compare_rows([a], [b], np.full(12, 9))
    with fails(InputError, "(12, 9)", "(12, 3)"):
        compare_rows([a], [b[:, :3]])
