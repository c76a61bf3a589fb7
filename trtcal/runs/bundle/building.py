"""Makes a bundle of one variant of a run, whole or not at all.

What is in its folder, besides `manifest.json` (an in-toto Statement: every file by digest) and
`signature.json` (the DSSE envelope of it): `engines/TARGET/` with an engine and the manifest of its
build, `model/` with the quantized model to build again, `golden.npz` with inputs and the INT8 outputs
that a device has to give, what the engines were made by, the report, and what exporters add.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtcal.backends.targets import canonical
from trtcal.config import ImagesConfig
from trtcal.data import Dataset
from trtcal.documents import (
    Document,
    canonical_json,
    digest_bytes,
    digest_file,
    is_staging,
    parsing,
    read_document,
    read_json,
    recover,
    replacing_entries,
    to_fields,
    write_bytes,
    write_json,
    write_text,
)
from trtcal.errors import BackendError, InputError
from trtcal.evidence.manifest import MANIFEST as BUILD
from trtcal.evidence.manifest import Build, read_build
from trtcal.model import Model, load_model
from trtcal.model.files import tensors_of
from trtcal.reporting.document import KIND as REPORT
from trtcal.reporting.document import VERSION as REPORT_VERSION
from trtcal.runs.bundle.golden import MOST, make_golden
from trtcal.runs.bundle.manifest import Contents, describe_engine, manifest_of, specs_of
from trtcal.runs.bundle.signing import Signer, envelope
from trtcal.runs.bundle.verifying import MANIFEST, SIGNATURE, Result, Wanted, verify
from trtcal.runs.lineage import KIND as RUN
from trtcal.runs.statement import BUNDLE
from trtcal.runs.verify import verify as check_digests

GOLDEN = "golden.npz"
PREPROCESSING, LABELS = "preprocessing.json", "labels.txt"
TRITON, DEEPSTREAM, DOCKER = "triton", "deepstream", "docker"
OWNED = (
    MANIFEST,
    SIGNATURE,
    "engines",
    "model",
    GOLDEN,
    "calibration.json",
    "plan.json",
    PREPROCESSING,
    LABELS,
    "report.html",
    "report.json",
    "run.json",
    TRITON,
    DEEPSTREAM,
    DOCKER,
)
"""Everything that a bundle has at the top of its folder."""


@dataclass(frozen=True)
class Request:
    """What a bundle is made of, and how: `targets` are those of the run to take, all if there are none.

    `data` are those that the run was judged on, `class_names` the names of classes in their order,
    `exports` are exporters, each of which gets the bundle's `Draft`.
    """

    run: Path
    variant: str
    data: Dataset
    targets: tuple[str, ...] = ()
    samples: int = MOST
    signer: Signer | None = None
    images: ImagesConfig | None = None
    class_names: tuple[str, ...] = ()
    exports: tuple[Callable[[Draft], Sequence[str]], ...] = ()


@dataclass(frozen=True)
class Draft:
    """A bundle in the making: its folder, its engines (entry in the manifest, build), its model.

    `onnx` is the quantized model's file in the bundle.
    """

    folder: Path
    request: Request
    engines: tuple[tuple[Document, Build], ...]
    model: Model
    onnx: str
    task: Document | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, none if they are not known."""
        return self.request.class_names

    @property
    def precision(self) -> str:
        """The narrowest precision that a node was asked in: int8, fp16 or fp32."""
        asked = {name for entry, _ in self.engines for name in entry["precision"]["asked"]}
        return next((one for one in ("int8", "fp16") if one in asked), "fp32")


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
    was judged on, or the folder holds something else; `BackendError` if the outputs are not repeated.
    """
    check_place(folder)
    run = read_run(request.run)
    if request.data.fingerprint != run["evaluation_data"]:
        raise InputError(
            f"data {request.data.name} are not those that {request.run} was judged on",
            "give the data of that run: --data, or its trtcal.toml by --config",
        )
    with replacing_entries(folder, OWNED) as place:
        draft, contents = _fill(request, run, place)
        notes = [line for export in request.exports for line in export(draft)]
        statement = manifest_of(place, contents)
        payload = canonical_json(statement)
        write_bytes(place / MANIFEST, payload)
        write_json(place / SIGNATURE, envelope(payload, request.signer))
        result = verify(place, Wanted(allow_unsigned=True))
        if result.status:
            raise BackendError(f"the bundle does not hold: {result.verdict}", "run it again")
    about = _verdict_note(contents.verdict, request.variant)
    return Bundle(folder, digest_bytes(payload), statement, result, (*about, *notes))


def check_place(folder: Path) -> None:
    """`InputError` if a folder holds anything that is not part of a bundle."""
    recover(folder)
    if not folder.exists():
        return
    if folder.is_dir():
        names = {entry.name for entry in folder.iterdir() if not is_staging(entry.name)}
        if not names or (names <= set(OWNED) and is_bundle(folder)):
            return
    raise InputError(f"{folder} holds something that is not a bundle", "give another -o")


def is_bundle(folder: Path) -> bool:
    """Whether a folder has a bundle's manifest, which may have been changed."""
    path = folder / MANIFEST
    found = read_json(path) if path.is_file() else None
    return isinstance(found, dict) and found.get("predicateType") == BUNDLE


def read_run(folder: Path) -> Document:
    """Return a run's document once every digest in its folder holds."""
    run = read_document(folder / "run.json", RUN, command="trtcal run")
    broken = [check for check in check_digests(folder) if not check.holds]
    if broken:
        raise InputError(
            f"{folder}: {broken[0].what}: {broken[0].problem}", "run it again: `trtcal run`"
        )
    return run


def _fill(request: Request, run: Document, place: Path) -> tuple[Draft, Contents]:
    """Put everything but exports, manifest and signature into the bundle."""
    report = read_document(request.run / "report.json", REPORT, REPORT_VERSION)
    model, onnx = _copy_model(request, run, place)
    engines = tuple(
        _copy_engine(request, made, run, place) for made in _builds(request, run, model)
    )
    task = (report.get("comparison") or {}).get("task")
    golden = make_golden(model, request.data, request.samples)
    golden.write(place / GOLDEN)
    for name in ("report.html", "report.json", "run.json"):
        shutil.copyfile(request.run / name, place / name)
    contents = Contents(
        request.variant,
        task,
        [entry for entry, _ in engines],
        golden.to_document(GOLDEN),
        _verdict(report, request.variant),
        {**_materials(run, report), **_copy_tables(request, run, engines[0][1], place)},
        onnx,
        specs_of(model.inputs),
        specs_of(model.outputs),
        *_copy_about(request, place),
    )
    return Draft(place, request, engines, model, onnx, task), contents


def _copy_model(request: Request, run: Document, place: Path) -> tuple[Model, str]:
    """Copy the quantized model, with its weights if they lie beside it; return it and its file."""
    made = {
        Path(step["output"]).stem: step for step in run["stages"] if step["stage"] == "quantize"
    }
    step = made.get(request.variant)
    if step is None:
        raise InputError(
            f"{request.run} has no variant {request.variant!r}", f"it has {', '.join(made)}"
        )
    path = request.run / "models" / f"{request.variant}.onnx"
    model = load_model(path)
    if digest_file(path) != step["digest"]:
        raise InputError(f"{path} is not the one that the run made", "run it again: `trtcal run`")
    (place / "model").mkdir()
    for name in [path.name, *_weights_of(path)]:
        shutil.copyfile(path.parent / name, place / "model" / name)
    return model, f"model/{path.name}"


def _weights_of(path: Path) -> list[str]:
    """Return the names of the files in which a model's weights lie beside it."""
    import onnx

    proto = onnx.load(path, load_external_data=False)
    found = {
        entry.value
        for tensor in tensors_of(proto)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(found)


def _builds(request: Request, run: Document, model: Model) -> list[Build]:
    """Return the builds of the variant for the targets asked for, in the order of the run."""
    steps = {step["output"]: step["digest"] for step in run["stages"] if step["stage"] == "build"}
    made = [
        build
        for output, digest in steps.items()
        if Path(output).parts[0] == "builds"
        and (build := read_build(request.run / output)).digest == digest
        and build.model == model.fingerprint
    ]
    wanted = {canonical(target) for target in request.targets}
    there = {build.target for build in made}
    if not made or wanted - there:
        missing = ", ".join(sorted(wanted - there)) or "any target"
        raise InputError(
            f"{request.run} has no engine of {request.variant} for {missing}",
            f"it has those for {', '.join(there)}" if there else "give targets to `trtcal run`",
        )
    return [build for build in made if not wanted or build.target in wanted]


def _copy_engine(
    request: Request, made: Build, run: Document, place: Path
) -> tuple[Document, Build]:
    folder = place / "engines" / made.target
    folder.mkdir(parents=True)
    for name in (made.engine_file, BUILD):
        shutil.copyfile(made.folder / name, folder / name)
    file = f"engines/{made.target}/{made.engine_file}"
    architecture = run["measured"]["machine"]["architecture"]
    return describe_engine(made, file, architecture), made


def _copy_tables(request: Request, run: Document, made: Build, place: Path) -> dict[str, str]:
    """Copy the calibration and the plan that the variant was made by, and return their digests."""
    found = {}
    digests = {step["digest"]: step["output"] for step in run["stages"]}
    calibration = made.quantization.get("calibration")
    sources = {"calibration": digests.get(calibration), "plan": f"plans/{request.variant}.json"}
    for kind, source in sources.items():
        if source in digests.values():
            shutil.copyfile(request.run / str(source), place / f"{kind}.json")
    for kind in ("calibration", "plan"):
        if made.quantization.get(kind):
            found[kind] = str(made.quantization[kind])
    return {**found, "quantized model": made.model}


def _materials(run: Document, report: Document) -> dict[str, str]:
    return {
        "model": run["model"],
        "calibration data": run["calibration_data"],
        "evaluation data": run["evaluation_data"],
        "run": run["digest"],
        "report": report["digest"],
    }


def _verdict(report: Document, variant: str) -> Document:
    """Return the run's verdict, and whether the limits hold for the variant that is bundled."""
    measured: dict[str, Any] = report["measured"]
    verdict = {key: measured["verdict"][key] for key in ("word", "variant", "sentence")}
    return {**verdict, "limits_of_this": measured["judgements"].get(variant)}


def _verdict_note(verdict: Document, variant: str) -> list[str]:
    if verdict["variant"] == variant:
        is_fine = verdict["word"].startswith("SHIP")
        return [] if is_fine else [f"the run's verdict on {variant} is {verdict['word']}"]
    limits = verdict["limits_of_this"] or "not judged"
    return [f"the run's verdict is on {verdict['variant']}; the limits of {variant}: {limits}"]


def _copy_about(request: Request, place: Path) -> tuple[str | None, str | None]:
    """Write the declared preprocessing and the names of the classes, where there are any."""
    preprocessing = labels = None
    if request.images is not None:
        preprocessing = PREPROCESSING
        write_json(place / PREPROCESSING, to_fields(request.images))
    if request.class_names:
        labels = LABELS
        write_text(place / LABELS, "".join(f"{name}\n" for name in request.class_names))
    return preprocessing, labels


def read_bundle(folder: Path) -> tuple[Document, str]:
    """Return what a bundle's manifest says once every file holds, and the bundle's digest.

    Whoever made it is not asked. `InputError` if a file was changed, or it is no bundle.
    """
    result = verify(folder, Wanted(allow_unsigned=True, self_test=False))
    if result.status:
        raise InputError(f"{folder}: {result.verdict}", "make it again, or get the original")
    manifest = parsing(folder / MANIFEST, lambda: dict(result.manifest))
    return manifest, digest_file(folder / MANIFEST)
