"""Tensor by tensor: where quantization's error enters a network, and where it grows.

The quantized model, its Q/DQ executed in float, and its reference run on the same samples with every
quantized tensor as an output. Sums are kept, never values: memory does not grow with samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from trtcal.backends.sessions import Array
from trtcal.backends.taps import Inside
from trtcal.backends.trial import crashes_as_warnings
from trtcal.data import Dataset, whole_batches
from trtcal.evaluate.accuracy import rounded, sqnr_db
from trtcal.evaluate.replay import Outputs, OwnStates, Run
from trtcal.formats import Precision, by_dtype
from trtcal.model import Model
from trtcal.model.files import array_of, attribute_of
from trtcal.model.model import along
from trtcal.model.passes import prepare
from trtcal.model.tensors import constants_of, producers_of, readers_of
from trtcal.quantization.qdq import quantization_record
from trtcal.stats import Values

INTEGERS = {np.dtype(name) for name in ("int8", "uint8", "int16", "uint16")}
NODES_NAMED = 3
STEPS_ROUNDED = 1.5  # by which rounding, to nearest or not, changes no weight
RESCALED = 0.05  # share of weights that changed by more


@dataclass(frozen=True)
class Site:
    """A tensor that is quantized, with its parameters as they broadcast to it.

    `upstream` are the places, among all sites, of those whose error arrives here without being
    quantized in between; `nodes` read the result. Of a weight, `stored` are its quantized values,
    None where it is stored in float; `reader` and `index` say which input of which output it is.
    """

    tensor: str
    scale: Array
    zero: Array
    axis: int
    is_weight: bool = False
    nodes: tuple[str, ...] = ()
    upstream: frozenset[int] = frozenset()
    stored: Array | None = None
    reader: str = ""
    index: int = 0

    def requantized(self, values: Array) -> tuple[Array, int]:
        """Return values after Q and DQ, and how many of them were clipped."""
        steps = values / self._along(self.scale, values.ndim)
        if (narrow := self._format) is not None:
            clipped = np.count_nonzero(np.abs(steps) > narrow.most)
            return self.dequantized(narrow.floats(steps)), int(clipped)
        steps = np.rint(steps)
        zero = self._along(self.zero, values.ndim).astype(steps.dtype)
        limits = np.iinfo(self.zero.dtype)
        kept = np.clip(steps, limits.min - zero, limits.max - zero)
        return self.dequantized(kept + zero), int(np.count_nonzero(kept != steps))

    def dequantized(self, stored: Array) -> Array:
        """Return what quantized values stand for."""
        zero, scale = (self._along(values, stored.ndim) for values in (self.zero, self.scale))
        if self._format is not None:
            return np.asarray(stored.astype(np.float32) * scale)
        return np.asarray((stored - zero.astype(scale.dtype)) * scale)

    @property
    def source(self) -> str:
        """The tensor of the float model whose values these are, in float16 or not."""
        return self.tensor.removesuffix("/fp16")

    def is_rescaled(self, values: Array) -> bool:
        """Tell whether a weight is not the rounded one of these values: an optimization scaled it."""
        if self.stored is None or self._format is not None:
            return False
        steps = np.abs(self.dequantized(self.stored) - values) / self._along(
            self.scale, values.ndim
        )
        is_inside = np.abs(self.stored.astype(np.int32)) < self.top
        return bool(np.mean(is_inside & (steps > STEPS_ROUNDED)) > RESCALED)

    @property
    def top(self) -> float:
        """The largest magnitude that a scale of one stands for."""
        return 127.0 if self._format is None else self._format.top

    @property
    def _format(self) -> Precision | None:
        """The format of FP8 and four bits, which have no zero point; None for integers of 8 and 16."""
        return by_dtype().get(self.zero.dtype) if self.zero.dtype not in INTEGERS else None

    def _along(self, parameter: Array, rank: int) -> Array:
        if parameter.size == 1:
            return parameter.reshape(())
        return parameter if parameter.ndim == rank > 1 else along(parameter, rank, self.axis)


class SiteFinder:
    """The `sites` of a model in the graph's order, and how many Q or DQ are `unknown`."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.constants = constants_of(proto.graph)
        self.readers = readers_of(proto.graph)
        self.sites: list[Site] = []
        self.known: dict[tuple[str, bytes, bytes], int] = {}
        self.upstream: dict[str, frozenset[int]] = {}
        self.unknown = 0
        self.scales: dict[str, Array] = {}  # those that are quantized themselves, by tensor
        for node in proto.graph.node:  # sorted, as ONNX wants it
            self._visit(node)
        self.ends = [self.upstream.get(output.name, frozenset()) for output in proto.graph.output]

    def _visit(self, node: onnx.NodeProto) -> None:
        """Note what a node quantizes, and whose errors its outputs carry."""
        above = frozenset[int]().union(*(self.upstream.get(name, ()) for name in node.input))
        place = None
        if node.op_type == "QuantizeLinear":
            place = self._place(node, above)
        elif node.op_type == "DequantizeLinear" and node.input[0] in self.constants:
            place = self._stored(node)
        above = above if place is None else frozenset([place])
        self.upstream.update(dict.fromkeys(node.output, above))

    def _place(self, node: onnx.NodeProto, above: frozenset[int]) -> int | None:
        parameters = self._parameters(node, np.dtype(np.uint8))
        if parameters is None:
            self.unknown += 1
            return None
        scale, zero = parameters
        key = (node.input[0], scale.tobytes(), zero.tobytes())
        if key not in self.known:
            is_weight = node.input[0] in self.constants
            reads = self._through(node.output[0])
            names = tuple(reader.name for reader in reads[:NODES_NAMED])
            self.known[key] = len(self.sites)
            site = Site(node.input[0], scale, zero, _axis(node), is_weight, names, above)
            self.sites.append(site)
        return self.known[key]

    def _stored(self, node: onnx.NodeProto) -> int | None:
        stored = array_of(self.constants[node.input[0]])
        if stored.dtype == np.int32:
            return None  # a bias
        parameters = self._parameters(node, stored.dtype, stored.shape)
        readers = self.readers.get(node.output[0], [])
        if parameters is not None and any(reader.op_type == node.op_type for reader in readers):
            site = Site(node.input[0], *parameters, _axis(node))
            self.scales[node.output[0]] = site.dequantized(stored)
            return None
        if parameters is None or not readers:
            self.unknown += 1
            return None
        index = list(readers[0].input).index(node.output[0])
        names = tuple(reader.name for reader in readers[:NODES_NAMED])
        site = Site(node.input[0], *parameters, _axis(node), is_weight=True, nodes=names)
        self.sites.append(replace(site, stored=stored, reader=readers[0].output[0], index=index))
        return len(self.sites) - 1

    def _parameters(
        self, node: onnx.NodeProto, default: np.dtype[Any], shape: tuple[int, ...] = ()
    ) -> tuple[Array, Array] | None:
        """Return scale and zero point of a Q or DQ, None if unknown; one a weight's value for blocks.

        `shape` is the weight's.
        """
        scale = self.scales.get(node.input[1], _value(self.constants, node.input[1]))
        has_zero = len(node.input) > 2 and node.input[2]
        zero = _value(self.constants, node.input[2]) if has_zero else np.zeros((), default)
        if scale is None or zero is None or scale.dtype.kind != "f":
            return None
        if zero.dtype not in INTEGERS and zero.dtype not in by_dtype():
            return None
        block = attribute_of(node, "block_size", 0)
        if not block:
            return (scale, zero) if scale.ndim <= 1 else None
        scale = np.repeat(scale, block, _axis(node))
        return (scale, zero) if scale.shape == shape and zero.dtype not in INTEGERS else None

    def _through(self, quantized: str) -> list[onnx.NodeProto]:
        """Return the nodes that read a quantized tensor, behind its DequantizeLinear."""
        readers = []
        for node in self.readers.get(quantized, []):
            is_pair = node.op_type == "DequantizeLinear"
            readers += self.readers.get(node.output[0], []) if is_pair else [node]
        return readers


def _axis(node: onnx.NodeProto) -> int:
    return int(attribute_of(node, "axis", 1))


def _value(constants: Mapping[str, onnx.TensorProto], name: str) -> Array | None:
    return array_of(constants[name]) if name in constants else None


def weight_of(proto: onnx.ModelProto, site: Site) -> Array | None:
    """Return a weight's float values: its own, or the reference's for the same reader.

    The output of a reader in float16 has another name than in the reference; the reader has not.
    """
    constants = constants_of(proto.graph)
    if site.stored is None:
        return _value(constants, site.tensor)
    for node in proto.graph.node:
        is_reader = site.reader in node.output or node.name in (*filter(None, site.nodes[:1]),)
        if is_reader and site.index < len(node.input):
            return _value(constants, node.input[site.index])
    return None


ROOM = 1 << 27  # bytes of one model's tensors in a batch, unless one sample takes more
MOST_SAMPLES = 32  # of a batch
PIECE = 1 << 16  # values that are quantized and held against each other at a time
TINY = 1e-300


@dataclass(frozen=True)
class LayerFigure:
    """One quantized tensor, in decibels of signal over error power against the reference's.

    `arrives_db` is the tensor as it comes to be quantized, with the error of all before it; `own_db`
    what quantizing the reference's own tensor costs; `leaves_db` after it was quantized. `growth_db` is
    by how much the error that arrives is larger, relative to the signal, than the largest that left a
    quantized tensor before it. None where there is no error or nothing before; a weight has `own_db`
    alone. `clipped` is the percentage of the reference's values that the range cuts off; `nodes` read
    the tensor, the first three. `dead_channels` of its `channels` have one value in all samples.
    `share` is the part of its rounding in the error at the outputs, estimated from the powers.
    """

    tensor: str
    is_weight: bool
    nodes: tuple[str, ...]
    arrives_db: float | None
    own_db: float | None
    leaves_db: float | None
    growth_db: float | None
    clipped: float
    dead_channels: int = 0
    channels: int = 0
    share: float | None = None


@dataclass(frozen=True)
class Layerwise:
    """All quantized tensors in the graph's order; `unknown` more could not be found in both models."""

    samples: int
    figures: tuple[LayerFigure, ...]
    unknown: int = 0

    def enters(self, count: int = 3) -> tuple[LayerFigure, ...]:
        """Return where most error is added: the lowest SQNR of quantizing alone."""
        entering = [figure for figure in self.figures if figure.own_db is not None]
        return tuple(sorted(entering, key=lambda figure: figure.own_db or 0.0)[:count])

    def grows(self, count: int = 3) -> tuple[LayerFigure, ...]:
        """Return before which tensors the error grows most, by 1 dB or more."""
        growing = [figure for figure in self.figures if (figure.growth_db or 0.0) >= 1.0]
        return tuple(sorted(growing, key=lambda figure: -(figure.growth_db or 0.0))[:count])


@dataclass
class _Sums:
    """Powers of one tensor: of the signal, and of the error that arrives, is added, leaves."""

    powers: Values = field(default_factory=lambda: np.zeros(4))
    values: int = 0
    clipped: int = 0
    ends: tuple[Array, Array] | None = None  # the least and the largest value of each channel

    def add(self, site: Site, reference: Array, quantized: Array) -> None:
        for expected, actual in _pieces(site, reference, quantized):
            own, clipped = site.requantized(expected)
            left, _ = site.requantized(actual)
            errors = (expected, actual - expected, own - expected, left - expected)
            self.powers += [_power(error) for error in errors]
            self.clipped += clipped
        self.values += reference.size
        if reference.ndim > 1 and reference.size:
            axes = (0, *range(2, reference.ndim))
            low, high = reference.min(axes), reference.max(axes)
            before = self.ends if self.ends and self.ends[0].shape == low.shape else (low, high)
            self.ends = np.minimum(before[0], low), np.maximum(before[1], high)

    def noise(self, is_weight: bool) -> float:
        """Return error over signal power as it goes on."""
        return float(self.powers[2 if is_weight else 3] / max(self.powers[0], TINY))

    @property
    def dead(self) -> tuple[int, int]:
        """How many channels have one value everywhere, and of how many."""
        low, high = self.ends or (np.zeros(0), np.zeros(0))
        return int((low == high).sum()), len(low)


def _pieces(site: Site, *tensors: Array) -> Iterator[Sequence[Array]]:
    """Yield tensors part by part where one scale is that of all, so that copies stay in the cache."""
    if site.scale.size > 1 or site.zero.size > 1:
        yield tensors
        return
    flat = [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].size, PIECE):
        yield [values[start : start + PIECE] for values in flat]


class _Watched:
    """A quantized model with the sums of its sites; `base` is the float model that has its tensors."""

    def __init__(self, floats: Sequence[Model], quantized: Model) -> None:
        self.quantized, self.has_crashed = quantized, False
        finder = SiteFinder(quantized.proto)
        self.sites, self.unknown, self.ends = finder.sites, finder.unknown, finder.ends
        moved = set(quantization_record(quantized.proto).get("moved", ()))
        tensors = {site.source for site in self.sites if not site.is_weight} - moved
        self.base = max(floats, key=lambda model: len(tensors & _tensors(model.proto)))
        self.sums = [
            _weight_sums(floats, quantized, site)
            if site.is_weight and site.reader not in moved
            else _Sums()
            for site in self.sites
        ]
        tensors &= _tensors(self.base.proto)
        self.tensors = {each.tensor: each.source for each in self.sites if each.source in tensors}

    def add(self, expected: Outputs, actual: Outputs) -> None:
        """Take in a batch of tensors."""
        for site, sums in zip(self.sites, self.sums, strict=True):
            pair = expected.get(site.source), actual.get(site.tensor)
            if pair[0] is not None and pair[1] is not None and pair[0].shape == pair[1].shape:
                sums.add(site, pair[0], pair[1])

    def result(self, samples: int) -> Layerwise | None:
        """Return the figures, None if the model crashes."""
        shares = self._shares()
        figures = tuple(
            replace(_figure(site, sums, [self.sums[n] for n in site.upstream]), share=share)
            for site, sums, share in zip(self.sites, self.sums, shares, strict=True)
            if sums.values
        )
        unknown = self.unknown + len(self.sites) - len(figures)
        return None if self.has_crashed else Layerwise(samples, figures, unknown)

    def _shares(self) -> Sequence[float | None]:
        """Return the part of each site in the error at the outputs, by powers: an estimate.

        What arrives at a tensor is taken to come from all before it by their error over signal. None
        where the error of a site is not known.
        """
        if not all(sums.values for sums in self.sums):
            return [None] * len(self.sums)
        noise = [
            sums.noise(site.is_weight) for site, sums in zip(self.sites, self.sums, strict=True)
        ]
        passed, own = np.zeros((2, len(noise)))

        def pass_on(part: float, above: frozenset[int]) -> None:
            total = sum(noise[place] for place in above)
            for place in above if total else ():
                passed[place] += part * noise[place] / total

        for above in self.ends:
            pass_on(1 / len(self.ends), above)
        for place, site in reversed([*enumerate(self.sites)]):
            _, arrives, added, _ = self.sums[place].powers.tolist()
            own[place] = passed[place] * (added / (arrives + added) if arrives else 1.0)
            pass_on(passed[place] - own[place], site.upstream)
        return [rounded(share) for share in own.tolist()]


def compare_layers(
    reference: Model,
    variants: Sequence[Model],
    dataset: Dataset,
    progress: Callable[[int], None] = lambda done: None,
    samples: int | None = None,
) -> list[Layerwise | None]:
    """Run all models on the first samples, all if None; return the figures of every quantized tensor.

    The reference runs once for all variants; None is a variant that crashes. Where the batch is fixed
    it takes whole ones. Tensors are found in the reference by name, as it is or prepared for Q/DQ;
    those that an optimization scaled or shifted are not held against it.
    """
    seen = min(whole_batches(samples or len(dataset), reference), len(dataset))
    floats = (reference, prepare(reference))
    watched = [_Watched(floats, quantized) for quantized in variants]
    for base in floats:
        group = [each for each in watched if each.base is base and each.tensors]
        _run(base, group, dataset, progress, seen)
    return [each.result(seen) for each in watched]


def _run(
    base: Model,
    watched: Sequence[_Watched],
    dataset: Dataset,
    progress: Callable[[int], None],
    samples: int,
) -> None:
    """Run a float model and quantized ones on the samples; tensors of two at a time are in memory."""
    runs = list[tuple[_Watched, Run]]()
    for each in watched:
        each.has_crashed = True
        with crashes_as_warnings():
            runs.append((each, OwnStates(Inside(each.quantized.proto, sorted(each.tensors)).read)))
            each.has_crashed = False
    if not runs:
        return
    reference = Inside(
        base.proto, sorted({name for each, _ in runs for name in each.tensors.values()})
    )
    tensors = reference.read(next(dataset.batches(1)))
    sample_bytes = max(sum(array.nbytes for array in tensors.values()), 1)
    batch = max(1, min(MOST_SAMPLES, ROOM // sample_bytes))
    for feeds in dataset.batches(batch, 0, samples):
        expected = reference.read(feeds)
        for each, run in runs:
            each.add(expected, run(feeds))
            progress(max(map(len, feeds.values()), default=1))
        del expected  # before the next are made


def _tensors(proto: onnx.ModelProto) -> set[str]:
    return {*producers_of(proto.graph), *(value.name for value in proto.graph.input)}


def _weight_sums(floats: Sequence[Model], quantized: Model, site: Site) -> _Sums:
    """Return the powers of a weight and its error, empty if its float values are not found.

    They are those of the float model, as it is or prepared, that the integers are nearer to: a
    BatchNorm may have been folded into them.
    """
    candidates = [_sums_of_weight(model, quantized, site) for model in floats]
    known = filter(lambda sums: sums.values, candidates)
    return min(known, key=lambda sums: sums.powers[2] / max(sums.powers[0], TINY), default=_Sums())


def _sums_of_weight(reference: Model, quantized: Model, site: Site) -> _Sums:
    sums = _Sums()
    values = weight_of((quantized if site.stored is None else reference).proto, site)
    if values is None or (site.stored is not None and values.shape != site.stored.shape):
        return sums
    kept, sums.clipped = site.requantized(values)
    kept = kept if site.stored is None else site.dequantized(site.stored)
    if site.is_rescaled(values):
        return sums
    sums.powers += [_power(values), 0.0, _power(kept - values), 0.0]
    sums.values = values.size
    return sums


def _power(values: Array) -> float:
    flat = np.asarray(values).reshape(-1)
    return float(np.einsum("i,i->", flat, flat, dtype=np.float64))


def _figure(site: Site, sums: _Sums, upstream: Sequence[_Sums]) -> LayerFigure:
    signal, arrives, own, leaves = sums.powers.tolist()
    before = [source.powers[3] / source.powers[0] for source in upstream if source.powers[0] > 0]
    growth = None
    if signal > 0 and arrives > 0 and max(before, default=0.0) > 0:
        growth = rounded(10.0 * math.log10(arrives / signal / max(before)))
    return LayerFigure(
        site.source,
        site.is_weight,
        site.nodes,
        sqnr_db(signal, arrives),
        sqnr_db(signal, own),
        sqnr_db(signal, leaves),
        growth,
        rounded(100.0 * sums.clipped / sums.values),
        *(sums.dead if upstream else (0, 0)),  # inputs may well have constant ones
    )
