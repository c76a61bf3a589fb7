"""Tensor by tensor: where quantization's error enters a network, and where it grows.

The INT8 model, its Q/DQ executed in float, and its reference run on the same samples with every
quantized tensor as an output. Sums are kept, never values: memory does not grow with samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.backends.taps import Inside
from trtcal.data import Dataset, fixed_batch, whole_batches
from trtcal.evaluate.metrics import rounded
from trtcal.evaluate.sites import Site, find_sites, weight_of
from trtcal.model import Model
from trtcal.model.passes import prepare
from trtcal.quantization.qdq import quantization_record

Array = npt.NDArray[Any]
ROOM = 1 << 27  # bytes of one model's tensors in a batch, unless one sample takes more
MOST_SAMPLES = 32  # of a batch
TINY = 1e-300
GROWS_DB = 1.0


@dataclass(frozen=True)
class LayerFigure:
    """One quantized tensor, in decibels of signal over error power against the reference's.

    `arrives_db` is the tensor as it comes to be quantized, with the error of all before it; `own_db`
    what quantizing the reference's own tensor costs; `leaves_db` after it was quantized. `growth_db` is
    by how much the error that arrives is larger, relative to the signal, than the largest that left a
    quantized tensor before it. None where there is no error or nothing before; a weight has `own_db`
    alone. `clipped` is the percentage of the reference's values that the range cuts off; `nodes` read
    the tensor, the first three.
    """

    tensor: str
    is_weight: bool
    nodes: tuple[str, ...]
    arrives_db: float | None
    own_db: float | None
    leaves_db: float | None
    growth_db: float | None
    clipped: float


@dataclass(frozen=True)
class Layerwise:
    """All quantized tensors in the graph's order; `unknown` more could not be found in both models."""

    samples: int
    figures: tuple[LayerFigure, ...]
    unknown: int = 0

    def enters(self, count: int = 3) -> tuple[LayerFigure, ...]:
        """Return where most error is added: the lowest SQNR of quantizing alone."""
        found = [one for one in self.figures if one.own_db is not None]
        return tuple(sorted(found, key=lambda one: one.own_db or 0.0)[:count])

    def grows(self, count: int = 3) -> tuple[LayerFigure, ...]:
        """Return before which tensors the error grows most, by 1 dB or more."""
        found = [one for one in self.figures if (one.growth_db or 0.0) >= GROWS_DB]
        return tuple(sorted(found, key=lambda one: -(one.growth_db or 0.0))[:count])

    @classmethod
    def from_document(cls, item: Mapping[str, Any]) -> Layerwise:
        """Return what JSON made of it."""
        figures = (LayerFigure(**{**one, "nodes": tuple(one["nodes"])}) for one in item["figures"])
        return cls(item["samples"], tuple(figures), item["unknown"])


@dataclass
class _Sums:
    """Powers of one tensor: of the signal, and of the error that arrives, is added, leaves."""

    powers: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    values: int = 0
    clipped: int = 0

    def add(self, site: Site, reference: Array, found: Array) -> None:
        expected, clipped = site.requantized(reference)
        left, _ = site.requantized(found)
        errors = (reference, found - reference, expected - reference, left - reference)
        self.powers += [_power(one) for one in errors]
        self.values += reference.size
        self.clipped += clipped


def compare_layers(
    reference: Model,
    quantized: Model,
    dataset: Dataset,
    progress: Callable[[int], None] = lambda done: None,
    samples: int | None = None,
) -> Layerwise:
    """Run both models on the first samples, all if None, and return every quantized tensor's figures.

    Where the batch is fixed it takes whole ones. Tensors are found in the reference by name, as it is
    or prepared for Q/DQ; those that a optimization scaled or shifted are not held against it.
    """
    seen = min(whole_batches(samples or len(dataset), reference), len(dataset))
    sites, unknown = find_sites(quantized.proto)
    moved = set(quantization_record(quantized.proto).get("moved", ()))
    wanted = {site.tensor for site in sites if not site.is_weight} - moved
    base = _closest(reference, wanted)
    floats = (reference, prepare(reference))
    sums = [
        _weight_sums(floats, quantized, site)
        if site.is_weight and site.reader not in moved
        else _Sums()
        for site in sites
    ]
    shared = wanted & _tensors(base.proto)
    pairs = [(site, one) for site, one in zip(sites, sums, strict=True) if site.tensor in shared]
    if pairs:
        _run((base, quantized), pairs, dataset, progress, seen)
    figures = [
        _figure(site, one, [sums[place] for place in site.upstream])
        for site, one in zip(sites, sums, strict=True)
        if one.values
    ]
    return Layerwise(seen, tuple(figures), unknown + len(sites) - len(figures))


def _run(
    both: tuple[Model, Model],
    pairs: Sequence[tuple[Site, _Sums]],
    dataset: Dataset,
    progress: Callable[[int], None],
    samples: int,
) -> None:
    """Run the reference and the quantized model on the samples, and add up their tensors' powers."""
    names = sorted({site.tensor for site, _ in pairs})
    readers = [Inside(one.proto, names) for one in both]
    for feeds in dataset.batches(_batch_size(both[0], readers[1], dataset), 0, samples):
        expected, found = (one.read(feeds) for one in readers)
        for site, sums in pairs:
            if expected[site.tensor].shape == found[site.tensor].shape:
                sums.add(site, expected[site.tensor], found[site.tensor])
        progress(len(next(iter(feeds.values()))))


def _closest(reference: Model, wanted: set[str]) -> Model:
    """Return the reference, or it prepared for Q/DQ if that has more of the tensors."""
    if wanted <= _tensors(reference.proto):
        return reference
    return max((reference, prepare(reference)), key=lambda one: len(wanted & _tensors(one.proto)))


def _tensors(proto: onnx.ModelProto) -> set[str]:
    made = {name for node in proto.graph.node for name in node.output}
    return made | {value.name for value in proto.graph.input}


def _batch_size(model: Model, reader: Inside, dataset: Dataset) -> int:
    fixed = fixed_batch(model)
    if fixed:
        return fixed
    one = reader.read(next(dataset.batches(1)))
    return max(1, min(MOST_SAMPLES, ROOM // max(sum(array.nbytes for array in one.values()), 1)))


def _weight_sums(floats: Sequence[Model], quantized: Model, site: Site) -> _Sums:
    """Return the powers of a weight and its error, empty if its float values are not found.

    They are those of the float model, as it is or prepared, that the integers are nearer to: a
    BatchNorm may have been folded into them.
    """
    found = [_sums_of_weight(one, quantized, site) for one in floats]
    known = [sums for sums in found if sums.values]
    return min(known, key=lambda sums: sums.powers[2] / max(sums.powers[0], TINY), default=found[0])


def _sums_of_weight(reference: Model, quantized: Model, site: Site) -> _Sums:
    sums = _Sums()
    values = weight_of((quantized if site.stored is None else reference).proto, site)
    if values is None or (site.stored is not None and values.shape != site.stored.shape):
        return sums
    kept, sums.clipped = site.requantized(values)
    kept = kept if site.stored is None else site.dequantized(site.stored)
    sums.powers += [_power(values), 0.0, _power(kept - values), 0.0]
    sums.values = values.size
    return sums


def _power(values: Array) -> float:
    flat = np.asarray(values).reshape(-1)
    return float(np.einsum("i,i->", flat, flat, dtype=np.float64))


def _figure(site: Site, sums: _Sums, upstream: Sequence[_Sums]) -> LayerFigure:
    signal, arrives, own, leaves = sums.powers.tolist()
    before = [one.powers[3] / one.powers[0] for one in upstream if one.powers[0] > 0]
    growth = None
    if signal > 0 and arrives > 0 and max(before, default=0.0) > 0:
        growth = rounded(10.0 * math.log10(arrives / signal / max(before)))
    return LayerFigure(
        site.tensor,
        site.is_weight,
        site.nodes,
        _decibels(signal, arrives),
        _decibels(signal, own),
        _decibels(signal, leaves),
        growth,
        rounded(100.0 * sums.clipped / sums.values),
    )


def _decibels(signal: float, error: float) -> float | None:
    if not (0 < signal < math.inf and 0 < error < math.inf):
        return None
    return rounded(10.0 * math.log10(signal / error))
