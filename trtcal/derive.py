"""Which tensors need no counting, because their values are those of other tensors.

Operators that only move values give their output the histogram of their input; Concat gives the sum
of its inputs'. Not derived: anything that computes, repeats or drops values.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

MOVING = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def sources(proto: onnx.ModelProto, tensors: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return for every tensor those whose histograms add up to its own; itself if there are none."""
    producers = {name: node for node in proto.graph.node for name in node.output}
    constants = {tensor.name for tensor in proto.graph.initializer}
    constants |= {name for name, node in producers.items() if node.op_type == "Constant"}
    return {name: _sources(name, producers, constants) for name in tensors}


def _sources(
    name: str, producers: dict[str, onnx.NodeProto], constants: set[str]
) -> tuple[str, ...]:
    pending, found = [name], list[str]()
    while pending:
        tensor = pending.pop()
        node = producers.get(tensor)
        if node is not None and node.op_type in MOVING and node.input[0] not in constants:
            pending.append(node.input[0])
        elif node is not None and node.op_type == "Concat" and constants.isdisjoint(node.input):
            pending.extend(node.input)
        else:
            found.append(tensor)
    return tuple(sorted(found))
