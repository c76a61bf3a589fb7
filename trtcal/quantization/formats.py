"""The narrow number formats of a plan: their grid, what they need of ONNX, and rounding to them.

Sources: ONNX, "Float stored in 8 bits" and "Float stored in 4 bits"; NVIDIA, "Working with Quantized
Types", which gives the block sizes that TensorRT takes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from calibrators.fp8 import FP8_MOST
from trtcal.model.model import Floats


@dataclass(frozen=True)
class Format:
    """A narrow format: `top` is its largest value, `opset` the first of ONNX that has it.

    `lowest` is its lowest value where that is not -`top`: integers have one more below zero. A float
    format has `mantissa` bits, with steps that shrink down to its smallest `normal` number. `bits`
    counts a value with its share of block scales. `blocks` are the block sizes of weights along the
    summed axis, the usual one first; a format with blocks is for weights only.
    """

    name: str
    dtype: np.dtype[np.generic]
    top: float
    bits: float
    opset: int
    blocks: tuple[int, ...] = ()
    lowest: float | None = None
    mantissa: int | None = None
    normal: float = 1.0

    @property
    def most(self) -> float:
        """The largest magnitude of its values."""
        return max(self.top, -(self.lowest or 0.0))

    @property
    def weights_only(self) -> bool:
        """Whether activations stay in float."""
        return bool(self.blocks)

    def rounded(self, exact: npt.ArrayLike) -> npt.NDArray[np.generic]:
        """Return values in steps of the scale as this format, same shape: half to even, saturated.

        >>> FORMATS["fp8"].rounded([1.05, 500.0]).tolist()
        [1, 448]
        """
        steps = self._clipped(exact)
        if self.mantissa is None:  # ml_dtypes cuts digits off, and is slow from float to int4
            return np.rint(steps).astype(np.int8).astype(self.dtype)
        return steps.astype(self.dtype)

    def floats(self, exact: npt.ArrayLike) -> Floats:
        """Return what `rounded` gives, as float32; arithmetic alone, which is faster than casts.

        A number and 1.5 x 2^23 steps add up to a whole number of steps, half to even, in float32.
        """
        values = self._clipped(exact)
        if self.mantissa is None:
            return np.asarray(np.rint(values, out=values))
        exponents = values.view(np.uint32) & np.uint32(0x7F800000)
        large = np.maximum(exponents.view(np.float32), np.float32(self.normal))
        large *= np.float32(1.5 * 2.0 ** (23 - self.mantissa))
        values += large
        values -= large
        return np.asarray(values)

    def _clipped(self, exact: npt.ArrayLike) -> Floats:
        """Return a copy, float32, without what lies beyond the ends."""
        lowest = -self.top if self.lowest is None else self.lowest
        steps = np.atleast_1d(np.asarray(exact, np.float32))
        return np.clip(steps, lowest, self.top).reshape(np.shape(exact))


FORMATS = {
    one.name: one
    for one in (
        Format("int8", np.dtype(np.int8), 127.0, 8.0, 13, lowest=-128.0),
        Format(
            "fp8", np.dtype(ml_dtypes.float8_e4m3fn), FP8_MOST, 8.0, 19, mantissa=3, normal=2.0**-6
        ),
        Format("int4", np.dtype(ml_dtypes.int4), 7.0, 4.125, 21, (128, 64), lowest=-8.0),
        Format("nvfp4", np.dtype(ml_dtypes.float4_e2m1fn), 6.0, 4.5, 23, (16,), mantissa=1),
    )
}
NARROW = tuple(FORMATS)
WEIGHTS_ONLY = tuple(name for name, one in FORMATS.items() if one.weights_only)
BY_DTYPE: dict[np.dtype[Any] | None, Format] = {one.dtype: one for one in FORMATS.values()}


def spelled(names: Collection[str], last: str = "and") -> str:
    """Return those of some precisions that are narrow as words, in the order of `NARROW`.

    >>> spelled(["int4", "fp8", "fp16"]), spelled([])
    ('FP8 and INT4', 'a narrow format')
    """
    *others, final = [one.upper() for one in NARROW if one in names] or ["a narrow format"]
    return f"{', '.join(others)} {last} {final}" if others else final


def format_of(node: gs.Node) -> Format | None:
    """Return the format that a Q or DQ node quantizes to, None for other types and unknown ones."""
    tensors = (node.inputs[0], *node.inputs[2:3], *node.outputs)
    types = (*(tensor.dtype for tensor in tensors), node.attrs.get("output_dtype"))
    found = (BY_DTYPE.get(_numpy_type(one)) for one in types)
    return next(filter(None, found), None)


def _numpy_type(dtype: Any) -> np.dtype[Any] | None:
    """Return a type of numpy: onnx-graphsurgeon gives ONNX's number of those that numpy lacks."""
    if isinstance(dtype, int):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(dtype) if dtype else None
    return None if dtype is None else np.dtype(dtype)


def is_narrow(node: gs.Node) -> bool:
    """Tell whether a Q or DQ node is known to quantize to FP8 or to four bits."""
    found = format_of(node)
    return found is not None and found.name != "int8"
