"""Writes the sample's network and data: `python samples/regression/make.py [FOLDER]`.

The network has normalizations that stand before a convolution, so that none is folded into one, each
with a LeakyReLU behind it. The last one has the epsilon of TensorFlow, 1e-3. Weights come from a seed,
and the last layer is fitted to the classes of the data, which are blurred noise around ten templates.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

SIDE, CHANNELS, CLASSES, BLOCKS = 12, 16, 10, 4
CALIBRATION, TEST = 128, 256


class Network:
    """A graph in the making."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def add(self, op: str, name: str, *inputs: str, **attributes: object) -> str:
        """Add a node and return the name of its output."""
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def constant(self, name: str, values: object) -> str:
        """Add a weight and return its name."""
        self.weights[name] = np.asarray(values, np.float32)
        return name

    def conv(self, name: str, x: str, inputs: int) -> str:
        """Add a convolution of 3 x 3."""
        scale = np.sqrt(2 / (9 * inputs))
        weight = self.rng.standard_normal((CHANNELS, inputs, 3, 3)) * scale
        return self.add("Conv", name, x, self.constant(f"{name}.weight", weight), pads=[1] * 4)

    def norm(self, name: str, x: str, epsilon: float) -> str:
        """Add a batch normalization."""
        near_one = 1 + 0.2 * self.rng.random((2, CHANNELS))
        near_zero = 0.1 * self.rng.standard_normal((2, CHANNELS))
        values = {
            "scale": near_one[0],
            "bias": near_zero[0],
            "mean": near_zero[1],
            "var": near_one[1],
        }
        names = [self.constant(f"{name}.{part}", one) for part, one in values.items()]
        return self.add("BatchNormalization", name, x, *names, epsilon=epsilon)

    def model(self, head: np.ndarray) -> onnx.ModelProto:
        """Return the model with a head of (classes, channels + 1): weights, and a bias."""
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, SIDE, SIDE])
        scores = helper.make_tensor_value_info("head_out", TensorProto.FLOAT, ["n", CLASSES])
        weights = {**self.weights, "head.weight": head[:, :-1], "head.bias": head[:, -1]}
        made = [numpy_helper.from_array(np.float32(one), name) for name, one in weights.items()]
        graph = helper.make_graph(self.nodes, "regression", [image], [scores], made)
        opset = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="trtcal")


def network() -> Network:
    """Return the network without its head's weights."""
    net = Network(1)
    x = net.conv("stem", "image", 1)
    for number in range(1, BLOCKS + 1):
        name = f"block{number}"
        y = net.norm(f"{name}/bn", x, 1e-3 if number == BLOCKS else 1e-5)
        y = net.add("LeakyRelu", f"{name}/act", y, alpha=0.1)
        x = net.add("Add", f"{name}/add", net.conv(f"{name}/conv", y, CHANNELS), x)
    x = net.add("Flatten", "flat", net.add("GlobalAveragePool", "pool", x))
    net.add("Gemm", "head", x, "head.weight", "head.bias", transB=1)
    return net


def blurred(images: np.ndarray) -> np.ndarray:
    """Return images, (n, side, side), with neighbouring pixels averaged twice."""
    for _ in range(2):
        for axis in (1, 2):
            images = (np.roll(images, 1, axis) + 2 * images + np.roll(images, -1, axis)) / 4
    return images


def data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images of (count, 1, side, side) and their classes."""
    templates = blurred(np.random.default_rng(0).standard_normal((CLASSES, SIDE, SIDE)) * 4)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    noise = blurred(rng.standard_normal((count, SIDE, SIDE)))
    return (templates[labels] + noise)[:, None].astype(np.float32), labels


def fitted_head(net: Network, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the head that fits the classes best, by least squares."""
    model = net.model(np.zeros((CLASSES, CHANNELS + 1)))
    model.graph.output.append(helper.make_empty_tensor_value_info("flat_out"))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    features = session.run(["flat_out"], {"image": images})[0]
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    return np.linalg.lstsq(features, np.eye(CLASSES)[labels] * 2 - 1, rcond=None)[0].T


def main(folder: Path) -> None:
    """Write model and data."""
    net = network()
    onnx.save(net.model(fitted_head(net, *data(4096, 1))), folder / "regression.onnx")
    for name, count, seed in (("calibration", CALIBRATION, 2), ("test", TEST, 3)):
        images, labels = data(count, seed)
        np.savez_compressed(folder / f"{name}.npz", image=images, labels=labels)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
