"""Where a model quantizes: every tensor that goes through a QuantizeLinear, or is stored quantized.

Read off the Q/DQ alone, so it takes other tools' models too: any integer type of 8 or 16 bits, scales
per tensor or along an axis. What else there is (blocks, four bits, floats of eight) is only counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.model.files import array_of

Array = npt.NDArray[Any]
INTEGERS = {np.dtype(one) for one in ("int8", "uint8", "int16", "uint16")}
NODES_NAMED = 3


@dataclass(frozen=True)
class Site:
    """A tensor that is quantized, with its parameters as they broadcast to it.

    `upstream` are the places, among all sites, of those whose error arrives here without being
    quantized in between; `nodes` read the result. Of a weight, `stored` are its quantized values,
    None where it is stored in float; `reader` and `index` say which input of which output it is.
    """

    tensor: str
    scale: Array
    zero: Array
    axis: int
    is_weight: bool = False
    nodes: tuple[str, ...] = ()
    upstream: frozenset[int] = frozenset()
    stored: Array | None = None
    reader: str = ""
    index: int = 0

    def requantized(self, values: Array) -> tuple[Array, int]:
        """Return values after Q and DQ, and how many of them were clipped."""
        steps = np.rint(values / self._along(self.scale, values.ndim))
        zero = self._along(self.zero, values.ndim).astype(steps.dtype)
        limits = np.iinfo(self.zero.dtype)
        kept = np.clip(steps, limits.min - zero, limits.max - zero)
        return self.dequantized(kept + zero), int(np.count_nonzero(kept != steps))

    def dequantized(self, stored: Array) -> Array:
        """Return what quantized values stand for."""
        zero, scale = (self._along(one, stored.ndim) for one in (self.zero, self.scale))
        result: Array = (stored - zero.astype(scale.dtype)) * scale
        return result

    def _along(self, parameter: Array, rank: int) -> Array:
        if parameter.size == 1:
            return parameter.reshape(())
        shape = [1] * rank
        shape[self.axis] = -1
        return parameter.reshape(shape)


def find_sites(proto: onnx.ModelProto) -> tuple[list[Site], int]:
    """Return the sites in the graph's order, and how many Q or DQ were not understood."""
    finder = _Finder(proto)
    for node in proto.graph.node:
        finder.visit(node)
    return finder.sites, finder.unknown


class _Finder:
    """Goes through the nodes in their order, which ONNX wants to be topological."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.constants = _constants(proto)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in proto.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.sites: list[Site] = []
        self.known: dict[tuple[str, bytes, bytes], int] = {}
        self.upstream: dict[str, frozenset[int]] = {}
        self.unknown = 0

    def visit(self, node: onnx.NodeProto) -> None:
        """Note what a node quantizes, and whose errors its outputs carry."""
        above = frozenset[int]().union(*(self.upstream.get(name, ()) for name in node.input))
        if node.op_type == "QuantizeLinear":
            place = self._place(node, above)
            above = above if place is None else frozenset([place])
        elif node.op_type == "DequantizeLinear" and node.input[0] in self.constants:
            self._stored(node)
        self.upstream.update(dict.fromkeys(node.output, above))

    def _place(self, node: onnx.NodeProto, above: frozenset[int]) -> int | None:
        parameters = self._parameters(node, np.dtype(np.uint8))
        if parameters is None:
            self.unknown += 1
            return None
        scale, zero = parameters
        key = (node.input[0], scale.tobytes(), zero.tobytes())
        if key not in self.known:
            is_weight = node.input[0] in self.constants
            reads = self._through(node.output[0])
            names = tuple(one.name for one in reads[:NODES_NAMED])
            self.known[key] = len(self.sites)
            site = Site(node.input[0], scale, zero, _axis(node), is_weight, names, above)
            self.sites.append(site)
        return None if self.sites[self.known[key]].is_weight else self.known[key]

    def _stored(self, node: onnx.NodeProto) -> None:
        stored = array_of(self.constants[node.input[0]])
        if stored.dtype == np.int32:
            return  # a bias
        parameters = self._parameters(node, stored.dtype)
        readers = self.readers.get(node.output[0], [])
        if parameters is None or not readers:
            self.unknown += 1
            return
        index = list(readers[0].input).index(node.output[0])
        site = Site(
            node.input[0],
            *parameters,
            _axis(node),
            is_weight=True,
            nodes=tuple(one.name for one in readers[:NODES_NAMED]),
            stored=stored,
            reader=readers[0].output[0],
            index=index,
        )
        self.sites.append(site)

    def _parameters(
        self, node: onnx.NodeProto, default: np.dtype[Any]
    ) -> tuple[Array, Array] | None:
        scale, zero = _value(self.constants, node.input[1]), np.zeros((), default)
        if len(node.input) > 2 and node.input[2]:
            given = _value(self.constants, node.input[2])
            if given is None:
                return None
            zero = given
        blocks = any(item.name == "block_size" and item.i for item in node.attribute)
        if scale is None or zero.dtype not in INTEGERS or scale.dtype.kind != "f" or blocks:
            return None
        return (scale, zero) if scale.ndim <= 1 else None

    def _through(self, quantized: str) -> list[onnx.NodeProto]:
        """Return the nodes that read a quantized tensor, behind its DequantizeLinear."""
        found = []
        for node in self.readers.get(quantized, []):
            is_pair = node.op_type == "DequantizeLinear"
            found += self.readers.get(node.output[0], []) if is_pair else [node]
        return found


def _axis(node: onnx.NodeProto) -> int:
    return next((int(item.i) for item in node.attribute if item.name == "axis"), 1)


def _constants(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        for item in node.attribute if node.op_type == "Constant" else ():
            if item.name == "value":
                tensors[node.output[0]] = item.t
    return tensors


def _value(constants: Mapping[str, onnx.TensorProto], name: str) -> Array | None:
    return array_of(constants[name]) if name in constants else None


def weight_of(proto: onnx.ModelProto, site: Site) -> Array | None:
    """Return a weight's float values: its own, or the reference's for the same reader."""
    constants = _constants(proto)
    if site.stored is None:
        return _value(constants, site.tensor)
    for node in proto.graph.node:
        if site.reader in node.output and site.index < len(node.input):
            return _value(constants, node.input[site.index])
    return None
