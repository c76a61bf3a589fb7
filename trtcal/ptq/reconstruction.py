"""Layerwise reconstruction: correct each layer's bias and weights, float and quantized side by side.

The quantized input of a layer is what the corrected layers before it give, so a layer compensates the
errors that reach it too. Values between two layers lie in temporary files, a batch at a time: every
node runs once for each sample and side, and memory does not grow with samples.

Sources: M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction"
(2019), appendix D, for the empirical correction of biases; `adaptive_rounding` for the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from onnx import numpy_helper
from threadpoolctl import threadpool_limits

from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Array, Session, give_back, open_session, runs_of
from trtcal.backends.trial import try_together
from trtcal.calibration.job import tensor_bytes
from trtcal.data import Dataset, Feeds
from trtcal.data.dataset import batch_for
from trtcal.evaluate.caches import SpillCache
from trtcal.evaluate.search.segments import PairedGraph, Segment
from trtcal.formats import FORMATS, Precision
from trtcal.model import Model
from trtcal.model.files import stand_in
from trtcal.model.graph import import_graph
from trtcal.model.model import Floats, Grid, Overrides, along
from trtcal.model.ops import CONVOLUTIONS
from trtcal.ptq.adaptive_rounding import compensated, measure_moments, rounded_steps
from trtcal.ptq.bias_correction import activation_of, solve_shift
from trtcal.ptq.changes import with_constants
from trtcal.ptq.layer_inputs import (
    Mask,
    MatrixForm,
    TokenWeights,
    mask_of,
    matrix_form,
    token_weights,
)
from trtcal.quantization import Plan, find_layers, quantize
from trtcal.quantization.qdq import in_opset_of
from trtcal.quantization.weighted_ops import Bias, Weight, bias_of
from trtcal.ranges import Calibration

BATCH = 8
SIDES = ("float", "quantized")
FEWEST_SAMPLES = 16
MEMORY_BYTES = 1 << 28  # of values between two layers, which limit the samples of `fast`
ROOM = 1 << 26  # bytes of them that are kept in memory


def samples_in_memory(model: Model, dataset: Dataset, most: int) -> int:
    """Return for how many samples values fit into 256 MiB, as far as shapes are known; at least 16."""
    size = batch_for(model, 1)
    first = next(iter(dataset.batches(size, 0, size)))
    largest = max(tensor_bytes(stand_in(model.proto), first).values(), default=0) / size
    return min(most, max(FEWEST_SAMPLES, int(MEMORY_BYTES / max(2 * len(SIDES) * largest, 1))))


@dataclass(frozen=True)
class _Step:
    """A layer to be reconstructed: what runs `before` it, `itself`, and both as `whole`.

    `read` is the tensor that it reads, `scale` that tensor's, None if it stays in float; `nearest` is
    the weight without optimizations. `axis` has the channels of its output.
    """

    name: str
    before: Segment
    itself: Segment
    whole: Segment
    read: str
    scale: np.float32 | None
    values: Floats
    weight: Weight
    kind: Precision
    nearest: Grid
    form: MatrixForm | None
    bias: Bias | None
    axis: int

    @property
    def made(self) -> str:
        return self.itself.outputs[0]

    def along(self, values: Array, shift: Floats) -> Floats:
        """Return a shift (channels,) as float32, in a shape that is added to the layer's output."""
        return along(shift, values.ndim, self.axis).astype(np.float32)


class LayerwiseReconstruction(AbstractContextManager["LayerwiseReconstruction"]):
    """Reconstructs layers on samples of a dataset, from the first on. A context manager.

    Layers that the samples do not reach, and those without constant weights, stay as they are.
    """

    def __init__(
        self,
        model: Model,
        calibration: Calibration,
        dataset: Dataset,
        samples: int,
        plan: Plan | None = None,
    ) -> None:
        plan = plan or Plan()
        self.model, self.ranges = in_opset_of(model, plan), calibration.ranges
        quantized = quantize(model, calibration, plan)
        self.asked = quantized.asked
        self.pair = PairedGraph(self.model, quantized.proto)
        self.dataset, self.samples = dataset, samples
        self.spill = SpillCache(ROOM)
        self.batches = 0
        self.masks: list[Mask] = []

    def __exit__(self, *exception: object) -> None:
        self.spill.close()
        give_back()

    def run(
        self, rounding: bool = False, progress: Callable[[int], None] = lambda done: None
    ) -> Overrides:
        """Correct the bias of each layer, with `rounding` its weights too; return what was found.

        Each layer is a step of progress.
        """
        ranks = {spec.name: len(spec.shape) for spec in self.model.inputs}
        batches = self.dataset.batches(BATCH, 0, self.samples)
        runs = (run for feeds in batches for run in runs_of(ranks, feeds))
        for number, feeds in enumerate(runs):  # with the axes that the model gives its tensors
            for side in SIDES:
                self.spill.keep(side, number, feeds)
            self.masks.append(mask_of(feeds))
            self.batches = number + 1
        overrides = self.model.overrides
        try_together(work for step in self._steps(rounding) for work in self._openings(step))
        for step in self._steps(rounding):  # one at a time: each has a layer's weights
            self._advance(step, rounding)
            overrides = self._reconstruct(step, rounding, overrides)
            progress(1)
        return overrides

    def _steps(self, keeps_inputs: bool) -> Iterator[_Step]:
        """Yield the layers that have constant weights, in graph order."""
        graph = import_graph(self.model.proto)
        nodes = {node.name: node for node in graph.nodes}
        placement = find_layers(self.model, graph=graph)
        layers = {layer.name: layer for layer in placement.layers}
        place = 0
        for number, node in enumerate(self.pair.nodes):
            layer = layers.get(node.name)
            if layer is None or layer.weight is None or node.name not in self.pair.quantizable:
                continue
            own = nodes[node.name]
            (read,) = layer.activations.values()
            values = layer.values(own)
            if values is None or values.dtype != np.float32:
                continue
            kind, source = FORMATS[self.asked[node.name]], placement.range_of(read)
            nearest = self._nearest(node.name, layer.weight.index, kind)
            if nearest.values.shape != values.shape:  # filled up with zeros, for blocks to fit
                continue
            whole = self.pair.segment(place, number + 1)
            if keeps_inputs and read not in (*whole.inputs, *whole.outputs):
                whole = replace(whole, outputs=(*whole.outputs, read))
            yield _Step(
                name=node.name,
                before=self.pair.segment(place, number),
                itself=self.pair.segment(number, number + 1),
                whole=whole,
                read=read,
                scale=None
                if kind.weights_only
                else np.float32(self.ranges[source].scale_in(kind.name)),
                values=values,
                weight=layer.weight,
                kind=kind,
                nearest=nearest,
                form=matrix_form(own, layer),
                bias=bias_of(own),
                axis=1 if node.op_type in CONVOLUTIONS else -1,
            )
            place = number + 1

    def _nearest(self, name: str, index: int, kind: Precision) -> Grid:
        """Return a layer's weight as it is quantized without optimizations."""
        dequantize = self.pair.producers[self.pair.pair[name].input[index]]
        values, scale = dequantize.input[:2]
        if scale in self.pair.producers:  # NVFP4's scales are quantized themselves
            scales, step = (self._array(name) for name in self.pair.producers[scale].input[:2])
            return Grid(self._array(values), scales.astype(np.float32) * step)
        return Grid(self._array(values), self._array(scale))

    def _array(self, name: str) -> Array:
        return np.asarray(numpy_helper.to_array(self.pair.tensors[name]))

    def _openings(self, step: _Step) -> Iterator[Callable[[], object]]:
        """Yield what opens the sessions of a step."""
        if step.before.outputs:
            yield partial(self._before, step)
        yield partial(self._whole, step)
        yield lambda: open_session(self.pair.part(step.itself, ()))
        yield partial(activation_of, self.pair, step.itself.start)

    def _before(self, step: _Step) -> Session:
        return open_session(lower(self.pair.part(step.before, self.pair.quantizable)))

    def _whole(self, step: _Step) -> Session:
        return open_session(lower(self.pair.part(step.whole, ())))

    def _advance(self, step: _Step, keep_input: bool) -> None:
        """Run up to a layer quantized, and with it in float, where its input may be kept."""
        if step.before.outputs:
            self._run("quantized", step.before, self._before(step))
        self._run("float", step.whole, self._whole(step), (step.read,) if keep_input else ())

    def _run(
        self,
        side: str,
        segment: Segment,
        session: Session,
        kept: Collection[str] = (),
        quantized: _Step | None = None,
    ) -> None:
        """Run a segment on all batches; keep what later nodes read, and what is `kept`.

        With a step `quantized`, the segment gets the input of that layer as Q and DQ give it.
        """
        for number in range(self.batches):
            known, instead = self.spill.get(side, number), Feeds()
            if quantized is not None:
                instead = {quantized.read: self._quantized(quantized, number)}
            later = self.pair.step(session, segment, known, kept, instead)
            self.spill.keep(side, number, later)

    def _reconstruct(self, step: _Step, rounding: bool, overrides: Overrides) -> Overrides:
        grid = overrides.weights.get(step.name)
        weights = self._token_weights(step)
        if rounding and step.form is not None:
            with threadpool_limits(1, "blas"):  # more wait for each other longer than they work
                grid = self._rounded(step, step.form, weights)
        self._run_layer(step, grid)
        bias = None
        if step.bias is not None:
            shift = self._missing_shift(step, weights).astype(np.float32)
            if np.isfinite(shift).all():
                bias = step.bias.values + shift
                self._shift(step, shift)
        return overrides.with_layer(step.name, grid, bias, step.kind.name)

    def _run_layer(self, step: _Step, grid: Grid | None) -> None:
        part = self.pair.part(step.itself, ())
        values = (grid or step.nearest).floats(step.weight.axis)
        part = with_constants(part, {part.graph.node[0].input[step.weight.index]: values})
        self._run("quantized", step.itself, open_session(part), quantized=step)

    def _token_weights(self, step: _Step) -> TokenWeights:
        """Return how much positions count, by the energies of the layer's output in float."""
        if step.form is None or step.form.op != "MatMul":
            return None
        energies = []
        for number in range(self.batches):
            output = self.spill.get("float", number)[step.made]
            if output.ndim < 3:  # one row a sample
                return None
            if step.bias is not None:
                output = output + step.bias.values
            energies.append(np.square(output).mean(axis=-1))
        return token_weights(energies, self.masks)

    def _missing_shift(self, step: _Step, weights: TokenWeights) -> Floats:
        """Return by what a layer's bias (channels,) is too small for the mean that is read behind."""
        mean = partial(self._mean, step, weights)
        missing = mean("float") - mean("quantized")
        if (activation := activation_of(self.pair, step.itself.start)) is None:
            return missing
        expected = mean("float", activation)
        return solve_shift(missing, lambda tried: mean("quantized", activation, tried) - expected)

    def _mean(
        self,
        step: _Step,
        weights: TokenWeights,
        side: str,
        activation: Callable[[Array], Array] = lambda values: values,
        shift: Floats | None = None,
    ) -> Floats:
        """Return the means of a layer's channels, shifted and behind an activation."""
        total, places = np.zeros(()), 0.0
        for number in range(self.batches):
            values = self.spill.get(side, number)[step.made]
            if shift is not None:
                values = values + step.along(values, shift)
            outputs = activation(values)
            moved = np.moveaxis(outputs, step.axis, 0).reshape(values.shape[step.axis], -1)
            if weights is None:
                sums, count = moved.sum(axis=1, dtype=np.float64), float(moved.shape[1])
            else:
                sums = np.einsum("cp,p->c", moved, weights[number])  # `@` would copy all to float64
                count = float(weights[number].sum())
            total, places = total + sums, places + count
        return np.asarray(total / places)

    def _shift(self, step: _Step, shift: Floats) -> None:
        for number in range(self.batches):
            values = self.spill.get("quantized", number)
            moved = values[step.made] + step.along(values[step.made], shift)
            self.spill.keep("quantized", number, {**values, step.made: moved})

    def _rounded(self, step: _Step, form: MatrixForm, weights: TokenWeights) -> Grid | None:
        """Return a layer's weights rounded together, None where its inputs are not finite."""
        centered = step.bias is not None
        read = partial(self._inputs, step)
        turns = [range(self.batches)[i::2] for i in range(2)]
        halves = [measure_moments(form, turn, read, centered, weights) for turn in turns if turn]
        both = halves[0].with_other(halves[-1])
        if not both.is_finite:
            return None
        matrix, gram = form.matrix(step.values), both.gram
        target = compensated(matrix, halves) if len(halves) > 1 else matrix
        scale = step.nearest.scale
        scales = Grid(step.values, scale).scales(step.weight.axis)
        scales = form.matrix(np.broadcast_to(scales, step.values.shape))
        steps = form.weight(rounded_steps(target, scales, gram, step.kind))
        return Grid(step.kind.rounded(steps), scale)

    def _inputs(self, step: _Step, number: int) -> tuple[Floats, Floats]:
        return self.spill.get("float", number)[step.read], self._quantized(step, number)

    def _quantized(self, step: _Step, number: int) -> Floats:
        """Return a layer's input as Q and DQ give it, or as it is."""
        values = self.spill.get("quantized", number)[step.read]
        if step.scale is None:
            return values
        steps = step.kind.floats(values / step.scale)
        steps *= step.scale
        return steps
