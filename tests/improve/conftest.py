import pytest

from tests.networks import samples
from trtcal.calibration import calibrate
from trtcal.data import open_dataset
from trtcal.improve.judging import Judge
from trtcal.model import load_model
from trtcal.observe import observe
from trtcal.quantize import find_layers, prepare, quantize, tensors_to_observe


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


@pytest.fixture
def subject(tmp_path):
    def made(write, *arguments, count=48):
        path = write(tmp_path / "net.onnx", *arguments)
        return Subject(path, samples(tmp_path / "data.npz", count=count))

    return made
