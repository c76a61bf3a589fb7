"""Which framework wrote a model, by the names of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GRAPH = "saved_model.pb"


@dataclass(frozen=True)
class Format:
    """A format of models: what converts it, and the packages and the extra that this takes."""

    name: str
    worker: str
    packages: tuple[str, ...]
    extra: str


TENSORFLOW = "tensorflow", "tf2onnx", "keras"
TORCH = "torch", "onnxscript"
SAVED_MODEL = Format("saved_model", "tensorflow_worker", TENSORFLOW, "tensorflow")
FORMATS = {
    ".keras": Format("keras", "tensorflow_worker", TENSORFLOW, "tensorflow"),
    ".tflite": Format("tflite", "tensorflow_worker", TENSORFLOW, "tensorflow"),
    ".pt2": Format("pt2", "pytorch_worker", TORCH, "torch"),
}
"""By the ending of a file; a SavedModel is a folder."""
WEIGHTS = "the file has no graph: load it in your program, and export the model from there"
REFUSED = {
    **dict.fromkeys(
        (".pt", ".pth", ".ckpt"),
        "a pickle is a program: build the network in Python and give it to trtcal.from_torch, or save "
        "it with torch.export.save(..., 'model.pt2')",
    ),
    **dict.fromkeys(
        (".h5", ".hdf5"),
        "Keras loads it without its safe mode: save it as .keras, or as a SavedModel",
    ),
    ".safetensors": f"the file has weights only, {WEIGHTS}",
}
"""Endings of what is never opened, and what to do instead."""


def format_of(path: Path) -> Format | None:
    """Return the format of another framework's model, None for ONNX and all else."""
    if path.is_dir():
        return SAVED_MODEL if (path / GRAPH).exists() else None
    return FORMATS.get(path.suffix.lower())
