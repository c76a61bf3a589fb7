"""A small encoder of texts: dynamic lengths, a mask, and a few large channels as trained ones have."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from tests.fixtures.zoo_language import attention
from tests.fixtures.zoo_net import Net

LAYERS, WIDTH, HEADS, VOCABULARY, CLASSES, LONGEST = 2, 64, 4, 400, 4, 24
LARGE = {5: 30.0, 40: 20.0}  # channels of the LayerNorms that are much larger than the others


def write_encoder(path: Path) -> None:
    """Write the network: ids and attention_mask [n, length] to the scores [n, 4] of a text."""
    net = Net(ids=["n", "length"], attention_mask=["n", "length"], vocabulary=VOCABULARY)
    keep = net.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    hide = net.add("Mul", net.add("Sub", net.value(1), keep), net.value(-1e4))
    mask = net.add("Unsqueeze", hide, net.ints(1, 2))
    words = net.add("Gather", net.weight(VOCABULARY, WIDTH, fan_in=2), "ids")
    a = _norm(net, words)
    for number in range(LAYERS):
        a = _layer(net, a, mask, f"layer{number}/")
    first = net.add("Gather", a, net.value(0, np.int64), axis=1)
    scores = net.gemm("classifier", first, CLASSES, WIDTH)
    proto = net.done(net.add("Identity", scores, name="scores")).proto()
    for value in proto.graph.input:
        value.type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(proto, path)


def _layer(net: Net, x: str, mask: str, prefix: str) -> str:
    seen = attention(net, x, 0, WIDTH, HEADS, mask=mask, prefix=prefix)
    a = _norm(net, net.add("Add", seen, x))
    b = net.gelu(net.linear(f"{prefix}up", a, WIDTH, 4 * WIDTH))
    return _norm(net, net.add("Add", net.linear(f"{prefix}down", b, 4 * WIDTH, WIDTH), a))


def _norm(net: Net, x: str) -> str:
    scale = np.ones(WIDTH)
    scale[list(LARGE)] = list(LARGE.values())
    return net.add("LayerNormalization", x, net.value(scale), net.vector(WIDTH))


def write_texts(folder: Path, count: int, seed: int) -> None:
    """Write one .npz for each text, of 6 to 24 ids, the last of which may be padding."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        length = int(rng.choice([8, 16, LONGEST]))
        kept = int(rng.integers(length // 2, length + 1))
        mask = (np.arange(length) < kept).astype(np.int64)
        ids = rng.integers(1, VOCABULARY, length) * mask
        np.savez(folder / f"{number:04}.npz", ids=ids[None], attention_mask=mask[None])
