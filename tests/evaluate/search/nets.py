"""Chains and blocks of random layers, of which some lose much more than others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from tests.fixtures.networks import rng, save


def far_net(path: Path) -> Path:
    """Two layers whose results are beyond float16; their difference, which is read, is small."""
    far = np.full((8, 3, 1, 1), 5e4, np.float32)
    weights = {
        "w1": far,
        "w2": far + 200 * rng(3).standard_normal(far.shape).astype(np.float32),
        "w3": (1e-3 * rng(4).standard_normal((5, 8))).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "far1"),
        helper.make_node("Conv", ["x", "w2"], ["b"], "far2"),
        helper.make_node("Sub", ["a", "b"], ["d"], "difference"),
        helper.make_node("ReduceMean", ["d"], ["p"], "pool", axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["p", "w3"], ["y"], "gemm", transB=1),
    ]
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 5]})


def vanishing_net(path: Path) -> Path:
    """A layer that reads small channels of a tensor with a large one: in INT8 it divides by zero."""
    weights = {
        "w1": rng(5).standard_normal((8, 3, 1, 1)).astype(np.float32),
        "w2": rng(6).standard_normal((5, 8, 1, 1)).astype(np.float32),
    }
    weights["w1"][1:] *= 1e-6
    weights["w2"][:, 0] = 0
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "mixed"),
        helper.make_node("Conv", ["a", "w2"], ["b"], "small"),
        helper.make_node("ReduceMean", ["b"], ["p"], "pool", axes=[2, 3], keepdims=0),
        helper.make_node("Reciprocal", ["p"], ["y"], "divide"),
    ]
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 5]})


def random_net(path: Path, seed: int, layers: int = 8) -> Path:
    """Convolutions with Relus, some with a skip; a few have channels of very different scales."""
    draw = rng(seed)
    nodes, weights, tensor, width = [], {}, "x", 3
    for i in range(layers - 1):
        out = int(draw.choice([4, 8, 16]))
        kernel = int(draw.choice([1, 3]))
        values = draw.standard_normal((out, width, kernel, kernel)) * np.sqrt(2 / width / kernel**2)
        if draw.random() < 0.35:  # a few inputs that count much: their tensor needs a fine scale
            values[:, 0] *= 8
            values[0] *= 8
        weights[f"w{i}"] = values.astype(np.float32)
        weights[f"b{i}"] = (0.1 * draw.standard_normal(out)).astype(np.float32)
        nodes.append(
            helper.make_node(
                "Conv", [tensor, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[kernel // 2] * 4
            )
        )
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        tensor, width = f"r{i}", out
    weights["w"] = (draw.standard_normal((6, width)) / np.sqrt(width)).astype(np.float32)
    nodes += [
        helper.make_node("GlobalAveragePool", [tensor], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w"], ["y"], "gemm", transB=1),
    ]
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6]})
