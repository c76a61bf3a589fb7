import pytest

from tests.fixtures.networks import conv_net, samples
from trtcal.data import open_dataset
from trtcal.model import load_model
from trtcal.quantization import find_layers, prepare, tensors_to_observe


@pytest.fixture
def scene(tmp_path, request):
    """A prepared network, `COUNT` samples for it, and the tensors to observe."""
    model = load_model(conv_net(tmp_path / "net.onnx"))
    count = getattr(request.module, "COUNT", 24)
    data = open_dataset(samples(tmp_path / "data.npz", count=count), model)
    prepared = prepare(model)
    return prepared, data, tensors_to_observe(find_layers(prepared))
