"""`build.json`: what came of a build, and the names of the files around it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtcal import documents
from trtcal.config import is_device
from trtcal.documents import Document
from trtcal.documents.overview import Overview, Shown
from trtcal.errors import InputError, __version__
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.model import TensorSpec
from trtcal.quantization.coverage import Coverage

BUILD_KIND = "build"
MANIFEST, DIAGNOSIS = "build.json", "diagnosis.json"
LOG, RECORDS = "build.log", "build.jsonl"
RECORD = b'{"seconds": '
"""What a record begins with."""
INSPECTED, LAYER_TIMES = "layers.json", "layer-times.json"


def runs_on_cpu(backend: str, target: str) -> bool:
    """Whether a backend builds for a CPU: ONNX Runtime on a device (`@NAME`) does, as on this machine.

    >>> runs_on_cpu("onnxruntime", "@pi"), runs_on_cpu("tensorrt", "@orin"), runs_on_cpu("", "cuda")
    (True, False, False)
    """
    return target == "cpu" or (backend == "onnxruntime" and is_device(target))


@dataclass(frozen=True)
class Build(Shown):
    """A built engine, with its layers and the precision that each node asked for and got.

    `whole` are the outputs of the model that this model was cut from, none if it was not cut.
    `coverage` is the share of the compute in INT8; for ONNX Runtime's CPU what Q/DQ ask for.

    >>> import tempfile
    >>> made = build("samples/digits/digits.onnx", tempfile.mkdtemp())
    >>> made.target, made.engine.name
    ('cpu', 'engine.onnx')
    """

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
    whole: tuple[TensorSpec, ...] = ()
    plugins: tuple[str, ...] = ()
    gpu: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    command: str | None = None
    coverage: Coverage | None = None

    def overview(self) -> Overview:
        """Return the precision that each node asked for and got, those first that did not get it."""
        lost_first = sorted(self.outcomes, key=lambda outcome: not outcome.is_lost)
        columns = {"node": "{node}", "asked": "{asked}", "got": "{got}"}
        columns |= {"engine layer": "{layer}", "why": "{reason}"}
        title = f"{self.model_name}: {self.backend} {self.backend_version} for {self.target}, "
        title += f"{len(self.layers)} engine layers; {sum(each.is_lost for each in lost_first)} "
        title += "nodes did not get the precision asked for"
        facts = [self.coverage.proportion] if self.coverage else []
        return Overview(title, facts, things=lost_first, columns=columns, missing="")

    @property
    def is_for_cpu(self) -> bool:
        """Whether ONNX Runtime's CPU kernels run it, here or on a device: no evidence on TensorRT."""
        return runs_on_cpu(self.backend, self.target)

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
        fields = documents.to_fields(self).items()
        body = {name: value for name, value in fields if name != "folder"}
        layers = [layer.to_document() for layer in self.layers]
        head = {"kind": BUILD_KIND, "schema_version": 1, "trtcal": __version__}
        coverage = self.coverage and self.coverage.to_document()
        return documents.seal({**head, **body, "layers": layers, "coverage": coverage})

    @property
    def digest(self) -> str:
        """Digest of the manifest's lasting part."""
        return str(self.to_document()["digest"])


def read_build(place: Path) -> Build:
    """Read a build from its folder or manifest; `InputError` if it is none or was altered."""
    return read_manifest(place)[0]


def read_manifest(place: Path) -> tuple[Build, str]:
    """Read a build, and the digest of its manifest, whichever trtcal wrote it."""
    path = place / MANIFEST if place.is_dir() else place
    document = documents.read_document(path, BUILD_KIND, command="trtcal build")
    name = str(document.get("engine_file", ""))
    file = {"folder": str(path.parent), "engine_file": Path(name).name}
    build = documents.parsing(path, lambda: documents.from_fields(Build, {**document, **file}))
    return build, str(document["digest"])


def is_build_folder(folder: Path) -> bool:
    """Whether a build of trtcal, finished or not, wrote here: by its manifest, else by its records."""
    with contextlib.suppress(InputError):
        document = documents.read_json(folder / MANIFEST)
        return isinstance(document, dict) and document.get("kind") == BUILD_KIND
    with contextlib.suppress(OSError), (folder / RECORDS).open("rb") as file:
        return file.read(len(RECORD)) in (RECORD, b"")
    return False
