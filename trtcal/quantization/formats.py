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

    `bits` counts a value with its share of block scales. `blocks` are the block sizes of weights along
    the summed axis, the usual one first; a format with blocks is for weights only.
    """

    name: str
    dtype: np.dtype[np.generic]
    top: float
    bits: float
    opset: int
    blocks: tuple[int, ...] = ()

    @property
    def weights_only(self) -> bool:
        """Whether activations stay in float."""
        return bool(self.blocks)

    def rounded(self, exact: npt.ArrayLike) -> npt.NDArray[np.generic]:
        """Return values in steps of the scale as this format, same shape: half to even, saturated.

        >>> FORMATS["fp8"].rounded([1.05, 500.0]).tolist()
        [1, 448]
        """
        steps = np.clip(np.asarray(exact, np.float32), -self.top, self.top)
        steps = steps if self.dtype == ml_dtypes.float8_e4m3fn else _whole(self, steps)
        return steps.astype(self.dtype)

    def floats(self, exact: npt.ArrayLike) -> Floats:
        """Return what `rounded` gives, as float32."""
        return self.rounded(exact).astype(np.float32)


def _whole(kind: Format, steps: Floats) -> Floats:
    return steps if kind.dtype == ml_dtypes.float4_e2m1fn else np.rint(steps)


FORMATS = {
    one.name: one
    for one in (
        Format("int8", np.dtype(np.int8), 127.0, 8.0, 13),
        Format("fp8", np.dtype(ml_dtypes.float8_e4m3fn), 448.0, 8.0, 19),
        Format("int4", np.dtype(ml_dtypes.int4), 7.0, 4.125, 21, (128, 64)),
        Format("nvfp4", np.dtype(ml_dtypes.float4_e2m1fn), 6.0, 4.5, 23, (16,)),
    )
}
NARROW = tuple(FORMATS)
WEIGHTS_ONLY = tuple(name for name, one in FORMATS.items() if one.weights_only)
