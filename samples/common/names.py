"""Names for the nodes and tensors of an exported network: those of its modules."""

from __future__ import annotations

import ast
from collections import Counter

import onnx

SCOPES = "pkg.torch.onnx.name_scopes"


def name_by_module(proto: onnx.ModelProto) -> None:
    """Name each node `module/Operator`, and what it writes and its constants after it.

    torch.onnx writes down which module a node is of; that is removed. Names that the graph's inputs and
    outputs have stay.
    """
    graph, seen = proto.graph, Counter[str]()
    kept = {one.name for one in (*graph.input, *graph.output)}
    names: dict[str, str] = {}
    for node in graph.node:
        kind = f"{_module(node)}/{node.op_type}"
        node.name = kind if not seen[kind] else f"{kind}_{seen[kind]}"
        seen[kind] += 1
        node.ClearField("metadata_props")
        for number, tensor in enumerate(node.input):
            names.setdefault(tensor, f"{node.name}:{number}")
        for number, tensor in enumerate(node.output):
            names[tensor] = f"{node.name}.{number}" if number else node.name
    names |= {one: one for one in (*kept, "")}
    for node in graph.node:
        node.input[:] = [names[one] for one in node.input]
        node.output[:] = [names[one] for one in node.output]
    for weights in graph.initializer:
        weights.name = names[weights.name]
    del graph.value_info[:]
    onnx.checker.check_model(proto, full_check=True)


def _module(node: onnx.NodeProto) -> str:
    """Return the path of a node's module; a folded normalization stands for the module around it."""
    values = {one.key: one.value for one in node.metadata_props}
    *modules, leaf = ast.literal_eval(values.get(SCOPES, "['', '']"))
    path = modules[-1] if modules else ""
    return path.rpartition(".")[0] if "batch_norm" in leaf else path or "network"
