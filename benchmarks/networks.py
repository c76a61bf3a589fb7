"""The `light_*` topologies that the onnx package ships, with weights worth computing with.

Their weights are constant fills; here every kernel is drawn He-normal and every BatchNorm is near the
identity, from a fixed seed, so that activations stay in a normal range.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnx_graphsurgeon as gs

from trtcal.model import Model, load_model
from trtcal.model.graph import export_model
from trtcal.model.passes.constants import CONSTANTS
from trtcal.model.passes.reading import read_graph
from trtcal.model.passes.upgrade import OPSET

NETWORKS = ("resnet50", "squeezenet", "shufflenet", "densenet121", "inception_v2")
FOLDER = Path(onnx.backend.test.__file__).parent / "data" / "light"


def light_network(name: str, folder: Path, seed: int = 0) -> Model:
    """Write `light_<name>` with He-normal weights into `folder` and load it."""
    given = load_model(FOLDER / f"light_{name}.onnx")
    graph = read_graph(given)
    for one in (OPSET, CONSTANTS):
        one.apply(graph)
    rng = np.random.default_rng(seed)
    for node in graph.nodes:
        _fill(node, rng)
    path = folder / f"{name}.onnx"
    onnx.save(export_model(graph, given.proto), path)
    return load_model(path)


def _fill(node: gs.Node, rng: np.random.Generator) -> None:
    if node.op == "BatchNormalization":
        for tensor, value in zip(node.inputs[1:], (1.0, 0.0, 0.0, 1.0), strict=True):
            tensor.values = np.full(tensor.values.shape, value, np.float32)
    elif node.op in ("Conv", "Gemm"):
        weight = node.inputs[1]
        fan_in = np.prod(weight.values.shape[1:])
        subsets = rng.standard_normal(weight.values.shape, np.float32)
        weight.values = subsets * np.float32(np.sqrt(2.0 / fan_in))


def random_images(model: Model, samples: int, seed: int = 1) -> np.ndarray:  # type: ignore[type-arg]
    """Return standard-normal samples, float32, of the model's input shape, samples first."""
    shape = tuple(size if isinstance(size, int) else 1 for size in model.inputs[0].shape[1:])
    return np.random.default_rng(seed).standard_normal((samples, *shape), np.float32)
