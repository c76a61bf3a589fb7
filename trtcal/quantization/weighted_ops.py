"""Rules for the operators that multiply matrices or convolve: what of them can be INT8, and how.

Activations are quantized per tensor, weights per output channel, on the axis that TensorRT reads: any
other axis makes it compute in float without a word (seen in TensorRT-RTX 1.7's layer lists).
Source: NVIDIA, "Working with Quantized Types", Q/DQ layer-placement recommendations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.errors import InputError
from trtcal.formats import Precision
from trtcal.model.graph import constant, format_of, input_at, is_op
from trtcal.model.model import Floats
from trtcal.model.ops import CARRIES, CONVOLUTIONS, HEAVY, INTEGER, RECURRENT, output_axis


@dataclass(frozen=True)
class Bias:
    """A place among a node's inputs, and the values that stand there, (channels,), zeros if none."""

    node: gs.Node
    index: int
    values: Floats


def bias_of(node: gs.Node) -> Bias | None:
    """Return where the bias of a layer stands or can be put, None if there is no such place."""
    if is_op(node, "MatMul"):
        return _of_add(node)
    if not is_op(node, *CONVOLUTIONS, "Gemm") or node.attrs.get("beta", 1.0) != 1.0:
        return None
    channels = _channels(node)
    if channels is None:
        return None
    bias = input_at(node, 2)
    values = np.zeros(channels, np.float32) if bias is None else constant(bias)
    return _bias(node, 2, values, channels)


def set_bias(node: gs.Node, value: gs.Constant) -> None:
    """Give a layer another bias; `InputError` if it has no place for one of that length."""
    place = bias_of(node)
    if place is None or place.values.shape != value.values.shape:
        what = f"layer {node.name!r} does not have the bias that the optimizations correct"
        raise InputError(what, "run `trtcal quantize --improve` again, for this model")
    if place.index < len(place.node.inputs):
        place.node.inputs[place.index] = value
    else:
        place.node.inputs.append(value)


def _of_add(node: gs.Node) -> Bias | None:
    weight = constant(node.inputs[1])
    readers = node.outputs[0].outputs
    if weight is None or weight.ndim != 2 or len(readers) != 1 or not is_op(readers[0], "Add"):
        return None
    (add,) = readers
    index = 1 if add.inputs[0] is node.outputs[0] else 0
    return _bias(add, index, constant(add.inputs[index]), weight.shape[1])


def _bias(node: gs.Node, index: int, values: object, channels: int) -> Bias | None:
    bias = np.asarray(values) if values is not None else None
    if bias is None or bias.dtype != np.float32 or bias.size not in (1, channels):
        return None
    if bias.ndim and bias.shape[-1] != bias.size:
        return None
    return Bias(node, index, np.broadcast_to(bias.reshape(-1), (channels,)))


def _channels(node: gs.Node) -> int | None:
    weight = constant(node.inputs[1])
    if weight is None or weight.dtype != np.float32:
        return None
    groups = node.attrs.get("group", 1) if node.op == "ConvTranspose" else 1
    return int(weight.shape[_output_axis(node)]) * int(groups)


def _output_axis(node: gs.Node) -> int:
    return output_axis(node.op, bool(node.attrs.get("transB", 0)))


@dataclass(frozen=True)
class Weight:
    """A constant input: its place among the node's inputs and the axis of its scales, if any."""

    index: int
    axis: int | None


@dataclass(frozen=True)
class Layer:
    """A node that a plan can put into INT8: the inputs to quantize by place, and its weight."""

    name: str
    op: str
    activations: dict[int, str]
    weight: Weight | None = None

    def values(self, node: gs.Node) -> npt.NDArray[Any] | None:
        """Return the values of its weight, out of its node; None without one."""
        return constant(node.inputs[self.weight.index]) if self.weight else None


QUANTIZED = "it is already quantized"
ONE_SIDED = "only one of its operands has Q/DQ, so TensorRT computes it in float"
REFUSED = INTEGER | {"DynamicQuantizeLinear"}
REFUSAL = "TensorRT does not support this operator: start from the float model"

Found = Layer | str
"""A layer, or why the node is none."""


def is_activation(tensor: gs.Tensor) -> bool:
    """Tell whether a tensor is computed, and may be float as far as its type is stated."""
    if not isinstance(tensor, gs.Variable) or tensor.is_empty():
        return False
    return tensor.dtype is None or tensor.dtype in (np.float32, np.float16)


def readers(tensor: gs.Tensor) -> Iterator[tuple[gs.Node, int]]:
    """Yield every node that reads a tensor, with the place among its inputs."""
    for node in {node.name: node for node in tensor.outputs}.values():
        yield from ((node, i) for i, other in enumerate(node.inputs) if other is tensor)


def _by_channel(node: gs.Node) -> Found:
    # With groups, axis 1 holds one group's channels only, which a scale an output channel can't name.
    grouped = node.op == "ConvTranspose" and node.attrs.get("group", 1) != 1
    return _weighted(node, None if grouped else _output_axis(node))


def _matmul(node: gs.Node) -> Found:
    left, right = node.inputs
    if is_activation(left) and is_activation(right) and not _quantized_already(node):
        return _product(node)
    weight = constant(right)
    columns = weight is not None and weight.ndim == 2
    # Scales by row of a left operand, or in a stack of matrices, break kernels of ONNX Runtime.
    return _weighted(node, 1 if columns else None, 0 if is_activation(right) else 1)


def _einsum(node: gs.Node) -> Found:
    letters = _einsum_letters(node)
    if letters is None:
        return "its equation is not a product of two matrices"
    if all(map(is_activation, node.inputs)) and not _quantized_already(node):
        return _product(node)
    index = 0 if is_activation(node.inputs[1]) else 1
    own, other = letters[index], letters[1 - index]
    free = [axis for axis, letter in enumerate(own) if letter not in other]
    return _weighted(node, free[0] if len(free) == 1 else None, index)


def _einsum_letters(node: gs.Node) -> tuple[str, str] | None:
    """Return the letters of both operands if the equation multiplies and sums as a MatMul does."""
    equation = node.attrs.get("equation", "").replace(" ", "")
    operands, arrow, result = equation.partition("->")
    parts = operands.split(",")
    if len(parts) != 2 or len(node.inputs) != 2 or not arrow or "." in equation:
        return None
    left, right = parts
    summed = set(left) & set(right) - set(result)
    kept = set(left + right) - summed == set(result)
    unrepeated = all(len(set(part)) == len(part) for part in (left, right, result))
    return (left, right) if summed and kept and unrepeated else None


def _product(node: gs.Node) -> Layer:
    """Quantize both operands: the products of attention are then one INT8 kernel with its Softmax."""
    return Layer(node.name, node.op, {i: tensor.name for i, tensor in enumerate(node.inputs)})


def _weighted(node: gs.Node, axis: int | None, index: int = 1) -> Found:
    if why := _quantized_already(node):
        return why
    if not is_activation(node.inputs[1 - index]):
        return "none of its inputs is a float activation"
    weight = constant(node.inputs[index])
    if weight is None:
        return "its weights are computed, not constant"
    if weight.dtype not in (np.float32, np.float16):
        return f"its weights are {weight.dtype}"
    if not np.isfinite(weight).all():
        return "its weights have NaN or infinite values"
    return Layer(node.name, node.op, {1 - index: node.inputs[1 - index].name}, Weight(index, axis))


def block_axis(node: gs.Node) -> int | None:
    """Return the summed axis of a node's constant matrix, None where weights do not stand in one."""
    weight = constant(node.inputs[1]) if is_op(node, "MatMul", "Gemm") else None
    if weight is None or weight.ndim != 2 or not is_activation(node.inputs[0]):
        return None
    return 1 if node.op == "Gemm" and node.attrs.get("transB", 0) else 0


FLOATING_TAPS = 32


def without_kernel(node: gs.Node, form: Precision) -> str | None:
    """Return why TensorRT computes a node in float though its Q/DQ are in FP8, None if it need not.

    Sources: NVIDIA, TensorRT release notes, on filters larger than 32; layer lists of TensorRT-RTX 1.7.
    """
    if is_op(node, "ConvTranspose"):
        return f"TensorRT has no {form.label} kernel for ConvTranspose"
    taps = math.prod(node.inputs[1].shape[2:]) if is_op(node, "Conv") else 0
    large = f"convolution of more than {FLOATING_TAPS} taps, and this one has {taps}"
    return f"TensorRT has no {form.label} {large}" if taps > FLOATING_TAPS else None


def _quantized_already(node: gs.Node) -> str | None:
    """Return why a node with dequantized operands is none to quantize, None if it has none."""
    far = [before for before in map(_dequantizer, node.inputs[:2]) if before is not None]
    near = [dequantizer for dequantizer in far if dequantizer.outputs[0] in node.inputs]
    kinds = [kind for dequantizer in far if (kind := format_of(dequantizer))]
    packed = [kind.name for kind in kinds if kind.weights_only]
    if len(far) == 2 and (near or packed):
        return QUANTIZED
    return f"its weights are already in {packed[0]}" if packed else ONE_SIDED if near else None


def _dequantizer(tensor: gs.Tensor) -> gs.Node | None:
    """Return the DQ node from which a tensor comes, through casts and what moves values."""
    while tensor.inputs and tensor.inputs[0].op in CARRIES and tensor.inputs[0].inputs:
        tensor = tensor.inputs[0].inputs[0]
    maker = tensor.inputs[0] if tensor.inputs else None
    return maker if maker is not None and maker.op == "DequantizeLinear" else None


def weight_count(node: gs.Node) -> int:
    """Return how many constants a node multiplies with; a recurrent one has them in two inputs."""
    operands = node.inputs[: 3 if node.op in RECURRENT else 2] if node.op in HEAVY else []
    return sum(math.prod(operand.shape) for operand in operands if isinstance(operand, gs.Constant))


RULES: dict[str, Callable[[gs.Node], Found]] = {
    "Conv": _by_channel,
    "ConvTranspose": _by_channel,
    "Einsum": _einsum,
    "Gemm": _by_channel,
    "MatMul": _matmul,
}
