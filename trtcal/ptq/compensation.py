"""Shifting and scaling channels where they are made, with compensation in the layers that read them.

The network computes the same. A scale is taken back in the weights behind (`scaled_constants`), a shift
in the biases behind (`shift`); both return or fill a dict of the constants that change, by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from trtcal.backends.taps import Inside
from trtcal.data import Dataset
from trtcal.evaluate.per_sample import Values
from trtcal.model import Model
from trtcal.model.graph import clip_bounds, constant, is_op, only_consumer
from trtcal.model.model import Floats, along
from trtcal.ptq.channels import Edit
from trtcal.ptq.layer_inputs import MatrixForm, matrix_form
from trtcal.quantization.weighted_ops import Bias, Layer, bias_of

BATCH = 8


@dataclass(frozen=True)
class Extremes:
    """`least` and `largest` of each channel, shape (channels,)."""

    least: Floats
    largest: Floats

    @property
    def peak(self) -> Values:
        """The largest magnitude of each channel."""
        return np.maximum(-self.least, self.largest).astype(np.float64)


def find_extremes(
    model: Model, dataset: Dataset, samples: int, axes: Mapping[str, int]
) -> dict[str, Extremes]:
    """Return by tensor the extremes along its axis of channels, over the first samples."""
    inside = Inside(model.proto, list(axes))
    least: dict[str, Floats] = {}
    largest: dict[str, Floats] = {}
    batches = dataset.batches(BATCH, 0, samples)
    for read in (read for feeds in batches for read in inside.read_each(feeds)):
        for name, values in read.items():
            others = tuple(i for i in range(values.ndim) if i != axes[name])
            least[name] = np.minimum(least.get(name, np.inf), values.min(axis=others))
            largest[name] = np.maximum(largest.get(name, -np.inf), values.max(axis=others))
    return {name: Extremes(least[name], largest[name]) for name in least}


@dataclass(frozen=True)
class BoundedLayer:
    """A `layer` with its `bias`, and the `node` (a Relu or Clip) that limits its sum to `bounds`."""

    layer: gs.Node
    bias: Bias
    node: gs.Node
    bounds: tuple[float, float]

    @property
    def sum(self) -> gs.Tensor:
        """The sum before it is limited."""
        return self.node.inputs[0]

    @property
    def made(self) -> gs.Tensor:
        """The output of the Relu or Clip."""
        return self.node.outputs[0]


def bounded_layers(graph: gs.Graph, layers: Mapping[str, Layer]) -> Iterator[BoundedLayer]:
    """Yield the layers with biases of their own whose sums a Relu or Clip reads, and nothing else."""
    for node in graph.nodes:
        bias = own_bias(node) if node.name in layers else None
        if bias is None:
            continue
        behind = only_consumer(bias.node.outputs[0], graph)
        bounds = None if behind is None else clip_bounds(behind)
        if behind is not None and bounds is not None:
            yield BoundedLayer(node, bias, behind, bounds)


@dataclass(frozen=True)
class Reader:
    """A layer that reads a tensor without padding and has a bias of its own."""

    node: gs.Node
    bias: Bias
    form: MatrixForm

    def compensation(self, shift: Floats) -> Floats:
        """Return what its biases gain when channels, (channels,) or () for all, lose `shift`."""
        matrix = self.form.matrix(np.asarray(constant(self.node.inputs[1])))
        if shift.ndim == 0:
            return np.asarray(matrix.sum(axis=2) * shift).reshape(-1)
        runs = len(shift) // self.form.groups
        return self.form.times_channels(matrix, shift.reshape(self.form.groups, runs))


@dataclass(frozen=True)
class Readers:
    """The `layers` that read a tensor, and the `tensors` that have its values, itself the first."""

    layers: tuple[Reader, ...]
    tensors: tuple[gs.Tensor, ...]


def compensating_readers(
    tensor: gs.Tensor, graph: gs.Graph, layers: Mapping[str, Layer], passing: Collection[str] = ()
) -> Readers | None:
    """Return the layers that read a tensor, through operators `passing` too.

    None if it is an output of the graph, or if something reads it that cannot compensate a shift.
    """
    if not tensor.outputs or any(tensor is output for output in graph.outputs):
        return None
    layers_behind, tensors = list[Reader](), [tensor]
    for node in tensor.outputs:
        if is_op(node, *passing) and len(node.outputs) == 1:
            behind = compensating_readers(node.outputs[0], graph, layers, passing)
            if behind is None:
                return None
            layers_behind += behind.layers
            tensors += behind.tensors
        elif (reader := _reader(node, layers.get(node.name))) is not None:
            layers_behind.append(reader)
        else:
            return None
    return Readers(tuple(layers_behind), tuple(tensors))


def _reader(node: gs.Node, layer: Layer | None) -> Reader | None:
    bias = own_bias(node) if layer is not None else None
    form = matrix_form(node, layer) if layer is not None and bias is not None else None
    if bias is None or form is None or any(form.pads):
        return None
    return Reader(node, bias, form)


def own_bias(node: gs.Node) -> Bias | None:
    """Return a layer's bias if it is a constant of one number a channel that nothing else reads."""
    bias = bias_of(node)
    if bias is None or bias.index >= len(bias.node.inputs):
        return None
    tensor = bias.node.inputs[bias.index]
    own = len(tensor.outputs) == 1 and int(np.prod(tensor.shape)) == bias.values.size
    return bias if own else None


def addend(tensor: gs.Tensor) -> Bias | None:
    """Return the constant, one number a channel of the last axis, whose addition makes a tensor.

    None if there is none, or if something else reads it.
    """
    (maker,) = tensor.inputs or (None,)
    if maker is None or tensor.shape is None or not is_op(maker, "Add", "LayerNormalization"):
        return None
    sides = [(index, constant(operand)) for index, operand in enumerate(maker.inputs)]
    index, values = sides[-1] if sides[-1][1] is not None else sides[0]
    if values is None or values.ndim != 1 or values.size < 2 or values.dtype != np.float32:
        return None
    is_addend = maker.op == "Add" or (index == 2 and maker.attrs.get("axis", -1) == -1)
    is_own = len(maker.inputs[index].outputs) == 1
    return Bias(maker, index, values) if is_addend and is_own else None


def shift(changed: dict[str, Floats], bias: Bias, readers: Sequence[Reader], by: Floats) -> None:
    """Subtract `by` from a bias and compensate it in the readers' biases, in `changed` by name."""
    _add(changed, bias, -by)
    for reader in readers:
        _add(changed, reader.bias, reader.compensation(by))


def _add(changed: dict[str, Floats], bias: Bias, values: Floats) -> None:
    tensor = bias.node.inputs[bias.index]
    before = changed.get(tensor.name, bias.values).reshape(-1)
    changed[tensor.name] = np.asarray(before + values, np.float32).reshape(tuple(tensor.shape))


def shift_to_middle(
    graph: gs.Graph, layers: Mapping[str, Layer], extremes: Mapping[str, Extremes]
) -> tuple[dict[str, Extremes], dict[str, Floats]]:
    """Shift each channel that only layers read so that zero lies in its middle, in the graph.

    Returns the extremes of the shifted tensors, and the constants that changed.
    """
    known = graph.tensors()
    shifted: dict[str, Extremes] = {}
    changed: dict[str, Floats] = {}
    for name, seen in extremes.items():
        bias = addend(known[name])
        readers = compensating_readers(known[name], graph, layers) if bias is not None else None
        if bias is None or readers is None:
            continue
        middle = np.asarray((seen.least + seen.largest) / 2, np.float32)
        shift(changed, bias, readers.layers, middle)
        shifted[name] = Extremes(seen.least - middle, seen.largest - middle)
    for name, values in changed.items():
        known[name].values = values
    return shifted, changed


def scaled_constants(graph: gs.Graph, edits: Sequence[Edit], factors: Values) -> dict[str, Floats]:
    """Return the constants that change when channels are scaled by factors, shape (numbers,)."""
    tensors = graph.tensors()
    scaled: dict[str, Values] = {}
    for edit in edits:
        scale = factors[edit.ids] ** edit.sign
        if (scale == 1.0).all():
            continue
        values = scaled.get(edit.tensor, np.asarray(constant(tensors[edit.tensor]), np.float64))
        scaled[edit.tensor] = values * _broadcast(scale, edit, values.shape)
    return {name: values.astype(np.float32) for name, values in scaled.items()}


def _broadcast(scale: Values, edit: Edit, shape: tuple[int, ...]) -> Values:
    if edit.groups > 1:
        each = np.repeat(scale.reshape(edit.groups, -1), shape[0] // edit.groups, axis=0)
        return np.asarray(each.reshape(shape[0], shape[1], *[1] * (len(shape) - 2)))
    return along(scale, len(shape), edit.axis)
