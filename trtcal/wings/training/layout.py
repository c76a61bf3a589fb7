"""What of a model with Q/DQ is trained, and under which identifier of Python.

Names in a model are data: an identifier has letters, digits and `_` of ASCII alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.errors import InputError, some
from trtcal.formats import FORMATS
from trtcal.model.files import array_of, attribute_of
from trtcal.model.model import unique
from trtcal.model.ops import MOVES_Q, MULTIPLIES
from trtcal.model.pairs import PAIR
from trtcal.quantization.qdq import fp16_tensors
from trtcal.quantization.weights import step_above

Array = npt.NDArray[Any]
QUANTIZE, DEQUANTIZE = PAIR
LONGEST = 48  # characters of an identifier
HINT = "export a plan of int8 and fp32; the trained model may get fp16 by `trtcal quantize`"


@dataclass(frozen=True)
class Quantizer:
    """A pair of Q/DQ: the initializer of its scale, and for a weight those of its integers and axis.

    `tied` are the scales of pairs that quantize the same values once more, or a step above.
    """

    scale: str
    values: str = ""
    axis: int | None = None
    tied: list[str] = field(default_factory=list)


class Layout:
    """The quantizers and trained constants of a model with Q/DQ, by their identifiers.

    `sources` has what a tensor that Q/DQ make is in PyTorch: an identifier of a quantizer.
    `InputError` for Q/DQ in another format than symmetric INT8.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.initializers = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.activations: dict[str, Quantizer] = {}
        self.weights: dict[str, Quantizer] = {}
        self.sources: dict[str, str] = {}
        self.makers = {name: node for node in proto.graph.node for name in node.output}
        self._taken = set[str]()
        if narrow := fp16_tensors(proto.graph):
            raise InputError(f"the model computes in float16: {some(sorted(narrow))}", HINT)
        for node in proto.graph.node:
            if node.op_type == QUANTIZE:
                self._quantize(node)
            elif node.op_type == DEQUANTIZE:
                self._dequantize(node)
        read = dict.fromkeys(name for node in self.nodes for name in node.input)
        constants = (name for name in read if name in self.initializers)
        self.constants = {self._identifier("c", name): name for name in constants}

    def array(self, name: str) -> Array:
        """Return the values of an initializer."""
        return array_of(self.initializers[name])

    @cached_property
    def trained(self) -> dict[str, str]:
        """The identifiers of constants that are trained in float, and their initializers."""
        pairs = ((node, pair) for node in self.nodes for pair in enumerate(node.input))
        read = {name for node, (place, name) in pairs if is_trained(node, place)}
        arrays = {key: self.array(name) for key, name in self.constants.items() if name in read}
        floats = (key for key, array in arrays.items() if array.dtype == np.float32)
        return {key: self.constants[key] for key in floats if arrays[key].size > 1}

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes that compute, without Q/DQ."""
        return [node for node in self.proto.graph.node if node.op_type not in PAIR]

    def _identifier(self, kind: str, name: str) -> str:
        text = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[-LONGEST:]
        return unique(f"{kind}_{text}", self._taken)

    def _quantize(self, node: onnx.NodeProto) -> None:
        source, scale = node.input[:2]
        self._check(node)
        key = self.sources.get(self._origin(source), "")
        if key in self.activations and self._is_tied(self.activations[key].scale, scale):
            self.activations[key].tied.append(scale)
        else:
            key = self._identifier("q", source)
            self.activations[key] = Quantizer(scale)
        self.sources[node.output[0]] = key

    def _origin(self, name: str) -> str:
        """Return the quantized tensor whose values a tensor has in other places, else itself."""
        while name not in self.sources and (maker := self.makers.get(name)):
            if maker.op_type not in MOVES_Q:
                break
            name = maker.input[0]
        return name

    def _is_tied(self, first: str, second: str) -> bool:
        """Tell whether a scale is the first one, or a step above it."""
        scale, other = self.array(first), self.array(second)
        return bool(other == scale or other == step_above(scale))

    def _dequantize(self, node: onnx.NodeProto) -> None:
        source, scale = node.input[:2]
        if source in self.sources:
            self.sources[node.output[0]] = self.sources[source]
            return
        self._check(node)
        axis = attribute_of(node, "axis", 1) if self.array(scale).ndim else None
        key = self._identifier("w", source.rpartition("/")[0] or source)
        self.weights[key] = Quantizer(scale, source, axis)
        self.sources[node.output[0]] = key

    def _check(self, node: onnx.NodeProto) -> None:
        """`InputError` if a Q or DQ is not INT8 with a zero point 0 and constant scales."""
        is_weight, zero = node.op_type == DEQUANTIZE, [*node.input, "", ""][2]
        needed = [node.input[1], zero, *([node.input[0]] if is_weight else [])]
        known = all(name in self.initializers for name in needed)
        arrays = [self.array(name) for name in needed[1:]] if known else []
        is_int8 = known and all(array.dtype == FORMATS["int8"].dtype for array in arrays)
        if not is_int8 or arrays[0].any() or attribute_of(node, "block_size", 0):
            raise InputError(
                f"{node.op_type} {node.name!r} is not symmetric INT8 with a constant scale", HINT
            )


def is_trained(node: onnx.NodeProto, place: int) -> bool:
    """Tell whether a constant at a node's input is a weight, a bias, or a factor of channels."""
    if node.op_type.endswith("Normalization"):
        return place in (1, 2)
    return node.op_type in MULTIPLIES or node.op_type in ("Add", "Mul")
