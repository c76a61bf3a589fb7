"""Which tensors need no counting, because their values are those of other tensors.

Operators that only move values give their output the histogram of their input; Concat gives the sum
of its inputs'. Not derived: anything that computes, repeats or drops values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import onnx

from trtcal.model.ops import MOVES


def sources(proto: onnx.ModelProto, tensors: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return for every tensor those whose histograms add up to its own; itself if there are none."""
    producers = {name: node for node in proto.graph.node for name in node.output}
    constants = {tensor.name for tensor in proto.graph.initializer}
    constants |= {name for name, node in producers.items() if node.op_type == "Constant"}
    return {name: _sources(name, producers, constants) for name in tensors}


def groups(
    needed: Mapping[str, Sequence[str]], apart: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return into whose histogram each source is counted, and which histograms make up each tensor's.

    Sources that are only ever summed together share one histogram, so that a Concat of many takes no
    more memory than a tensor. Those in `apart` have one of their own.
    """
    uses: dict[str, Counter[str]] = {}
    for tensor, parts in needed.items():
        for part in parts:
            uses.setdefault(part, Counter())[tensor] += 1
    first: dict[object, str] = {}
    into = {}
    for part in sorted(uses):
        key = part if part in apart else tuple(sorted(uses[part].items()))
        into[part] = first.setdefault(key, part)
    made = {}
    for tensor, parts in needed.items():
        names = sorted({into[part] for part in parts})
        made[tensor] = [name for name in names for _ in range(uses[name][tensor])]
    return into, made


def _sources(
    name: str, producers: dict[str, onnx.NodeProto], constants: set[str]
) -> tuple[str, ...]:
    pending, found = [name], list[str]()
    while pending:
        tensor = pending.pop()
        node = producers.get(tensor)
        if node is not None and node.op_type in MOVES and node.input[0] not in constants:
            pending.append(node.input[0])
        elif node is not None and node.op_type == "Concat" and constants.isdisjoint(node.input):
            pending.extend(node.input)
        else:
            found.append(tensor)
    return tuple(sorted(found))
