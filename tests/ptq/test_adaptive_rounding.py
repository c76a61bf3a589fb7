import numpy as np
import pytest

from tests.fixtures.networks import rng
from trtcal.formats import FORMATS
from trtcal.ptq.adaptive_rounding import (
    Moments,
    compensated,
    measure_moments,
    rounded_steps,
)
from trtcal.ptq.layer_inputs import MatrixForm

INT8 = FORMATS["int8"]


def inputs(count=4000, width=24, seed=0):
    """Return inputs of correlated columns, (1, count, width)."""
    draw = rng(seed)
    mixed = draw.standard_normal((count, width)) @ draw.standard_normal((width, width)) + 1.0
    return mixed.astype(np.float32)[None]


def moments(x, q):
    count = x.shape[1]
    return Moments(q.transpose(0, 2, 1) @ q / count, x.transpose(0, 2, 1) @ q / count)


def test_rounding_by_output_error_beats_the_nearest():
    x = inputs()
    weight = rng(1).standard_normal((1, 8, 24)).astype(np.float32)
    scale = np.full((1, 8), 0.2, np.float32)
    gram = moments(x, x).gram
    steps = rounded_steps(weight, scale[..., None], gram, INT8)
    nearest = np.rint(weight / scale[..., None])

    def error(found):
        return float((((found * scale[..., None] - weight) @ x.transpose(0, 2, 1)) ** 2).mean())

    assert np.array_equal(steps, np.rint(steps))
    assert error(steps) < 0.6 * error(nearest)
    assert np.abs(steps * scale[..., None] - weight).max() < 10 * scale.max()


def test_integers_stay_within_127():
    weight = np.full((1, 2, 24), 40.0, np.float32)
    steps = rounded_steps(weight, np.float32(0.1), moments(inputs(), inputs()).gram, INT8)
    assert np.abs(steps).max() == 127


def test_whole_numbers_stay():
    weight = rng(3).integers(-100, 100, (1, 4, 24)).astype(np.float32)
    steps = rounded_steps(weight, np.float32(1), moments(inputs(), inputs()).gram, INT8)
    assert np.array_equal(steps, weight)


def test_weights_make_up_for_inputs_that_are_too_small():
    x = inputs()
    q = (0.9 * x).astype(np.float32)
    weight = rng(1).standard_normal((1, 8, 24)).astype(np.float32)
    halves = [moments(x[:, i::2], q[:, i::2]) for i in range(2)]
    found = compensated(weight, halves)
    before = np.square(weight @ (x - q).transpose(0, 2, 1)).mean()
    after = np.square(weight @ x.transpose(0, 2, 1) - found @ q.transpose(0, 2, 1)).mean()
    assert after < 0.2 * before


def test_noise_that_the_other_half_does_not_have_changes_nothing():
    x = inputs(60)
    noisy = x + 0.01 * rng(5).standard_normal(x.shape).astype(np.float32)
    weight = rng(1).standard_normal((1, 8, 24)).astype(np.float32)
    halves = [moments(x[:, i::2], noisy[:, i::2]) for i in range(2)]
    assert np.abs(compensated(weight, halves) - weight).max() < 0.05 * np.abs(weight).max()


def test_columns_without_input_are_rounded_to_the_nearest():
    weight = rng(1).standard_normal((2, 4, 9)).astype(np.float32)
    scale = np.full((2, 4), 0.1, np.float32)
    steps = rounded_steps(weight, scale[..., None], np.zeros((2, 9, 9), np.float32), INT8)
    assert np.array_equal(steps, np.rint(weight / np.float32(0.1)))


@pytest.mark.parametrize(("level", "noise"), [(1000.0, 0.0), (1000.0, 1e-4), (0.0, 1e-20)])
def test_inputs_that_hardly_vary_blow_no_weights_up(level, noise):
    draw = rng(4)
    x = level * draw.standard_normal(24) + noise * draw.standard_normal((4, 500, 24))
    q = (x + noise * draw.standard_normal(x.shape)).astype(np.float32)
    x = x.astype(np.float32)
    form = MatrixForm("MatMul", (24, 8), 1)
    turns = [range(4)[i::2] for i in range(2)]
    halves = [measure_moments(form, turn, lambda i: (x[i], q[i]), True) for turn in turns]
    weight = draw.standard_normal((1, 8, 24)).astype(np.float32)
    scale = np.full((1, 8), 0.03, np.float32)
    assert np.abs(compensated(weight, halves)).max() < 2 * np.abs(weight).max()
    steps = rounded_steps(weight, scale[..., None], halves[0].gram, INT8)
    assert np.abs(steps * scale[..., None] - weight).max() < 0.1
