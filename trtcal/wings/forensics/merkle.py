"""Fingerprints of nodes that names have no part in: a node's covers all that it is computed from.

A node's fingerprint is a digest of its operator, its attributes, its subgraphs and the fingerprints of
what makes its inputs (Merkle, "A digital signature based on a conventional encryption function", 1987):
a graph input is its position, a weight its type, shape and the SHA-256 of its bytes, a node's output
the node and its place. So a change shows at the node that was changed and at all that depend on it.

Three fingerprints tell what kind of change it is: `structure` leaves out attributes and values of
constants, `attributes` values of constants, `content` nothing.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from trtcal.documents import canonical_json, digest_bytes
from trtcal.model.files import array_of, digest_of, is_weight, subgraphs_of
from trtcal.model.graph import NUMBERS, STANDARD

BYTES = 8
INSIDE = " > "
"""Stands between the name of a node and that of a node in its subgraph."""
FUNCTION_DEPTH = 32  # functions that call functions; a deeper one counts as its bytes
NUMBER_KINDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
}
WHOLE = (AttributeProto.UNDEFINED, AttributeProto.TYPE_PROTO, AttributeProto.TYPE_PROTOS)
COLUMNS = ("structure", "attributes", "content", "uses", "types", "labels")
"""Digests of each node: three fingerprints, who reads its outputs, their types, and its names."""


@dataclass(frozen=True)
class GraphTable:
    """A graph's nodes in their order, those of subgraphs before the node that holds them.

    `signature` are sentences on inputs, outputs, opsets and what else belongs to the whole model. Each
    other column holds a digest of `BYTES` bytes a node, in hexadecimal, one after the other.
    """

    names: tuple[str, ...]
    operators: tuple[str, ...]
    signature: tuple[str, ...]
    structure: str
    attributes: str
    content: str
    uses: str
    types: str
    labels: str

    @property
    def digest(self) -> str:
        """Digest of all of it, names included."""
        return digest_bytes(canonical_json(vars(self)))

    def column(self, name: str) -> list[str]:
        """Return one column's digests, one a node."""
        text, width = getattr(self, name), 2 * BYTES
        return [text[start : start + width] for start in range(0, len(text), width)]

    def check(self) -> None:
        """`ValueError` if the columns are of different lengths."""
        lengths = {len(getattr(self, name)) for name in COLUMNS} | {2 * BYTES * len(self.names)}
        if len(lengths) != 1 or len(self.operators) != len(self.names):
            raise ValueError("its columns are of different lengths")


class Prints(NamedTuple):
    """What a value or a node is: without attributes and constants, without constants, and whole."""

    structure: bytes
    attributes: bytes
    content: bytes


Scope = MutableMapping[str, Prints]
Key = tuple[str, str, str]
"""A function's domain, name and overload."""
Digests = Mapping[str, str]
"""Weight -> digest of its bytes, where these are not in the model."""


def table_of(proto: onnx.ModelProto, weights: Digests | None = None) -> GraphTable:
    """Return the table of a model; `weights` are inputs of it that stand for weights.

    The time grows with the number of nodes and edges and with the bytes of the weights.
    """
    return _Writer(proto, weights or {}).table()


def hash_of(*parts: bytes | str) -> bytes:
    """Return a digest of `BYTES` bytes, of parts with their lengths."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hasher.update(b"%d:" % len(data))
        hasher.update(data)
    return hasher.digest()[:BYTES]


def same(*parts: bytes | str) -> Prints:
    """Return the fingerprint of what has neither attributes nor constants."""
    return Prints(*[hash_of(*parts)] * 3)


ABSENT, UNKNOWN = same("absent"), same("unknown")


@dataclass
class Rows:
    """The columns of a table while it is filled."""

    names: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    columns: dict[str, list[bytes]] = field(
        default_factory=lambda: {name: list[bytes]() for name in COLUMNS}
    )

    def add(self, name: str, operator: str, prints: Prints, **others: bytes) -> None:
        """Add a node."""
        self.names.append(name)
        self.operators.append(operator)
        for column, digest in {**prints._asdict(), **others}.items():
            self.columns[column].append(digest)

    def table(self, signature: Iterable[str]) -> GraphTable:
        """Return the table of all nodes that were added."""
        columns = {name: b"".join(digests).hex() for name, digests in self.columns.items()}
        return GraphTable(tuple(self.names), tuple(self.operators), tuple(signature), **columns)


class _Writer:
    """Goes through a model once, from its inputs to its outputs."""

    def __init__(self, proto: onnx.ModelProto, weights: Digests) -> None:
        self.proto, self.weights, self.rows = proto, weights, Rows()
        self.functions = {
            _key(function.domain, function.name, function): function for function in proto.functions
        }
        self.bodies: dict[Key, Prints] = {}
        self.depth = 0
        self.types = {value.name: _type(value) for value in proto.graph.value_info}

    def table(self) -> GraphTable:
        graph = self.proto.graph
        inputs = [value for value in graph.input if value.name not in self.weights]
        scope = _leaves("input", inputs)
        for value in graph.input:
            if value.name in self.weights:
                scope[value.name] = _weight(value, self.weights[value.name])
        scope.update(_constants(graph))
        constants = dict(scope)
        self._nodes(graph.node, scope, "", [value.name for value in graph.output])
        for key in self.functions:  # those that nothing calls too
            self._function(key)
        return self.rows.table((*_signature(self.proto, inputs), *_unmade(graph, constants)))

    def _nodes(
        self, nodes: Sequence[NodeProto], scope: Scope, inside: str, outputs: Iterable[str]
    ) -> list[Prints]:
        """Add nodes to the rows and their outputs to the scope; return their fingerprints."""
        node_prints, uses = [], _uses(nodes, outputs)
        for node in nodes:
            prints = self._node(node, scope, inside)
            for place, name in _named(node):
                scope[name] = Prints(*(hash_of("output", str(place), print_) for print_ in prints))
            read = [f"{place} {use}" for place, name in _named(node) for use in uses.get(name, ())]
            types = [f"{place} {self.types.get(name, '')}" for place, name in _named(node)]
            types += [
                _type(value)
                for subgraph in subgraphs_of(node)
                for value in (*subgraph.input, *subgraph.output)
            ]
            self.rows.add(
                inside + node.name,
                node.op_type,
                prints,
                uses=hash_of(*sorted(read)),
                types=hash_of(*types),
                labels=hash_of(node.name, "|", *node.input, "|", *node.output),
            )
            node_prints.append(prints)
        return node_prints

    def _node(self, node: NodeProto, scope: Scope, inside: str) -> Prints:
        domain = "" if node.domain in STANDARD else node.domain
        inputs = [scope.get(name, UNKNOWN) if name else ABSENT for name in node.input]
        bodies = [
            self._graph(subgraph, scope, inside + node.name) for subgraph in subgraphs_of(node)
        ]
        key = _key(node.domain, node.op_type, node)
        if key in self.functions:
            bodies.append(self._function(key))
        own = _attributes(node.attribute, node.op_type == "Constant")
        head = (node.op_type, domain, getattr(node, "overload", ""), str(len(node.output)))
        return Prints(
            *(
                hash_of(
                    *head,
                    *parts,
                    b"",
                    *(print_[kind] for print_ in inputs),
                    b"",
                    *(print_[kind] for print_ in bodies),
                )
                for kind, parts in enumerate(own)
            )
        )

    def _graph(self, graph: onnx.GraphProto, outer: Scope, inside: str) -> Prints:
        """Return the fingerprint of a subgraph: of its outputs and of all of its nodes."""
        self.depth += 1
        own = {**_leaves(f"inner {self.depth}", graph.input), **_constants(graph)}
        scope, outputs = ChainMap(own, outer), [value.name for value in graph.output]
        prints = self._inner(graph, scope, inside, outputs)
        self.depth -= 1
        return prints

    def _function(self, key: Key) -> Prints:
        """Return the fingerprint of a function, its defaults included; its nodes are added once."""
        if key not in self.bodies:
            function = self.functions[key]
            self.bodies[key] = same(function.SerializeToString(deterministic=True))
            if self.depth < FUNCTION_DEPTH:
                self.depth += 1
                scope = {
                    name: same("given", str(place)) for place, name in enumerate(function.input)
                }
                inside = f"function {function.name}"
                body = self._inner(function, scope, inside, function.output)
                defaults = _attributes(function.attribute_proto)
                pairs = zip(defaults, body, strict=True)
                self.bodies[key] = Prints(*(hash_of(*head, b"", body) for head, body in pairs))
                self.depth -= 1
        return self.bodies[key]

    def _inner(
        self,
        body: onnx.GraphProto | onnx.FunctionProto,
        scope: Scope,
        inside: str,
        outputs: Sequence[str],
    ) -> Prints:
        outer, own = self.types, {value.name: _type(value) for value in body.value_info}
        self.types = {**outer, **own} if own else outer
        prints = self._nodes(body.node, scope, f"{inside}{INSIDE}", outputs)
        self.types = outer
        return _together([scope.get(name, UNKNOWN) for name in outputs], prints)


def _key(domain: str, name: str, of: NodeProto | onnx.FunctionProto) -> Key:
    return "" if domain in STANDARD else domain, name, getattr(of, "overload", "")


def _named(node: NodeProto) -> Iterator[tuple[int, str]]:
    return ((place, name) for place, name in enumerate(node.output) if name)


def _together(outputs: Sequence[Prints], nodes: Sequence[Prints]) -> Prints:
    kinds = range(len(Prints._fields))
    return Prints(
        *(
            hash_of(
                *(print_[kind] for print_ in outputs),
                b"",
                *sorted(print_[kind] for print_ in nodes),
            )
            for kind in kinds
        )
    )


def _leaves(what: str, values: Iterable[onnx.ValueInfoProto]) -> dict[str, Prints]:
    return {value.name: same(what, str(place)) for place, value in enumerate(values)}


def _uses(nodes: Iterable[NodeProto], outputs: Iterable[str]) -> dict[str, list[str]]:
    """Return the readers of every tensor: operators and places, and the graph's outputs."""
    uses: dict[str, list[str]] = {}
    for node in nodes:
        for place, name in enumerate(node.input):
            uses.setdefault(name, []).append(f"{node.op_type} {place}")
    for place, name in enumerate(outputs):
        uses.setdefault(name, []).append(f"graph output {place}")
    return uses


def _unmade(graph: onnx.GraphProto, leaves: Mapping[str, Prints]) -> Iterator[str]:
    """Yield what outputs are that no node makes: an input, or a constant."""
    for place, value in enumerate(graph.output):
        if value.name in leaves:
            yield f"output {place} is no node's: {leaves[value.name].content.hex()}"


def _constants(graph: onnx.GraphProto) -> dict[str, Prints]:
    constants = {tensor.name: _tensor(tensor) for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:
        constants[sparse.values.name] = _sparse(sparse)
    return constants


def _value(kind: str, shape: Iterable[int], digest: str) -> Prints:
    known = hash_of("constant", kind, *map(str, shape))
    return Prints(known, known, hash_of(known, digest))


def _weight(value: onnx.ValueInfoProto, digest: str) -> Prints:
    tensor = value.type.tensor_type
    return _value(str(tensor.elem_type), [dim.dim_value for dim in tensor.shape.dim], digest)


def _tensor(tensor: TensorProto) -> Prints:
    return _value(str(tensor.data_type), tensor.dims, _digest(tensor))


def _digest(tensor: TensorProto) -> str:
    """Return the digest of a tensor's values, in whichever field and file they are."""
    if is_weight(tensor):
        return digest_of(tensor)
    if tensor.data_type == TensorProto.STRING:
        return hash_of(*tensor.string_data).hex()
    try:
        return digest_bytes(np.ascontiguousarray(array_of(tensor)).tobytes())
    except (OSError, TypeError, ValueError):  # the checker lets short data pass
        return digest_bytes(tensor.SerializeToString(deterministic=True))


def _sparse(sparse: onnx.SparseTensorProto) -> Prints:
    parts = _tensor(sparse.values), _tensor(sparse.indices)
    shape = ",".join(map(str, sparse.dims))
    return Prints(*(hash_of("sparse", shape, *group) for group in zip(*parts, strict=True)))


Parts = tuple[list[bytes | str], list[bytes | str], list[bytes | str]]


def _attributes(attributes: Iterable[AttributeProto], is_constant: bool = False) -> Parts:
    """Return what attributes add to each of the fingerprints, in the order of their names."""
    columns: Parts = ([], [], [])
    for attribute in sorted(attributes, key=lambda item: item.name):
        prints = _plain(attribute, is_constant and attribute.name in NUMBERS)
        for parts, print_ in zip(columns, prints, strict=True):
            parts += [print_] if print_ else []
    return columns


def _plain(attribute: AttributeProto, is_value: bool) -> Prints:
    head = ("attribute", attribute.name, attribute.ref_attr_name, str(int(attribute.type)))
    tensors = [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
    inner = [_tensor(tensor) for tensor in tensors]
    inner += [_sparse(attribute.sparse_tensor)] if attribute.HasField("sparse_tensor") else []
    inner += [_sparse(sparse) for sparse in attribute.sparse_tensors]
    value = _number(attribute)
    return Prints(
        hash_of(*(item.structure for item in inner)) if inner else b"",
        hash_of(*head, "" if is_value else value, *(item.attributes for item in inner)),
        hash_of(*head, value, *(item.content for item in inner)),
    )


def _number(attribute: AttributeProto) -> bytes:
    """Return the bytes of an attribute that is a number, a text, a type, or a list of them.

    Of another one it is the number of its graphs, whose fingerprints follow each other.
    """
    name = NUMBER_KINDS.get(attribute.type)
    if name is None:
        if attribute.type in WHOLE:
            return bytes(attribute.SerializeToString(deterministic=True))
        return b"%d" % len(attribute.graphs)
    kept = AttributeProto(**{name: getattr(attribute, name)})
    return bytes(kept.SerializeToString(deterministic=True))


def _type(value: onnx.ValueInfoProto) -> str:
    """Return a value's type and shape as text, `float32[batch, 3, 8, 8]`; other types by digest."""
    tensor, what = value.type.tensor_type, value.type.WhichOneof("value")
    if what != "tensor_type":
        whole = digest_bytes(value.type.SerializeToString(deterministic=True))
        return f"{what} {whole}" if what else ""
    kind = str(TensorProto.DataType.Name(tensor.elem_type)).lower()
    if not tensor.HasField("shape"):
        return kind
    sizes = [
        str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in tensor.shape.dim
    ]
    return f"{kind}[{', '.join(sizes)}]"


def _signature(proto: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto]) -> Iterator[str]:
    """Yield a sentence on each thing that callers and readers of a model rely on."""
    for what, values in (("input", inputs), ("output", proto.graph.output)):
        for place, value in enumerate(values):
            yield f"{what} {place} is {value.name}: {_type(value)}"
    opsets: dict[str, int] = {}
    for item in proto.opset_import:
        opsets["" if item.domain in STANDARD else item.domain] = item.version
    for domain, version in sorted(opsets.items()):
        yield f"the opset of {domain or 'ai.onnx'} is {version}"
    for function in sorted(proto.functions, key=lambda function: (function.domain, function.name)):
        versions = ", ".join(
            sorted(
                f"{opset.domain or 'ai.onnx'} {opset.version}" for opset in function.opset_import
            )
        )
        yield f"function {function.name} is of opset {versions}"
    yield f"the IR version is {proto.ir_version}"
    for entry in sorted(proto.metadata_props, key=lambda entry: entry.key):
        yield f"metadata {entry.key} are {digest_bytes(entry.value.encode())}"
    kept: Any = [
        annotation.SerializeToString(deterministic=True)
        for annotation in proto.graph.quantization_annotation
    ]
    if kept:
        yield f"the quantization annotations are {digest_bytes(b''.join(sorted(kept)))}"
