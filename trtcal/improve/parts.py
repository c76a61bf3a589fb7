"""What a model's outputs are made of: a detector's boxes and scores, where one tensor has both.

Boxes are hundreds of pixels large and scores at most 1, so the noise of the whole is that of the
boxes, and what became of the scores can't be seen in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.graph import constant, import_graph, is_op
from trtcal.model import Model

THROUGH = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")

Part = tuple[str, ...]
"""Tensors whose noise and signal are added up."""


def find_parts(model: Model) -> list[Part]:
    """Return the parts of all outputs: what a Concat joins, by the operators that make it."""
    graph = import_graph(model.proto)
    parts = list[Part]()
    for output in graph.outputs:
        kinds = defaultdict[str, list[str]](list)
        for op, name in _joined(output) if output.dtype == np.float32 else ():
            kinds[op].append(name)
        parts += map(tuple, kinds.values()) if len(kinds) > 1 else [(output.name,)]
    return parts


def _joined(tensor: gs.Tensor) -> Iterator[tuple[str, str]]:
    """Yield operator and name of each tensor that is joined in one."""
    node = tensor.inputs[0] if tensor.inputs else None
    if node is not None and is_op(node, "Concat"):
        for one in node.inputs:
            yield from _joined(one)
    elif node is not None and is_op(node, *THROUGH):
        yield from _joined(node.inputs[0])
    elif node is not None and constant(tensor) is None:
        yield node.op, tensor.name
