"""Small networks and data that tests make for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    inputs: dict[str, Shape],
    outputs: dict[str, Shape],
    opset: int = 17,
) -> Path:
    def values(items: dict[str, Shape]) -> list[onnx.ValueInfoProto]:
        kind = TensorProto.FLOAT
        return [helper.make_tensor_value_info(name, kind, shape) for name, shape in items.items()]

    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "test", values(inputs), values(outputs), initializers)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10 if opset > 20 else 8
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    fan_in = int(np.prod(shape[1:]))
    return (rng(seed).standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)


def conv_net(path: Path) -> Path:
    """conv -> relu -> conv, plus the skip, -> relu -> global pool -> flatten -> gemm."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("Conv", ["b", "w2", "b2"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"], "add"),
        helper.make_node("Relu", ["d"], ["e"], "relu2"),
        helper.make_node("GlobalAveragePool", ["e"], ["f"], "pool"),
        helper.make_node("Flatten", ["f"], ["g"], "flatten"),
        helper.make_node("Gemm", ["g", "w3", "b3"], ["y"], "gemm", transB=1),
    ]
    weights = {
        "w1": weight(8, 3, 3, 3, seed=1),
        "b1": rng(2).standard_normal(8).astype(np.float32),
        "w2": weight(8, 8, 3, 3, seed=3),
        "b2": rng(4).standard_normal(8).astype(np.float32),
        "w3": weight(5, 8, seed=5),
        "b3": rng(6).standard_normal(5).astype(np.float32),
    }
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 5]})


def transposed_net(path: Path) -> Path:
    """conv -> relu -> transposed convolution, for which TensorRT-RTX has no INT8 kernel."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("ConvTranspose", ["b", "w2"], ["y"], "up", strides=[2, 2]),
    ]
    weights = {"w1": weight(16, 3, 3, 3, seed=1), "w2": weight(16, 8, 2, 2, seed=2)}
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 8, 16, 16]})


def samples(path: Path, name: str = "x", count: int = 24, shape: Shape = (3, 8, 8)) -> Path:
    images = rng(9).standard_normal((count, *shape)).astype(np.float32)
    np.savez(path, **{name: images, "labels": np.arange(count) % 5})
    return path


def linear_classifier(path: Path, weights: np.ndarray) -> Path:
    """Save scores = x @ weights.T, of any batch, with weights of (classes, inputs)."""
    node = helper.make_node("Gemm", ["x", "w"], ["scores"], "head", transB=1)
    classes, inputs = weights.shape
    sizes = {"x": ("n", inputs)}, {"scores": ("n", classes)}
    return save(path, [node], {"w": weights.astype(np.float32)}, *sizes)


def detection_net(path: Path) -> Path:
    """A convolution, two heads, and a NonMaxSuppression; "classes" is an output before it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("GlobalAveragePool", ["a"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "wb"], ["corners"], "boxhead"),
        helper.make_node("Reshape", ["corners", "bs"], ["boxes"], "boxshape"),
        helper.make_node("Gemm", ["f", "ws"], ["classes"], "scorehead"),
        helper.make_node("Shape", ["x"], ["size"], "size"),
        helper.make_node("Reshape", ["classes", "ss"], ["scores"], "scoreshape"),
        helper.make_node("Neg", ["minus"], ["few"], "few"),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "few"], ["kept"], "nms"),
        helper.make_node("Gather", ["size", "first"], ["n"], "n"),
        helper.make_node("Add", ["kept", "n"], ["y"], "moved"),
    ]
    weights = {
        "w": weight(4, 3, 3, 3),
        "wb": weight(4, 8, seed=1),
        "ws": weight(4, 2, seed=2),
        "bs": np.array([0, 2, 4]),
        "ss": np.array([0, 1, 2]),
        "minus": np.array([-2]),
        "first": np.array(0),
    }
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [
            helper.make_tensor_value_info("y", TensorProto.INT64, [None, 3]),
            helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["n", 2]),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
