"""Scales of blocks: beside brute force, and never worse than the scale of the largest value."""

import numpy as np
import pytest

from tests.fixtures.tables import each
from trtcal.formats import FORMATS
from trtcal.quantization.blocks import quantize_blocks, scale_step

KINDS = [("int4", 64), ("int4", 128), ("nvfp4", 16)]


def block_errors(exact, rounded, size):
    return np.square(exact - rounded).reshape(-1, size, exact.shape[1]).sum(axis=1)


def as_stored(scales, found):
    """Return scales as a file holds them: float16, or FP8 in steps."""
    if found.values.dtype == FORMATS["int4"].dtype:
        return scales.astype(np.float16).astype(np.float32)
    step = np.float32(scale_step(found.scale, FORMATS["nvfp4"]))
    return FORMATS["fp8"].floats(scales / step) * step


def reaching(weight, kind, size):
    """Return the scale of each block that reaches its largest and its lowest value."""
    blocks = weight.reshape(-1, size, weight.shape[1])
    return np.maximum(
        blocks.max(axis=1) / kind.top, blocks.min(axis=1) / (kind.lowest or -kind.top)
    )


def drawn(kind, shape=(256, 24)):
    random = np.random.default_rng(0)
    makers = {
        "normal": random.standard_normal,
        "laplace": lambda shape: random.laplace(size=shape),
        "tails": lambda shape: random.standard_t(3, shape),
    }
    return makers[kind](shape).astype(np.float32)


@each("law", ["normal", "laplace", "tails"])
@each("name, size", KINDS)
def test_blocks_lose_little_more_than_the_best_of_many_scales_that_clip_as_little(name, size, law):
    weight, kind = drawn(law), FORMATS[name]
    blocks = quantize_blocks(weight, kind, 0, size)
    found = block_errors(weight, blocks.floats(None), size)
    reach = reaching(weight, kind, size)
    least = np.full(found.shape, np.inf)
    for share in np.linspace(0.96, 1.0 if name == "int4" else 1.5, 200):
        scale = np.repeat(as_stored(reach * share, blocks), size, axis=0)
        least = np.minimum(least, block_errors(weight, kind.floats(weight / scale) * scale, size))
    assert found.sum() <= least.sum() * 1.02


@each("law", ["normal", "laplace", "tails"])
@each("name, size", KINDS)
def test_no_block_loses_more_than_by_its_largest_value(name, size, law):
    weight, kind = drawn(law), FORMATS[name]
    found = quantize_blocks(weight, kind, 0, size)
    scale = np.repeat(as_stored(reaching(weight, kind, size), found), size, axis=0)
    plain = block_errors(weight, kind.floats(weight / scale) * scale, size)
    assert (block_errors(weight, found.floats(None), size) <= plain * (1 + 1e-5)).all()


def test_a_largest_value_below_zero_takes_the_eighth_step():
    weight = np.tile(np.arange(-8, 8, dtype=np.float32), 8)[:, None]
    found = quantize_blocks(weight, FORMATS["int4"], 0, 128)
    assert int(found.values.astype(np.int8).min()) == -8
    assert np.square(found.floats(None) - weight).sum() < 1.0


@pytest.mark.parametrize(("name", "size"), KINDS)
def test_blocks_along_either_axis_are_the_same(name, size):
    weight = drawn("normal", (128, 256))
    along, across = (
        quantize_blocks(one, FORMATS[name], axis, size)
        for one, axis in ((weight, 1), (weight.T, 0))
    )
    np.testing.assert_array_equal(along.floats(None), across.floats(None).T)


@pytest.mark.parametrize(("name", "size"), KINDS)
def test_weights_beyond_float16_keep_their_size(name, size):
    weight = 1e6 * drawn("normal")
    found = quantize_blocks(weight, FORMATS[name], 0, size).floats(None)
    assert np.square(found - weight).sum() < 0.05 * np.square(weight).sum()


@pytest.mark.parametrize(("name", "size"), KINDS)
def test_blocks_of_zeros_stay_zero(name, size):
    found = quantize_blocks(np.zeros((256, 8), np.float32), FORMATS[name], 0, size)
    assert not found.floats(None).any()
    assert (found.scale > 0).all()
