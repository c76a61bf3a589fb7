"""What has been counted so far, and the checkpoint that outlives a killed process."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from calibrators import Histogram
from trtcal.backends.taps import Reading
from trtcal.calibration.extremes import farther, see
from trtcal.calibration.job import joined
from trtcal.calibration.observation import Reaches, pack, unpack, unpack_texts
from trtcal.data import Dataset
from trtcal.data.dataset import Span
from trtcal.documents import canonical_json, digest_bytes, parsing, read_npz, write_npz
from trtcal.errors import InputError

SPACING_S = 2.0  # at least, between two checkpoints
SHARE = 0.05  # at most, of the time goes into checkpoints


@dataclass
class HistogramAccumulator:
    """Histograms, and which samples are in them: spans for each pass over the data.

    `seconds` and `bytes` are sums for each stage, over all workers.
    """

    histograms: dict[str, Histogram] = field(default_factory=dict)
    done: dict[int, list[Span]] = field(default_factory=dict)
    reaches: Reaches = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes: Counter[str] = field(default_factory=Counter)

    def of(self, tensor: str) -> Histogram:
        """Return a tensor's histogram, a new one at first."""
        return self.histograms.setdefault(tensor, Histogram())

    def count(self, tensor: str, reading: Reading) -> None:
        """Count a reading, and see whether its samples reach farther than those before."""
        largest = self.of(tensor).update(reading.values, reading.padding)
        self.reaches[tensor] = see(self.reaches.get(tensor, []), reading, largest)

    def finish(self, number: int, spans: list[Span]) -> None:
        """Record that a pass has these samples in the histograms now."""
        self.done[number] = joined([*self.done.get(number, []), *spans])

    def add(self, other: HistogramAccumulator) -> None:
        """Add what another worker counted of other samples."""
        for name, histogram in other.histograms.items():
            self.of(name).merge(histogram)
        for name, farthest in other.reaches.items():
            self.reaches[name] = farther(self.reaches.get(name, []), farthest)
        for number, spans in other.done.items():
            self.finish(number, spans)
        for stage, seconds in other.seconds.items():
            self.seconds[stage] += seconds
        self.bytes.update(other.bytes)

    def clear(self) -> None:
        """Forget everything, but keep the memory for as much again."""
        for histogram in self.histograms.values():
            histogram.clear()
        self.done.clear()
        self.reaches.clear()
        self.seconds.clear()
        self.bytes.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "histograms": dict(pack(self.histograms))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, histograms=unpack(state["histograms"]))


class Checkpoint:
    """A file beside the result that keeps an accumulator while the work is under way.

    It belongs to one job: `job` is everything that the counts depend on.
    """

    def __init__(self, path: Path, job: dict[str, Any], dataset: Dataset) -> None:
        self.path, self.dataset = path, dataset
        self.job = digest_bytes(canonical_json({**job, "dataset": dataset.identity}))
        self.last = time.perf_counter()
        self.cost_s = 0.0

    def read(self) -> tuple[HistogramAccumulator, list[list[str]]] | None:
        """Return what was counted, and the tensors of each pass; None if it is of another job.

        `InputError` if the file is damaged.
        """
        if not self.path.exists():
            return None
        arrays = read_npz(self.path)
        if "job" not in arrays or str(arrays["job"]) != self.job:
            return None
        return parsing(self.path, lambda: self._parse(arrays))

    def _parse(self, arrays: dict[str, Any]) -> tuple[HistogramAccumulator, list[list[str]]]:
        reaches = unpack_texts(arrays).reaches or {}
        accumulator = HistogramAccumulator(unpack(arrays), reaches=reaches)
        if arrays["done"].dtype != np.int64:
            raise ValueError("done is of another type")
        for number, start, stop in arrays["done"].tolist():
            accumulator.finish(number, [(start, stop)])
        passes = [arrays[f"pass/{number}"].tolist() for number in range(int(arrays["passes"]))]
        self.dataset.learn(arrays["witnessed"])
        return accumulator, passes

    def write(self, accumulator: HistogramAccumulator, passes: list[list[str]]) -> None:
        """Write the accumulator, whole or not at all."""
        started = time.perf_counter()
        done = [(number, *span) for number, spans in accumulator.done.items() for span in spans]
        arrays = {
            "job": np.array(self.job),
            "done": np.array(done, np.int64).reshape(-1, 3),
            "passes": np.array(len(passes)),
            "witnessed": self.dataset.witnessed(),
            "reaches": np.array(json.dumps(accumulator.reaches)),
        }
        arrays |= {f"pass/{number}": np.array(names) for number, names in enumerate(passes)}
        write_npz(self.path, chain(arrays.items(), pack(accumulator.histograms)), compressed=False)
        self.last = time.perf_counter()
        self.cost_s = self.last - started
        accumulator.seconds["checkpoint"] += self.cost_s
        accumulator.bytes["checkpoint"] += self.path.stat().st_size

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.perf_counter() - self.last >= max(SPACING_S, self.cost_s / SHARE)


def resumed(
    checkpoint: Checkpoint | None, passes: list[list[str]]
) -> tuple[HistogramAccumulator, list[list[str]], str]:
    """Return what to go on from, the tensors of each pass, and a message about it."""
    if checkpoint is None:
        return HistogramAccumulator(), passes, ""
    try:
        saved = checkpoint.read()
    except InputError as error:
        return HistogramAccumulator(), passes, f"{error.message}; starting from the beginning"
    if saved is not None:
        return *saved, f"resuming from {checkpoint.path}"
    text = f"{checkpoint.path} is a checkpoint of a different job; starting from the beginning"
    return HistogramAccumulator(), passes, text if checkpoint.path.exists() else ""
