"""Which tensors leave float16 on the samples at hand.

ONNX Runtime computes float16 layers in float32 on most CPUs and takes the casts between them away, so
that a plan's outputs stay finite there where a GPU's do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import helper

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
        session = open_session(_reduced(self.model.proto, wanted), as_it_is=True)
        peaks = np.zeros(len(wanted))
        for feeds in batches:
            peaks = np.maximum(peaks, np.array(run_session(session, None, feeds)))
        self.known |= dict(zip(wanted, peaks.tolist(), strict=True))

    def beyond(self, names: Iterable[str]) -> Iterator[str]:
        """Yield those that do not fit float16."""
        return (name for name in names if self.known.get(name, 0.0) > half.MOST)


def _reduced(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return the model with the largest magnitudes of tensors as its outputs."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    del made.graph.output[:]
    for number, name in enumerate(names):
        outputs = [f"{name} magnitude {number}", f"{name} peak {number}"]
        made.graph.node.append(helper.make_node("Abs", [name], outputs[:1]))
        made.graph.node.append(helper.make_node("ReduceMax", outputs[:1], outputs[1:], keepdims=0))
        value = helper.make_tensor_value_info(outputs[1], onnx.TensorProto.FLOAT, ())
        made.graph.output.append(value)
    return made
