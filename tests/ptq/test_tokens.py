import numpy as np

from trtcal.ptq.layer_inputs import mask_of, token_weights

ENERGY = np.array([[1.0, 1.0, 99.0], [1.0, 0.0, 1.0]], np.float32)


def test_large_tokens_count_less_and_small_ones_hardly_more():
    (found,) = token_weights([ENERGY], [None])
    np.testing.assert_allclose(found, [0.5, 0.5, 0.01, 0.5, 1.0, 0.5])


def test_what_a_mask_takes_out_counts_nothing():
    kept = np.array([[1, 0, 1], [1, 1, 1]])
    (found,) = token_weights([ENERGY], [mask_of({"attention_mask": kept, "ids": kept})])
    np.testing.assert_allclose(found, [0.5, 0.0, 0.01, 0.5, 1.0, 0.5])


def test_nothing_else_is_a_mask():
    some = np.array([[1, 0, 1], [1, 1, 1]])
    for given in (0 * some, 2 * some, some[:, :2]):
        (found,) = token_weights([ENERGY], [mask_of({"attention_mask": given})])
        np.testing.assert_allclose(found, [0.5, 0.5, 0.01, 0.5, 1.0, 0.5])
    assert mask_of({"key_padding_mask": some}) is None


def test_tokens_without_any_energy_count_alike():
    (found,) = token_weights([np.zeros((2, 3), np.float32)], [None])
    assert (found == found[0]).all()
    assert found[0] > 0
