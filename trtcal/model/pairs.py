"""Checks of Q/DQ pairs that ONNX's own checker does not do: types, blocks, scales and codes.

What is refused here fails later in every tool, mostly without the name of the node, or computes NaN.
Only scales, zero points and weights in FP8 are read. The body of a function is checked with the
constants and attributes of its calls, of the first `MOST_CALLS` that differ in them.
Sources: ONNX, "QuantizeLinear" and "DequantizeLinear"; NVIDIA, "Working with Quantized Types".
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto

from trtcal.errors import InputError
from trtcal.model.files import (
    NARROW_TYPES,
    array_of,
    opset_of,
    quantized_type,
    subgraphs_of,
    type_name,
    with_attributes,
    with_inner,
)

STANDARD = ("", "ai.onnx")
PAIR = ("QuantizeLinear", "DequantizeLinear")
TAKEN = {k: row for k, row in NARROW_TYPES.items() if row.onnx == TensorProto.DataType.Name(k)}
"""Types without zero points that TensorRT takes."""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
TINY = float(np.finfo(np.float32).tiny)
MOST_CALLS = 10_000  # functions that call others may stand for any number
REQUANTIZE = "quantize the float model again"
Shape = tuple[int, ...]


def check_pairs(proto: onnx.ModelProto, path: Path, opset: int) -> None:
    """`InputError` for the first Q/DQ node of a model that no compiler takes, with its name."""
    for scope in _scopes(proto, opset):
        for node in scope.nodes:
            _Check(node, scope, path).run()


@dataclass(frozen=True)
class _Scope:
    """What the nodes of a graph can read: constants, and the Q/DQ nodes that make tensors.

    `function` is the name of the function that holds the nodes, "" in a graph.
    """

    opset: int
    constants: ChainMap[str, TensorProto] = field(default_factory=ChainMap)
    makers: ChainMap[str, NodeProto] = field(default_factory=ChainMap)
    nodes: tuple[NodeProto, ...] = ()
    function: str = ""


def _scopes(proto: onnx.ModelProto, opset: int) -> Iterator[_Scope]:
    """Yield the graph, its subgraphs, which see what is outside of them, and the functions called."""
    functions = {(function.domain, function.name): function for function in proto.functions}
    if not any(node.op_type in PAIR for each in proto.functions for node in with_inner(each.node)):
        functions = {}
    called: dict[Any, Any] = {}  # with the constants, so that their identities stay theirs
    initial = {tensor.name: tensor for tensor in proto.graph.initializer}
    pending = [(list(proto.graph.node), initial, _Scope(opset))]
    while pending:
        nodes, constants, outside = pending.pop()
        qdq = tuple(node for node in nodes if _is_pair(node))
        makers = {name: node for node in qdq for name in node.output}
        scope = replace(
            outside,
            constants=outside.constants.new_child(constants | stated_constants(nodes)),
            makers=outside.makers.new_child(makers),
            nodes=qdq,
        )
        yield scope
        for node in nodes:
            for part in subgraphs_of(node):
                initial = {tensor.name: tensor for tensor in part.initializer}
                pending.append((list(part.node), initial, scope))
            function = functions.get((node.domain, node.op_type))
            if function is None or len(called) == MOST_CALLS:
                continue
            pairs = zip(function.input, node.input, strict=False)
            passed = {own: scope.constants[name] for own, name in pairs if name in scope.constants}
            values = [(own, id(tensor)) for own, tensor in passed.items()]
            settings = [(item.name, item.i, item.f, item.s) for item in node.attribute]
            key = (function.domain, function.name, *values, *settings)
            if key not in called:
                called[key] = passed
                body = list(with_attributes(function, node))
                pending.append((body, passed, _Scope(opset_of(function), function=function.name)))


def _is_pair(node: NodeProto) -> bool:
    """Tell whether a node is a Q or DQ; some in subgraphs of functions have attributes of a call."""
    is_known = not any(attribute.ref_attr_name for attribute in node.attribute)
    return node.op_type in PAIR and len(node.input) > 1 and is_known


def stated_constants(nodes: Iterable[NodeProto]) -> dict[str, TensorProto]:
    """Return the tensors that Constant nodes hold, by name."""
    constants = {}
    for node in nodes:
        if node.op_type == "Constant" and node.output:
            tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
            if tensors:
                constants[node.output[0]] = tensors[0]
    return constants


class _Check:
    """Checks one Q/DQ node."""

    def __init__(self, node: NodeProto, scope: _Scope, path: Path) -> None:
        self.node, self.scope, self.path = node, scope, path
        self.attributes = {attribute.name: attribute.i for attribute in node.attribute}

    def run(self) -> None:
        self._check_type()
        self._check_shape()
        self._check_scale()
        self._check_zero_point()
        self._check_codes()

    def fail(self, what: str, hint: str) -> NoReturn:
        result = f"that makes {next(iter(self.node.output), '')!r}"
        name = repr(self.node.name) if self.node.name else result
        where = f" of function {self.scope.function!r}" if self.scope.function else ""
        raise InputError(f"model {self.path}: {self.node.op_type} {name}{where} {what}", hint)

    @cached_property
    def kind(self) -> int:
        """The type of the quantized values, 0 if it is not known here."""
        return _kind(self.node, self.scope)

    @property
    def zero_point(self) -> TensorProto | None:
        return self.scope.constants.get(self.node.input[2]) if len(self.node.input) > 2 else None

    def _check_type(self) -> None:
        named, row = type_name(self.kind), NARROW_TYPES.get(self.kind)
        opset = row.opset if row else 0
        if self.scope.opset < opset and self.node.domain in STANDARD:
            self.fail(
                f"has values of type {named}, which need opset {opset}, and the model has opset "
                f"{self.scope.opset}",
                f"export the model with opset {opset} or later",
            )
        if row and self.kind not in TAKEN:
            self.fail(
                f"has values of type {named}, which TensorRT does not take",
                f"{REQUANTIZE}, to {row.onnx.lower()}{'' if row.is_float else ' with zero point 0'}",
            )

    def _check_shape(self) -> None:
        """Check the shape of the scales against that of constant values."""
        values, scales = (_shape(name, self.scope) for name in self.node.input[:2])
        size, axis = self.attributes.get("block_size", 0), self.attributes.get("axis", 1)
        if size < 0 or (size % 2 and self.kind in TAKEN and TAKEN[self.kind].width < 8):
            kind = "negative" if size < 0 else "odd"
            self.fail(f"has the {kind} block size {size}", f"{REQUANTIZE}, in blocks of 64 or 128")
        if scales is None or (values is None and size):
            return
        has_axis = size or math.prod(scales) > 1
        if values is not None and has_axis and not -len(values) <= axis < len(values):
            self.fail(f"has axis {axis} of values of shape {list(values)}", REQUANTIZE)
        expected = self._blocked(values, axis, size) if values and size else None
        wrong = scales != expected if expected else not _fits(scales, values, axis)
        if wrong:
            self.fail(
                self._misfit(scales, values, expected),
                f"{REQUANTIZE}, or correct axis and block_size of the node",
            )

    def _blocked(self, values: Shape, axis: int, size: int) -> Shape:
        """Return the shape of scales by block; one block may be larger than what it holds."""
        count = -(-values[axis] // size)
        if values[axis] % size and count > 1:
            self.fail(
                f"has the block size {size}, which does not divide the {values[axis]} values along "
                f"axis {axis}",
                f"{REQUANTIZE}, in blocks that divide {values[axis]}, or leave the layer in float",
            )
        axis %= len(values)
        return (*values[:axis], count, *values[axis + 1 :])

    def _misfit(self, scales: Shape, values: Shape | None, expected: Shape | None) -> str:
        text = f"has scales of shape {list(scales)}"
        if values is not None:
            text += f" for values of shape {list(values)}"
        if expected:
            axis, size = self.attributes.get("axis", 1), self.attributes["block_size"]
            return f"{text}: blocks of {size} along axis {axis} need {list(expected)}"
        return f"{text}, and no block_size" if len(scales) > 1 else f"{text} along its axis"

    def _check_scale(self) -> None:
        name = self.node.input[1]
        scale = self.scope.constants.get(name)
        if scale is None or scale.data_type not in FLOATS:
            return
        values = np.asarray(array_of(scale), np.float32)
        if wrong := _wrong_scale(values, self.kind in TAKEN):
            count = f", one of {values.size}" if values.size > 1 else ""
            self.fail(
                f"has a scale that is {wrong} ({name!r}{count})",
                "quantize the model again, with data that reach the layer; a channel of zeros takes "
                "any positive scale",
            )

    def _check_zero_point(self) -> None:
        zero, scales = self.zero_point, _shape(self.node.input[1], self.scope)
        if zero is not None and scales is not None and math.prod(zero.dims) != math.prod(scales):
            self.fail(
                f"has zero points of shape {list(zero.dims)} ({zero.name!r}) for scales of "
                f"shape {list(scales)}",
                f"{REQUANTIZE}, or give each scale its zero point",
            )
        if zero is not None and self.kind in TAKEN and np.asarray(array_of(zero), np.float32).any():
            self.fail(
                f"has zero points other than 0 ({zero.name!r}), which TensorRT does not take in "
                f"{type_name(self.kind)}",
                f"{REQUANTIZE}, symmetrically",
            )

    def _check_codes(self) -> None:
        stored = self.scope.constants.get(self.node.input[0])
        if stored is None or stored.data_type != TensorProto.FLOAT8E4M3FN:
            return
        codes = array_of(stored).view(np.uint8)
        if count := int(np.count_nonzero(codes & 0x7F == 0x7F)):
            self.fail(
                f"reads NaN: {count} of the {codes.size} values of {stored.name!r} are 0x7F or 0xFF",
                f"{REQUANTIZE}: limit values to 448 times the scale before they become float8e4m3fn",
            )


def _kind(node: NodeProto, scope: _Scope) -> int:
    """Return the type of the quantized values of a Q/DQ node, 0 if it is not known."""
    if node.op_type == "QuantizeLinear":
        return quantized_type(node, scope.constants)
    stored, maker = scope.constants.get(node.input[0]), scope.makers.get(node.input[0])
    if stored is not None:
        return stored.data_type
    return _kind(maker, scope) if maker and maker.op_type == "QuantizeLinear" else 0


def _shape(name: str, scope: _Scope) -> Shape | None:
    """Return the shape of a constant, or of one that is quantized or dequantized; else None."""
    for _ in PAIR:
        if (tensor := scope.constants.get(name)) is not None:
            return tuple(tensor.dims)
        if (maker := scope.makers.get(name)) is None:
            return None
        name = maker.input[0]
    tensor = scope.constants.get(name)
    return None if tensor is None else tuple(tensor.dims)


def _fits(scales: Shape, values: Shape | None, axis: int) -> bool:
    """Tell whether scales without blocks are one, or one for each index along the axis."""
    if math.prod(scales) == 1:
        return True
    return len(scales) == 1 and (values is None or values[axis] == scales[0])


def _wrong_scale(values: npt.NDArray[np.float32], is_narrow: bool) -> str:
    """Return what is wrong with the worst of some scales, "" if nothing is."""
    if not np.isfinite(values).all():
        return "not a number" if np.isnan(values).any() else "infinite"
    least = float(values.min(initial=1.0))
    if least <= 0:
        return "0" if least == 0 else f"negative, {least:.3g}"
    return f"subnormal, {least:.3g}" if is_narrow and least < TINY else ""
