"""How far apart a network's inner layers hold samples: further, the more these are like its training's.

What a network was trained on stirs its features more than what it has never seen: T. Dietterich and
A. Guyer, "The Familiarity Hypothesis" (2022). No output needs to be understood for that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trtcal.backends.inside import Inside
from trtcal.data import Feeds, fixed_batch
from trtcal.model import Model
from trtcal.observe.memory import tensor_bytes
from trtcal.onnxfile import fits, stand_in
from trtcal.suspicion.drawing import Drawn
from trtcal.suspicion.front import weighted

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
