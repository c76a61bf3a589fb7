"""`build.json`: what came of a build, and the names of the files around it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtcal import __version__
from trtcal.documents import Document, parsing, read_document, seal
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.model import TensorSpec

KIND = "build"
MANIFEST = "build.json"
LOG = "build.log"
DIAGNOSIS = "diagnosis.json"
RECORDS = "build.jsonl"
INSPECTED = "layers.json"
LAYER_TIMES = "layer-times.json"


@dataclass(frozen=True)
class Build:
    """An engine that was built, with its layers and what each node got of what it was asked."""

    folder: Path
    backend: str
    backend_version: str
    target: str
    model: str
    model_name: str
    layers: tuple[Layer, ...]
    outcomes: tuple[Outcome, ...]
    skipped: dict[str, str]
    quantization: dict[str, Any]
    engine_file: str
    measured: dict[str, Any]
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    plugins: tuple[str, ...] = ()
    gpu: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    command: str | None = None

    @property
    def engine(self) -> Path:
        """The engine's path."""
        return self.folder / self.engine_file

    @property
    def log(self) -> Path:
        """The build log's path."""
        return self.folder / LOG

    def to_document(self) -> Document:
        """Return the manifest; what differs from build to build stands under `measured`."""
        body = {
            "trtcal": __version__,
            "backend": self.backend,
            "backend_version": self.backend_version,
            "target": self.target,
            "model": self.model,
            "model_name": self.model_name,
            "engine_file": self.engine_file,
            "inputs": [asdict(spec) for spec in self.inputs],
            "outputs": [asdict(spec) for spec in self.outputs],
            "plugins": list(self.plugins),
            "gpu": self.gpu,
            "options": self.options,
            "command": self.command,
            "quantization": self.quantization,
            "skipped": self.skipped,
            "outcomes": [outcome.to_document() for outcome in self.outcomes],
            "layers": [layer.to_document() for layer in self.layers],
            "measured": self.measured,
        }
        return seal({"kind": KIND, "schema_version": 1, **body})

    @property
    def digest(self) -> str:
        """Digest of the manifest's lasting part."""
        return str(self.to_document()["digest"])


def read_build(folder: Path) -> Build:
    """Read a build that `build` wrote; `InputError` if the folder is not one or was altered."""
    return read_manifest(folder)[0]


def read_manifest(folder: Path) -> tuple[Build, str]:
    """Read a build, and the digest that its manifest bears, whichever trtcal wrote it."""
    path = folder / MANIFEST
    document = read_document(path, KIND)

    def construct() -> Build:
        texts = ("backend", "backend_version", "target", "model", "model_name")
        return Build(
            folder=folder,
            **{key: _text(document[key]) for key in texts},
            skipped=document["skipped"],
            quantization=document["quantization"],
            layers=tuple(Layer.from_document(item) for item in document["layers"]),
            outcomes=tuple(Outcome(**item) for item in document["outcomes"]),
            engine_file=Path(document["engine_file"]).name,
            measured=dict(document["measured"]),
            inputs=_specs(document["inputs"]),
            outputs=_specs(document["outputs"]),
            plugins=tuple(map(_text, document["plugins"])),
            gpu=document["gpu"],
            options=dict(document["options"]),
            command=document["command"],
        )

    result: Build = parsing(path, construct)
    return result, str(document["digest"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _specs(items: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(_text(i["name"]), _text(i["dtype"]), tuple(i["shape"])) for i in items)
