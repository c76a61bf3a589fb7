"""The table of precisions: what each one is, how others spell it, and what builders make of it.

A precision with a row in `formats.toml` is known everywhere: in plans, Q/DQ, ranges, logs, layer
lists, estimates, options and reports. NumPy is imported where numbers are rounded, so that `--help`
need not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Precision:
    """A number format in which layers compute or weights are stored.

    `width` counts the bits of a value, `onnx` names ONNX's type and `storage` that of NumPy or
    ml_dtypes. `spellings` are TensorRT's for its data type, lower case, of which the first stands in
    our layer lists; `tactics` is the pattern of kernel names that compute in it.

    Of narrow formats `top` is the largest value and `lowest` the lowest one where that is not -`top`:
    integers have one more below zero. A float format has `mantissa` bits, with steps that shrink
    down to its smallest `normal` number. `opset` is ONNX's first that quantizes to it. `blocks` are
    the block sizes of weights along the summed axis, the usual one first; a format with blocks is for
    weights only. `scales` names the format that scales of blocks are stored in, where that is none
    of floats. `by_channel` tells whether weights have a scale for each output channel.

    `capability` is the first compute capability that has it, `rate` the key of its rate in
    datasheets. `lacked_by` are the backends without kernels for its values, `operators` those of the
    domain trt that dequantize it, as ModelOpt exports them. Kernels that are `named_by_weights` read
    the weights themselves and multiply in float; of `expanded` weights another kernel writes float16
    first.
    """

    name: str
    width: int
    onnx: str
    storage: str
    spellings: tuple[str, ...] = ()
    tactics: str | None = None
    top: float = 0.0
    lowest: float | None = None
    mantissa: int | None = None
    normal: float = 1.0
    opset: int = 13
    blocks: tuple[int, ...] = ()
    scales: str | None = None
    by_channel: bool = False
    capability: tuple[int, int] = (0, 0)
    rate: str | None = None
    lacked_by: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    named_by_weights: bool = False
    expanded: bool = False

    @property
    def label(self) -> str:
        """The name in sentences."""
        return self.name.upper()

    @property
    def listed(self) -> str:
        """The name of its data type in layer lists."""
        return self.spellings[0] if self.spellings else self.name

    @property
    def is_narrow(self) -> bool:
        """Whether values are quantized to it."""
        return self.top > 0

    @property
    def is_float(self) -> bool:
        """Whether its steps grow with the values."""
        return self.mantissa is not None

    @property
    def weights_only(self) -> bool:
        """Whether activations stay in float."""
        return bool(self.blocks)

    @property
    def needs_ranges(self) -> bool:
        """Whether activations are quantized to it, by their ranges."""
        return self.is_narrow and not self.weights_only

    @property
    def bits(self) -> float:
        """Bits of a value with its share of the scales of blocks."""
        shared = PRECISIONS[self.scales or "fp16"].width / self.blocks[0] if self.blocks else 0.0
        return self.width + shared

    @property
    def moved_bits(self) -> float:
        """Bits of a weight that kernels move: expanded ones are written as float16 and read again."""
        return self.bits + (2 * PRECISIONS["fp16"].width if self.expanded else 0)

    @property
    def most(self) -> float:
        """The largest magnitude of its values."""
        return max(self.top, -(self.lowest or 0.0))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of arrays that hold its values."""
        import ml_dtypes
        import numpy as np

        return np.dtype(getattr(ml_dtypes, self.storage, self.storage))

    def rounded(self, exact: npt.ArrayLike) -> npt.NDArray[np.generic]:
        """Return values in steps of the scale as this format, same shape: half to even, saturated.

        >>> FORMATS["fp8"].rounded([1.05, 500.0]).tolist()
        [1, 448]
        """
        import numpy as np

        steps = self._clipped(exact)
        if not self.is_float:  # ml_dtypes cuts digits off, and is slow from float to int4
            return np.rint(steps).astype(np.int8).astype(self.dtype)
        return steps.astype(self.dtype)

    def floats(self, exact: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return what `rounded` gives, as float32; arithmetic alone, which is faster than casts.

        A number and 1.5 x 2^23 steps add up to a whole number of steps, half to even, in float32.
        """
        import numpy as np

        values = self._clipped(exact)
        if self.mantissa is None:
            return np.asarray(np.rint(values, out=values))
        exponents = values.view(np.uint32) & np.uint32(0x7F800000)
        large = np.maximum(exponents.view(np.float32), np.float32(self.normal))
        large *= np.float32(1.5 * 2.0 ** (23 - self.mantissa))
        values += large
        values -= large
        return np.asarray(values)

    def _clipped(self, exact: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return a copy, float32, without what lies beyond the ends."""
        import numpy as np

        lowest = -self.top if self.lowest is None else self.lowest
        steps = np.atleast_1d(np.asarray(exact, np.float32))
        return np.clip(steps, lowest, self.top).reshape(np.shape(exact))


def _rows() -> tuple[dict[str, Precision], dict[str, Precision]]:
    """Return the precisions by name, and those that TensorRT takes in place of types of ONNX."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    refused = tables.pop("refused")
    rows = {}
    for name, table in tables.items():
        table |= {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
        rows[name] = Precision(name, **table)
    return rows, {kind: rows[name] for name, kinds in refused.items() for kind in kinds}


PRECISIONS, REFUSED = _rows()
"""The precisions by name; ONNX's types that TensorRT refuses -> the precision that it takes instead."""
ROWS = tuple(PRECISIONS.values())
FORMATS = {row.name: row for row in ROWS if row.is_narrow}
NARROW = tuple(FORMATS)
WEIGHTS_ONLY = tuple(row.name for row in FORMATS.values() if row.weights_only)
RANGED = tuple(row.name for row in FORMATS.values() if row.needs_ranges)
FLOATS = ("fp16", "fp32")
"""The precisions that a plan may leave a layer in."""
PLANNED = (*NARROW, *FLOATS)
BY_LISTED = {row.listed: row for row in ROWS if row.spellings}
BY_OPERATOR = {operator: row.name for row in ROWS for operator in row.operators}
TYPES = {row.onnx: row for row in FORMATS.values() if row.opset > FORMATS["int8"].opset}
"""ONNX's narrow types that came after INT8 -> their precision."""


@cache
def by_dtype() -> dict[np.dtype[Any] | None, Precision]:
    """Return the narrow formats by the type of arrays that hold their values."""
    return {row.dtype: row for row in FORMATS.values()}


def spelled(names: Collection[str], last: str = "and") -> str:
    """Return those of some precisions that are narrow as words, in the order of `NARROW`.

    >>> spelled(["int4", "fp8", "fp16"]), spelled([])
    ('FP8 and INT4', 'a narrow format')
    """
    *others, final = [FORMATS[name].label for name in NARROW if name in names] or [
        "a narrow format"
    ]
    return f"{', '.join(others)} {last} {final}" if others else final
