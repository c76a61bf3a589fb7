"""The narrow number formats of a plan: their grid, what they need of ONNX, and rounding to them.

Sources: ONNX, "Float stored in 8 bits" and "Float stored in 4 bits"; NVIDIA, "Working with Quantized
Types", which gives the block sizes that TensorRT takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trtcal.model.model import Floats


@dataclass(frozen=True)
class Format:
    """A narrow format: `top` is its largest value, `opset` the first of ONNX that has it.

    `lowest` is its lowest value where that is not -`top`: INT4 has one more below zero, which TensorRT
    takes. A float format has `mantissa` bits, with steps that shrink down to its smallest `normal`
    number. `bits` counts a value with its share of block scales. `blocks` are the block sizes of
    weights along the summed axis, the usual one first; a format with blocks is for weights only.
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
        Format("int8", np.dtype(np.int8), 127.0, 8.0, 13),
        Format(
            "fp8", np.dtype(ml_dtypes.float8_e4m3fn), 448.0, 8.0, 19, mantissa=3, normal=2.0**-6
        ),
        Format("int4", np.dtype(ml_dtypes.int4), 7.0, 4.125, 21, (128, 64), lowest=-8.0),
        Format("nvfp4", np.dtype(ml_dtypes.float4_e2m1fn), 6.0, 4.5, 23, (16,), mantissa=1),
    )
}
NARROW = tuple(FORMATS)
WEIGHTS_ONLY = tuple(name for name, one in FORMATS.items() if one.weights_only)
