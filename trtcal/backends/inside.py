"""Run a model and return tensors from inside it, by name and exactly as the graph has them.

The plain way, of which `taps` is the fast one: for a few tensors, or a few samples. Memory is given
back after each run, because several of them are open at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from trtcal.backends.sessions import Array, Session, open_session, run_session


class Inside:
    """One model, its nodes executed as they stand; `tensors` may be inputs and outputs as well."""

    def __init__(self, proto: onnx.ModelProto, tensors: Sequence[str]) -> None:
        inputs = {value.name for value in proto.graph.input}
        self.names = [name for name in tensors if name not in inputs]
        self.tensors = tensors
        shown = showing(proto, self.names)
        self.session: Session = open_session(shown, as_it_is=True, arena=False)

    def read(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the tensors of one batch."""
        outputs = run_session(self.session, self.names, dict(feeds)) if self.names else []
        found = dict(zip(self.names, outputs, strict=True))
        return {name: found[name] if name in found else feeds[name] for name in self.tensors}


def showing(proto: onnx.ModelProto, tensors: Iterable[str]) -> onnx.ModelProto:
    """Return a model of which these tensors are outputs too, behind its own."""
    known = {value.name for value in proto.graph.output}
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in tensors if name not in known
    )
    return copy
