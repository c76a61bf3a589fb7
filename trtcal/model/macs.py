"""How many multiply-accumulates a node does: one formula for each operator that multiplies.

What is counted are products: convolutions, products of matrices, recurrent cells, attention. What
treats each value by itself, adds up or moves values counts none. `trtcal.model.work` adds them up.

Source of the formulas: the operators' definitions, ONNX's and those of ONNX Runtime's `com.microsoft`
(docs/ContribOperators.md). One multiply-accumulate is two operations of a datasheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import onnx
from onnx import NodeProto

from trtcal.model.files import attribute_of
from trtcal.model.graph import STANDARD
from trtcal.model.ops import UNMULTIPLIED
from trtcal.model.shapes import CONTRIB, Shape, Tensor, operator

MOST_MACS = 1 << 70  # of a count: what a model claims beyond is not known


@dataclass(frozen=True)
class Operands:
    """A node with what is known of its inputs and outputs: what a formula reads.

    What is not known is None or missing, so that the formula fails (`count_macs`).
    """

    node: NodeProto
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]

    def shape(self, index: int) -> Shape:
        """Return an input's shape."""
        return cast("Shape", self.inputs[index].shape)

    def has(self, index: int) -> bool:
        """Tell whether an input is there."""
        return index < len(self.node.input) and bool(self.node.input[index])

    @property
    def made(self) -> Shape:
        """The first output's shape."""
        return cast("Shape", self.outputs[0].shape)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value."""
        return attribute_of(self.node, name, default)


Formula = Callable[[Operands], int]


def convolution_macs(batch: int, places: Shape, weight: Shape) -> int:
    """Count every weight, (out, in / groups, kernel...), once for each place of the output.

    Of a transposed convolution, whose weight is (in, out / groups, kernel...), of the input.
    """
    return batch * math.prod(places) * math.prod(weight)


def product_macs(result: Shape, length: int) -> int:
    """Count the sum's length for each value of a product."""
    return math.prod(result) * length


def _convolution(image: int, weight: int) -> Formula:
    def count(node: Operands) -> int:
        return convolution_macs(node.shape(image)[0], node.made[2:], node.shape(weight))

    return count


def _product(right: int) -> Formula:
    """Return the formula of a product whose second operand is the input `right`."""

    def count(node: Operands) -> int:
        left = node.shape(0)
        if not left or not node.shape(right):
            raise ValueError("a product of scalars")
        is_turned = node.attribute("transA", 0) and len(left) > 1
        return product_macs(node.made, left[-2 if is_turned else -1])

    return count


def _by_attributes(node: Operands) -> int:
    """Count weights in blocks of a few bits, whose sizes stand in attributes K and N."""
    return math.prod((*node.shape(0)[:-1], node.attribute("K"), node.attribute("N")))


def einsum_macs(equation: str, shapes: Sequence[Shape]) -> int:
    """Return those of the products from left to right, summed over what is not needed any more."""
    operands, _, result = equation.replace(" ", "").partition("->")
    terms = operands.split(",")
    sizes: dict[str, int] = {}
    letters = [_letters(term, shape, sizes) for term, shape in zip(terms, shapes, strict=True)]
    every = [letter for term_letters in letters for letter in term_letters]
    once = {letter for letter in every if every.count(letter) == 1}
    kept = set(result.replace("...", "")) if "->" in equation else once
    kept |= {letter for letter in sizes if letter.isdigit()}
    count, current = 0, letters[0]
    for number, right in enumerate(letters[1:], 1):
        count += math.prod(sizes[letter] for letter in current | right)
        current = (current | right) & kept.union(*letters[number + 1 :])
    return count


def _letters(term: str, shape: Shape, sizes: dict[str, int]) -> set[str]:
    """Return a term's letters with their sizes noted; an ellipsis is digits, from the last axis on."""
    before, dots, after = term.partition("...")
    places = len(shape) - len(before) - len(after)
    if places < 0 or (places and not dots):
        raise ValueError("the equation does not fit the shape")
    names = [*before, *(str(places - 1 - place) for place in range(places)), *after]
    for letter, size in zip(names, shape, strict=True):
        sizes[letter] = max(sizes.get(letter, 1), size)
    return set(names)


def _einsum(node: Operands) -> int:
    shapes = [node.shape(index) for index in range(len(node.inputs))]
    return einsum_macs(node.attribute("equation").decode(), shapes)


def _recurrent(node: Operands) -> int:
    """Count all weights for every step and sample: W (directions, gates * hidden, input), R, peepholes.

    X is (steps, batch, input), or (batch, steps, input) with layout 1: the count is the same.
    """
    steps = math.prod(node.shape(0)[:2])
    peepholes = math.prod(node.shape(7)) if node.has(7) else 0
    return steps * (math.prod(node.shape(1)) + math.prod(node.shape(2)) + peepholes)


def _scores(node: Operands, queries: int, keys: int, width: int, values: int) -> int:
    """Count the product of queries and keys, and that of the scores and the values."""
    return node.shape(0)[0] * queries * keys * (width + values)


def _past(node: Operands, index: int, axis: int) -> int:
    return node.shape(index)[axis] if node.has(index) else 0


def _attention(node: Operands) -> int:
    """ONNX 23: Q (batch, heads, length, size) or (batch, length, heads * size), K, V, past K."""
    query, key, value = (node.shape(index) for index in range(3))
    keys = key[-2] + _past(node, 4, 2)
    heads = query[1] if len(query) == 4 else node.attribute("q_num_heads")
    size = query[-1] if len(query) == 4 else query[-1] // heads
    wide = value[-1] if len(value) == 4 else value[-1] // node.attribute("kv_num_heads")
    return _scores(node, query[-2], keys, heads * size, heads * wide)


def _contrib_attention(past: int) -> Formula:
    """Count the projection of (batch, length, in) to queries, keys, values, and their attention."""

    def count(node: Operands) -> int:
        batch, length, width = node.shape(0)
        columns = node.shape(1)[-1]
        sizes = node.attribute("qkv_hidden_sizes", [columns // 3] * 3)
        keys = length + _past(node, past, 3)
        return batch * length * width * columns + _scores(node, length, keys, sizes[0], sizes[2])

    return count


def _multi_head(node: Operands) -> int:
    """Query (batch, length, width) or packed (batch, length, heads, 3, size), key, value, past."""
    query = node.shape(0)
    if len(query) == 5:
        return _scores(node, query[1], query[1], query[2] * query[4], query[2] * query[4])
    key = node.shape(1)
    keys = key[2] if len(key) == 4 else key[1]
    value = node.shape(2) if node.has(2) else query
    heads = node.attribute("num_heads")
    wide = heads * value[3] if len(value) == 4 else value[-1]
    is_used = len(key) == 4 or not node.has(6)  # keys of cross attention come whole
    past = 0 if not is_used else _past(node, 6, 2)
    return _scores(node, query[1], keys + past, query[2], wide)


def _grouped(node: Operands) -> int:
    """Query (batch, length, heads * size), key, value, past (batch, kv heads, length, size)."""
    _, length, width = node.shape(0)
    if not node.has(1):  # queries, keys and values in one tensor
        heads, shared = node.attribute("num_heads"), node.attribute("kv_num_heads")
        width = width * heads // (heads + 2 * shared)
    return _scores(node, length, length + _past(node, 3, 2), width, width)


def _linear(node: Operands) -> int:
    """Count a linear model of `ai.onnx.ml`: its coefficients for each row."""
    return node.shape(0)[0] * len(node.attribute("coefficients"))


def _fourier(node: Operands) -> int:
    """Count a Fourier transform by halves (Cooley, Tukey 1965): n/2 log2 n complex products, 4 each."""
    stated = node.inputs[2].value if node.has(2) else None
    axis = node.attribute("axis", -2) if stated is None else int(stated)
    return math.prod(node.shape(0)[:-1]) * _butterflies(node.shape(0)[axis])


def _short_time_fourier(node: Operands) -> int:
    """Count one transform a frame, of the window's length; it makes (batch, frames, bins, 2)."""
    stated = node.inputs[3].value if node.has(3) else None
    length = node.shape(2)[0] if stated is None else int(stated)
    return math.prod(node.made[:2]) * length * _butterflies(length)


def _butterflies(length: int) -> int:
    return 2 * math.ceil(math.log2(max(length, 2)))


PRODUCTS = (
    *("FusedGemm", "GemmFastGelu", "FusedMatMul", "TransposeMatMul", "FusedMatMulActivation"),
    *("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
)
BLOCKED = ("MatMulNBits", "MatMulBnb4", "MatMulFpQ4")
FORMULAS: Mapping[str, Formula] = {
    **dict.fromkeys(
        ("Conv", "ConvInteger", "DeformConv", f"{CONTRIB}::FusedConv"), _convolution(0, 1)
    ),
    "QLinearConv": _convolution(0, 3),
    "ConvTranspose": lambda n: convolution_macs(n.shape(0)[0], n.shape(0)[2:], n.shape(1)),
    **dict.fromkeys(("Gemm", "MatMul", "MatMulInteger"), _product(1)),
    **dict.fromkeys(("QGemm", "QLinearMatMul", f"{CONTRIB}::QGemm"), _product(3)),
    **dict.fromkeys((f"{CONTRIB}::{name}" for name in PRODUCTS), _product(1)),
    **dict.fromkeys((f"{CONTRIB}::{name}" for name in BLOCKED), _by_attributes),
    "Einsum": _einsum,
    **dict.fromkeys(("LSTM", "GRU", "RNN", f"{CONTRIB}::DynamicQuantizeLSTM"), _recurrent),
    "Attention": _attention,
    "DFT": _fourier,
    "STFT": _short_time_fourier,
    "ai.onnx.ml::LinearClassifier": _linear,
    "ai.onnx.ml::LinearRegressor": _linear,
    f"{CONTRIB}::NhwcFusedConv": lambda node: convolution_macs(
        node.shape(0)[0], node.made[1:-1], node.shape(1)
    ),
    f"{CONTRIB}::Attention": _contrib_attention(4),
    f"{CONTRIB}::QAttention": _contrib_attention(8),
    f"{CONTRIB}::MultiHeadAttention": _multi_head,
    f"{CONTRIB}::DecoderMaskedMultiHeadAttention": _multi_head,
    f"{CONTRIB}::GroupQueryAttention": _grouped,
}
"""Operator (with its domain, if that is not ONNX's) -> how its multiply-accumulates are counted."""


def count_macs(node: NodeProto, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int | None:
    """Return a node's multiply-accumulates; None where its formula or a shape is not known.

    An operator of ONNX's that has no formula multiplies nothing; one of another domain may.
    """
    name = operator(node)
    if (formula := FORMULAS.get(name)) is None:
        return 0 if _is_known(node) else None
    try:
        count = formula(Operands(node, inputs, outputs))
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError):
        return None
    return count if 0 <= count <= MOST_MACS else None


def _is_known(node: NodeProto) -> bool:
    """Tell whether an operator is known to multiply nothing; TensorRT's plug-ins have no domain."""
    if node.domain in STANDARD and onnx.defs.has(node.op_type):
        return True
    return node.domain in (*STANDARD, CONTRIB) and node.op_type in UNMULTIPLIED
