"""Makes a bundle of one variant of a run, whole or not at all.

What is in its folder, besides `manifest.json` (an in-toto Statement: every file by digest) and
`signature.json` (the DSSE envelope of it): `engines/TARGET/` with an engine and the manifest of its
build, `model/` with the quantized model to build again, `golden.npz` with inputs and the outputs
that a device has to give, what the engines were made by, the report, and what exporters add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtcal import documents
from trtcal.backends.targets import canonical
from trtcal.config import ImagesConfig
from trtcal.data import Dataset
from trtcal.data.drawn import drawn_like
from trtcal.documents import Document, write_bytes, write_text
from trtcal.errors import BackendError, GateFailed, InputError
from trtcal.evidence.manifest import MANIFEST as BUILD
from trtcal.evidence.manifest import Build
from trtcal.extensions import PAGES, entry_points
from trtcal.formats import NARROW, spelled
from trtcal.model import Model
from trtcal.reporting.document import read_report
from trtcal.runs.bundle.golden import MOST_SAMPLES, make_golden
from trtcal.runs.bundle.manifest import describe_engine, manifest_of
from trtcal.runs.bundle.signing import Signer, envelope
from trtcal.runs.bundle.source import copy, find_builds, find_model
from trtcal.runs.bundle.verifying import (
    MANIFEST,
    PREDICATE,
    SIGNATURE,
    Options,
    Result,
    is_for_shipping,
    verify,
)
from trtcal.runs.origin import REPORT_FILE, RUN_FILE, Origin
from trtcal.runs.redaction import is_redacted, redacted_copy
from trtcal.runs.verify import check_whole

GOLDEN = "golden.npz"
PREPROCESSING, LABELS = "preprocessing.json", "labels.txt"
TRITON, DEEPSTREAM, DOCKER = "triton", "deepstream", "docker"
PAGE_FILES = tuple(f"{name}.html" for name in entry_points(PAGES))
"""What the report of a run has links to."""
OWNED = (
    *(MANIFEST, SIGNATURE, "engines", "model", GOLDEN, "calibration.json", "plan.json"),
    *(PREPROCESSING, LABELS, "report.html", REPORT_FILE, RUN_FILE, *PAGE_FILES),
    *(TRITON, DEEPSTREAM, DOCKER),
)
"""Everything that a bundle has at the top of its folder."""


@dataclass(frozen=True)
class Request:
    """What a bundle is made of, and how: `targets` are those of the run to take, all if there are none.

    `data` are those that the run was judged on, `class_names` the names of classes in their order,
    `exports` are exporters, each of which gets the bundle's `Draft`. `despite_verdict` is for a variant
    that the run's verdict does not ship. `redact` takes names out of all files, and has golden
    inputs drawn at random; a redacted run is bundled so in any case.
    """

    run: Path
    variant: str
    data: Dataset
    targets: tuple[str, ...] = ()
    samples: int = MOST_SAMPLES
    signer: Signer | None = None
    images: ImagesConfig | None = None
    class_names: tuple[str, ...] = ()
    exports: tuple[Callable[[Draft], Sequence[str]], ...] = ()
    despite_verdict: bool = False
    redact: bool = False


@dataclass(frozen=True)
class Draft:
    """A bundle in the making: its folder, its engines (entry in the manifest, build), its model.

    `onnx` is the quantized model's file in the bundle.
    """

    folder: Path
    request: Request
    run: Origin
    engines: tuple[tuple[Document, Build], ...]
    model: Model
    onnx: str
    task: Document | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, none if they are not known."""
        return self.request.class_names

    @property
    def asked(self) -> set[str]:
        """The precisions that nodes were asked in."""
        return {name for entry, _ in self.engines for name in entry["precision"]["asked"]}

    def precision_for(self, server: str) -> str:
        """Return the precision that a server builds an engine in: int8, fp16 or fp32.

        Its builder is weakly typed and has a flag for these alone: `InputError` for other formats.
        """
        if others := self.asked.intersection(NARROW) - {"int8"}:
            raise InputError(
                f"{server} builds engines in FP32, FP16 or INT8, and {self.request.variant} has "
                f"layers in {spelled(others)}",
                "bundle a variant without them, or run with TensorRT on the GPU (target gpu), whose "
                "engine is served as it is",
            )
        return next((name for name in ("int8", "fp16") if name in self.asked), "fp32")


@dataclass(frozen=True)
class Bundle:
    """Where a bundle lies, the digest of its manifest, and what its own verification found."""

    folder: Path
    digest: str
    manifest: Document
    result: Result
    notes: tuple[str, ...]


def make_bundle(request: Request, folder: Path) -> Bundle:
    """Make a bundle, verify it, and put it into `folder` in place of an older bundle.

    `InputError` if the run was changed or lacks the variant or a target, the data are not those that it
    was judged on, or the folder holds something else; `GateFailed` if the verdict is not to ship it;
    `BackendError` if the outputs are not repeated.
    """
    check_place(folder)
    run = Origin.read(request.run)
    check_whole(request.run)
    if request.data.fingerprint != run.evaluation_data:
        raise InputError(
            f"data {request.data.name} are not the data that {request.run} was judged on",
            "give the data of that run with --data, or its trtcal.toml with --config",
        )
    redact = request.redact or is_redacted(request.run)
    with (
        redacted_copy(request.run, redact) as copied,
        documents.replacing_entries(folder, OWNED) as place,
    ):
        if redact:
            data = drawn_like(request.data, request.samples * (request.data.batch or 1))
            request, run = replace(request, run=copied, data=data), Origin.read(copied)
        draft, contents, materials = _fill(request, run, place)
        notes = [line for export in request.exports for line in export(draft)]
        statement = manifest_of(place, contents, materials)
        payload = documents.canonical_json(statement)
        write_bytes(place / MANIFEST, payload)
        documents.write_json(place / SIGNATURE, envelope(payload, request.signer))
        result = _verified(place, request.signer)
        if result.status:
            what = f"the new bundle fails its own verification: {result.verdict}"
            raise BackendError(what, "run it again")
    about = _verdict_note(contents["verdict"], request.variant)
    about += [f"redacted: {request.data.about}"] if redact else []
    if documents.read_record(request.run) is None:
        about.append("the files of this run were not recorded: only its content was checked")
    return Bundle(folder, documents.digest_bytes(payload), statement, result, (*about, *notes))


def _verified(folder: Path, signer: Signer | None) -> Result:
    """Verify a bundle as its receiver will: with the public key, if it is signed."""
    if signer is None:
        return verify(folder, Options(allow_unsigned=True))
    with documents.Workplace() as place:
        public = Path(place) / "public.pem"
        write_bytes(public, signer.public_pem())
        return verify(folder, Options(public_key=public))


def check_place(folder: Path) -> None:
    """`InputError` if a folder holds anything that is not part of a bundle."""
    documents.recover(folder)
    if not folder.exists():
        return
    if folder.is_dir():
        names = {entry.name for entry in folder.iterdir() if not documents.is_staging(entry.name)}
        if not names or (names <= set(OWNED) and _is_bundle(folder)):
            return
    hint = "choose another folder with -o"
    raise InputError(f"{folder} contains files that are not a bundle", hint)


def _is_bundle(folder: Path) -> bool:
    """Whether a folder has a bundle's manifest, which may have been changed."""
    path = folder / MANIFEST
    document = documents.read_json(path) if path.is_file() else None
    return isinstance(document, dict) and document.get("predicateType") == PREDICATE


def _fill(request: Request, run: Origin, place: Path) -> tuple[Draft, Document, dict[str, str]]:
    """Put everything but exports, manifest and signature into the bundle."""
    report = read_report(request.run / REPORT_FILE)
    verdict, task = documents.parsing(
        request.run / REPORT_FILE,
        lambda: (_verdict(report, request), (report.get("comparison") or {}).get("task")),
    )
    model, onnx = _copy_model(request, run, place)
    builds = _builds(request, run, model)
    engines = tuple(_copy_engine(request, build, run, place) for build in builds)
    golden = make_golden(model, request.data, request.samples)
    documents.write_npz(place / GOLDEN, golden.arrays.items())
    pages = (name for name in PAGE_FILES if (request.run / name).is_file())
    for name in ("report.html", REPORT_FILE, RUN_FILE, *pages):
        copy(request.run, name, place / name)
    materials = {
        "model": run.model,
        "calibration data": run.calibration_data,
        "evaluation data": run.evaluation_data,
        "run": run.digest,
        "report": report["digest"],
    } | _copy_tables(request, run, engines[0][1], place)
    contents = {
        "variant": request.variant,
        "task": task,
        "engines": [entry for entry, _ in engines],
        "golden": golden.to_document(GOLDEN),
        "verdict": verdict,
        "model": onnx,
        "inputs": [documents.to_fields(spec) for spec in model.inputs],
        "outputs": [documents.to_fields(spec) for spec in model.outputs],
        **_copy_about(request, place),
        "tags": run.tags,
    }
    return Draft(place, request, run, engines, model, onnx, task), contents, materials


def _copy_model(request: Request, run: Origin, place: Path) -> tuple[Model, str]:
    """Copy the quantized model, with its weights if they lie beside it; return it and its file."""
    model, files = find_model(request.run, run, request.variant)
    (place / "model").mkdir()
    for name in files:
        copy(request.run, name, place / "model" / Path(name).name)
    return model, f"model/{Path(files[0]).name}"


def _builds(request: Request, run: Origin, model: Model) -> list[Build]:
    builds = find_builds(request.run, run, model)
    targets = {canonical(target) for target in request.targets}
    there = {build.target for build in builds}
    if not builds or targets - there:
        missing = ", ".join(sorted(targets - there)) or "any target"
        hint = f"its targets are {', '.join(there)}" if there else "run again with [build] targets"
        raise InputError(f"{request.run} has no engine of {request.variant} for {missing}", hint)
    return [build for build in builds if not targets or build.target in targets]


def _copy_engine(
    request: Request, build: Build, run: Origin, place: Path
) -> tuple[Document, Build]:
    target = canonical(build.target)
    folder = place / "engines" / target
    folder.mkdir(parents=True)
    for name in (build.engine_file, BUILD):
        copy(request.run, str((build.folder / name).relative_to(request.run)), folder / name)
    file = f"engines/{target}/{build.engine_file}"
    return describe_engine(build, file, run.measured.architecture), build


def _copy_tables(request: Request, run: Origin, build: Build, place: Path) -> dict[str, str]:
    """Copy the calibration and the plan that the variant was made by, and return their digests."""
    made_by = {kind: build.quantization.get(kind) for kind in ("calibration", "plan")}
    digests = {kind: str(digest) for kind, digest in made_by.items() if digest}
    plan = f"plans/{request.variant}.json"
    sources = {
        "calibration": run.output_of(digests.get("calibration")),
        "plan": next((step.output for step in run.of_stage("plan") if step.output == plan), None),
    }
    for kind, source in sources.items():
        if source is not None:
            copy(request.run, source, place / f"{kind}.json")
    return {**digests, "quantized model": build.model}


def _verdict(report: Document, request: Request) -> Document:
    """Return the run's verdict, and whether the limits hold for the variant that is bundled."""
    measured: dict[str, Any] = report["measured"]
    verdict = {key: measured["verdict"][key] for key in ("word", "variant", "sentence")}
    verdict["limits_of_this"] = limits = measured["judgements"].get(request.variant)
    if is_for_shipping(verdict):
        return verdict
    if not request.despite_verdict:
        why = f"the verdict of {request.run} is {verdict['word']}: {verdict['sentence']}"
        if verdict["word"].startswith("SHIP"):
            why = f"the limits of {request.variant} are {limits}"
        hint = "ship another variant, or record in the bundle that it ships with --despite-verdict"
        raise GateFailed(why, hint)
    return {**verdict, "despite_verdict": True}


def _verdict_note(verdict: Document, variant: str) -> list[str]:
    if verdict["variant"] == variant:
        return []
    limits = verdict["limits_of_this"] or "not judged"
    return [f"the verdict of the run is on {verdict['variant']}; the limits of {variant}: {limits}"]


def _copy_about(request: Request, place: Path) -> Document:
    """Write the declared preprocessing and the names of the classes, and return the files or None."""
    if request.images is not None:
        documents.write_json(place / PREPROCESSING, documents.to_fields(request.images))
    if request.class_names:
        write_text(place / LABELS, "".join(f"{name}\n" for name in request.class_names))
    files = {"preprocessing": PREPROCESSING, "labels": LABELS}
    return {what: file if (place / file).exists() else None for what, file in files.items()}


def read_bundle(folder: Path) -> tuple[Document, str]:
    """Return what a bundle's manifest says once every file holds, and the bundle's digest.

    Whoever made it is not asked. `InputError` if a file was changed, or it is no bundle.
    """
    result = verify(folder, Options(allow_unsigned=True, self_test=False))
    if result.status:
        raise InputError(f"{folder}: {result.verdict}", "write it again, or restore the original")
    manifest = documents.parsing(folder / MANIFEST, lambda: dict(result.manifest))
    return manifest, documents.digest_file(folder / MANIFEST)
