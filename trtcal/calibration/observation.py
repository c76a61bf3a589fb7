"""What was seen of a model's tensors over a dataset, and the file that keeps it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from calibrators import Histogram
from trtcal.data import Dataset
from trtcal.documents import canonical_json, digest_bytes, parsing, read_npz, write_npz
from trtcal.model import Model

KEYS = ("bins", "counts", "scalars", "extent")


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


def pack(histograms: Mapping[str, Histogram]) -> Iterator[tuple[str, Any]]:
    """Yield histograms as named arrays without objects, which `unpack` takes back."""
    yield "names", np.array(list(histograms))
    for number, histogram in enumerate(histograms.values()):
        for key, array in histogram.to_arrays().items():
            yield f"{number}/{key}", array


def unpack(arrays: Mapping[str, Any]) -> dict[str, Histogram]:
    """Return the histograms in arrays; `KeyError` or `ValueError` if they are not there."""
    names = arrays["names"].tolist()
    return {
        name: Histogram.from_arrays({key: arrays[f"{number}/{key}"] for key in KEYS})
        for number, name in enumerate(names)
    }


def write_observation(path: Path, observation: Observation) -> None:
    """Write histograms to an `.npz` without pickled objects."""
    header = [observation.model, observation.dataset, str(observation.samples)]
    write_npz(path, chain([("header", np.array(header))], pack(observation.histograms)))


def is_observation(path: Path) -> bool:
    """Whether a file is an `.npz` that has the names under which `write_observation` writes."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"header.npy", "names.npy"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def read_observation(path: Path) -> Observation:
    """Read histograms; `InputError` if the file is not what `write_observation` wrote."""
    arrays = read_npz(path)

    def build() -> Observation:
        model, dataset, samples = arrays["header"].tolist()
        return Observation(model, dataset, int(samples), unpack(arrays))

    observation: Observation = parsing(path, build)
    return observation


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
        same_model = (kept.model, list(kept.histograms)) == (model.fingerprint, list(tensors))
        if same_model and kept.dataset == dataset.fingerprint:  # which may have to be read for it
            return kept
    observation = look()
    if path is not None:
        write_observation(path, observation)
    return observation
