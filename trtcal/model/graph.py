"""Small helpers over onnx-graphsurgeon that the passes share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto, numpy_helper
from onnx_graphsurgeon.ir.tensor import LazyValues, SparseValues
from onnx_graphsurgeon.logger import G_LOGGER

from trtcal.documents import digest_bytes
from trtcal.formats import FORMATS, Precision, by_dtype
from trtcal.model import files
from trtcal.model.files import embedded, refill
from trtcal.model.model import unique
from trtcal.model.ops import MOVES, QDQ

G_LOGGER.severity = G_LOGGER.ERROR  # its advice on folding sizes is not for our users
logging.getLogger("onnx_graphsurgeon").setLevel(logging.ERROR)

MIN_OPSET = 13  # the first in which QuantizeLinear and DequantizeLinear take an axis
FP16_OPSET = 19  # the first in which QuantizeLinear takes float16 values, with float16 scales
IR_VERSIONS = {FP16_OPSET: 9, 21: 10, 23: 11}  # that came with these opsets, and with narrow types
MAX_IR_VERSION = 10  # ONNX Runtime 1.18, the oldest that we take, reads up to this one
NUMBERS: dict[str, tuple[type, str]] = {
    "value_float": (np.float32, "f"),
    "value_floats": (np.float32, "floats"),
    "value_int": (np.int64, "i"),
    "value_ints": (np.int64, "ints"),
}
"""Attributes of a Constant that hold numbers: their type, and the field that has them."""
PACKED = (ml_dtypes.uint4, *(row.dtype for row in FORMATS.values() if row.width < 8))
"""Types of which a byte holds two: onnx-graphsurgeon would write one a byte."""
STANDARD = (None, "", "ai.onnx")  # how a node names the domain of ONNX's own operators


class Weight(LazyValues):  # type: ignore[misc]  # graphsurgeon has no types
    """A weight's values, which stay where they are while the graph is imported and exported."""

    def __init__(self, source: TensorProto | npt.NDArray[Any]) -> None:
        self.source = source
        if isinstance(source, np.ndarray):
            kind = onnx.helper.np_dtype_to_tensor_dtype(source.dtype)
            source = TensorProto(data_type=kind, dims=source.shape)
        super().__init__(files.without_bytes(source))

    def load(self) -> npt.NDArray[Any]:
        """Return the values, read-only if they are the model's own."""
        return self.source if isinstance(self.source, np.ndarray) else files.array_of(self.source)

    @cached_property
    def digest(self) -> str:
        """Digest of the values."""
        if isinstance(self.source, np.ndarray):
            return digest_bytes(np.ascontiguousarray(self.source).view(np.uint8).data)
        return files.digest_of(self.source)

    def fill(self, tensor: TensorProto, inner: bool) -> None:
        """Give a tensor the values; an `inner` one, of a subgraph, holds its bytes itself."""
        name = tensor.name
        if isinstance(self.source, np.ndarray):
            tensor.raw_data = numpy_helper.from_array(self.source).raw_data  # 4 bits are packed
        else:
            tensor.CopyFrom(files.embedded(self.source) if inner else self.source)
            tensor.name = name


def import_graph(proto: onnx.ModelProto) -> gs.Graph:
    """Return the graph, sorted, of a copy of the model."""
    return restored(files.stand_in(proto), files.weights_of(proto))


def restored(small: onnx.ModelProto, weights: Mapping[str, TensorProto | Weight]) -> gs.Graph:
    """Return the graph, sorted, of a stand-in, which is changed, and the model's weights."""
    kept = {n: t if isinstance(t, Weight) else Weight(t) for n, t in weights.items()}
    refill(small.graph.input, (value for value in small.graph.input if value.name not in kept))
    for name, weight in kept.items():
        small.graph.initializer.append(weight.tensor)
        small.graph.initializer[-1].name = name
    graph = gs.import_onnx(small)
    for tensor in _constants(graph):
        if isinstance(tensor._values, LazyValues) and tensor.name in kept:
            tensor.values = kept[tensor.name]
    return in_order(graph)


def small_export(graph: gs.Graph) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """Return a stand-in for a graph, in which its weights are inputs, and the weights by name."""
    weights = _detached(graph)
    proto = _exported(graph, weights)
    outer = {tensor.name for tensor in proto.graph.initializer} & set(weights)
    for tensor in proto.graph.initializer:
        if tensor.name in outer:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            proto.graph.input.append(value)
    refill(proto.graph.initializer, (t for t in proto.graph.initializer if t.name not in outer))
    return proto, {name: weights[name] for name in sorted(outer)}


def fingerprint(graph: gs.Graph) -> str:
    """Return a digest of all that a graph is: nodes, names, types as far as known, constants."""
    proto, weights = small_export(graph)
    for tensor in proto.graph.initializer:
        if tensor.data_type in files.ITEM_BYTES and tensor.data_type != TensorProto.BFLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    parts = [digest_bytes(bytes(proto.SerializeToString(deterministic=True)))]
    parts += [f"{name} {weight.digest}" for name, weight in weights.items()]
    return digest_bytes("\n".join(parts).encode())


def load_weights(graph: gs.Graph) -> None:
    """Read into memory the weights of nodes that do not depend on the inputs, to be computed.

    In a model with subgraphs, which may read any weight, it reads all of them.
    """
    inner = next(iter(graph.subgraphs()), None)
    tensors = _read_by_constant_nodes(graph) if inner is None else _constants(graph)
    for tensor in filter(is_weight, tensors):
        tensor.values = np.array(tensor._values.load())


def _read_by_constant_nodes(graph: gs.Graph) -> Iterator[gs.Tensor]:
    known = set[int]()
    for node in graph.nodes:
        inputs = [tensor for tensor in node.inputs if not tensor.is_empty()]
        computed = all(isinstance(tensor, gs.Constant) or id(tensor) in known for tensor in inputs)
        if computed and node.op not in QDQ:
            known.update(map(id, node.outputs))
            yield from inputs


def is_weight(tensor: gs.Tensor) -> bool:
    """Tell whether a tensor is a constant whose values were not read into memory."""
    return isinstance(tensor, gs.Constant) and isinstance(tensor._values, Weight)


def _constants(graph: gs.Graph) -> Iterator[gs.Constant]:
    """Yield the constants that a graph and its subgraphs read, each perhaps several times."""
    for part in parts_of(graph):
        yield from (tensor for tensor in part.tensors().values() if isinstance(tensor, gs.Constant))


def parts_of(graph: gs.Graph) -> tuple[gs.Graph, ...]:
    """Return a graph and its subgraphs, with theirs."""
    values = (value for node in graph.nodes for value in node.attrs.values())
    if not any(isinstance(value, gs.Graph) for value in values):
        return (graph,)  # graphsurgeon takes longer to say so
    return (graph, *graph.subgraphs(recursive=True))


def export_model(graph: gs.Graph, like: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph as a model with the metadata of the model that it came from."""
    in_order(clean(graph))
    weights = _detached(graph)
    proto = _exported(graph, weights)
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            weights[tensor.name].fill(tensor, inner=False)
    lowest = max((ir for opset, ir in IR_VERSIONS.items() if graph.opset >= opset), default=7)
    proto.ir_version = max(min(like.ir_version, MAX_IR_VERSION), lowest)
    proto.producer_name, proto.producer_version = like.producer_name, like.producer_version
    proto.metadata_props.extend(like.metadata_props)
    return proto


def in_order(graph: gs.Graph) -> gs.Graph:
    """Sort the nodes by level; graphsurgeon never returns from sorting functions beside an `If`."""
    is_plain = not graph.functions and len(parts_of(graph)) == 1
    if not is_plain or (levels := _levels(graph)) is None:  # graphsurgeon takes 10 times as long
        return graph.toposort(mode="nodes")
    nodes = {id(node): node for node in graph.nodes}
    graph.nodes = [nodes[key] for key in sorted(levels, key=levels.__getitem__)]
    return graph


def _levels(graph: gs.Graph) -> dict[int, int] | None:
    """Return each node's level by id, in graphsurgeon's order: makers before their readers.

    None if there is a cycle, or if a node that is not in the graph makes a tensor.
    """
    inside, opened, levels = set(map(id, graph.nodes)), set[int](), dict[int, int]()
    stack = graph.nodes[::-1]
    while stack:
        node = stack[-1]
        makers = [maker for tensor in node.inputs for maker in tensor.inputs]
        unknown = [maker for maker in makers if id(maker) not in levels]
        if id(node) in levels or not unknown:
            levels.setdefault(id(node), max((levels[id(m)] for m in makers), default=-1) + 1)
            stack.pop()
        elif id(node) in opened or not inside.issuperset(map(id, unknown)):
            return None
        else:
            opened.add(id(node))
            stack += unknown[::-1]
    return levels


def clean(graph: gs.Graph) -> gs.Graph:
    """Drop the nodes that no output needs; those of subgraphs and functions are left alone."""
    return graph.cleanup(
        remove_unused_graph_inputs=False, recurse_subgraphs=False, recurse_functions=False
    )


def _exported(graph: gs.Graph, weights: Mapping[str, Weight]) -> onnx.ModelProto:
    """Export a graph with no bytes in its weights but those that a subgraph alone has."""
    proto: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    proto.ir_version = MAX_IR_VERSION
    outer = {tensor.name for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        _tidy(node, outer, weights)
    return proto


def _tidy(node: onnx.NodeProto, outer: set[str], weights: Mapping[str, Weight]) -> None:
    """Give subgraphs their own weights, and take out copies of those that they read from outside."""
    for part in files.subgraphs_of(node):
        own = [tensor for tensor in part.initializer if tensor.name not in outer]
        refill(part.initializer, own)
        for tensor in part.initializer:
            if tensor.name in weights:
                weights[tensor.name].fill(tensor, inner=True)
        for inner in part.node:
            _tidy(inner, outer | {tensor.name for tensor in own}, weights)


def held_by(attribute: onnx.AttributeProto) -> TensorProto | None:
    """Return the tensor that an attribute of a Constant node holds, of numbers too; None of texts."""
    if attribute.name == "value":
        tensor: TensorProto = attribute.t
        return tensor
    if attribute.name not in NUMBERS:
        return None
    dtype, field = NUMBERS[attribute.name]
    return numpy_helper.from_array(np.array(getattr(attribute, field), dtype))


def captured(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield what the subgraphs of a graph's nodes read or return, tensors of the graph among it."""
    return read_in(graph.subgraphs(recursive=True))


def read_in(parts: Iterable[gs.Graph]) -> Iterator[gs.Tensor]:
    """Yield what nodes of graphs read, and what these graphs return."""
    for part in parts:
        for node in part.nodes:
            yield from node.inputs
        yield from part.outputs


def redirect_readers(tensor: gs.Tensor, other: gs.Tensor) -> None:
    """Let what reads a tensor read another one."""
    for reader in list(tensor.outputs):
        reader.inputs = [other if read is tensor else read for read in reader.inputs]


def replace_tensor(tensor: gs.Tensor, other: gs.Tensor) -> None:
    """Let what reads a tensor read another one, and what makes it make that."""
    redirect_readers(tensor, other)
    for maker in list(tensor.inputs):
        maker.outputs = [other if made is tensor else made for made in maker.outputs]


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the tensors that a node reads, from within its subgraphs too."""
    yield from filter(None, node.input)
    for graph in files.subgraphs_of(node):
        own = {name for inner in graph.node for name in inner.output}
        own |= {value.name for value in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            yield from (name for name in reads(inner) if name not in own)
        yield from (value.name for value in graph.output if value.name not in own)


def part_of(
    like: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, TensorProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    """Return nodes as a model like another, with those of the constants that they read."""
    graph = onnx.GraphProto(name="part", node=nodes, input=inputs, output=outputs)
    names = sorted({name for node in nodes for name in reads(node)} & constants.keys())
    graph.initializer.extend(embedded(constants[name]) for name in names)
    return onnx.ModelProto(
        graph=graph,
        ir_version=like.ir_version,
        opset_import=like.opset_import,
        functions=like.functions,
    )


def _detached(graph: gs.Graph) -> dict[str, Weight]:
    """Make every large constant of a graph a `Weight`, so that its values are not exported."""
    weights = {}
    for tensor in _constants(graph):
        values = tensor._values
        if isinstance(values, np.ndarray):
            is_large = values.nbytes >= files.LARGE and values.dtype.kind in "biuf"
            if is_large or values.dtype in PACKED:
                tensor.values = Weight(values)
        if isinstance(tensor._values, Weight):
            weights[tensor.name] = tensor._values
    return weights


def constant(tensor: gs.Tensor) -> npt.NDArray[Any] | None:
    """Return a tensor's value where it is constant, else None; a weight's is not kept in memory."""
    if not isinstance(tensor, gs.Constant):
        return None
    values = tensor._values
    if isinstance(values, SparseValues):
        return None
    return np.asarray(values.load() if isinstance(values, LazyValues) else values)


def expanded(tensor: gs.Tensor) -> npt.NDArray[Any] | None:
    """Return a constant, or what a DQ node makes of constants, in the type of its scale; else None.

    Scales are one for all, for each channel or for each block, and may be quantized themselves.
    Source: ONNX, DequantizeLinear-21.
    """
    node = tensor.inputs[0] if isinstance(tensor, gs.Variable) and tensor.inputs else None
    if node is None or node.op != "DequantizeLinear":
        return constant(tensor)
    steps, scale = constant(node.inputs[0]), expanded(node.inputs[1])
    zeros = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if steps is None or scale is None:
        return None
    exact = steps.astype(np.float32)
    if zeros is not None:
        exact = exact - spread(zeros.astype(np.float32), node, exact.shape)
    exact = exact * spread(scale.astype(np.float32), node, exact.shape)
    return np.asarray(exact.astype(scale.dtype))


def spread(values: npt.NDArray[Any], node: gs.Node, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return scales or zero points in a form that broadcasts with what they belong to."""
    axis, size = node.attrs.get("axis", 1), node.attrs.get("block_size", 0)
    if size:
        return np.repeat(values, size, axis)[tuple(map(slice, shape))]
    return values.reshape(
        [-1 if i == axis % len(shape) else 1 for i in range(len(shape))] if values.ndim else ()
    )


def is_op(node: gs.Node, *ops: str) -> bool:
    """Tell whether a node is one of ONNX's own operators `ops`, not another domain's of that name."""
    return node.op in ops and node.domain in STANDARD


def last_operators(proto: onnx.ModelProto) -> dict[str, str]:
    """Return the operator that makes each output's values, which others only move or convert."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    operators = {}
    for output in proto.graph.output:
        node = makers.get(output.name)
        while node is not None and node.op_type in MOVES | QDQ | {"Cast"}:
            node = makers.get(node.input[0])
        operators[output.name] = "" if node is None else node.op_type
    return operators


def type_of(tensor: gs.Tensor) -> int | None:
    """Return the number that ONNX gives a tensor's type, None if it is not known."""
    if tensor.dtype is None or isinstance(tensor.dtype, int):
        return tensor.dtype
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)))


def format_of(node: gs.Node) -> Precision | None:
    """Return the format that a Q or DQ node quantizes to, None for other types and unknown ones."""
    tensors = (node.inputs[0], *node.inputs[2:3], *node.outputs)
    types = (*(tensor.dtype for tensor in tensors), node.attrs.get("output_dtype"))
    return next(filter(None, (by_dtype().get(numpy_type(dtype)) for dtype in types)), None)


def input_at(node: gs.Node, place: int) -> gs.Tensor | None:
    """Return an input that may be left out, None if it is."""
    is_there = len(node.inputs) > place and not node.inputs[place].is_empty()
    return node.inputs[place] if is_there else None


def numpy_type(dtype: Any) -> np.dtype[Any] | None:
    """Return a type of numpy: onnx-graphsurgeon gives ONNX's number of those that numpy lacks."""
    if isinstance(dtype, int):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(dtype) if dtype else None
    return None if dtype is None else np.dtype(dtype)


def is_fp16(node: gs.Node) -> bool:
    """Tell whether a node reads or computes float16 values, as far as types are known."""
    return any(tensor.dtype == np.float16 for tensor in (*node.inputs, *node.outputs))


def clip_bounds(node: gs.Node) -> tuple[float, float] | None:
    """Return the constant limits of a Relu or Clip, None if they are computed, or it is neither."""
    if is_op(node, "Relu"):
        return 0.0, np.inf
    if not is_op(node, "Clip"):
        return None
    limits = [node.attrs.get("min", -np.inf), node.attrs.get("max", np.inf)]
    for index, tensor in enumerate(node.inputs[1:3]):
        if not tensor.is_empty():
            value = constant(tensor)
            if value is None or value.size != 1:
                return None
            limits[index] = value.item()
    return float(limits[0]), float(limits[1])


def only_consumer(tensor: gs.Tensor, graph: gs.Graph) -> gs.Node | None:
    """Return the one node that reads a tensor, None if there are several or it is a graph output."""
    if len(tensor.outputs) != 1 or any(tensor is output for output in graph.outputs):
        return None
    return tensor.outputs[0]


def tensor_names(graph: gs.Graph) -> set[str]:
    """Return the names of all tensors, subgraphs included: ONNX wants them unique together."""
    return {name for part in parts_of(graph) for name in part.tensors()}


class GraphWriter:
    """Adds tensors and nodes to a graph, under names that nothing else in it has."""

    def __init__(self, graph: gs.Graph) -> None:
        self.graph = graph
        self.names = tensor_names(graph) | {node.name for node in graph.nodes}

    def new_constant(self, name: str, values: npt.NDArray[Any]) -> gs.Constant:
        """Return a constant."""
        return gs.Constant(unique(name, self.names), values)

    def new_variable(self, name: str, dtype: Any, like: gs.Tensor) -> gs.Variable:
        """Return a tensor of the shape of another one, which no node makes yet."""
        return gs.Variable(unique(name, self.names), dtype, like.shape)

    def new_clip(self, name: str, source: gs.Tensor, limits: Iterable[Any]) -> gs.Variable:
        """Add a Clip between two numbers, and return what it makes of a tensor."""
        ends = [self.new_constant(name, np.asarray(end, np.float32)) for end in limits]
        limited = self.new_variable(f"{source.name}/limited", np.float32, source)
        return self.new_node("Clip", name, [source, *ends], limited)

    def new_node(
        self,
        op: str,
        name: str,
        inputs: Sequence[gs.Tensor],
        output: gs.Variable,
        attributes: Mapping[str, Any] | None = None,
    ) -> gs.Variable:
        """Add a node that makes a tensor, and return that."""
        name = unique(name, self.names)
        self.graph.nodes.append(gs.Node(op, name, dict(attributes or {}), list(inputs), [output]))
        return output
