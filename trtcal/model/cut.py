"""Cut a model at tensors: a body that a backend takes, and the rest, which ONNX Runtime computes.

The body carries the rest, its *tail*, in its metadata, so that whatever is made of the body (with Q/DQ,
prepared, optimized) still has it: the outputs of the model as it was given can always be computed.
"""

from __future__ import annotations

import base64
import difflib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import NodeProto, ValueInfoProto

from trtcal.documents import digest_bytes
from trtcal.errors import InputError
from trtcal.model.files import embedded, refill, size_of
from trtcal.model.graph import reads
from trtcal.model.model import Model, TensorSpec, load_model
from trtcal.model.ops import HEAVY
from trtcal.model.tensors import producers_of, value_types

KEY = "trtcal.tail"
LARGEST = 1 << 28  # bytes of a tail's weights: every copy of the body carries them
CLOSE = 3  # names that an error suggests


@dataclass(frozen=True)
class Tail:
    """What was cut off: a model of the tensors `cut` and of inputs, and the whole model's `outputs`.

    Outputs that the body makes itself pass it by.
    """

    proto: onnx.ModelProto
    cut: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def operators(self) -> dict[str, int]:
        """How many nodes of each operator were cut off."""
        return dict(Counter(node.op_type for node in self.proto.graph.node))

    def to_metadata(self) -> str:
        """Return the form in which a body carries it."""
        data = bytes(self.proto.SerializeToString(deterministic=True))
        onnx_text = base64.b64encode(data).decode()
        fields = {"cut": self.cut, "outputs": self.outputs, "digest": digest_bytes(data)}
        return json.dumps({**fields, "onnx": onnx_text}, separators=(",", ":"))


def tail_of(metadata: Mapping[str, str]) -> Tail | None:
    """Return the tail that a body's metadata carry, None if the model was not cut.

    `InputError` if it is damaged.
    """
    if KEY not in metadata:
        return None
    try:
        fields = json.loads(metadata[KEY])
        data = base64.b64decode(fields["onnx"], validate=True)
        if digest_bytes(data) != fields["digest"]:
            raise ValueError("its digest differs")
        proto = onnx.ModelProto.FromString(data)
        onnx.checker.check_model(proto)
        cut, outputs = (tuple(map(str, fields[name])) for name in ("cut", "outputs"))
        return Tail(proto, cut, outputs)
    except Exception as error:  # JSON, base64, protobuf and the checker have errors of their own
        raise InputError(
            f"the metadata {KEY!r} of the model are damaged: {type(error).__name__}",
            "cut the model again: `trtcal prepare model.onnx --outputs ... -o body.onnx`",
        ) from error


def whole_outputs(own: Sequence[TensorSpec], tail: Tail) -> tuple[TensorSpec, ...]:
    """Return the outputs of the model that a body with these outputs was cut from."""
    known = {spec.name: spec for spec in (*own, *load_model(tail.proto).outputs)}
    return tuple(known[name] for name in tail.outputs)


def metadata_of(proto: onnx.ModelProto) -> dict[str, str]:
    """Return the metadata that a model carries."""
    return {item.key: item.value for item in proto.metadata_props}


def cut(model: Model, outputs: Sequence[str]) -> Model:
    """Return the body of a model up to these tensors, which carries the rest.

    What else the rest reads of the body is an output of the body too. `InputError` if a tensor is not
    in the model or no input decides it, or if the model was cut before.
    """
    if KEY in metadata_of(model.proto):
        raise InputError(
            f"model {model.path} is already the body of a cut model", "cut the original model"
        )
    parts = _Parts(model, outputs)
    body = parts.model(parts.body, parts.inputs_of(parts.body + parts.rest), parts.shown)
    if parts.rest:
        _check_size(model, parts)
        tail = Tail(parts.tail(), tuple(parts.shown), tuple(parts.outputs))
        body.metadata_props.add(key=KEY, value=tail.to_metadata())
    return Model(model.path, body, load_model(body).fingerprint)


class _Parts:
    """Which nodes the body and the rest have, and the tensors between them."""

    def __init__(self, model: Model, names: Sequence[str]) -> None:
        self.proto = model.proto
        graph = self.proto.graph
        self.makers = producers_of(graph)
        self.order = {id(node): number for number, node in enumerate(graph.node)}
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {value.name: value for value in graph.input if value.name not in self.weights}
        self.outputs = [value.name for value in graph.output]
        _check_names(model, names, self.makers)
        self.types = value_types(self.proto)
        self.body = self._before(names, ())
        if not self.inputs_of(self.body):
            raise InputError(
                f"model {model.path}: {', '.join(names)} do not depend on an input",
                "give tensors that depend on the model's inputs",
            )
        results = {name for node in self.body for name in node.output}
        constants = _constants(self.proto)
        self.rest = self._before(self.outputs, results - constants)
        read = {name for node in self.rest for name in reads(node)} | set(self.outputs)
        between = [name for node in self.body for name in node.output if name in read - constants]
        self.shown = list(dict.fromkeys([*names, *between]))

    def _before(self, tensors: Iterable[str], known: Collection[str]) -> list[NodeProto]:
        """Return the nodes that tensors need, of which some are known, in the graph's order."""
        pending, nodes = list(tensors), dict[int, NodeProto]()
        while pending:
            name = pending.pop()
            node = None if name in known else self.makers.get(name)
            if node is not None and id(node) not in nodes:
                nodes[id(node)] = node
                pending.extend(reads(node))
        return sorted(nodes.values(), key=lambda node: self.order[id(node)])

    def inputs_of(self, nodes: Sequence[NodeProto]) -> list[ValueInfoProto]:
        read = {name for node in nodes for name in reads(node)}
        return [value for name, value in self.inputs.items() if name in read]

    def model(
        self, nodes: Sequence[NodeProto], inputs: Iterable[ValueInfoProto], outputs: Iterable[str]
    ) -> onnx.ModelProto:
        """Return some nodes as a model, with the weights that they read."""
        like = self.proto
        read = {name for node in nodes for name in reads(node)}
        graph = onnx.GraphProto(name=like.graph.name or "graph", node=nodes, input=inputs)
        graph.output.extend(self._value(name) for name in outputs)
        graph.initializer.extend(tensor for name, tensor in self.weights.items() if name in read)
        known = {name for node in nodes for name in node.output}
        graph.value_info.extend(value for value in like.graph.value_info if value.name in known)
        return onnx.ModelProto(
            graph=graph,
            ir_version=max(like.ir_version, 4),
            opset_import=like.opset_import,
            functions=like.functions,
            producer_name=like.producer_name,
            metadata_props=like.metadata_props,
        )

    def tail(self) -> onnx.ModelProto:
        """Return the rest as a model of its own, which holds its weights."""
        results = {name for node in self.rest for name in node.output}
        read = {name for node in self.rest for name in reads(node)}
        inputs = [self._value(name) for name in self.shown if name in read]
        outputs = [name for name in self.outputs if name in results]
        proto = self.model(self.rest, [*inputs, *self.inputs_of(self.rest)], outputs)
        del proto.metadata_props[:]
        refill(proto.graph.initializer, map(embedded, proto.graph.initializer))
        return proto

    def _value(self, name: str) -> ValueInfoProto:
        value = self.types.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            raise InputError(
                f"the model does not give the number of dimensions of tensor {name!r}",
                "cut at another tensor, or export the model with the shapes of its tensors",
            )
        return value


def _check_names(model: Model, names: Sequence[str], makers: Mapping[str, NodeProto]) -> None:
    known = [name for name in makers if name]
    for name in names:
        if name not in makers:
            close = difflib.get_close_matches(name, known, n=CLOSE, cutoff=0.4) or known[-CLOSE:]
            hint = f"tensors with similar names: {', '.join(close)}"
            raise InputError(f"model {model.path} has no node that makes a tensor {name!r}", hint)
    if not names:
        raise InputError("no tensor to cut at is named", "give --outputs NAME,NAME")


def _check_size(model: Model, parts: _Parts) -> None:
    read = {name for node in parts.rest for name in reads(node)}
    size = sum(size_of(tensor) for name, tensor in parts.weights.items() if name in read)
    if size > LARGEST:
        raise InputError(
            f"model {model.path}: the part that is cut off has {size / 1000000.0:,.0f} MB of "
            f"weights, more than {LARGEST / 1000000.0:,.0f}",
            "cut nearer to the outputs",
        )


def before(proto: onnx.ModelProto, nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Return the nodes that depend on none of these."""
    after, earlier = {name for node in nodes for name in node.output}, list[NodeProto]()
    for node in proto.graph.node:
        if after.intersection(reads(node)):
            after.update(node.output)
        elif not after.intersection(node.output):
            earlier.append(node)
    return earlier


def cut_before(proto: onnx.ModelProto, nodes: Iterable[NodeProto]) -> tuple[str, ...]:
    """Return the tensors at which a cut leaves these nodes, and all that depends on them, out.

    None of them if no layer that multiplies would be left in the body. Those without floats, such as
    shapes, follow a cut by themselves.
    """
    left = before(proto, nodes)
    if not any(node.op_type in HEAVY for node in left):
        return ()
    inside = {id(node) for node in left}
    read = {n for node in proto.graph.node if id(node) not in inside for n in reads(node)}
    constants = _constants(proto)
    border = [n for node in left for n in node.output if n in read and n not in constants]
    types = value_types(proto)
    kinds = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    floats = [n for n in border if n in types and types[n].type.tensor_type.elem_type in kinds]
    return tuple(floats or border)


def cut_points(model: Model) -> list[tuple[int, tuple[str, ...]]]:
    """Return after how many nodes a model can be cut, each with the tensors at which, in order.

    Every prefix of the nodes whose border has tensors that an input decides and of known rank is one.
    """
    graph, constants, types = model.proto.graph, _constants(model.proto), value_types(model.proto)
    last = {name: place for place, node in enumerate(graph.node, 1) for name in reads(node)}
    last |= {value.name: len(graph.node) + 1 for value in graph.output}
    border, points = list[str](), list[tuple[int, tuple[str, ...]]]()
    for place, node in enumerate(graph.node[:-1], 1):
        border += [name for name in node.output if name and name not in constants]
        border = [name for name in border if last.get(name, 0) > place]
        known = (types[name].type.tensor_type.HasField("shape") for name in border if name in types)
        if border and all(name in types for name in border) and all(known):
            points.append((place, tuple(border)))
    return points


def _constants(proto: onnx.ModelProto) -> set[str]:
    """Return the tensors that depend on no input: whoever reads them computes them."""
    known = {tensor.name for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if all(name in known for name in reads(node)):
            known.update(node.output)
    return known
