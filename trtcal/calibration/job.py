"""What is to be counted of which samples: shards of the data, and passes over them.

Samples are cut into a fixed number of shards, by index alone, and batches never cross the end of a
shard. So what runs together in a batch is the same for any number of workers, however often the work
was broken off. Below a ceiling of memory the data are read in several passes, each for some tensors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.shape_inference

from calibrators.counting import load_kernels
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import MODEL
from trtcal.data import Dataset, Feeds
from trtcal.data.dataset import Span
from trtcal.errors import ResourceError

if TYPE_CHECKING:
    from trtcal.calibration.accumulator import HistogramAccumulator

SHARDS = 64


def shards(samples: int, unit: int = 1) -> list[Span]:
    """Cut samples into at most `SHARDS` equal spans, multiples of `unit`; the last may be shorter."""
    length = -(-samples // (SHARDS * unit)) * unit
    return [(start, min(start + length, samples)) for start in range(0, samples, length)]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the same samples in as few spans as possible, rising."""
    result: list[Span] = []
    for start, stop in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(stop, result[-1][1])
        else:
            result.append((start, stop))
    return result


def missing(spans: Iterable[Span], done: Iterable[Span]) -> list[Span]:
    """Return what is left of each wanted span; `done` are joined spans."""
    left: list[Span] = []
    for start, stop in spans:
        for first, last in done:
            if first < stop and last > start:
                if start < first:
                    left.append((start, first))
                start = max(start, last)
        if start < stop:
            left.append((start, stop))
    return left


def count(spans: Iterable[Span]) -> int:
    """Return the number of samples in spans that do not overlap."""
    return sum(stop - start for start, stop in spans)


Task = tuple[int, list[Span]]
"""The number of a pass over the data, and the samples to count in it."""


@dataclass(frozen=True)
class Job:
    """One model, laid out in `folder`, over one dataset, in one or more passes.

    `passes` are the tensors counted in each, `into` names the histogram of each tensor. `batch` is the
    most samples run together and `unit` the least: both are the model's batch where that is fixed.
    `threads` are those of each worker, `room` the bytes that collected tensors may take.
    """

    folder: Path
    dataset: Dataset
    passes: list[list[str]]
    into: dict[str, str]
    unit: int
    batch: int
    threads: int
    room: int

    def left(self, accumulator: HistogramAccumulator) -> list[tuple[int, Span]]:
        """Return what an accumulator lacks, in pieces that are no longer than a shard."""
        spans = shards(len(self.dataset), self.unit)
        return [
            (number, span)
            for number in range(len(self.passes))
            for span in missing(spans, joined(accumulator.done.get(number, [])))
        ]


COPIES = 4  # of a batch of a tensor: as expected, as found, collected, and in the runtime
COUNTS_BYTES = 5 << 20  # of a histogram while it is filled
KEPT_BYTES = 1 << 20  # of a histogram, from its pass to the end
SPARE = 0.05  # of the ceiling, for what cannot be foreseen
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
            f"the memory limit of {ceiling / MB:.0f} MB is too low: the model and its largest "
            f"tensor need about {(ceiling + processes * (most - left) / (1 - SPARE)) / MB:.0f} MB",
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
    """Return the resident memory of this process; its peak where the system reports no more."""
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
            sizes = first[value.name].shape
            without = len(sizes) - 1 == len(value.type.tensor_type.shape.dim)  # no axis for samples
            for size in sizes[without:]:
                shape.dim.add(dim_value=size)
            value.type.tensor_type.shape.CopyFrom(shape)
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    tensors = (value for value in inferred.graph.value_info if value.type.HasField("tensor_type"))
    return {value.name: _bytes(value.type.tensor_type) for value in tensors}


def _bytes(kind: onnx.TypeProto.Tensor) -> int:
    sizes = [dim.dim_value for dim in kind.shape.dim]
    width = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).itemsize
    return int(np.prod(sizes, dtype=np.int64)) * width
