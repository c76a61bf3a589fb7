"""PyTorch modules and exported programs become ONNX that computes the same."""

import numpy as np
import onnxruntime
import pytest

import trtcal
from tests.fixtures.fails import fails
from tests.frameworks.conftest import needs
from trtcal.errors import InputError

pytestmark = [needs("torch", "onnxscript"), pytest.mark.slow]


@pytest.fixture
def network():
    import torch

    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.LeakyReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5),
    ]  # fmt: skip
    return torch.nn.Sequential(*layers)


def run(proto, **feeds):
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, feeds)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_module_becomes_a_model_of_any_batch_size(network, samples):
    import torch

    network.train()
    model = trtcal.from_torch(network, [torch.zeros(samples, 3, 8, 8)], outputs=["scores"])
    images = np.random.default_rng(0).normal(size=(7, 3, 8, 8)).astype(np.float32)
    (found,) = run(model.proto, input=images)
    network.eval()
    np.testing.assert_allclose(found, network(torch.tensor(images)).detach(), rtol=1e-4, atol=1e-5)
    assert [str(spec) for spec in model.inputs] == ["input: float32[batch, 3, 8, 8]"]
    assert [str(spec) for spec in model.outputs] == ["scores: float32[batch, 5]"]


def test_a_module_stays_in_training_as_it_was(network):
    import torch

    trtcal.from_torch(network.train(), [torch.zeros(2, 3, 8, 8)])
    assert network.training


def test_a_module_is_calibrated_by_way_of_its_model(network):
    import torch

    model = trtcal.from_torch(network, {"input": torch.zeros(2, 3, 8, 8)}, batch=False)
    assert str(model.inputs[0]) == "input: float32[2, 3, 8, 8]"
    images = np.random.default_rng(0).normal(size=(8, 3, 8, 8)).astype(np.float32)
    assert trtcal.calibrate(model, {"input": images}).ranges


def test_a_module_itself_is_refused_with_what_makes_a_model_of_it(network):
    with fails(InputError, "Sequential", hint="trtcal.from_torch"):
        trtcal.calibrate(network, "data.npz")


def test_a_module_that_torch_cannot_export_is_one_error():
    import torch

    class Broken(torch.nn.Module):
        def forward(self, value):
            return value if value.sum() > 0 else value * 2

    with fails(InputError, "Broken", hint="batch=False"):
        trtcal.from_torch(Broken(), [torch.zeros(2, 3)])


def test_an_exported_program_is_a_program_and_is_loaded_only_with_trust(network, tmp_path):
    import torch

    path = tmp_path / "net.pt2"
    example = torch.zeros(2, 3, 8, 8)
    axes = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(network.eval(), (example,), dynamic_shapes=axes), path)
    with fails(InputError, "net.pt2", hint="--trust"):
        trtcal.load_model(path)
    model = trtcal.load_model(path, trust=True)
    images = np.random.default_rng(0).normal(size=(5, 3, 8, 8)).astype(np.float32)
    (found,) = run(model.proto, input=images)
    np.testing.assert_allclose(found, network(torch.tensor(images)).detach(), rtol=1e-4, atol=1e-5)
