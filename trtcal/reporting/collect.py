"""Find what the stages left in a run folder: every document of trtcal, read and checked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trtcal.calibration import Observation, is_observation, read_observation
from trtcal.calibration.extremes import TAILS_KIND as TAILS
from trtcal.documents import Document, parsing, read_document, read_json, recover
from trtcal.errors import InputError
from trtcal.evaluate.ab import AB_KIND as AB
from trtcal.evaluate.comparison import Comparison
from trtcal.evidence import manifest
from trtcal.evidence.diagnosis.failure import DIAGNOSIS_KIND as DIAGNOSIS
from trtcal.evidence.diagnosis.failure import DIAGNOSIS_VERSION, failure_of
from trtcal.evidence.manifest import Build, read_build
from trtcal.formats import PLANNED
from trtcal.model import Model, load_model
from trtcal.ptq.artifact import OPTIMIZATIONS_KIND as OPTIMIZATIONS
from trtcal.quantization.plan import FIELDS, Plan, read_plan
from trtcal.quantization.plan import PLAN_KIND as PLAN
from trtcal.ranges import CALIBRATION_KIND as CALIBRATION
from trtcal.ranges import Calibration

RUN, DATA_CHECK, SENSITIVITY = "run", "data_check", "sensitivity"
MAX_DEPTH = 4
OF_RECORD = ("digest", "optimizations", "model", "effort", "objective", "untried", "warnings")
SAMPLES = ("fitted", "calibration", "selection")
LAYERS_KEPT = 40


@dataclass(frozen=True)
class Findings:
    """A run folder's documents in the order of their paths, each digest once.

    `where` gives a build's folder relative to the run's by its digest, `diagnoses` what was wrong with
    it; `failed_logs` are folders (relative) that hold a build log and no build. `comparison` is None
    in the folder of builds that nothing was compared of. `models` gives the ONNX files of what was
    built, by fingerprint.
    """

    folder: Path
    comparison: Comparison | None
    builds: tuple[Build, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    plans: tuple[Plan, ...] = ()
    run: Document | None = None
    failed_logs: tuple[str, ...] = ()
    where: dict[str, str] = field(default_factory=dict)
    diagnoses: dict[str, Document] = field(default_factory=dict)
    observations: tuple[Observation, ...] = ()
    tails: tuple[Document, ...] = ()
    tests: tuple[Document, ...] = ()
    models: dict[str, Model] = field(default_factory=dict)
    optimizations: tuple[Document, ...] = ()
    data_check: Document | None = None
    sensitivities: tuple[Document, ...] = ()

    @cached_property
    def failed_builds(self) -> dict[str, str]:
        """What could not be built, and why: as the run says, else logs without a build."""
        named = (self.run or {}).get("missing_builds")
        if isinstance(named, dict) and named:
            return {str(what): str(why) for what, why in named.items()}
        places = {where: self.folder / where / manifest.LOG for where in self.failed_logs}
        causes = {where: failure_of(log) for where, log in places.items()}
        unknown = "it left a log and no engine"
        return {where: cause.what if cause else unknown for where, cause in causes.items()}


def collect(folder: Path) -> Findings:
    """Read all documents of trtcal in `folder`, up to four folders down.

    `InputError` if there are several comparisons, or neither one nor a build or its log, or if a
    document was altered. JSON that is not trtcal's is left alone; a `.json` file that is not JSON at
    all is an error, since it may well be the rest of a document that mattered.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "give the folder that `trtcal run` wrote")
    recover(folder)
    known_files = [(kind, path) for path in files_in(folder, ".json") if (kind := _kind(path))]

    def read(kind: str, reader: Callable[[Path], Any]) -> tuple[Any, ...]:
        every = [reader(path) for known, path in known_files if known == kind]
        return tuple({_digest(result): result for result in reversed(every)}.values())[::-1]

    def documents(kind: str) -> tuple[Document, ...]:
        return read(kind, lambda path: read_document(path, kind))

    builds = read(manifest.BUILD_KIND, _build_at)
    comparisons = read(Comparison.kind, Comparison.read)
    failed_logs = tuple(
        log.parent.relative_to(folder).as_posix()
        for log in files_in(folder, manifest.LOG)
        if log.name == manifest.LOG and not (log.parent / manifest.MANIFEST).exists()
    )
    if not (comparisons or builds or failed_logs):
        hint = "run `trtcal compare` into it first"
        raise InputError(f"{folder} has neither a comparison nor a build", hint)
    return Findings(
        folder=folder,
        comparison=_at_most_one(folder, comparisons, "comparisons"),
        builds=builds,
        calibrations=read(CALIBRATION, Calibration.read),
        plans=read(PLAN, read_plan),
        run=_at_most_one(folder, documents(RUN), "runs"),
        failed_logs=failed_logs,
        where={each.digest: each.folder.relative_to(folder).as_posix() for each in builds},
        diagnoses={
            build.digest: read_document(path, DIAGNOSIS, DIAGNOSIS_VERSION)
            for build in builds
            if (path := build.folder / manifest.DIAGNOSIS).is_file()
        },
        observations=tuple(map(read_observation, filter(is_observation, files_in(folder, ".npz")))),
        tails=documents(TAILS),
        tests=read(AB, lambda path: read_document(path, AB, 3)),
        models=models_in(folder, {build.model for build in builds}),
        optimizations=read(OPTIMIZATIONS, read_record),
        data_check=_at_most_one(folder, documents(DATA_CHECK), "data checks"),
        sensitivities=documents(SENSITIVITY),
    )


def files_in(folder: Path, ending: str) -> Iterator[Path]:
    """Yield files in sorted order; links to folders are not followed, hidden ones not entered."""
    for name, folders, files in os.walk(folder):
        here = Path(name)
        deep = len(here.relative_to(folder).parts) >= MAX_DEPTH
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        yield from (here / file for file in sorted(files) if file.endswith(ending))


def _kind(path: Path) -> str | None:
    """Return which of the kinds that a report is made of a file has, None if it has none."""
    document = read_json(path)
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == PLAN or _is_bare_plan(document):
        return PLAN
    others = (CALIBRATION, RUN, TAILS, AB, OPTIMIZATIONS, DATA_CHECK, SENSITIVITY)
    known = kind in (Comparison.kind, manifest.BUILD_KIND, *others)
    return str(kind) if known and "schema_version" in document else None


def _is_bare_plan(document: Any) -> bool:
    """Whether it is a plan as people write one: `{"layers": {"name": "fp32"}}` and no more."""
    if not isinstance(document, dict) or not set(document) <= set(FIELDS):
        return False
    layers, rules = document.get("layers", {}), document.get("rules", [])
    named = isinstance(layers, dict) and all(layer in PLANNED for layer in layers.values())
    return named and bool(layers or rules)


def _digest(item: Any) -> str:
    if isinstance(item, dict):
        return str(item["digest"])
    return str(item.to_document()["digest"])


def _build_at(path: Path) -> Build:
    if path.name != manifest.MANIFEST:
        hint = "keep the files of a build together, with the names that `trtcal build` gave them"
        raise InputError(f"{path} describes a build but is not named {manifest.MANIFEST}", hint)
    return read_build(path.parent)


def _at_most_one(folder: Path, results: tuple[Any, ...], what: str) -> Any:
    if len(results) > 1:
        hint = "give the folder of one run; write what belongs to no run into another one with -o"
        raise InputError(f"{folder} has {len(results)} {what}", hint)
    return results[0] if results else None


def models_in(folder: Path, fingerprints: set[str]) -> dict[str, Model]:
    """Return the models in a folder with these fingerprints; what a backend wrote is left alone."""
    models: dict[str, Model] = {}
    for path in files_in(folder, ".onnx"):
        if (path.parent / manifest.MANIFEST).exists() or fingerprints <= set(models):
            continue
        with contextlib.suppress(InputError):
            model = load_model(path)
            models[model.fingerprint] = model
    return {digest: model for digest, model in models.items() if digest in fingerprints}


def read_record(path: Path) -> Document:
    """Read what a report has of a record of optimizations; `InputError` if it lacks a field."""
    document = read_document(path, OPTIMIZATIONS)
    return parsing(path, lambda: _record(document))


def _record(document: Document) -> Document:
    layers = document.get("layers", [])
    return {
        **{key: document[key] for key in OF_RECORD},
        "samples": {key: document["samples"][key] for key in SAMPLES},
        "tries": [_try(attempt) for attempt in document["tries"]],
        "layers": [
            {key: layer[key] for key in ("name", "weights", "rounded", "bias")}
            for layer in sorted(layers, key=_by_change)[:LAYERS_KEPT]
        ],
        "optimized_layers": len(layers),
    }


def _try(item: Document) -> Document:
    loss = item["loss"]
    figures = {"value": item["value"], "noise": loss["noise"], "disagreement": loss["disagreement"]}
    return {"name": item["name"], "what": item["what"], "kept": item["kept"], **figures}


def _by_change(layer: Document) -> tuple[float, float]:
    return -(layer["bias"] or 0.0), -(layer["rounded"] or 0) / (layer["weights"] or 1)
