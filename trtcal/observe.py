"""Run the FP32 model over a dataset and count the values of the tensors that a plan can quantize."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrators import Histogram
from trtcal.backends.taps import Reading, Taps
from trtcal.data import Dataset, Feeds, fixed_batch
from trtcal.derive import sources
from trtcal.errors import InputError
from trtcal.model import Model
from trtcal.storage import canonical_json, digest_bytes, parsing, read_npz, write_bytes

BATCH_BYTES = 1 << 28  # of tensors held at once, unless one sample takes more
Progress = Callable[[int], None]
"""Called with the number of samples just done."""


@dataclass(frozen=True)
class Observation:
    """The histograms of one model's tensors over one dataset."""

    model: str
    dataset: str
    samples: int
    histograms: dict[str, Histogram]

    @property
    def digest(self) -> str:
        """Digest of all of it: equal observations, equal digests."""
        parts = {name: histogram.digest() for name, histogram in self.histograms.items()}
        return digest_bytes(canonical_json([self.model, self.dataset, self.samples, parts]))


def observe(
    model: Model,
    dataset: Dataset,
    tensors: Sequence[str],
    batch: int = 32,
    progress: Progress = lambda done: None,
    threads: int = 0,
) -> Observation:
    """Fill one histogram a tensor, holding one batch at a time.

    `model` is the prepared float model; `tensors` are names of its float inputs and activations.
    `batch` is an upper limit: a batch whose tensors would take more than `BATCH_BYTES` is made
    smaller. `threads` 0 takes all cores. `InputError` if a tensor takes a NaN, which no range can hold.
    """
    needed = sources(model.proto, tensors)
    counted = {name: Histogram() for names in needed.values() for name in names}
    computed = [name for name in counted if name not in dataset.inputs]
    first = fixed_batch(model) or 1
    workers = threads or os.cpu_count() or 1
    with (
        Taps(model.proto, computed, next(dataset.batches(first)), threads) as taps,
        ThreadPoolExecutor(workers) as pool,
    ):
        size = max(first, min(batch, first * BATCH_BYTES // max(taps.batch_bytes, 1)))
        for feeds in dataset.batches(size - size % first):
            readings = [*_fed(feeds, counted), *taps.read(feeds)]
            mine, *others = _shared_out(readings, workers)
            tasks = [pool.submit(_count, part, counted) for part in others]
            _count(mine, counted)
            for task in tasks:
                task.result()
            progress(len(next(iter(feeds.values()))))
        _count(taps.rest(), counted)
    for name, histogram in counted.items():
        _check(name, histogram)
    histograms = {name: _sum([counted[part] for part in parts]) for name, parts in needed.items()}
    return Observation(model.fingerprint, dataset.fingerprint, len(dataset), histograms)


def _shared_out(readings: list[Reading], workers: int) -> list[list[Reading]]:
    """Split tensors over workers, each time giving the largest one left to the least busy."""
    parts: list[list[Reading]] = [[] for _ in range(workers)]
    load = [0] * workers
    for reading in sorted(readings, key=lambda one: one.values.size, reverse=True):
        least = load.index(min(load))
        parts[least].append(reading)
        load[least] += reading.values.size
    return parts


def _count(readings: list[Reading], counted: Mapping[str, Histogram]) -> None:
    for reading in readings:
        counted[reading.tensor].update(reading.values, reading.padding)


def _fed(feeds: Feeds, counted: Mapping[str, Histogram]) -> list[Reading]:
    return [Reading(name, array, 0) for name, array in feeds.items() if name in counted]


def _sum(parts: list[Histogram]) -> Histogram:
    if len(parts) == 1:
        return parts[0]
    total = Histogram()
    for part in parts:
        total.merge(part)
    return total


def _check(name: str, histogram: Histogram) -> None:
    if histogram.nan:
        raise InputError(
            f"tensor {name!r} took {histogram.nan} NaN values in the FP32 model",
            "run the FP32 model on the same data and mend it, or the data, first",
        )


def write_observation(path: Path, observation: Observation) -> None:
    """Write histograms to an `.npz` without pickled objects."""
    header = [observation.model, observation.dataset, str(observation.samples)]
    arrays: dict[str, Any] = {
        "header": np.array(header),
        "names": np.array(list(observation.histograms)),
    }
    for number, histogram in enumerate(observation.histograms.values()):
        for key, array in histogram.to_arrays().items():
            arrays[f"{number}/{key}"] = array
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def read_observation(path: Path) -> Observation:
    """Read histograms; `InputError` if the file is not what `write_observation` wrote."""
    arrays = read_npz(path)

    def build() -> Observation:
        model, dataset, samples = arrays["header"].tolist()
        names = arrays["names"].tolist()
        histograms = {name: _histogram(arrays, number) for number, name in enumerate(names)}
        return Observation(model, dataset, int(samples), histograms)

    observation: Observation = parsing(path, build)
    return observation


def _histogram(arrays: Mapping[str, Any], number: int) -> Histogram:
    keys = ("bins", "counts", "scalars", "extent")
    return Histogram.from_arrays({key: arrays[f"{number}/{key}"] for key in keys})


def cached(
    path: Path | None,
    model: Model,
    dataset: Dataset,
    tensors: Sequence[str],
    look: Callable[[], Observation],
) -> Observation:
    """Return the observation kept at `path` if it is of this model, data and tensors; else look.

    What was looked at is then kept there; a `path` of None keeps nothing.
    """
    if path is not None and path.exists():
        kept = read_observation(path)
        wanted = (model.fingerprint, dataset.fingerprint, list(tensors))
        if (kept.model, kept.dataset, list(kept.histograms)) == wanted:
            return kept
    observation = look()
    if path is not None:
        write_observation(path, observation)
    return observation
