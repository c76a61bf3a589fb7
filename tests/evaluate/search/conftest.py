import numpy as np
import pytest

from tests.fixtures.networks import conv_net, samples
from trtcal.calibration import calibrate, observe
from trtcal.data import open_dataset
from trtcal.model import load_model
from trtcal.quantization import find_layers, prepare, tensors_to_observe


class Subject:
    """A prepared network with ranges, data and histograms."""

    def __init__(self, path, data):
        self.model = load_model(path)
        self.dataset = open_dataset(data, self.model)
        self.prepared = prepare(self.model)
        placement = find_layers(self.prepared)
        self.units = [layer.name for layer in placement.layers]
        tensors = tensors_to_observe(placement)
        self.observation = observe(self.prepared, self.dataset, tensors)
        self.calibration = calibrate(self.observation, "minmax")


@pytest.fixture
def residual(tmp_path):
    return Subject(conv_net(tmp_path / "net.onnx"), samples(tmp_path / "data.npz"))


@pytest.fixture
def make(tmp_path):
    def made(write, *arguments):
        path = write(tmp_path / "net.onnx", *arguments)
        shape = list(load_model(path).inputs[0].shape[1:])
        return Subject(path, samples(tmp_path / "data.npz", shape=np.array(shape).tolist()))

    return made
