from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.fixtures.networks import samples
from tests.fixtures.zoo import ZOO
from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import calibrate, observe
from trtcal.data import open_dataset
from trtcal.evaluate.judging import Judge
from trtcal.model import load_model
from trtcal.model.model import Overrides
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe


class Subject:
    """A network, its data, and what INT8 loses on them."""

    def __init__(self, path, data):
        self.given = load_model(path)
        self.dataset = open_dataset(data, self.given)
        self.prepared = prepare(self.given)

    def calibrated(self, model=None):
        model = model or self.prepared
        tensors = tensors_to_observe(find_layers(model))
        return calibrate(observe(model, self.dataset, tensors), "minmax")

    def decibels(self, model=None, calibration=None):
        """Return the noise of all INT8 relative to the signal of the given model, in dB."""
        model = model or self.prepared
        quantized = quantize(model, calibration or self.calibrated(model))
        with Judge(self.prepared, self.dataset) as judge:
            return judge.measure(quantized.proto).value


def applied(model, found):
    """Return a model with what was changed."""
    return replace(model, proto=found.of(model.proto), overrides=Overrides(moved=found.moved))


def outputs(proto, feeds):
    return run_session(open_session(proto), None, feeds)


def assert_the_same(model, changed, feeds):
    """Check that two models compute the same but for rounding."""
    both = (outputs(one.proto, feeds) for one in (model, changed))
    for expected, made in zip(*both, strict=True):
        assert np.abs(made - expected).max() <= 2e-4 * np.abs(expected).max()


@pytest.fixture
def from_zoo(tmp_path):
    """Give a network of the zoo, prepared, with 16 samples as a dataset and as feeds."""

    def made(name):
        entry = ZOO[name].make()
        onnx.save(entry.proto(), tmp_path / "net.onnx")
        feeds = entry.samples(16)
        np.savez(tmp_path / "data.npz", **feeds)
        model = prepare(load_model(tmp_path / "net.onnx"))
        return model, open_dataset(tmp_path / "data.npz", model), feeds

    return made


@pytest.fixture
def subject(tmp_path):
    def made(write, *arguments, count=48):
        path = write(tmp_path / "net.onnx", *arguments)
        return Subject(path, samples(tmp_path / "data.npz", count=count))

    return made
