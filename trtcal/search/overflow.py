"""Which tensors leave float16 on the samples at hand.

ONNX Runtime computes float16 layers in float32 on most CPUs and takes the casts between them away, so
that a plan's outputs stay finite there where a GPU's do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx

from trtcal.backends.sessions import open_session, run_session
from trtcal.data import Feeds
from trtcal.model import Model
from trtcal.quantize import half


class Peaks:
    """The largest magnitudes of a float model's tensors."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.known: dict[str, float] = {}

    def look(self, names: Iterable[str], batches: Iterable[Feeds]) -> None:
        """Run the model for those of some tensors that are not known yet."""
        made = {name for node in self.model.proto.graph.node for name in node.output}
        wanted = sorted(made & set(names) - set(self.known))
        if not wanted:
            return
        session = open_session(_showing(self.model.proto, wanted), as_it_is=True)
        peaks = np.zeros(len(wanted))
        for feeds in batches:
            arrays = run_session(session, wanted, feeds)
            peaks = np.maximum(peaks, [np.abs(a).max(initial=0.0) for a in arrays])
        self.known |= dict(zip(wanted, peaks.tolist(), strict=True))

    def beyond(self, names: Iterable[str]) -> Iterator[str]:
        """Yield those that do not fit float16."""
        return (name for name in names if self.known.get(name, 0.0) > half.MOST)


def _showing(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    outputs = {value.name for value in proto.graph.output}
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    shown.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in outputs)
    return shown
