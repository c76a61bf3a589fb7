"""What every backend does: say whether it can work here, and build an engine in a child process."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trtcal import __version__
from trtcal.backends.child import run_worker
from trtcal.backends.routes import CACHE, Route
from trtcal.buildlog.diagnosis import Outcome, check
from trtcal.buildlog.layers import Layer
from trtcal.errors import BackendError, InputError, ResourceError
from trtcal.model import Model, TensorSpec, uniquely_named
from trtcal.quantize.qdq import asked_precisions, provenance, quantization_record
from trtcal.storage import (
    Document,
    digest_file,
    parsing,
    read_document,
    replacing,
    seal,
    write_document,
)

KIND = "build"
MANIFEST = "build.json"
LOG = "build.log"
FAILED_LOG = "failed-build.log"

ShapeRanges = Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""Input name -> minimum, optimum and maximum shape."""


@dataclass(frozen=True)
class Availability:
    """Whether a backend can build here; if not, what is missing and how to get it."""

    works: bool
    version: str | None = None
    missing: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class BuildOptions:
    """How to build: `shapes` for dynamic inputs (else the default), and a time limit in seconds."""

    target: str
    shapes: ShapeRanges = field(default_factory=dict)
    time_limit_s: float = 1800.0
    route: Route = field(default_factory=Route)


class Backend(Protocol):
    """One builder of engines."""

    name: str
    engine_file: str
    default_target: str

    def availability(self) -> Availability:
        """Say whether it can build here; never raises."""
        ...

    def check_target(self, target: str) -> None:
        """`InputError` if it cannot build for this target."""
        ...

    def build_in(self, model: Model, options: BuildOptions, folder: Path) -> tuple[Layer, ...]:
        """Build inside `folder`, leave the engine and the log there, return the layer list."""
        ...

    def explain(self, outcome: Outcome, op: str) -> Outcome:
        """Say what this backend alone knows of why a node of this operator lost its precision."""
        ...


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


def build(model: Model, backend: Backend, options: BuildOptions, folder: Path) -> Build:
    """Build an engine for `model` into `folder`: engine, `build.log`, `build.json`.

    `BackendError` if the backend is missing, refuses the model or crashes: the log so far is kept
    in `folder`, and no engine.
    """
    available = backend.availability()
    if not available.works:
        raise BackendError(f"backend {backend.name!r}: {available.missing}", available.hint)
    backend.check_target(options.target)
    check_shapes(model.inputs, options.shapes)
    options.route.check(backend.name, model)
    model = uniquely_named(model)
    with tempfile.TemporaryDirectory(prefix="trtcal-") as name:
        workplace = Path(name)
        try:
            layers = backend.build_in(model, options, workplace)
        except (BackendError, ResourceError):
            _keep_log(workplace, folder, backend.engine_file)
            raise
        return _collect(model, backend, options, layers, workplace, folder, available)


def check_shapes(inputs: tuple[TensorSpec, ...], given: ShapeRanges) -> None:
    """`InputError` if a range is for an unknown input, or does not fit its input's fixed sizes."""
    specs = {spec.name: spec for spec in inputs}
    for name, shapes in given.items():
        if name not in specs:
            raise InputError(f"shapes name {name!r}", f"inputs are: {', '.join(sorted(specs))}")
        for shape in shapes:
            if not _fits(shape, specs[name]):
                wrong = "x".join(map(str, shape))
                raise InputError(f"shape {wrong} does not fit {specs[name]}", "check --shapes")


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    if len(shape) != len(spec.shape) or not all(0 < size < 2**31 for size in shape):
        return False
    pairs = zip(shape, spec.shape, strict=True)
    return all(isinstance(wanted, str) or size == wanted for size, wanted in pairs)


def _keep_log(workplace: Path, folder: Path, engine_file: str) -> None:
    """Leave the log so far, beside an older build if there is one, which stays as it was."""
    if (workplace / LOG).exists():
        older = (folder / MANIFEST).exists() or (folder / engine_file).exists()
        _move(workplace / LOG, folder / (FAILED_LOG if older else LOG))


def _move(source: Path, destination: Path) -> None:
    with replacing(destination) as temporary:
        shutil.copyfile(source, temporary)


def _collect(
    model: Model,
    backend: Backend,
    options: BuildOptions,
    layers: tuple[Layer, ...],
    workplace: Path,
    folder: Path,
    available: Availability,
) -> Build:
    record = quantization_record(model.proto)
    engine = workplace / backend.engine_file
    measured = {
        "engine_digest": digest_file(engine),
        "engine_bytes": engine.stat().st_size,
        "log_digest": digest_file(workplace / LOG),
        **json.loads((workplace / "measured.json").read_text()),
    }
    result = Build(
        folder,
        backend.name,
        available.version or "unknown",
        options.target,
        model.fingerprint,
        model.name,
        layers,
        _outcomes(model, backend, options.route.asked(asked_precisions(model)), layers),
        record.get("skipped", {}),
        {**provenance(record), **options.route.record()},
        backend.engine_file,
        measured,
    )
    for stale in (MANIFEST, FAILED_LOG, CACHE):  # what is half moved is no build
        (folder / stale).unlink(missing_ok=True)
    made = [backend.engine_file, LOG, *(name for name in [CACHE] if (workplace / name).exists())]
    for file in made:
        _move(workplace / file, folder / file)
    write_document(folder / MANIFEST, result.to_document())
    return result


def _outcomes(
    model: Model, backend: Backend, asked: Mapping[str, str], layers: tuple[Layer, ...]
) -> tuple[Outcome, ...]:
    ops = {node.name: node.op_type for node in model.proto.graph.node}
    outcomes = check(asked, layers)
    return tuple(
        backend.explain(outcome, ops[outcome.node]) if outcome.is_lost else outcome
        for outcome in outcomes
    )


def read_build(folder: Path) -> Build:
    """Read a build that `build` wrote; `InputError` if the folder is not one or was altered."""
    path = folder / MANIFEST
    document = read_document(path, KIND)

    def construct() -> Build:
        plain = ("backend", "backend_version", "target", "model", "model_name", "skipped")
        return Build(
            folder=folder,
            **{key: document[key] for key in plain},
            quantization=document["quantization"],
            layers=tuple(Layer.from_document(item) for item in document["layers"]),
            outcomes=tuple(Outcome(**item) for item in document["outcomes"]),
            engine_file=Path(document["engine_file"]).name,
            measured=document["measured"],
        )

    result: Build = parsing(path, construct)
    return result


def work(module: str, request: dict[str, Any], folder: Path, options: BuildOptions) -> None:
    """Run a worker module in a child process; its output is the build log."""
    run_worker(module, request, folder, folder / LOG, options.time_limit_s)
