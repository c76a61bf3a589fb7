"""A calibrator for each tensor: one outlier ruins `minmax` where it is, and only there."""

import numpy as np
import pytest

from tests.evaluate.search.conftest import Subject
from tests.networks import conv_net, samples
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.search.methods import MethodSettings, choose_methods


@pytest.fixture
def outlier(tmp_path):
    data = samples(tmp_path / "data.npz", count=32)
    arrays = dict(np.load(data))
    clean = Subject(conv_net(tmp_path / "net.onnx"), data)
    arrays["x"][5, 0, 0, 0] = 30000.0
    np.savez(tmp_path / "outlier.npz", **arrays)
    dirty = Subject(tmp_path / "net.onnx", tmp_path / "outlier.npz")
    return clean, dirty.observation


def chosen(clean, observation, cache=None):
    cache = cache or EvaluationCache(None, {})
    settings = MethodSettings(("minmax", "entropy"), evaluated=32)
    return choose_methods(clean.prepared, observation, clean.dataset, cache, settings)


def test_each_tensor_gets_what_is_best_at_the_outputs(outlier):
    clean, observation = outlier
    cache = EvaluationCache(None, {})
    found = chosen(clean, observation, cache)
    methods = {choice.tensor: choice.method for choice in found.choices}
    assert methods["x"] == "entropy"
    assert set(methods) == set(found.calibration.ranges)
    assert found.losses["minmax"].kl > 1.5 * found.losses["entropy"].kl
    best = min(found.losses.values(), key=lambda loss: loss.kl)
    assert found.losses[found.calibration.method].kl == best.kl
    before = cache.measured
    assert chosen(clean, observation, cache).calibration == found.calibration
    assert cache.measured == before


def test_a_table_of_choices_says_which_method_each_range_is_of(outlier):
    found = chosen(*outlier)
    if found.calibration.method == "searched":
        for choice in found.choices:
            assert found.calibration.ranges[choice.tensor].note.startswith(choice.method)
    assert found.calibration.model == outlier[0].prepared.fingerprint
