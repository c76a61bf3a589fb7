"""ONNX operators in PyTorch, which `export torch` copies into its files.

A function has the operator's name in snake case (with `_` behind a word of Python), the operator's
inputs by place and its attributes by name; what is an input now and was an attribute in an older
opset comes by name too. What is not here, or has another attribute, is refused.
Source: ONNX, "Operator Schemas".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

Ints = Sequence[int]
TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool}
"""By ONNX's number of a type."""
ROUNDINGS = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round_prefer_floor": lambda place: torch.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: torch.floor(place + 0.5),
}
"""How `nearest_mode` makes an integer of a place."""

relu = torch.relu
sigmoid = torch.sigmoid
tanh = torch.tanh
erf = torch.erf
exp = torch.exp
log = torch.log
sqrt = torch.sqrt
neg = torch.neg
reciprocal = torch.reciprocal
abs_ = torch.abs
add = torch.add
sub = torch.sub
mul = torch.mul
pow_ = torch.pow
mat_mul = torch.matmul


def padded(x: Tensor, pads: Ints, value: float = 0.0) -> Tensor:
    """Return a tensor with padding at its last axes: all beginnings, then all ends."""
    half = len(pads) // 2
    pairs = reversed(list(zip(pads[:half], pads[half:], strict=True)))
    flat = [int(size) for pair in pairs for size in pair]
    return functional.pad(x, flat, value=value) if any(flat) else x


def places(axes: Any, x: Tensor) -> list[int]:
    """Return axes, given as a tensor, a list or not at all, which means every one."""
    listed: list[int] = axes.tolist() if isinstance(axes, Tensor) else list(axes or [])
    return listed or list(range(x.dim()))


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, dilations: Ints = (), group: int = 1,
    auto_pad: Literal["NOTSET", "VALID"] = "NOTSET", kernel_shape: Ints = (), pads: Ints = (),
    strides: Ints = (),
) -> Tensor:  # fmt: skip
    ones, none = [1] * (weight.dim() - 2), [0] * (weight.dim() - 2)
    sizes = strides or ones, none, dilations or ones
    return torch.convolution(padded(x, pads), weight, bias, *sizes, False, none, group)


def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, dilations: Ints = (), group: int = 1,
    auto_pad: Literal["NOTSET", "VALID"] = "NOTSET", kernel_shape: Ints = (), pads: Ints = (),
    output_padding: Ints = (), strides: Ints = (),
) -> Tensor:  # fmt: skip
    ones, none = [1] * (weight.dim() - 2), [0] * (weight.dim() - 2)
    sizes = strides or ones, none, dilations or ones
    y = torch.convolution(x, weight, bias, *sizes, True, output_padding or none, group)
    return padded(y, [-size for size in pads])


def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    y = alpha * ((a.t() if transA else a) @ (b.t() if transB else b))
    return y if c is None else y + beta * c


def batch_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> Tensor:  # fmt: skip
    return functional.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)


def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1,
    epsilon: float = 1e-5, stash_type: Literal[1] = 1,
) -> Tensor:  # fmt: skip
    return functional.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


def div(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    x = x if min is None else x.clamp(min=min)
    return x if max is None else x.clamp(max=max)


def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return functional.leaky_relu(x, alpha)


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (alpha * x + beta).clamp(0.0, 1.0)


def hard_swish(x: Tensor) -> Tensor:
    return x * hard_sigmoid(x, alpha=1 / 6)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return functional.gelu(x, approximate=approximate)


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


def max_pool(
    x: Tensor, *, kernel_shape: Ints, auto_pad: Literal["NOTSET", "VALID"] = "NOTSET",
    ceil_mode: int = 0, dilations: Ints = (), pads: Ints = (), storage_order: Literal[0] = 0,
    strides: Ints = (),
) -> Tensor:  # fmt: skip
    ones = [1] * len(kernel_shape)
    pool: Any = getattr(functional, f"max_pool{len(ones)}d")
    sizes = kernel_shape, strides or ones, 0, dilations or ones, bool(ceil_mode)
    return pool(padded(x, pads, -math.inf), *sizes)  # type: ignore[no-any-return]


def average_pool(
    x: Tensor, *, kernel_shape: Ints, auto_pad: Literal["NOTSET", "VALID"] = "NOTSET",
    ceil_mode: int = 0, count_include_pad: int = 0, pads: Ints = (), strides: Ints = (),
) -> Tensor:  # fmt: skip
    pool: Any = getattr(functional, f"avg_pool{len(kernel_shape)}d")
    settings = kernel_shape, strides or [1] * len(kernel_shape), 0, bool(ceil_mode)
    mean: Tensor = pool(padded(x, pads), *settings)
    counted = count_include_pad or not any(pads)
    return mean if counted else mean / pool(padded(torch.ones_like(x[:1, :1]), pads), *settings)


def global_average_pool(x: Tensor) -> Tensor:
    return x.mean(dim=list(range(2, x.dim())), keepdim=True)


def reduce_mean(
    x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: Literal[0] = 0
) -> Tensor:
    return x.mean(dim=places(axes, x), keepdim=bool(keepdims))


def reduce_sum(
    x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: Literal[0] = 0
) -> Tensor:
    return x.sum(dim=places(axes, x), keepdim=bool(keepdims))


def reduce_max(
    x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: Literal[0] = 0
) -> Tensor:
    return x.amax(dim=places(axes, x), keepdim=bool(keepdims))


def resize(
    x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None, *,
    mode: Literal["nearest"] = "nearest", cubic_coeff_a: float = -0.75,
    coordinate_transformation_mode: Literal["asymmetric", "half_pixel"] = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:  # fmt: skip
    start = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    for axis, size in enumerate(x.shape):
        by = scales[axis].item() if sizes is None else sizes[axis].item() / size
        place = (torch.arange(math.floor(size * by)) + start) / by - start
        index = ROUNDINGS[nearest_mode](place).clamp(0, size - 1).long()
        x = x.index_select(axis, index.to(x.device)) if by != 1 else x
    return x


def cast(x: Tensor, *, to: Literal[1, 6, 7, 9], saturate: int = 1) -> Tensor:
    return x.to(TYPES[to])


def shape(x: Tensor) -> Tensor:
    return torch.tensor(x.shape)


def reshape(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    sizes = enumerate(shape.tolist())
    return x.reshape([x.shape[i] if size == 0 and not allowzero else size for i, size in sizes])


def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    return x.reshape(math.prod(x.shape[:axis]), -1)


def transpose(x: Tensor, *, perm: Ints = ()) -> Tensor:
    return x.permute(*(perm or range(x.dim() - 1, -1, -1)))


def concat(*xs: Tensor, axis: int) -> Tensor:
    return torch.cat(xs, axis)


def squeeze(x: Tensor, axes: Any = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(places(axes, x))


def unsqueeze(x: Tensor, axes: Any) -> Tensor:
    added = places(axes, x)
    for axis in sorted(axis % (x.dim() + len(added)) for axis in added):
        x = x.unsqueeze(axis)
    return x


def slice_(x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    firsts, lasts = places(starts, x), places(ends, x)
    axes = range(len(firsts)) if axes is None else places(axes, x)
    steps = [1] * len(firsts) if steps is None else places(steps, x)
    for first, last, axis, step in zip(firsts, lasts, axes, steps, strict=True):
        index = torch.tensor(range(*slice(first, last, step).indices(x.shape[axis]))).long()
        x = x.index_select(axis, index.to(x.device))
    return x


def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = axis % x.dim()
    index = torch.where(indices < 0, indices + x.shape[axis], indices).to(x.device)
    taken = x.index_select(axis, index.reshape(-1))
    return taken.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def split(
    x: Tensor, split: Any = None, *, axis: int = 0, num_outputs: int = 0
) -> tuple[Tensor, ...]:
    sizes = -(-x.shape[axis] // num_outputs) if split is None else places(split, x)
    return torch.split(x, sizes, axis)


def pad(
    x: Tensor, pads: Any, value: Any = None, *, mode: Literal["constant"] = "constant"
) -> Tensor:
    return padded(x, places(pads, x), float(value or 0.0))
