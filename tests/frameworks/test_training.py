"""The module of a model with Q/DQ, with PyTorch: the same integers, learned scales, and back."""

import importlib.util

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.conftest import SAMPLES
from tests.frameworks.conftest import needs
from trtcal.cli.main import run_command as main
from trtcal.wings.training.layout import Layout

pytestmark = needs("torch")
DIGITS = SAMPLES / "digits"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qat")
    ranges = str(folder / "calibration.json")
    words = [str(DIGITS / "digits.onnx"), "--data", str(DIGITS / "calibration.npz")]
    assert main(["calibrate", *words, "-o", ranges, "-q"]) == 0
    words = [words[0], "--calibration", ranges, "-o", str(folder / "qat.py")]
    assert main(["export", "torch", *words]) == 0
    return folder


def imported(folder):
    spec = importlib.util.spec_from_file_location("qat", folder / "qat.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def images(count):
    with np.load(DIGITS / "test.npz") as arrays:
        return arrays["image"][:count]


def integers(path, feed):
    """Return the integers of every quantized tensor, and the outputs, with Q/DQ in float."""
    proto = onnx.load(path)
    layout = Layout(proto)
    quantized = {}
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear":
            quantized.setdefault(layout.sources[node.output[0]], node.output[0])
    for name in quantized.values():
        value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, None)
        proto.graph.output.append(value)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    logits, *others = session.run(None, {"image": feed})
    return logits, dict(zip(quantized, others, strict=True))


def test_quantized_tensors_have_the_integers_of_onnx_runtime(exported):
    import torch

    module, feed = imported(exported), images(64)
    network, seen = module.Network(), {}
    names = {part: name for name, part in network.named_children()}

    def keep(part, _, output):  # the first time: some stand behind a pool again
        seen.setdefault(names[part], (output / part.scale).round())

    for part in filter(lambda part: isinstance(part, module.FakeQuantizer), names):
        part.register_forward_hook(keep)
    with torch.no_grad():
        logits = network(torch.from_numpy(feed)).numpy()
    expected, quantized = integers(exported / "qat.int8.onnx", feed)
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    for name, values in quantized.items():
        apart = np.abs(seen[name].numpy() - values)
        assert apart.max() <= 1, name
        assert (apart == 0).mean() > 0.999, name


def test_without_quantizers_it_is_the_float_model(exported):
    import torch

    with torch.no_grad():
        logits = imported(exported).Network(quantized=False)(torch.from_numpy(images(64))).numpy()
    session = onnxruntime.InferenceSession(DIGITS / "digits.onnx")
    np.testing.assert_allclose(logits, session.run(None, {"image": images(64)})[0], atol=1e-4)


def test_what_was_trained_computes_the_same_in_onnx(exported, tmp_path):
    import torch

    torch.manual_seed(0)
    module, feed = imported(exported), torch.from_numpy(images(64))
    network = module.Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        network(feed).square().mean().backward()
        assert all(scale.grad.abs().sum() > 0 for scale in module.scales(network))
        optimizer.step()
    module.save_trained(network, tmp_path / "trained.npz")
    files = [str(exported / "qat.int8.onnx"), str(tmp_path / "trained.npz")]
    assert main(["import", *files, "-o", str(tmp_path / "trained.onnx")]) == 0
    with torch.no_grad():
        logits = network(feed).numpy()
    step = np.abs(logits).max() / 127
    assert np.abs(logits - integers(tmp_path / "trained.onnx", images(64))[0]).max() <= step


def test_layers_of_your_own_module_are_quantized_by_name(exported):
    import torch
    from torch import nn

    module = imported(exported)
    network, mine = module.Network(), nn.Module()
    mine.head = nn.Module()
    mine.head.gemm = nn.Linear(*reversed(network.w_head_gemm_weight.values.shape))
    with pytest.raises(ValueError, match=r"head\.gemm has other weights"):
        module.attach(mine, network, module.LAYERS, {"head/gemm": "head.gemm"})
    mine.head.gemm.weight.data = network.w_head_gemm_weight.values.detach().clone()
    left = module.attach(mine, network, module.LAYERS, {"head/gemm": "head.gemm"})
    assert set(module.LAYERS) - set(left) == {"head/gemm"}
    x = torch.rand(3, mine.head.gemm.layer.in_features)
    mine.head.gemm(x).sum().backward()
    assert network.w_head_gemm_weight.values.grad is not None
    assert module.module_name("/layer1/conv1/Conv") == "layer1.conv1"
