"""ONNX operators in PyTorch, which `export torch` copies into its files: nothing else runs a graph there.

A function has the operator's name in snake case (with `_` behind a word of Python), the operator's
inputs by place and its attributes by name. What is not here, or has another attribute, is refused.
Source: ONNX, "Operator Schemas".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Ints = Sequence[int]
TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool}
"""By ONNX's number of a type."""

# Convolutions, products and what normalizes


def padded(x: Tensor, pads: Ints, mode: str = "constant", value: float = 0.0) -> Tensor:
    """Return a tensor with padding at its last axes: all beginnings, then all ends."""
    half = len(pads) // 2
    pairs = reversed(list(zip(pads[:half], pads[half:], strict=True)))
    flat = [int(size) for pair in pairs for size in pair]
    if not any(flat):
        return x
    return functional.pad(x, flat, mode=mode, value=value if mode == "constant" else None)


def window_pads(x: Tensor, kernel: Ints, strides: Ints, dilations: Ints, auto: str) -> list[int]:
    """Return the padding that `auto_pad` asks for: the output has ceil(size / stride) places."""
    if not auto.startswith("SAME"):
        return [0] * (2 * len(kernel))
    spans = [(width - 1) * by + 1 for width, by in zip(kernel, dilations, strict=True)]
    rows = zip(x.shape[2:], spans, strides, strict=True)
    missing = [max((-(-size // by) - 1) * by + span - size, 0) for size, span, by in rows]
    less, more = [size // 2 for size in missing], [size - size // 2 for size in missing]
    return less + more if auto == "SAME_UPPER" else more + less


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: Ints = (), group: int = 1, kernel_shape: Ints = (), pads: Ints = (),
    strides: Ints = (),
) -> Tensor:  # fmt: skip
    kernel = weight.shape[2:]
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    pads = pads or window_pads(x, kernel, strides, dilations, auto_pad)
    x, none = padded(x, pads), [0] * len(kernel)
    return torch.convolution(x, weight, bias, strides, none, dilations, False, none, group)


def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, dilations: Ints = (), group: int = 1,
    kernel_shape: Ints = (), output_padding: Ints = (), pads: Ints = (), strides: Ints = (),
) -> Tensor:  # fmt: skip
    ones, none = [1] * (weight.dim() - 2), [0] * (weight.dim() - 2)
    more, pads = output_padding or none, pads or [*none, *none]
    y = torch.convolution(
        x, weight, bias, strides or ones, none, dilations or ones, True, more, group
    )
    return padded(y, [-size for size in pads])


def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,  # noqa: N803
) -> Tensor:  # fmt: skip
    y = (a.t() if transA else a) @ (b.t() if transB else b)
    y = y if alpha == 1.0 else alpha * y
    return y if c is None else y + (c if beta == 1.0 else beta * c)


mat_mul = torch.matmul


def batch_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> Tensor:  # fmt: skip
    return functional.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)


def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1,
    epsilon: float = 1e-5, stash_type: int = 1,
) -> Tensor:  # fmt: skip
    return functional.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


# What treats each value by itself, or with others in its place

relu = torch.relu
sigmoid = torch.sigmoid
tanh = torch.tanh
erf = torch.erf
exp = torch.exp
log = torch.log
sqrt = torch.sqrt
neg = torch.neg
sin = torch.sin
cos = torch.cos
softplus = functional.softplus
reciprocal = torch.reciprocal
abs_ = torch.abs
add = torch.add
sub = torch.sub
mul = torch.mul
equal = torch.eq
less = torch.lt
greater = torch.gt
less_or_equal = torch.le
greater_or_equal = torch.ge
where = torch.where
pow_ = torch.pow
not_ = torch.logical_not
and_ = torch.logical_and


def identity(x: Tensor) -> Tensor:
    return x


def div(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
    x = x if min is None else x.clamp(min=min)
    return x if max is None else x.clamp(max=max)


def max_(*xs: Tensor) -> Tensor:
    return xs[0] if len(xs) == 1 else torch.maximum(xs[0], max_(*xs[1:]))


def sum_(*xs: Tensor) -> Tensor:
    return xs[0] if len(xs) == 1 else xs[0] + sum_(*xs[1:])


def min_(*xs: Tensor) -> Tensor:
    return xs[0] if len(xs) == 1 else torch.minimum(xs[0], min_(*xs[1:]))


def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return functional.leaky_relu(x, alpha)


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.elu(x, alpha)


def p_relu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (alpha * x + beta).clamp(0.0, 1.0)


def hard_swish(x: Tensor) -> Tensor:
    return x * hard_sigmoid(x, alpha=1 / 6)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return functional.gelu(x, approximate=approximate)


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


def cast(x: Tensor, *, to: int, saturate: int = 1) -> Tensor:
    return x.to(TYPES[to])


# Pools, reductions and sizes


def max_pool(
    x: Tensor, *, kernel_shape: Ints, auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: Ints = (), pads: Ints = (), storage_order: int = 0, strides: Ints = (),
) -> Tensor:  # fmt: skip
    ones = [1] * len(kernel_shape)
    strides, dilations = strides or ones, dilations or ones
    pads = pads or window_pads(x, kernel_shape, strides, dilations, auto_pad)
    pool = getattr(functional, f"max_pool{len(ones)}d")
    x = padded(x, pads, value=-math.inf)
    y: Tensor = pool(x, list(kernel_shape), strides, 0, dilations, bool(ceil_mode))
    return y


def average_pool(
    x: Tensor, *, kernel_shape: Ints, auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, pads: Ints = (), strides: Ints = (),
) -> Tensor:  # fmt: skip
    ones = [1] * len(kernel_shape)
    strides = strides or ones
    pads = pads or window_pads(x, kernel_shape, strides, ones, auto_pad)
    pool = getattr(functional, f"avg_pool{len(ones)}d")
    settings = list(kernel_shape), strides, 0, bool(ceil_mode)
    mean: Tensor = pool(padded(x, pads), *settings)
    counted = count_include_pad or not any(pads)
    return mean if counted else mean / pool(padded(torch.ones_like(x[:1, :1]), pads), *settings)


def global_average_pool(x: Tensor) -> Tensor:
    return x.mean(dim=list(range(2, x.dim())), keepdim=True)


def global_max_pool(x: Tensor) -> Tensor:
    return x.amax(dim=list(range(2, x.dim())), keepdim=True)


def places(axes: Any, x: Tensor) -> list[int]:
    """Return axes, given as a tensor, a list or not at all, which means every one."""
    listed: list[int] = axes.tolist() if isinstance(axes, Tensor) else list(axes or [])
    return listed or list(range(x.dim()))


def reduce_mean(
    x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    return x.mean(dim=places(axes, x), keepdim=bool(keepdims))


def reduce_sum(
    x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    return x.sum(dim=places(axes, x), keepdim=bool(keepdims))


def reduce_max(
    x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    return x.amax(dim=places(axes, x), keepdim=bool(keepdims))


def reduce_min(
    x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    return x.amin(dim=places(axes, x), keepdim=bool(keepdims))


def source_places(size: int, length: int, scale: float, mode: str) -> Tensor:
    """Return where each of `length` places of a resized axis lies in the one of `size`."""
    place = torch.arange(length, dtype=torch.float32)
    if mode == "asymmetric":
        return place / scale
    if mode == "align_corners":
        return place * (size - 1) / max(length - 1, 1)
    is_single = mode == "pytorch_half_pixel" and length == 1
    return place * 0 if is_single else (place + 0.5) / scale - 0.5


ROUNDINGS = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round_prefer_floor": lambda place: torch.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: torch.floor(place + 0.5),
}
"""What an integer place is made with, by ONNX's `nearest_mode`."""


def resize(
    x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None, *, mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:  # fmt: skip
    if sizes is None:
        factors = scales.tolist()
        sizes = [math.floor(size * by) for size, by in zip(x.shape, factors, strict=True)]
    else:
        sizes = sizes.tolist()
        factors = [new / old for new, old in zip(sizes, x.shape, strict=True)]
    for axis, (size, length, factor) in enumerate(zip(x.shape, sizes, factors, strict=True)):
        if size == length:
            continue
        place = source_places(size, length, factor, coordinate_transformation_mode)
        if mode == "nearest":
            index = ROUNDINGS[nearest_mode](place).clamp(0, size - 1).long()
            x = x.index_select(axis, index.to(x.device))
        else:
            x = blended(x, axis, place.clamp(0, size - 1).to(x.device))
    return x


def blended(x: Tensor, axis: int, place: Tensor) -> Tensor:
    """Return values between those of an axis, linearly."""
    low = place.floor().long()
    share = (place - low).reshape([-1 if i == axis else 1 for i in range(x.dim())])
    high = (low + 1).clamp(max=x.shape[axis] - 1)
    return x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share


# Shapes


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


def expand(x: Tensor, shape: Tensor) -> Tensor:
    return x * torch.ones(shape.tolist(), dtype=x.dtype, device=x.device)


def squeeze(x: Tensor, axes: Any = None) -> Tensor:
    chosen = places(axes, x) if axes is not None else range(x.dim())
    singles = [axis for axis in chosen if axes is not None or x.shape[axis] == 1]
    return x.squeeze(singles) if singles else x


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
    if split is None:
        return torch.split(x, -(-x.shape[axis] // num_outputs), axis)
    return torch.split(x, places(split, x), axis)


def pad(
    x: Tensor, pads: Any, value: Any = None, axes: Any = None, *, mode: str = "constant"
) -> Tensor:
    sizes, chosen = places(pads, x), list(range(x.dim())) if axes is None else places(axes, x)
    whole = [0] * (2 * x.dim())
    for number, axis in enumerate(chosen):
        whole[axis % x.dim()] = sizes[number]
        whole[axis % x.dim() + x.dim()] = sizes[number + len(chosen)]
    inner = 2 if mode != "constant" and not any([*whole[:2], *whole[x.dim() : x.dim() + 2]]) else 0
    kept = [*whole[inner : x.dim()], *whole[x.dim() + inner :]]
    return padded(x, kept, {"edge": "replicate"}.get(mode, mode), float(value or 0.0))
