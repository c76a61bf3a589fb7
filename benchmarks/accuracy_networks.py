"""The networks of `accuracy_table`, each as a folder of model.onnx, calibration.npz and test.npz."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.made_networks import write
from tests.fixtures.kinds import KINDS, Kind
from tests.packages.networks import NETWORKS, Network
from tests.packages.wheels import HOME

SAMPLES = 32
"""Samples that calibrate, and samples that are compared with float."""
FILES = ("model.onnx", "calibration.npz", "test.npz")
ROOT = Path(__file__).parent.parent
SAMPLE_DATA = {
    "digits": "digits",
    "classifier": "classifier",
    "detector": "detector",
    "vit": "classifier",
}
NAMES_OF_MADE = ("segmentation", "superres", "audio", "lstm", "transformer")
NAMES_OF_KINDS = ("BERT", "GRU", "two inputs", "multi-label", "embedding")


class Writer(Protocol):
    """Writes the files of a network into a folder."""

    def __call__(self, folder: Path) -> None:
        """Write all of `FILES`."""


@dataclass(frozen=True)
class Subject:
    """A network: where it comes from, in words, and what writes its files."""

    source: str
    write: Writer

    def folder(self, name: str) -> Path:
        """Return the folder of its files, which are written once."""
        folder = HOME / "accuracy" / name.replace(" ", "-").replace(",", "")
        if not all((folder / file).exists() for file in FILES):
            folder.mkdir(parents=True, exist_ok=True)
            self.write(folder)
        return folder


def subjects(own: Mapping[str, Path]) -> dict[str, Subject]:
    """Return all networks by name: those of packages, the samples, made ones, and the user's."""
    every = {name: Subject(each.package, partial(_save, each)) for name, each in NETWORKS.items()}
    for name, data in SAMPLE_DATA.items():
        every[name] = Subject(f"samples/{name}", partial(_copy_sample, name, data))
    for name in NAMES_OF_MADE:
        every[name] = Subject("random weights", partial(_make, name))
    for name in NAMES_OF_KINDS:
        every[name] = Subject("random weights", partial(_save, KINDS[name]))
    for name, folder in own.items():
        every[name] = Subject("not shipped", partial(_copy, folder))
    return every


def digest_of(folder: Path) -> str:
    """Return a short digest of a model and its data, the same for all ways to pack the arrays."""
    total = hashlib.sha256((folder / FILES[0]).read_bytes())
    for name in FILES[1:]:
        arrays = np.load(folder / name)
        for key in sorted(arrays.files):
            total.update(f"{name} {key} {arrays[key].dtype} {arrays[key].shape}".encode())
            total.update(arrays[key].tobytes())
    return total.hexdigest()[:12]


def _save(network: Network | Kind, folder: Path) -> None:
    network.save(folder / FILES[0])
    for seed, name in enumerate(FILES[1:]):
        np.savez(folder / name, **network.make(np.random.default_rng(seed), SAMPLES))


def _copy_sample(name: str, data: str, folder: Path) -> None:
    shutil.copy(ROOT / "samples" / name / f"{name}.onnx", folder / FILES[0])
    _copy_data(ROOT / "samples" / data, folder)
    annotations = ROOT / "samples" / data / "instances.json"
    if annotations.exists():
        shutil.copy(annotations, folder)


def _copy(source: Path, folder: Path) -> None:
    shutil.copy(source / FILES[0], folder)
    _copy_data(source, folder)


def _copy_data(source: Path, folder: Path) -> None:
    """Write the first samples for calibration, and all for the test: its labels count."""
    arrays = np.load(source / FILES[1])
    cut = {key: arrays[key][:SAMPLES] if arrays[key].ndim else arrays[key] for key in arrays.files}
    np.savez(folder / FILES[1], **cut)  # type: ignore[arg-type]  # its stub says bool
    shutil.copy(source / FILES[2], folder)


def _make(name: str, folder: Path) -> None:
    path = write(name, folder, 2 * SAMPLES, None)
    path.rename(folder / FILES[0])
    values = np.load(path.with_suffix(".npz"))["input"]
    for file, part in zip(FILES[1:], (values[:SAMPLES], values[SAMPLES:]), strict=True):
        np.savez(folder / file, input=part)
    path.with_suffix(".npz").unlink()
