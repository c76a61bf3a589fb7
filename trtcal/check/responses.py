"""How strongly images drive a network's first layer, beside the biases that it was trained with.

Normalization in training keeps both of one size: a layer behind pixels that are 255 times too large
does not notice its biases, and behind such as are too small it hardly makes anything else.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import Inside, showing
from trtcal.calibration.memory import tensor_bytes
from trtcal.check.sampling import Drawn
from trtcal.data import Feeds, fixed_batch
from trtcal.data.dataset import Array
from trtcal.model import Model
from trtcal.model.files import embedded, fits, stand_in
from trtcal.model.graph import reads
from trtcal.model.ops import MULTIPLIES, Operators

LAYERS = 8  # looked at, evenly over the network
FROM = 0.25  # of its depth on: what is before sees edges, whatever the colours
PLACES = 4096  # of a layer's output, drawn from a fixed seed
ROOM = 1 << 28  # bytes of outputs at a time
LEAST = 1e-9

Values = npt.NDArray[np.float64]


class Depths:
    """Some layers of a model, of which outputs are read."""

    def __init__(self, model: Model, together: int) -> None:
        self.model, self.together = model, fixed_batch(model) or together
        layers = weighted(model.proto) if fits(model.proto) else []
        last = len(layers) - 1
        places = np.unique(np.linspace(FROM * last, last, LAYERS).round().astype(int))
        self.tensors = [layers[place].output[0] for place in places if layers]
        self.inside = Inside(model.proto, self.tensors) if self.tensors else None
        self.chosen: dict[str, npt.NDArray[np.int64]] = {}

    def stir(self, drawn: Drawn) -> Values | None:
        """Return of each sample by how far its features are off the mean of all, [n].

        In natural logarithms of Euclidean norms, in the mean over layers; None without such layers.
        """
        if self.inside is None:
            return None
        batches = [self._read(self.inside, feeds) for feeds in drawn.batches(self._size(drawn))]
        found = []
        for name in batches[0]:
            rows = np.concatenate([one[name] for one in batches])
            norms = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
            if len(rows) == len(drawn) and np.isfinite(norms).all():
                found.append(np.log(norms + LEAST))
        return np.mean(found, axis=0) if found else None

    def _size(self, drawn: Drawn) -> int:
        if self.together == drawn.batch:
            return self.together
        first = next(iter(drawn.batches(1)))
        sizes = tensor_bytes(stand_in(self.model.proto), first)
        taken = sum(sizes.get(name, 0) for name in self.tensors)
        return int(np.clip(ROOM // max(taken, 1), 1, self.together))

    def _read(self, inside: Inside, feeds: Feeds) -> dict[str, Values]:
        """Return the chosen places of each layer's output, [n, places], one row a sample."""
        size, found = len(next(iter(feeds.values()))), {}
        for name, values in inside.read(feeds).items():
            if values.ndim > 1 and len(values) == size:
                rows = values.reshape(size, -1)
                found[name] = rows[:, self._places(name, rows.shape[1])].astype(np.float64)
        return found

    def _places(self, name: str, width: int) -> npt.NDArray[np.int64]:
        if name not in self.chosen:
            generator = np.random.default_rng(0)
            self.chosen[name] = generator.choice(width, min(width, PLACES), replace=False)
        return self.chosen[name]


LOOKED_AT = 4  # of them: the first may have no bias
NOTHING = 1e-6  # a bias so small beside what the images bring is none


class Front:
    """The first layers of a model, run apart from the rest."""

    def __init__(self, model: Model) -> None:
        graph = model.proto.graph
        layers = weighted(model.proto, MULTIPLIES | {"BatchNormalization", "Add"})[:LOOKED_AT]
        self.tensors = [node.output[0] for node in layers]
        made = [place for place, one in enumerate(graph.node) if one.output[0] in self.tensors]
        nodes = graph.node[: max(made, default=-1) + 1]
        read = {name for node in nodes for name in reads(node)}
        part = onnx.GraphProto(node=nodes, input=graph.input, name=graph.name)
        part.initializer.extend(embedded(one) for one in graph.initializer if one.name in read)
        proto = onnx.ModelProto(
            ir_version=model.proto.ir_version,
            opset_import=model.proto.opset_import,
            functions=model.proto.functions,
            graph=part,
        )
        self.session = open_session(showing(proto, self.tensors), as_it_is=True, arena=False)

    def drive(self, feeds: Feeds) -> float | None:
        """Return by how many powers of ten samples move the first layer with a bias more than that.

        Root mean squares over samples and outputs, beside those for inputs that are all zero; None
        without such a layer.
        """
        if not self.tensors:
            return None
        nothing = {n: np.zeros_like(a) if a.dtype.kind == "f" else a for n, a in feeds.items()}
        found = (run_session(self.session, self.tensors, one) for one in (feeds, nothing))
        for given, empty in zip(*found, strict=True):
            bias = _strength(empty)
            moved = _strength(np.subtract(given, empty, out=given))
            if bias > NOTHING * moved > 0:
                return math.log10(moved / bias)
        return None


def weighted(proto: onnx.ModelProto, operators: Operators = MULTIPLIES) -> list[onnx.NodeProto]:
    """Return the nodes that have constants beside what they read, in graph order."""
    constants = constants_of(proto)
    return [
        node
        for node in proto.graph.node
        if node.op_type in operators
        and any(name in constants for name in node.input)
        and not all(name in constants for name in node.input)
    ]


def constants_of(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return the initializers and what Constant nodes hold, by name."""
    held = {
        node.output[0]: attribute.t
        for node in proto.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    return {one.name: one for one in proto.graph.initializer} | held


def _strength(values: Array) -> float:
    """Return the root mean square, a sample at a time: in float64, all would be the peak of memory."""
    return math.sqrt(np.mean([np.square(one, dtype=np.float64).mean() for one in values]))
