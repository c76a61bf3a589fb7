"""The tensors for which TensorRT's INT8 calibrators, up to TensorRT 10, choose a range.

They are the float tensors of the network that its ONNX parser makes: inputs, outputs, and all between
layers, under their names in ONNX. A layer with a tensor that has none runs in float. Sources: NVIDIA's
onnx-tensorrt (`registerTensor` in `ImporterContext.cpp`), and caches that TensorRT 6 to 10 wrote.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from onnx import TensorProto

from trtcal.model import Model
from trtcal.model.files import subgraphs_of, with_inner
from trtcal.model.ops import MOVES
from trtcal.model.tensors import constants_of, producers_of, value_types
from trtcal.ranges import Calibration, TensorRange

FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
SAME_VALUES = MOVES | {"Dropout"}


@dataclass(frozen=True)
class CacheTensors:
    """`origins` names, in graph order, the tensor whose values each tensor has, mostly itself.

    `pools` has for the output of a MaxPool the origin of its input, because TensorRT gives both one
    scale. `left_out` says why TensorRT asks for no range of the others, or none can be observed.
    """

    origins: dict[str, str]
    pools: dict[str, str]
    left_out: dict[str, str]

    def beyond(self, observed: Collection[str]) -> list[str]:
        """Return what must be observed beside the tensors that a plan quantizes."""
        known = {self.origins[name] for name in observed if name in self.origins} | {*self.pools}
        return [name for name in dict.fromkeys(self.origins.values()) if name not in known]

    def follow(self, ranges: dict[str, TensorRange]) -> dict[str, TensorRange]:
        """Return ranges in graph order, with those that follow from others."""
        shared = dict[str, TensorRange]()
        for name in filter(ranges.__contains__, self.origins):
            shared.setdefault(self.origins[name], ranges[name])
        for pooled, whole in self.pools.items():
            if whole in shared:
                shared.setdefault(pooled, shared[whole])
        return {name: shared[end] for name, end in self.origins.items() if end in shared} | ranges

    def complete(self, calibration: Calibration) -> Calibration:
        """Return a calibration with all ranges, and the reasons why others are not there."""
        ranges, reasons = self.follow(calibration.ranges), self.left_out | calibration.unranged
        lacking = {n: f"{end!r} has none" for n, end in self.origins.items() if n not in ranges}
        return replace(calibration, ranges=ranges, unranged=lacking | reasons)


def cache_tensors(model: Model) -> CacheTensors:
    """Return the tensors of a float model as it is given to TensorRT, not prepared."""
    graph, types = model.proto.graph, value_types(model.proto)
    producers, constants = producers_of(graph), constants_of(graph)
    kinds = {n: TensorProto.DataType.Name(t.type.tensor_type.elem_type) for n, t in types.items()}
    origins, pools, left_out = dict[str, str](), dict[str, str](), dict[str, str]()
    for name in dict.fromkeys([*(value.name for value in graph.input), *producers]):
        kind, node = kinds.get(name, "unknown"), producers.get(name)
        source = origins.get(next(iter(node.input), "")) if node else None
        if name in ("", *constants):
            continue
        if kind not in FLOATS:
            left_out[name] = f"its type is {kind.lower()}, not one of floats"
        elif node and source and node.op_type in SAME_VALUES:
            origins[name] = source
        else:
            origins[name] = name
            pools |= {name: source} if node and source and node.op_type == "MaxPool" else {}
    for node in graph.node:
        for part in (part for holder in with_inner([node]) for part in subgraphs_of(holder)):
            inner = {*(value.name for value in part.input), *producers_of(part)} - {""}
            left_out |= dict.fromkeys(sorted(inner), f"it is inside {node.op_type} {node.name!r}")
    return CacheTensors(origins, pools, left_out)
