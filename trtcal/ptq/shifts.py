"""Who can make up for a shift of what a Relu makes: the layers that read it, in their biases."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.backends.taps import Inside
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.model import Model
from trtcal.model.graph import clip_bounds, constant, is_op, only_consumer
from trtcal.model.model import Floats
from trtcal.ptq.patches import Form, form_of
from trtcal.quantization.weighted_ops import Bias, Layer, bias_of


@dataclass(frozen=True)
class Cut:
    """A `layer`, its `bias`, the `node` that cuts its sum off, and the `bounds` of that."""

    layer: gs.Node
    bias: Bias
    node: gs.Node
    bounds: tuple[float, float]

    @property
    def sum(self) -> gs.Tensor:
        """What is cut off."""
        return self.node.inputs[0]

    @property
    def made(self) -> gs.Tensor:
        """What comes out."""
        return self.node.outputs[0]


@dataclass(frozen=True)
class Taker:
    """A layer that reads a tensor without padding, and has a bias of its own."""

    node: gs.Node
    bias: Bias
    form: Form

    def made_up(self, shift: Floats) -> Floats:
        """Return what its biases gain when channels, (channels,) or () for all, lose `shift`."""
        matrix = self.form.matrix(np.asarray(constant(self.node.inputs[1])))
        if shift.ndim == 0:
            return np.asarray(matrix.sum(axis=2) * shift).reshape(-1)
        runs = len(shift) // self.form.groups
        taps = matrix.reshape(*matrix.shape[:2], runs, -1).sum(axis=3)
        return np.asarray(taps @ shift.reshape(self.form.groups, runs, 1)).reshape(-1)


def cuts(graph: gs.Graph, layers: Mapping[str, Layer]) -> Iterator[Cut]:
    """Yield the Relus and Clips behind layers with biases of their own, that nothing else reads."""
    for node in graph.nodes:
        bias = own_bias(node) if node.name in layers else None
        if bias is None:
            continue
        behind = only_consumer(bias.node.outputs[0], graph)
        bounds = None if behind is None else clip_bounds(behind)
        if behind is not None and bounds is not None:
            yield Cut(node, bias, behind, bounds)


def takers(
    tensor: gs.Tensor, graph: gs.Graph, layers: Mapping[str, Layer], passing: Collection[str] = ()
) -> tuple[list[Taker], list[gs.Tensor]] | None:
    """Return the layers that read a tensor, and it itself with what operators `passing` hand on.

    None if anything else reads it, or a layer that can't make up for a shift.
    """
    if not tensor.outputs or any(tensor is output for output in graph.outputs):
        return None
    found, through = list[Taker](), [tensor]
    for node in tensor.outputs:
        if is_op(node, *passing) and len(node.outputs) == 1:
            behind = takers(node.outputs[0], graph, layers, passing)
            if behind is None:
                return None
            found, through = found + behind[0], through + behind[1]
            continue
        taker = _taker(node, layers.get(node.name))
        if taker is None:
            return None
        found.append(taker)
    return found, through


def addend(tensor: gs.Tensor) -> Bias | None:
    """Return the constant that is added, one number a channel of the last axis, to make a tensor.

    None if there is none, or if something else reads it.
    """
    (maker,) = tensor.inputs or (None,)
    if maker is None or tensor.shape is None or not is_op(maker, "Add", "LayerNormalization"):
        return None
    sides = [(index, constant(one)) for index, one in enumerate(maker.inputs)]
    index, values = sides[-1] if sides[-1][1] is not None else sides[0]
    if values is None or values.ndim != 1 or values.size < 2 or values.dtype != np.float32:
        return None
    wanted = maker.op == "Add" or (index == 2 and maker.attrs.get("axis", -1) == -1)
    return Bias(maker, index, values) if wanted and len(maker.inputs[index].outputs) == 1 else None


def centre_channels(
    graph: gs.Graph, layers: Mapping[str, Layer], extremes: Mapping[str, Extremes]
) -> tuple[dict[str, Extremes], dict[str, Floats]]:
    """Shift each channel that layers alone read so that zero lies in its middle, in the graph.

    Returns the extremes of what was shifted, and the constants that changed.
    """
    known = graph.tensors()
    found: dict[str, Extremes] = {}
    changed: dict[str, Floats] = {}
    for name, seen in extremes.items():
        given = addend(known[name])
        reading = takers(known[name], graph, layers) if given is not None else None
        if given is None or reading is None:
            continue
        middle = np.asarray((seen.least + seen.largest) / 2, np.float32)
        shift(changed, given, reading[0], middle)
        found[name] = Extremes(seen.least - middle, seen.largest - middle)
    for name, values in changed.items():
        known[name].values = values
    return found, changed


def shift(changed: dict[str, Floats], bias: Bias, readers: Sequence[Taker], by: Floats) -> None:
    """Take `by` off a bias, and make up for it in the readers: into `changed`, by constant."""
    _add(changed, bias, -by)
    for reader in readers:
        _add(changed, reader.bias, reader.made_up(by))


def _add(changed: dict[str, Floats], bias: Bias, values: Floats) -> None:
    tensor = bias.node.inputs[bias.index]
    before = changed.get(tensor.name, bias.values).reshape(-1)
    changed[tensor.name] = np.asarray(before + values, np.float32).reshape(tuple(tensor.shape))


def _taker(node: gs.Node, layer: Layer | None) -> Taker | None:
    bias = own_bias(node) if layer is not None else None
    form = form_of(node, layer) if layer is not None and bias is not None else None
    if bias is None or form is None or any(form.pads):
        return None
    return Taker(node, bias, form)


def own_bias(node: gs.Node) -> Bias | None:
    """Return a layer's bias if it is a constant of one number a channel that nothing else reads."""
    bias = bias_of(node)
    if bias is None or bias.index >= len(bias.node.inputs):
        return None
    tensor = bias.node.inputs[bias.index]
    own = len(tensor.outputs) == 1 and int(np.prod(tensor.shape)) == bias.values.size
    return bias if own else None


BATCH = 8


@dataclass(frozen=True)
class Extremes:
    """`least` and `largest` of each channel, shape (channels,)."""

    least: Floats
    largest: Floats

    @property
    def peak(self) -> npt.NDArray[np.float64]:
        """The largest magnitude of each channel."""
        return np.maximum(-self.least, self.largest).astype(np.float64)


def find_extremes(
    model: Model, dataset: Dataset, samples: int, axes: Mapping[str, int]
) -> dict[str, Extremes]:
    """Return by tensor the extremes along its axis of channels, over the first samples."""
    inside = Inside(model.proto, list(axes))
    least: dict[str, Floats] = {}
    largest: dict[str, Floats] = {}
    for feeds in dataset.batches(fixed_batch(model) or BATCH, 0, samples):
        for name, values in inside.read(feeds).items():
            others = tuple(i for i in range(values.ndim) if i != axes[name])
            least[name] = np.minimum(least.get(name, np.inf), values.min(axis=others))
            largest[name] = np.maximum(largest.get(name, -np.inf), values.max(axis=others))
    return {name: Extremes(least[name], largest[name]) for name in least}
