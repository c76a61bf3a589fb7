"""Go through a network layer by layer, in float and in INT8 side by side, and mend each layer's INT8.

What goes into a layer in INT8 is what the layers before it, mended already, give: so a layer makes up
for the errors that reach it too. Values between two layers lie in temporary files, a batch at a time:
every node runs once a sample and side, and memory does not grow with samples.

Sources: M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction"
(2019), appendix D, for the empirical correction of biases; see `rounding` for the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper
from threadpoolctl import threadpool_limits

from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Array, Session, give_back, open_session, run_session
from trtcal.calibration.memory import tensor_bytes
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.evaluate.caches import SpillCache
from trtcal.evaluate.search.segments import PairedGraph, Segment
from trtcal.model import Model
from trtcal.model.files import stand_in
from trtcal.model.graph import constant, import_graph
from trtcal.model.model import Floats, Grid, Int8Overrides
from trtcal.model.ops import CONVOLUTIONS
from trtcal.ptq.activations import activation_of, matched
from trtcal.ptq.adaptive_rounding import adapted, clipped, rounded
from trtcal.ptq.bias_correction import measure_moments
from trtcal.ptq.patches import Form, Mask, Shares, form_of, mask_of, shares
from trtcal.quantization import find_layers, quantize
from trtcal.quantization.weighted_ops import Bias, Layer, Weight, bias_of
from trtcal.quantization.weights import quantize_weight
from trtcal.ranges import Calibration

BATCH = 8
SIDES = ("float", "int8")
LEAST = 16
ROOM = 1 << 28  # bytes of values between two layers that are kept in memory


def samples_in_memory(model: Model, dataset: Dataset, most: int) -> int:
    """Return how many samples a walk can hold in memory, as far as shapes tell; at least 16."""
    size = fixed_batch(model) or 1
    first = next(iter(dataset.batches(size, 0, size)))
    largest = max(tensor_bytes(stand_in(model.proto), first).values(), default=0) / size
    return min(most, max(LEAST, int(ROOM / max(2 * len(SIDES) * largest, 1))))


@dataclass(frozen=True)
class Mending:
    """What is mended in a layer: its `bias`, its integers by `rounding`, its scales by `clipping`."""

    bias: bool = True
    rounding: bool = False
    clipping: bool = False


@dataclass(frozen=True)
class _Step:
    """A layer in the walk: what runs `before` it, `itself`, both as `whole`, and what is known of it.

    `read` is the tensor that it reads, `scale` that tensor's; `axis` has the channels of its output.
    """

    layer: Layer
    before: Segment
    itself: Segment
    whole: Segment
    read: str
    scale: np.float32
    values: Floats
    weight: Weight
    form: Form | None
    bias: Bias | None
    axis: int

    @property
    def made(self) -> str:
        """The tensor that the layer makes."""
        return self.itself.outputs[0]


class Walk:
    """Walks over samples of a dataset, from the first on. A context manager.

    Layers that a dataset's samples do not reach, and those without constant weights, stay as they are.
    """

    def __init__(
        self, model: Model, calibration: Calibration, dataset: Dataset, samples: int
    ) -> None:
        self.model, self.calibration = model, calibration
        self.pair = PairedGraph(model, quantize(model, calibration).proto)
        self.dataset, self.samples = dataset, samples
        self.spill = SpillCache(ROOM)
        self.batches = 0
        self.masks: list[Mask] = []

    def __enter__(self) -> Walk:
        return self

    def __exit__(self, *exception: object) -> None:
        self.spill.close()
        give_back()

    def mend(
        self, mending: Mending, progress: Callable[[int], None] = lambda done: None
    ) -> Int8Overrides:
        """Walk once, and return what was found for the layers, one step of progress each."""
        size = fixed_batch(self.model) or BATCH
        for number, feeds in enumerate(self.dataset.batches(size, 0, self.samples)):
            for side in SIDES:
                self.spill.keep(side, number, feeds)
            self.masks.append(mask_of(feeds))
            self.batches = number + 1
        overrides = self.model.overrides
        for step in self.steps():
            self._advance(step, mending.rounding)
            overrides = self._mend(step, mending, overrides)
            progress(1)
        return overrides

    def steps(self) -> Iterator[_Step]:
        """Yield the layers that have constant weights, in graph order."""
        nodes = {node.name: node for node in import_graph(self.model.proto).nodes}
        placement = find_layers(self.model)
        layers = {one.name: one for one in placement.layers}
        place = 0
        for number, node in enumerate(self.pair.nodes):
            layer = layers.get(node.name)
            if layer is None or layer.weight is None or node.name not in self.pair.quantizable:
                continue
            own = nodes[node.name]
            (read,) = layer.activations.values()
            values = constant(own.inputs[layer.weight.index])
            if values is None or values.dtype != np.float32:
                continue
            yield _Step(
                layer,
                self.pair.segment(place, number),
                self.pair.segment(number, number + 1),
                self.pair.segment(place, number + 1),
                read,
                np.float32(self.calibration.ranges[placement.range_of(read)].amax / 127.0),
                values,
                layer.weight,
                form_of(own, layer),
                bias_of(own),
                1 if node.op_type in CONVOLUTIONS else -1,
            )
            place = number + 1

    def _advance(self, step: _Step, reading: bool) -> None:
        """Run up to a layer in INT8, and with it in float, where what it is `reading` may be kept."""
        before, whole = step.before, step.whole
        if reading and step.read not in whole.inputs:
            whole = replace(whole, outputs=tuple(dict.fromkeys((*whole.outputs, step.read))))
        if before.outputs:
            self._run_all("int8", before, self.pair.part(before, self.pair.quantizable))
        kept = (step.read,) if reading else ()
        self._run_all("float", whole, self.pair.part(whole, ()), kept)

    def _run_all(
        self, side: str, segment: Segment, part: onnx.ModelProto, kept: Collection[str] = ()
    ) -> None:
        session = open_session(lower(part))
        for number in range(self.batches):
            self._run(side, number, segment, session, kept=kept)

    def _run(
        self,
        side: str,
        number: int,
        segment: Segment,
        session: Session,
        instead: Mapping[str, Array] | None = None,
        kept: Collection[str] = (),
    ) -> None:
        """Run a segment, on `instead` where given; keep what later nodes read, and what is `kept`."""
        known = self.spill.get(side, number)
        fed = {name: {**known, **(instead or {})}[name] for name in segment.inputs}
        made = run_session(session, segment.outputs, fed)
        after = {**known, **dict(zip(segment.outputs, made, strict=True))}
        last = self.pair.last
        later = {
            name: one
            for name, one in after.items()
            if last.get(name, -1) >= segment.stop or name in kept
        }
        self.spill.keep(side, number, later)

    def _mend(self, step: _Step, mending: Mending, overrides: Int8Overrides) -> Int8Overrides:
        grid = overrides.weights.get(step.layer.name)
        shares = self._shares(step)
        if mending.rounding and step.form is not None:
            with threadpool_limits(1, "blas"):  # more wait for each other longer than they work
                grid = self._rounded(step, step.form, mending, shares)
        self._make(step, grid)
        bias = None
        if mending.bias and step.bias is not None:
            shift = self._lack(step, shares).astype(np.float32)
            bias = step.bias.values + shift
            self._shift(step, shift)
        return overrides.with_layer(step.layer.name, grid, bias)

    def _make(self, step: _Step, grid: Grid | None) -> None:
        """Run a layer in INT8, on the grid."""
        part = _with_weight(self.pair.part(step.itself, ()), step, grid or self._nearest(step))
        session = open_session(part)
        for number in range(self.batches):
            instead = {step.read: self._snapped(step, number)}
            self._run("int8", number, step.itself, session, instead)

    def _shares(self, step: _Step) -> Shares:
        """Return the energies of a layer's output in float, made to shares, None for all alike."""
        if step.form is None or step.form.op != "MatMul":
            return None
        energies = []
        for number in range(self.batches):
            made = self.spill.get("float", number)[step.made]
            if made.ndim < 3:  # one row a sample
                return None
            if step.bias is not None:
                made = made + step.bias.values
            energies.append(np.square(made).mean(axis=-1))
        return shares(energies, self.masks)

    def _lack(self, step: _Step, shares: Shares) -> Floats:
        """Return by what a layer's bias (channels,) is too small for the mean that is read behind."""
        mean = partial(self._mean, step, shares)
        lack = mean("float") - mean("int8")
        activation = activation_of(self.pair, step.itself.start)
        if activation is None:
            return lack
        wanted = mean("float", activation)
        return matched(lack, lambda tried: mean("int8", activation, tried) - wanted)

    def _mean(
        self,
        step: _Step,
        shares: Shares,
        side: str,
        activation: Callable[[Array], Array] = lambda values: values,
        shift: Floats | None = None,
    ) -> Floats:
        """Return what a layer's channels are in the mean, shifted and behind an activation."""
        total, places = np.zeros(()), 0.0
        for number in range(self.batches):
            values = self.spill.get(side, number)[step.made]
            if shift is not None:
                values = values + _along(step, values, shift)
            made = activation(values)
            moved = np.moveaxis(made, step.axis, 0).reshape(values.shape[step.axis], -1)
            if shares is None:
                sums, count = moved.sum(axis=1, dtype=np.float64), float(moved.shape[1])
            else:
                sums = np.einsum("cp,p->c", moved, shares[number])  # `@` would copy all to float64
                count = float(shares[number].sum())
            total, places = total + sums, places + count
        return np.asarray(total / places)

    def _nearest(self, step: _Step) -> Grid:
        """Return the weight as it is quantized without optimizations."""
        node = self.pair.pair[step.layer.name]
        pair = self.pair.producers[node.input[step.weight.index]]
        values, scale = (numpy_helper.to_array(self.pair.tensors[name]) for name in pair.input[:2])
        return Grid(values, scale)

    def _shift(self, step: _Step, shift: Floats) -> None:
        for number in range(self.batches):
            values = self.spill.get("int8", number)
            moved = values[step.made] + _along(step, values[step.made], shift)
            self.spill.keep("int8", number, {**values, step.made: moved})

    def _rounded(self, step: _Step, form: Form, mending: Mending, shares: Shares) -> Grid:
        centred = mending.bias and step.bias is not None
        read = partial(self._read, step)
        turns = [range(self.batches)[i::2] for i in range(2)]
        halves = [measure_moments(form, turn, read, centred, shares) for turn in turns if turn]
        weight, gram = form.matrix(step.values), halves[0].with_other(halves[-1]).gram
        scale = quantize_weight(step.values, step.weight.axis)[1].reshape(form.groups, -1)
        wanted = adapted(weight, halves) if len(halves) > 1 else weight
        scale = clipped(wanted, scale, gram) if mending.clipping else scale
        return Grid(form.weight(rounded(wanted, scale, gram)), scale.reshape(-1))

    def _read(self, step: _Step, number: int) -> tuple[Floats, Floats]:
        """Return what a layer reads in a batch, on both sides."""
        return self.spill.get("float", number)[step.read], self._snapped(step, number)

    def _snapped(self, step: _Step, number: int) -> Floats:
        """Return what Q and DQ hand on to a layer in INT8."""
        steps = np.rint(self.spill.get("int8", number)[step.read] / step.scale)
        np.clip(steps, -128, 127, out=steps)
        steps *= step.scale
        return steps


def _along(step: _Step, values: Array, shift: Floats) -> Floats:
    """Return a shift (channels,) as float32, in a shape that is added to a layer's output."""
    shape = [1] * values.ndim
    shape[step.axis] = -1
    return shift.reshape(shape).astype(np.float32)


def _with_weight(part: onnx.ModelProto, step: _Step, grid: Grid) -> onnx.ModelProto:
    """Return a layer as a model, with a weight on the grid."""
    name = part.graph.node[0].input[step.weight.index]
    changed = onnx.ModelProto()
    changed.CopyFrom(part)
    for one in changed.graph.initializer:
        if one.name == name:
            one.CopyFrom(numpy_helper.from_array(grid.floats(step.weight.axis), name))
    return changed
