"""Count, with TVM's Relax pattern language, the fusions of a norm and a LeakyRelu in ONNX files.

    python -m tests.evidence.fusion.tvm_patterns FILE ...

It runs in a process of its own. TVM's importer takes Identity out by itself; so that the graph is
judged as it is, a product with 1 stands in an Identity's place.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
from onnx import numpy_helper


def patterns():
    """Return the two patterns of the story: BatchNormalization or LayerNormalization, LeakyRelu."""
    from tvm.relax.dpl import is_op, is_tuple_get_item, wildcard

    batch = is_op("relax.nn.batch_norm")(*(wildcard() for _ in range(5)))
    layer = is_op("relax.nn.layer_norm")(*(wildcard() for _ in range(3)))
    return [
        (f"story.{name}", is_op("relax.nn.leakyrelu")(norm))
        for name, norm in (("batch_norm", is_tuple_get_item(batch, 0)), ("layer_norm", layer))
    ]


def count(path: str) -> int:
    """Return how many functions TVM makes of the patterns."""
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    proto = onnx.load(path)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    for node in proto.graph.node:
        if node.op_type == "Identity":
            node.op_type = "Mul"
            node.input.append("one")
    fused = relax.transform.FuseOpsByPattern(patterns())(from_onnx(proto))
    return len(fused.get_global_vars()) - 1


if __name__ == "__main__":
    print(json.dumps([count(path) for path in sys.argv[1:]]))
