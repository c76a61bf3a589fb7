"""The tensors for which TensorRT's INT8 calibrators, up to TensorRT 10, choose a range.

They are the float tensors of the network that its ONNX parser makes: inputs, outputs, and all between
layers, under their names in ONNX. A layer with a tensor that has none runs in float. Sources: NVIDIA's
onnx-tensorrt (`registerTensor` in `ImporterContext.cpp`), and caches that TensorRT 7 to 10 wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from onnx import GraphProto, TensorProto

from trtcal.model import Model
from trtcal.model.files import subgraphs_of, with_inner
from trtcal.model.ops import MOVES
from trtcal.model.tensors import constants_of, producers_of, value_types
from trtcal.ranges import Calibration, TensorRange

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
SAME_RANGE = MOVES | {"Dropout", "MaxPool"}
"""Their output has its input's range: TensorRT's caches give both the same scale."""


@dataclass(frozen=True)
class CacheTensors:
    """`origins` names, in graph order, the tensor whose range each tensor has, mostly itself.

    `left_out` says why TensorRT asks for no range of the others, or none can be observed.
    """

    origins: dict[str, str]
    left_out: dict[str, str]

    def beyond(self, observed: Collection[str]) -> list[str]:
        """Return what must be observed beside the tensors that a plan quantizes."""
        known = {self.origins[name] for name in observed if name in self.origins}
        return [name for name in dict.fromkeys(self.origins.values()) if name not in known]

    def missing(self, calibration: Calibration) -> list[str]:
        """Return the tensors for which a calibration has neither a range nor a reason for none."""
        known = {*calibration.ranges, *calibration.unranged}
        return [name for name in self.origins if name not in known]

    def complete(self, calibration: Calibration) -> Calibration:
        """Return a calibration in graph order, with the ranges that follow from others."""
        ranges, shared = dict(calibration.ranges), dict[str, TensorRange]()
        for name in filter(ranges.__contains__, self.origins):
            shared.setdefault(self.origins[name], ranges[name])
        given = {name: shared[end] for name, end in self.origins.items() if end in shared}
        lacking = {
            name: f"{end!r} has none" for name, end in self.origins.items() if end not in shared
        }
        unranged = lacking | self.left_out | calibration.unranged
        return replace(calibration, ranges=given | ranges, unranged=unranged)


def cache_tensors(model: Model) -> CacheTensors:
    """Return the tensors of a float model as it is given to TensorRT, not prepared."""
    graph, known = model.proto.graph, value_types(model.proto)
    producers, constants = producers_of(graph), constants_of(graph)
    origins: dict[str, str] = {}
    left_out = dict(_inside(graph))
    for name in dict.fromkeys([*(value.name for value in graph.input), *producers]):
        kind = known[name].type.tensor_type.elem_type if name in known else TensorProto.UNDEFINED
        node = producers.get(name)
        if not name or name in constants:
            continue
        if kind not in FLOATS:
            left_out[name] = _why(kind)
        elif node is not None and node.op_type in SAME_RANGE and node.input[0] in origins:
            origins[name] = origins[node.input[0]]
        else:
            origins[name] = name
    return CacheTensors(origins, left_out)


def _inside(graph: GraphProto) -> Iterator[tuple[str, str]]:
    for node in graph.node:
        for part in (part for holder in with_inner([node]) for part in subgraphs_of(holder)):
            reason = f"it is inside {node.op_type} {node.name!r}"
            yield from ((name, reason) for inner in part.node for name in inner.output if name)


def _why(kind: int) -> str:
    if kind == TensorProto.UNDEFINED:
        return "its type is not known"
    return f"TensorRT wants ranges of floats, and it is {TensorProto.DataType.Name(kind).lower()}"
