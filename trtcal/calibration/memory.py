"""Keep below a ceiling of memory: look at the data several times, at some tensors each time."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference

from calibrators.counting import load_kernels
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import MODEL
from trtcal.data import Feeds
from trtcal.errors import ResourceError

COPIES = 4  # of a batch of a tensor: as expected, as found, collected, and in the runtime
COUNTS_BYTES = 5 << 20  # of a histogram while it is filled
KEPT_BYTES = 1 << 20  # of a histogram, from its pass to the end
SPARE = 0.05  # of the ceiling, for what nobody can foresee
MB = 10**6


def passes_within(
    ceiling: int, folder: Path, tensors: Sequence[str], first: Feeds, processes: int
) -> list[list[str]]:
    """Return the tensors of each pass, so that no process takes more than its part of the ceiling.

    `ceiling` is in bytes, for all processes together. `ResourceError` if the model alone, or one
    tensor, takes more.
    """
    kept = KEPT_BYTES * len(tensors)
    left = int(ceiling * (1 - SPARE)) // processes - kept - _with_model(folder, first)
    sizes = tensor_bytes(onnx.load(folder / MODEL, load_external_data=False), first)
    usual = max(sizes.values(), default=0)
    costs = {name: COPIES * sizes.get(name, usual) + COUNTS_BYTES for name in tensors}
    most = max(costs.values(), default=0)
    if most > left:
        raise ResourceError(
            f"a ceiling of {ceiling / MB:.0f} MB is too low: the model and the tensor that takes most "
            f"need about {(ceiling + processes * (most - left) / (1 - SPARE)) / MB:.0f} MB",
            "raise --max-memory, or give fewer --workers",
        )
    passes: list[list[str]] = [[]]
    used = 0
    for name in tensors:
        if used + costs[name] > left:
            passes.append([])
            used = 0
        passes[-1].append(name)
        used += costs[name]
    return passes


def _with_model(folder: Path, first: Feeds) -> int:
    """Return the bytes that this process takes with the model loaded and run once."""
    load_kernels()
    session = open_session(folder / MODEL, 1)
    run_session(session, None, first)
    taken = resident_bytes()
    del session
    return taken


def resident_bytes() -> int:
    """Return the resident memory of this process; its peak where the system tells no more."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def tensor_bytes(proto: onnx.ModelProto, first: Feeds) -> dict[str, int]:
    """Return the size of a batch of each tensor whose shape can be inferred from the first feeds.

    The model, which needs no weights, is changed.
    """
    del proto.graph.value_info[:]
    for value in proto.graph.input:
        if value.name in first:
            shape = onnx.TensorShapeProto()
            for size in first[value.name].shape:
                shape.dim.add(dim_value=size)
            value.type.tensor_type.shape.CopyFrom(shape)
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    return {value.name: _bytes(value.type.tensor_type) for value in inferred.graph.value_info}


def _bytes(kind: onnx.TypeProto.Tensor) -> int:
    sizes = [dim.dim_value for dim in kind.shape.dim]
    width = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).itemsize
    return int(np.prod(sizes, dtype=np.int64)) * width
