"""Shapes of a graph's tensors, node by node, for given sizes of its inputs.

ONNX's own inference does one node at a time, and is given the values of small constants, so that
shapes that a graph computes (Shape, Gather, Concat, Reshape) come out as numbers. Where it has no
rule, what the model states counts; where that says nothing either, an operator of another domain is
taken to keep the shape of its first input. What was assumed is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from trtcal.model.files import ITEM_BYTES, array_of, attribute_of
from trtcal.model.graph import STANDARD, held_by
from trtcal.model.ops import QDQ, RANDOM, UNMULTIPLIED

Shape = tuple[int, ...]
Array = npt.NDArray[Any]

CONTRIB = "com.microsoft"
SMALL = 64  # values of a constant that inference is given, and of one that is computed
LIKE = {"FusedConv": "Conv", "DynamicQuantizeLSTM": "LSTM"}
"""Operators of `com.microsoft` whose outputs have the shapes of those of one of ONNX's."""
BATCH, OTHER = 1, 64
"""The sizes of a batch and of other dimensions that nothing decides."""


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor: its ONNX type (0: unknown), its shape, and small constants' values."""

    kind: int = 0
    shape: Shape | None = None
    value: Array | None = None

    @property
    def size_bytes(self) -> int | None:
        """Bytes that it takes, rounded up; None if its shape or type is not known."""
        if self.shape is None or self.kind not in ITEM_BYTES:
            return None
        return ITEM_BYTES[self.kind] * math.prod(self.shape)

    @classmethod
    def of(cls, value: Array) -> Tensor:
        """Return what is known of a constant."""
        kind = int(helper.np_dtype_to_tensor_dtype(value.dtype))
        return cls(kind, value.shape, value if value.size <= SMALL else None)


def operator(node: NodeProto) -> str:
    """Return a node's operator, with its domain where that is not ONNX's own."""
    return node.op_type if node.domain in STANDARD else f"{node.domain}::{node.op_type}"


UNKNOWN = Tensor()
Scope = dict[str, Tensor]
Types = Mapping[str, TypeProto]


def constant_of(tensor: TensorProto) -> Tensor:
    """Return what is known of an initializer; the values of a large one are not read."""
    shape = tuple(tensor.dims)
    if math.prod(shape) > SMALL or tensor.data_type not in ITEM_BYTES:
        return Tensor(tensor.data_type, shape)
    try:
        return Tensor(tensor.data_type, shape, array_of(tensor))
    except (OSError, TypeError, ValueError):  # the checker lets short data pass
        return Tensor(tensor.data_type, shape)


def bound_inputs(graph: onnx.GraphProto, sizes: Mapping[str, Shape]) -> tuple[Scope, list[str]]:
    """Return the inputs with the shapes given, and sentences on sizes that nothing decided.

    A name that stands for a size has one value. The batch counts 1, other open sizes 64.
    """
    named: dict[str, int] = {}
    weights = {tensor.name for tensor in graph.initializer}
    fed = [value for value in graph.input if value.name not in weights]
    for value in fed:
        pairs = zip(_dims(value), sizes.get(value.name, ()), strict=False)
        named |= {name: size for name, size in pairs if isinstance(name, str)}
    scope, assumed = Scope(), list[str]()
    for value in fed:
        stated, dims = sizes.get(value.name), _dims(value)
        if stated is not None and len(stated) == len(dims) + 1:  # of an input without samples' axis
            stated = stated[1:]
        if stated is None or len(stated) != len(dims):
            stated = tuple(_assumed(value, named, assumed))
        pairs = zip(dims, stated, strict=True)  # what the model fixes goes before what is given
        shape = tuple(dim if isinstance(dim, int) else size for dim, size in pairs)
        scope[value.name] = Tensor(value.type.tensor_type.elem_type, shape)
    return scope, list(dict.fromkeys(assumed))


def _assumed(value: ValueInfoProto, named: dict[str, int], assumed: list[str]) -> Iterator[int]:
    dims = _dims(value)
    has_batch = any(isinstance(dim, str) and "batch" in dim.lower() for dim in dims)
    for axis, size in enumerate(dims):
        if isinstance(size, str) and size not in named:
            is_batch = "batch" in size.lower() or (axis == 0 and not has_batch)
            named[size] = BATCH if is_batch else OTHER
            if not is_batch:
                what = size if "?" not in size else f"axis {axis} of {value.name!r}"
                assumed.append(f"{what} is unknown and counted as {OTHER}")
        yield size if isinstance(size, int) else named[size]


def _dims(value: ValueInfoProto) -> list[int | str]:
    dims = enumerate(value.type.tensor_type.shape.dim)
    return [d.dim_value if d.dim_value > 0 else d.dim_param or f"{value.name}?{i}" for i, d in dims]


@dataclass
class Inference:
    """Infers the outputs of one node after the other; `assumed` collects what it had to assume.

    `stated` are the types that the model states by tensor, `sizes` the values of named sizes,
    `measured` shapes that are known from a run.
    """

    opsets: Mapping[str, int]
    ir_version: int
    stated: Types = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    measured: Mapping[str, Shape] = field(default_factory=dict)

    def outputs(self, node: NodeProto, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return what is known of a node's outputs."""
        if node.op_type == "Constant" and node.domain in STANDARD:
            held = (held_by(attribute) for attribute in node.attribute)
            constant = next((tensor for tensor in held if tensor is not None), None)
            return [constant_of(constant) if constant is not None else UNKNOWN]
        if node.op_type == "Shape" and node.domain in STANDARD and inputs[0].shape is not None:
            part = slice(attribute_of(node, "start"), attribute_of(node, "end"))
            return [Tensor.of(np.array(inputs[0].shape[part], np.int64))]
        if operator(node) in QDQ and len(inputs) == 3 and inputs[0].shape is not None:
            kind = inputs[2 if node.op_type == "QuantizeLinear" else 1].kind
            return [Tensor(attribute_of(node, "output_dtype") or kind, inputs[0].shape)]
        inferred, before = self._inferred(node, inputs), len(self.assumed)
        results = [self._completed(node, i, inferred, inputs) for i in range(len(node.output))]
        is_sure = len(self.assumed) == before  # what depends on values may be of any size
        return self._evaluated(node, inputs, results) if is_sure else results

    def _inferred(self, node: NodeProto, inputs: Sequence[Tensor]) -> Types:
        domain = "" if node.domain in STANDARD else node.domain
        pairs = [(n, t) for n, t in zip(node.input, inputs, strict=True) if n and t.kind]
        try:
            op = node.op_type if domain != CONTRIB else LIKE.get(node.op_type, node.op_type)
            domain = "" if op != node.op_type else domain
            schema = onnx.defs.get_schema(op, self.opsets.get(domain, 1), domain)
            types = {n: helper.make_tensor_type_proto(t.kind, t.shape) for n, t in pairs}
            values = {
                n: numpy_helper.from_array(t.value, n) for n, t in pairs if t.value is not None
            }
            imports = [helper.make_opsetid(d, v) for d, v in self.opsets.items()]
            inferred: Types = onnx.shape_inference.infer_node_outputs(
                schema, node, types, values, opset_imports=imports, ir_version=self.ir_version
            )
        except Exception:  # no schema, or a model that does not fit it: it raises what it likes
            return {}
        return inferred

    def _completed(
        self, node: NodeProto, index: int, inferred: Types, inputs: Sequence[Tensor]
    ) -> Tensor:
        """Return an output as inferred, as stated, or as assumed."""
        name = node.output[index]
        types = [known[name] for known in (inferred, self.stated) if name in known]
        kind = next((k for value in types if (k := value.tensor_type.elem_type)), 0)
        if name in self.measured:
            return Tensor(kind, self.measured[name])
        ranked = [value.tensor_type for value in types if value.tensor_type.HasField("shape")]
        if ranked:
            return Tensor(kind, tuple(self._sizes(name, [value.shape.dim for value in ranked])))
        is_onnxs = node.domain in STANDARD and onnx.defs.has(node.op_type)
        if is_onnxs and node.op_type not in UNMULTIPLIED:
            return Tensor(kind)
        if not inputs or index or inputs[0].shape is None:
            return Tensor(kind)
        return Tensor(kind or inputs[0].kind, self._of_input(node, inputs))

    def _of_input(self, node: NodeProto, inputs: Sequence[Tensor]) -> Shape:
        """Return the shape of what an operator makes that ONNX does not know: mostly its input's."""
        shape: Shape = inputs[0].shape or ()
        if node.domain in (*STANDARD, CONTRIB) and node.op_type in UNMULTIPLIED:
            return shape
        if (width := _last_size(node, inputs)) is None:
            self.assumed.append(
                f"{node.output[0]!r}, made by {operator(node)}, has its input's shape"
            )
        return shape if width is None else (*shape[:-1], width)

    def _sizes(self, name: str, shapes: Sequence[Any]) -> Iterator[int]:
        """Yield for each axis the first size that is a number or has a known name, else 1."""
        same = [dims for dims in shapes if len(dims) == len(shapes[0])]
        for axis in range(len(shapes[0])):
            sizes = [self._size(dims[axis]) for dims in same]
            size = next((known for known in sizes if known is not None), None)
            if size is None:
                self.assumed.append(
                    f"axis {axis} of {name!r} depends on values and is counted as 1"
                )
            yield 1 if size is None else size

    def _size(self, dim: Any) -> int | None:
        if dim.HasField("dim_value"):
            return dim.dim_value if dim.dim_value >= 0 else None
        return self.sizes.get(dim.dim_param)

    def _evaluated(
        self, node: NodeProto, inputs: Sequence[Tensor], results: list[Tensor]
    ) -> list[Tensor]:
        """Return the outputs with their values, where all inputs have some and they are few."""
        if node.domain not in STANDARD or node.op_type in RANDOM or not inputs:
            return results
        if any(tensor.value is None for n, tensor in zip(node.input, inputs, strict=True) if n):
            return results
        if any(result.shape is None or math.prod(result.shape) > SMALL for result in results):
            return results
        feeds = {n: tensor.value for n, tensor in zip(node.input, inputs, strict=True) if n}
        graph = onnx.GraphProto(
            node=[node],
            input=[ValueInfoProto(name=name) for name in feeds],
            output=[ValueInfoProto(name=name) for name in node.output],
        )
        try:
            with np.errstate(all="ignore"):
                values = ReferenceEvaluator(graph, opsets=dict(self.opsets)).run(None, feeds)
        except Exception:  # a node that the reference can't run: its shape is known all the same
            return results
        return [Tensor.of(np.asarray(value)) for value in values]


def _last_size(node: NodeProto, inputs: Sequence[Tensor]) -> int | None:
    """Return the last size of what an operator of `com.microsoft` makes, if a product makes it."""
    if node.domain != CONTRIB or len(inputs) < 2:
        return None
    width, right = attribute_of(node, "N"), inputs[1].shape
    if width is not None and attribute_of(node, "K") is not None:
        return int(width)
    if right is None or len(right) < 2:
        return None
    if node.op_type in ("Attention", "QAttention"):
        sizes = attribute_of(node, "qkv_hidden_sizes", ())
        return int(sizes[2]) if len(sizes) == 3 else right[-1] // 3
    is_product = "MatMul" in node.op_type or "Gemm" in node.op_type
    return right[-2 if attribute_of(node, "transB") else -1] if is_product else None


def stated_types(graph: onnx.GraphProto) -> dict[str, TypeProto]:
    """Return the types that a graph states of its tensors."""
    return {value.name: value.type for value in (*graph.value_info, *graph.output)}


def named_sizes(graph: onnx.GraphProto, scope: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the values of the names that stand for sizes of a graph's inputs."""
    sizes: dict[str, int] = {}
    for value in graph.input:
        shape = scope[value.name].shape if value.name in scope else None
        pairs = zip(_dims(value), shape or (), strict=False)
        sizes |= {name: size for name, size in pairs if isinstance(name, str)}
    return sizes


def known_in(scope: Mapping[str, Tensor], names: Iterable[str]) -> list[Tensor]:
    """Return what is known of tensors, in order."""
    return [scope.get(name, UNKNOWN) for name in names]
