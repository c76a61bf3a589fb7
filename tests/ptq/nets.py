"""Networks on which INT8 loses accuracy that an optimization restores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import rng, save


def separable_net(path: Path, activation: str = "Relu") -> Path:
    """A dense and a depthwise layer, between them channels whose sizes differ a hundredfold."""
    draw = rng(1)
    sizes = np.geomspace(0.02, 2.0, 16).astype(np.float32)
    weights = {
        "w0": draw.standard_normal((16, 3, 3, 3)).astype(np.float32)
        * sizes[:, None, None, None]
        / 5,
        "b0": draw.standard_normal(16).astype(np.float32) * sizes / 5,
        "w1": draw.standard_normal((16, 1, 3, 3)).astype(np.float32) / sizes[:, None, None, None],
        "b1": draw.standard_normal(16).astype(np.float32),
        "w2": draw.standard_normal((6, 16)).astype(np.float32),
        "low": np.float32(0.0),
        "high": np.float32(6.0),
    }
    bounds = ["low", "high"] if activation == "Clip" else []
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], "dense", pads=[1] * 4),
        helper.make_node(activation, ["c0", *bounds], ["r0"], "first"),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "depthwise", group=16, pads=[1] * 4),
        helper.make_node(activation, ["c1", *bounds], ["r1"], "second"),
        helper.make_node("GlobalAveragePool", ["r1"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w2"], ["y"], "head", transB=1),
    ]
    used = {name: one for name, one in weights.items() if bounds or name not in ("low", "high")}
    return save(path, nodes, used, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6]})


def offset_net(path: Path) -> Path:
    """A layer whose Relu cuts nothing off, and one by one pixel that reads it."""
    draw = rng(2)
    weights = {
        "w0": 0.1 * draw.standard_normal((8, 3, 1, 1)).astype(np.float32),
        "b0": np.full(8, 5.0, np.float32),
        "w1": draw.standard_normal((4, 8, 1, 1)).astype(np.float32),
        "b1": np.zeros(4, np.float32),
    }
    nodes = as_nodes(
        "[first] c0 = Conv(x, w0, b0)  [relu] r0 = Relu(c0)  [second] y = Conv(r0, w1, b1)"
    )
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 4, 8, 8]})


def idle_net(path: Path, level: float = 3.0, contrast: float = 4.0, depth: float = 50.0) -> Path:
    """A dense, a depthwise and a pointwise layer; a quarter of the channels lies at `-depth`.

    The others lie around `level` before their Relu6, and the depthwise layer takes differences of them.
    """
    draw = rng(5)
    idle = np.arange(16) % 4 == 3
    edges = draw.standard_normal((16, 1, 3, 3)).astype(np.float32)
    weights = {
        "w0": 0.1 * draw.standard_normal((16, 3, 3, 3)).astype(np.float32),
        "b0": np.where(idle, -depth, level).astype(np.float32),
        "w1": contrast * (edges - edges.mean(axis=(2, 3), keepdims=True)),
        "b1": np.where(idle, 0.5, 2.5).astype(np.float32),
        "w2": draw.standard_normal((6, 16, 1, 1)).astype(np.float32),
        "b2": np.zeros(6, np.float32),
        "low": np.float32(0.0),
        "high": np.float32(6.0),
    }
    bounds = ["low", "high"]
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], "dense", pads=[1] * 4),
        helper.make_node("Clip", ["c0", *bounds], ["r0"], "first"),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "depthwise", group=16, pads=[1] * 4),
        helper.make_node("Clip", ["c1", *bounds], ["r1"], "second"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["y"], "pointwise"),
    ]
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 8, 8]})


def token_net(path: Path) -> Path:
    """Eight tokens of which the first is fifty times as large as the others, and a normalization."""
    draw = rng(5)
    bump = np.zeros((1, 8, 24), np.float32)
    bump[0, 0] = 50.0 * draw.standard_normal(24)
    weights = {
        "shape": np.array([-1, 8, 24]),
        "bump": bump,
        "w0": draw.standard_normal((24, 16)).astype(np.float32),
        "b0": draw.standard_normal(16).astype(np.float32),
        "gamma": np.ones(16, np.float32),
        "beta": np.zeros(16, np.float32),
    }
    nodes = as_nodes(
        "[tokens] t = Reshape(x, shape)  [first] a = Add(t, bump)  [layer] m = MatMul(a, w0)  "
        "[bias] s = Add(m, b0)  [norm] y = LayerNormalization(s, gamma, beta)"
    )
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 8, 16]})


def block_net(path: Path) -> Path:
    """A normalization that an addition reads too, and a GELU; in both some channels are far larger."""
    draw = rng(6)
    sizes = np.geomspace(0.1, 10.0, 16).astype(np.float32)
    sizes = draw.permutation(sizes)
    weights = {
        "shape": np.array([-1, 12, 16]),
        "gamma": sizes,
        "beta": 2.0 * sizes,
        "w0": draw.standard_normal((16, 32)).astype(np.float32) / sizes[:, None],
        "b0": draw.standard_normal(32).astype(np.float32),
        "w1": draw.standard_normal((32, 16)).astype(np.float32),
        "b1": draw.standard_normal(16).astype(np.float32),
        "w2": draw.standard_normal((16, 6)).astype(np.float32) / sizes[:, None],
        "root": np.float32(2**0.5),
        "one": np.float32(1.0),
        "half": np.float32(0.5),
    }
    nodes = as_nodes(
        "[tokens] t = Reshape(x, shape)  [norm] n = LayerNormalization(t, gamma, beta)  "
        "[up] m0 = MatMul(n, w0)  [up_bias] u = Add(m0, b0)  [divided] d = Div(u, root)  "
        "[erf] e = Erf(d)  [grown] e1 = Add(e, one)  [gated] g1 = Mul(u, e1)  "
        "[gelu] g = Mul(g1, half)  [down] m1 = MatMul(g, w1)  [down_bias] v = Add(m1, b1)  "
        "[residual] r = Add(v, n)  [head] y = MatMul(r, w2)"
    )
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 12, 6]})


def wide_net(path: Path) -> Path:
    """Twelve tokens; products of 192 and 256 summed values, correlated as those of trained networks."""
    draw = rng(7)
    weights = {
        "rows": np.array([-1, 16]),
        "tokens": np.array([-1, 12, 32]),
        "mixed": draw.standard_normal((16, 192)).astype(np.float32) / 4,
        "w0": draw.laplace(size=(192, 256)).astype(np.float32) / 14,
        "b0": draw.standard_normal(256).astype(np.float32),
        "w1": draw.laplace(size=(32, 256)).astype(np.float32) / 16,
        "b1": draw.standard_normal(32).astype(np.float32),
    }
    nodes = as_nodes(
        "[rows] f = Reshape(x, rows)  [mix] m = MatMul(f, mixed)  [tanh] t = Tanh(m)  "
        "[product] p = MatMul(t, w0)  [bias] s = Add(p, b0)  [relu] r = Relu(s)  "
        "[gemm] g = Gemm<transB=1>(r, w1, b1)  [tokens] y = Reshape(g, tokens)"
    )
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 12, 32]})


def log_net(path: Path) -> Path:
    """Logarithms of energies over a floor: what INT8 rounds to zero is below it, and gives NaN."""
    draw = rng(8)
    weights = {
        "floor": np.float32(0.02),
        "half": np.float32(0.01),
        "w0": np.eye(3, dtype=np.float32)[:, :, None, None],
        "w1": draw.standard_normal((4, 3, 1, 1)).astype(np.float32),
        "b1": draw.standard_normal(4).astype(np.float32),
    }
    nodes = as_nodes(
        "[energy] e = Mul(x, x)  [floored] f = Add(e, floor)  [bands] c = Conv(f, w0)  "
        "[lowered] d = Sub(c, half)  [log] l = Log(d)  [head] y = Conv(l, w1, b1)"
    )
    return save(path, nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 4, 8, 8]})
