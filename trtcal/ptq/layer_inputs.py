"""A layer as a product of matrices: rows of its input, one an output position, times its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.data import Feeds
from trtcal.model.graph import constant
from trtcal.model.model import Floats
from trtcal.model.ops import AS_MATRIX
from trtcal.quantization.weighted_ops import Layer

NO_ENERGY = 1e-30
MASK = "attention_mask"  # an input of ones where tokens count; others may mean the contrary

Mask = npt.NDArray[np.bool_] | None
TokenWeights = list[npt.NDArray[np.float64]] | None
"""By batch how much each position counts, (positions,); None where all count alike."""


@dataclass(frozen=True)
class MatrixForm:
    """A layer's weight as (groups, outputs of one, d), and how the rows of its input are taken.

    `axis` is the weight's axis of output channels.
    """

    op: str
    shape: tuple[int, ...]
    axis: int
    groups: int = 1
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """The length d of a row."""
        return math.prod(self.shape) // self.shape[self.axis]

    def matrix(self, weight: Floats) -> Floats:
        """Return a weight as (groups, outputs of one, d)."""
        moved = np.moveaxis(weight, self.axis, 0)
        return np.ascontiguousarray(moved).reshape(self.groups, -1, self.width)

    def weight(self, matrix: Any) -> Any:
        """Return the weight of a matrix."""
        moved = [self.shape[self.axis], *np.delete(self.shape, self.axis)]
        return np.ascontiguousarray(np.moveaxis(matrix.reshape(moved), 0, self.axis))

    def times_channels(self, matrix: Floats, values: Floats) -> Floats:
        """Return a matrix times rows that are constant in each channel, (groups, channels of one)."""
        taps = matrix.reshape(*matrix.shape[:2], values.shape[1], -1).sum(axis=3)
        return np.asarray(taps @ values[:, :, None]).reshape(-1)

    def row_count(self, values: Floats) -> int:
        """Return how many rows an input has."""
        if self.op != "Conv":
            return math.prod(values.shape[:-1])
        return len(values) * math.prod(self._output_sizes(values.shape))

    def rows(self, values: Floats, chosen: Sequence[int] | np.ndarray[Any, Any]) -> Floats:
        """Return these rows of an input, as (groups, rows, d)."""
        if self.op != "Conv":
            return np.asarray(values.reshape(-1, values.shape[-1])[chosen][None])
        sample, *place = np.unravel_index(chosen, (len(values), *self._output_sizes(values.shape)))
        taps = (np.arange(k) * d for k, d in zip(self.shape[2:], self.dilations, strict=True))
        grids = np.meshgrid(*taps, indexing="ij")
        index = [
            p[:, None] * s + grid.reshape(1, -1)
            for p, s, grid in zip(place, self.strides, grids, strict=True)
        ]
        # numpy puts the indexed axes first: (rows, taps, channels)
        where: Any = (sample[:, None], slice(None), *index)
        taken = np.pad(values, [(0, 0), (0, 0), *self._padding()])[where]
        taken = taken.reshape(len(chosen), -1, self.groups, self.shape[1])
        rows = np.ascontiguousarray(taken.transpose(2, 0, 3, 1))
        return rows.reshape(self.groups, len(chosen), -1)

    def _padding(self) -> list[tuple[int, int]]:
        half = len(self.shape) - 2
        return list(zip(self.pads[:half], self.pads[half:], strict=True))

    def _output_sizes(self, shape: Sequence[int]) -> list[int]:
        reach = [(k - 1) * d + 1 for k, d in zip(self.shape[2:], self.dilations, strict=True)]
        whole = [n + a + b for n, (a, b) in zip(shape[2:], self._padding(), strict=True)]
        return [(n - r) // s + 1 for n, r, s in zip(whole, reach, self.strides, strict=True)]


def matrix_form(node: gs.Node, layer: Layer) -> MatrixForm | None:
    """Return a layer's form, None if it is not a Conv, a Gemm or a MatMul of one weight."""
    if layer.weight is None or layer.weight.axis is None or layer.weight.index != 1:
        return None
    weight = constant(node.inputs[1])
    if weight is None or weight.dtype != np.float32 or node.op not in AS_MATRIX:
        return None
    if node.op == "Gemm" and (node.attrs.get("transA", 0) or node.attrs.get("alpha", 1.0) != 1.0):
        return None
    if node.op != "Conv":
        return MatrixForm(node.op, weight.shape, layer.weight.axis)
    if node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    dims = weight.ndim - 2
    usual = {"strides": [1] * dims, "dilations": [1] * dims, "pads": [0] * 2 * dims}
    places = (tuple(node.attrs.get(name, default)) for name, default in usual.items())
    return MatrixForm("Conv", weight.shape, 0, node.attrs.get("group", 1), *places)


def mask_of(feeds: Feeds) -> Mask:
    """Return the mask among a batch's inputs, None if there is none or it masks everything."""
    values = feeds.get(MASK)
    if values is None or not np.isin(values, (0, 1)).all() or not values.any():
        return None
    return np.asarray(values != 0)


def token_weights(
    energies: Sequence[npt.NDArray[np.floating]], masks: Sequence[Mask]
) -> TokenWeights:
    """Return how much positions count whose outputs have these mean squares over channels.

    Both by batch, `energies` (samples, tokens) or more; a mask of another shape is ignored. A position
    counts in inverse proportion to its energy, but those below the median count about alike.
    """
    usual = max(float(np.median(np.concatenate([e.ravel() for e in energies]))), NO_ENERGY)
    by_batch = []
    for energy, mask in zip(energies, masks, strict=True):
        weights = usual / (energy.astype(np.float64) + usual)
        if mask is not None and mask.shape == energy.shape:
            weights *= mask
        by_batch.append(weights.ravel())
    return by_batch
