"""Channel splitting: channels that never fire become copies of those whose rounding hurts most.

Networks trained with Relus have channels that are zero on all data. Such a slot takes a second copy of
another channel with a different rounding error, and the layers behind take the mean of both: their
input has less noise, at no cost, as no shape changes. A copy is shifted by half a step where its Relu
cuts nothing off, which halves the step (6 dB less noise); else it is scaled a little (up to 3 dB).
Source: R. Zhao et al., "Improving Neural Network Quantization without Retraining using Outlier Channel
Splitting" (2019), section 3, into slots that are free already and against rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.data import Dataset
from trtcal.evaluate.per_sample import Values
from trtcal.model import Model
from trtcal.model.graph import constant, import_graph
from trtcal.ptq.changes import Changes
from trtcal.ptq.channels import weight_axes
from trtcal.ptq.compensation import BoundedLayer, Extremes, bounded_layers, find_extremes, own_bias
from trtcal.ptq.layer_inputs import matrix_form
from trtcal.quantization import find_layers
from trtcal.quantization.weighted_ops import Layer
from trtcal.ranges import Calibration

SHRUNK = 0.93  # times its channel is a copy that can't be shifted
MARGIN = 0.1  # of its range, by which a channel stays below zero that counts as never firing
NEAR = 0.95  # of a limit: a channel that comes so near may be clipped by it

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Chain:
    """A dense layer, maybe a depthwise one behind it, and the dense layers that read the channels.

    `steps` are what one INT8 step of each of the `makers`' tensors is.
    """

    makers: tuple[BoundedLayer, ...]
    readers: tuple[gs.Node, ...]
    padded: bool
    steps: tuple[float, ...]

    @property
    def tensors(self) -> list[str]:
        return [name for maker in self.makers for name in (maker.sum.name, maker.made.name)]

    @property
    def moved(self) -> set[str]:
        """The tensors in which channels change, and the outputs of layers whose weights do."""
        return {*self.tensors, *(node.outputs[0].name for node in self.readers)}


@dataclass(frozen=True)
class _Copy:
    """`slot` becomes copy `number` (from 1 on) of `channel`, which is there `count` times then."""

    slot: int
    channel: int
    number: int
    count: int


def split_channels(
    model: Model, calibration: Calibration, dataset: Dataset, samples: int
) -> Changes | None:
    """Return what splitting changes in a prepared model, None if no channel is free for it."""
    chains = list(_chains(model, calibration))
    if not chains:
        return None
    axes = {name: 1 for chain in chains for name in chain.tensors}
    extremes = find_extremes(model, dataset, samples, axes)
    changed: dict[str, Values] = {}
    moved = set[str]()
    for chain in chains:
        work = _Splitting(chain, extremes, dict(changed))
        if copies := list(work.copies()):
            work.write(copies)
            changed.update(work.changed)
            moved |= chain.moved
    if not moved:
        return None
    constants = {name: np.asarray(array, np.float32) for name, array in changed.items()}
    return Changes(constants, moved=frozenset(moved))


def _chains(model: Model, calibration: Calibration) -> Iterator[_Chain]:
    graph = import_graph(model.proto)
    placement = find_layers(model, graph=graph)
    layers = {layer.name: layer for layer in placement.layers if layer.op in ("Conv", "Gemm")}
    relus = (place for place in bounded_layers(graph, layers) if place.bounds[0] == 0.0)
    by_layer = {place.layer.name: place for place in relus}
    for first in by_layer.values():
        makers, readers = [first], list(first.made.outputs)
        second = by_layer.get(readers[0].name) if len(readers) == 1 else None
        if second is not None and _is_depthwise(second.layer):
            makers, readers = [first, second], list(second.made.outputs)
        if not all(_is_dense(node, layers) for node in (first.layer, *readers)):
            continue
        ranges = [placement.range_of(maker.made.name) for maker in makers]
        is_read_outside = any(maker.made is output for maker in makers for output in graph.outputs)
        if readers and not is_read_outside and set(ranges) <= set(calibration.ranges):
            steps = tuple(calibration.ranges[name].amax / 127 for name in ranges)
            forms = [matrix_form(node, layers[node.name]) for node in readers]
            padded = any(form is None or any(form.pads) for form in forms)
            yield _Chain(tuple(makers), tuple(readers), padded, steps)


def _is_depthwise(node: gs.Node) -> bool:
    weight, groups = constant(node.inputs[1]), node.attrs.get("group", 1)
    if weight is None or len(node.inputs[1].outputs) > 1:
        return False
    return node.op == "Conv" and weight.shape[:2] == (groups, 1)


def _is_dense(node: gs.Node, layers: Mapping[str, Layer]) -> bool:
    """Tell whether a node is a dense layer whose weight and bias nothing else reads."""
    if node.name not in layers or node.attrs.get("group", 1) != 1 or weight_axes(node) is None:
        return False
    return len(node.inputs[1].outputs) == 1 and own_bias(node) is not None


class _Splitting:
    """Chooses the copies of a chain's channels, and writes them into the constants that changed."""

    def __init__(
        self, chain: _Chain, extremes: Mapping[str, Extremes], changed: dict[str, Values]
    ) -> None:
        self.chain, self.changed = chain, changed
        self.known = [extremes[maker.made.name] for maker in chain.makers]
        silent = np.any([_never_fires(extremes[maker.sum.name]) for maker in chain.makers], axis=0)
        last = self.known[-1]
        varies = last.least < last.largest
        self.free = ~varies & silent & ((last.largest == 0.0) | (not chain.padded))
        self.shifts = self.known[0].least >= chain.steps[0]
        pairs = zip(self.known, chain.makers, strict=True)
        limited = np.any([seen.largest > NEAR * maker.bounds[1] for seen, maker in pairs], axis=0)
        self.hurt = np.where(varies & (self.shifts | ~limited), self._noise_shares(varies), 0.0)

    def _noise_shares(self, varies: Bools) -> Values:
        """Return the part of each channel's rounding in the noise of the readers, (channels,)."""
        noise: Values = np.zeros(len(varies))
        for step, behind in zip(self.chain.steps, (*self.chain.makers[1:], None), strict=True):
            noise += step**2 * (1.0 if behind is None else _power(self._rows(behind.layer)))
        shares = [varies * noise * _power(self._columns(node)) for node in self.chain.readers]
        return np.asarray(sum(share / max(share.sum(), 1e-30) for share in shares))

    def copies(self) -> Iterator[_Copy]:
        """Yield what is to be copied where: each free slot for the channel that gains most by it."""
        count = np.ones(len(self.hurt))
        power = np.where(self.shifts, 2.0, 1.0)  # of the count, by which noise gets less
        took: dict[int, list[int]] = {}
        for slot in map(int, np.flatnonzero(self.free)) if self.hurt.any() else ():
            gain = self.hurt * (count**-power - (count + 1) ** -power)
            channel = int(gain.argmax())
            count[channel] += 1
            took.setdefault(channel, []).append(slot)
        for channel, slots in took.items():
            for number, slot in enumerate(slots, start=1):
                yield _Copy(slot, channel, number, len(slots) + 1)

    def write(self, copies: Sequence[_Copy]) -> None:
        """Write the copies, and the mean of them in the readers."""
        for copy in copies:
            self._to_biases(copy.slot, float(self.known[-1].largest[copy.slot]))
        for channel, count in {copy.channel: copy.count for copy in copies}.items():
            for node in self.chain.readers:
                self._columns(node)[channel] /= count
        for copy in copies:
            shifted = bool(self.shifts[copy.channel])
            scale = 1.0 if shifted else SHRUNK**copy.number
            shift = self._copy(copy, scale, shifted)
            for node in self.chain.readers:
                columns = self._columns(node)
                columns[copy.slot] = columns[copy.channel] / scale
            self._to_biases(copy.slot, -shift)

    def _copy(self, copy: _Copy, scale: float, shifted: bool) -> float:
        """Copy a channel in the makers; return by how much their output is shifted."""
        part = copy.number / copy.count - (1.0 if 2 * copy.number > copy.count else 0.0)
        before = 0.0
        for place, maker in enumerate(self.chain.makers):
            rows, bias = self._rows(maker.layer), self._bias(maker.layer)
            is_clipped = self.known[place].least[copy.channel] < self.chain.steps[place]
            after = part * self.chain.steps[place] if shifted and not is_clipped else 0.0
            taps = rows[copy.channel].sum() if place else 0.0
            rows[copy.slot] = rows[copy.channel] * (1.0 if place else scale)
            bias[copy.slot] = bias[copy.channel] * scale - before * taps + after
            before = after
        return before

    def _to_biases(self, channel: int, value: float) -> None:
        """Add the contribution of a channel of that value to the biases of the readers."""
        for node in self.chain.readers:
            column = self._columns(node)[channel]
            self._bias(node)[...] += value * column.reshape(len(column), -1).sum(axis=1)

    def _rows(self, node: gs.Node, side: int = 0) -> Values:
        axes = weight_axes(node)
        return np.moveaxis(self._constant(node.inputs[1]), axes[side] if axes else side, 0)

    def _columns(self, node: gs.Node) -> Values:
        return self._rows(node, 1)

    def _bias(self, node: gs.Node) -> Values:
        if (bias := own_bias(node)) is None:
            raise RuntimeError(f"{node.name} has no bias of its own")
        return self._constant(bias.node.inputs[bias.index]).reshape(-1)

    def _constant(self, tensor: gs.Tensor) -> Values:
        """Return a constant in float64 with its changes so far, to be written into."""
        if tensor.name not in self.changed:
            self.changed[tensor.name] = np.array(constant(tensor), np.float64)
        return self.changed[tensor.name]


def _never_fires(sums: Extremes) -> Bools:
    """Tell for each channel whether it lies so far below zero that other samples will not lift it."""
    return np.asarray(sums.largest <= -MARGIN * (sums.largest - sums.least))


def _power(weights: Values) -> Values:
    return np.asarray((weights.reshape(len(weights), -1) ** 2).sum(axis=1))
