"""The scales that hang on a range, and the segments of a network with another range in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from trtcal.search.rerun import Rerun
from trtcal.search.segments import Segment, Twins


def scales_by_range(twins: Twins, range_of: Callable[[str], str]) -> dict[str, set[str]]:
    """Return the scales that hang on each range, by the tensor whose range it is."""
    found: dict[str, set[str]] = {}
    for node in twins.quantized.graph.node:
        if node.op_type == "QuantizeLinear":
            found.setdefault(range_of(node.input[0]), set()).add(node.input[1])
    return found


def quantized_in(twins: Twins, segment: Segment) -> Iterator[str]:
    """Yield the tensors that are quantized in a segment."""
    part = twins.part(segment, twins.quantizable)
    return (node.input[0] for node in part.graph.node if node.op_type == "QuantizeLinear")


def with_range(
    rerun: Rerun, start: int, scales: Collection[str], amax: float
) -> dict[int, onnx.ModelProto]:
    """Return the segments of the all-INT8 run that have these scales, from one on, with a range."""
    instead = dict[int, onnx.ModelProto]()
    for place in range(start, len(rerun.parts)):
        part = rerun.twins.part(rerun.parts[place], rerun.twins.quantizable)
        if mine := [one for one in part.graph.initializer if one.name in scales]:
            for one in mine:
                one.CopyFrom(scale_of(amax, one))
            instead[place] = part
    return instead


def scale_of(amax: float, like: onnx.TensorProto) -> onnx.TensorProto:
    """Return a range's scale, of the name and type of another one."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(like.data_type)
    return numpy_helper.from_array(np.array(amax / 127, dtype), like.name)
