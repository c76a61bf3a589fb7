"""What a builder refuses: the operators that it lacks, their nodes, who has them, what helps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import onnx

from trtcal.documents.streams import command_line
from trtcal.errors import some
from trtcal.model import Model
from trtcal.model.cut import before, cut_before
from trtcal.model.files import with_inner
from trtcal.model.graph import STANDARD
from trtcal.model.ops import HEAVY, LACKED
from trtcal.model.shapes import CONTRIB

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
NODES_NAMED = 3  # nodes that a message names


def refused_operators(text: str, proto: onnx.ModelProto) -> set[str]:
    """Return the operators that a builder's messages name as ones that it has nothing for."""
    operators = set[str]()
    for pattern in REFUSED:
        for match in pattern.finditer(text):
            parts = match.groupdict()
            operators |= {parts["op"]} if parts.get("op") else _of_layer(parts["layer"], proto)
    return operators


def _of_layer(layer: str, proto: onnx.ModelProto) -> set[str]:
    """Return the operator of a layer, which is called after its node, perhaps with a number behind."""
    names = {layer, re.sub(r"_\d+$", "", layer)}
    return {node.op_type for node in proto.graph.node if node.name in names}


def lacking(proto: onnx.ModelProto, operators: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes of the main graph that are, or hold in subgraphs, one of some operators."""
    names, nodes = set(operators), proto.graph.node
    return [node for node in nodes if any(n.op_type in names for n in with_inner([node]))]


def explain_refusal(model: Model, backend: str, text: str) -> tuple[str, str] | None:
    """Return message and hint on operators that a backend lacks, by what it said; None for none.

    The others that it is known to lack are named with them, so that one cut does.
    """
    refused = refused_operators(text, model.proto)
    nodes = lacking(model.proto, refused | LACKED.get(backend, frozenset()))
    if not (refused and nodes):
        return None
    shown = some((f"{node.name!r} ({node.op_type})" for node in nodes), NODES_NAMED)
    message = f"{backend} has no implementation of node {shown}; {_who_has(nodes, backend)}"
    path = str(model.path)
    return message, hint_to_cut(path, model.proto, nodes) or hint_to_other(path)


def _who_has(nodes: Sequence[onnx.NodeProto], backend: str) -> str:
    inner = list(with_inner(nodes))
    known = {name: {*STANDARD, *([CONTRIB] if name == "onnxruntime" else [])} for name in LACKED}
    others = [
        name
        for name, lacked in LACKED.items()
        if name != backend
        and all(part.domain in known[name] and part.op_type not in lacked for part in inner)
    ]
    if not others and any(part.domain not in STANDARD for part in inner):
        return "an operator outside the ONNX domains needs a plug-in on every backend"
    have = "has" if len(others) == 1 else "have"
    return f"{' and '.join(others)} {have} one" if others else "no other backend has one"


def hint_to_other(path: str) -> str:
    """Return the command that builds for ONNX Runtime, which was able to run the model before."""
    build = command_line("build", path, target="cpu", o=f"{path.removesuffix('.onnx')}-cpu")
    return f"write a plug-in for it, or build for a target that supports it: `{build}`"


def hint_to_cut(
    path: str,
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    rest: str = "ONNX Runtime computes the rest",
) -> str | None:
    """Return the command that cuts nodes off; None if no layer that multiplies comes before them."""
    stem, tensors = path.removesuffix(".onnx"), cut_before(proto, nodes)
    if not tensors:
        return None
    cut = command_line("prepare", path, outputs=",".join(tensors), o=f"{stem}-body.onnx")
    heavy = sum(node.op_type in HEAVY for node in proto.graph.node)
    kept = sum(node.op_type in HEAVY for node in before(proto, nodes))
    share = "" if kept == heavy else f", including {heavy - kept} of {heavy} heavy layers"
    return f"cut the model before it: `{cut}`; {rest}{share}"
