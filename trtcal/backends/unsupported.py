"""What a builder refuses: the operators that it lacks, their nodes, who has them, what helps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

import onnx

from trtcal.model import Model
from trtcal.model.cut import before, cut_before
from trtcal.model.files import with_inner
from trtcal.model.graph import STANDARD
from trtcal.model.ops import HEAVY, LACKED

REFUSED = (  # what builders say of a node that they have nothing for
    re.compile(
        r"In node -?\d+ with name: (?P<node>.{0,300}?) and operator: (?P<op>\w{1,100}) "
        r"\(\w*\): (?:UNSUPPORTED\w*|\w+: [^\n]*Plugin not found)"
    ),
    re.compile(r"No importer registered for op: (?P<op>\w{1,100})"),
    re.compile(r"(?P<layer>\S{1,300}) has no runners that implement it"),
    re.compile(r"(?P<op>\w{1,100})\(-?\d+\) is not a registered function/op"),
)
PREPARE = "trtcal prepare"
NAMED = 3  # nodes that a message names
ELSEWHERE = "build for a target that has it, or write a plug-in for it"


def refused_operators(text: str, proto: onnx.ModelProto) -> set[str]:
    """Return the operators that a builder's messages name as ones that it has nothing for."""
    found = set[str]()
    for pattern in REFUSED:
        for match in pattern.finditer(text):
            parts = match.groupdict()
            found |= {parts["op"]} if parts.get("op") else _of_layer(parts["layer"], proto)
    return found


def _of_layer(layer: str, proto: onnx.ModelProto) -> set[str]:
    """Return the operator of a layer, which is called after its node, perhaps with a number behind."""
    names = {layer, re.sub(r"_\d+$", "", layer)}
    return {node.op_type for node in proto.graph.node if node.name in names}


def lacking(proto: onnx.ModelProto, operators: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes of the main graph that are, or hold in subgraphs, one of some operators."""
    wanted = set(operators)
    return [
        node
        for node in proto.graph.node
        if any(inner.op_type in wanted for inner in with_inner([node]))
    ]


def explain_refusal(model: Model, backend: str, text: str) -> tuple[str, str] | None:
    """Return message and hint on operators that a backend lacks, by what it said; None for none.

    The others that it is known to lack are named with them, so that one cut does.
    """
    refused = refused_operators(text, model.proto)
    if not refused:
        return None
    nodes = lacking(model.proto, refused | LACKED.get(backend, frozenset()))
    if not nodes:
        return None
    more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    shown = ", ".join(f"{node.name!r} ({node.op_type})" for node in nodes[:NAMED])
    message = f"{backend} has no implementation of node {shown}{more}; {_who_has(nodes, backend)}"
    return message, hint_to_cut(str(model.path), model.proto, nodes)


def _who_has(nodes: Sequence[onnx.NodeProto], backend: str) -> str:
    inner = [one for node in nodes for one in with_inner([node])]
    if any(one.domain not in STANDARD for one in nodes):
        return "an operator of another domain than ONNX's needs a plug-in everywhere"
    others = [
        name
        for name, lacked in LACKED.items()
        if name != backend and not any(one.op_type in lacked for one in inner)
    ]
    has = "has" if len(others) == 1 else "have"
    return f"{' and '.join(others)} {has} it" if others else "no other backend has it"


def hint_to_cut(path: str, proto: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> str:
    """Return the command that cuts nodes off, with the tensors just before them."""
    tensors = cut_before(proto, nodes)
    if not tensors:
        return f"no layer that multiplies comes before: {ELSEWHERE}"
    body = re.sub(r"(\.onnx)?$", "-body.onnx", path, count=1)
    words = [*PREPARE.split(), path, "--outputs", ",".join(tensors), "-o", body]
    heavy = sum(node.op_type in HEAVY for node in proto.graph.node)
    kept = sum(node.op_type in HEAVY for node in before(proto, nodes))
    share = "" if kept == heavy else f", {heavy - kept} of {heavy} heavy layers with it"
    return f"cut the model before: `{shlex.join(words)}`; ONNX Runtime computes the rest{share}"
