"""What a layer has in INT8 other than in float: integer weights found for it, and another bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Int8 = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Grid:
    """A weight on the grid of its scales: `values` of the weight's shape, `scale` () or (channels,)."""

    values: Int8
    scale: Floats

    def floats(self, axis: int | None) -> Floats:
        """Return the weight that the integers stand for."""
        shape = [1] * self.values.ndim
        if axis is not None:
            shape[axis] = -1
        return np.asarray(self.values * self.scale.reshape(shape), np.float32)


def _none() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Int8Overrides:
    """By layer: the integer weights and the biases, (channels,), that it takes if it is in INT8.

    `moved` are tensors that have other values than in the model as it was given, and the outputs of
    layers that have other weights, in float too: they can't be compared with those of that model.
    """

    weights: Mapping[str, Grid] = field(default_factory=_none)
    biases: Mapping[str, Floats] = field(default_factory=_none)
    moved: frozenset[str] = frozenset()

    def with_layer(self, name: str, weight: Grid | None, bias: Floats | None) -> Int8Overrides:
        """Return the overrides with one layer's values in place of those before."""
        weights = self.weights if weight is None else {**self.weights, name: weight}
        biases = self.biases if bias is None else {**self.biases, name: bias}
        return replace(self, weights=weights, biases=biases)
