"""The run that a bundle is made of: its record, every digest checked, and files inside its folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtcal.config import read_tags
from trtcal.documents import (
    Document,
    digest_file,
    from_fields,
    parsing,
    read_document,
)
from trtcal.errors import InputError
from trtcal.evidence.manifest import Build, read_build
from trtcal.model import Model, load_model
from trtcal.reporting.document import KIND as REPORT
from trtcal.reporting.document import VERSION as REPORT_VERSION
from trtcal.runs.folder import KIND as RUN
from trtcal.runs.lineage import Step
from trtcal.runs.verify import verify as check_digests

AGAIN = "run it again: `trtcal run`"


@dataclass(frozen=True)
class Machine:
    """What a run was made on, as far as it bears on its engines."""

    architecture: str
    python: str


@dataclass(frozen=True)
class Measured:
    """What is outside of a run's digest."""

    machine: Machine


@dataclass(frozen=True)
class RunRecord:
    """What `run.json` says: digests of what went in, and the steps with those of what came out."""

    model: str
    calibration_data: str
    evaluation_data: str
    digest: str
    stages: tuple[Step, ...]
    measured: Measured
    cost: dict[str, Any] = field(default_factory=dict)

    @property
    def tags(self) -> dict[str, str]:
        """Who the run is for, as `[cost.tags]` says."""
        return read_tags(self.cost.get("tags", {}))

    def of_stage(self, stage: str) -> Iterator[Step]:
        """Yield the steps of a stage."""
        return (step for step in self.stages if step.stage == stage)

    def output_of(self, digest: object) -> str | None:
        """Return the output of this digest, None if there is none."""
        return next((step.output for step in self.stages if step.digest == digest), None)


def read_run(folder: Path) -> RunRecord:
    """Return a run's record once every digest in its folder holds; else `InputError`."""
    path = folder / "run.json"
    document = read_document(path, RUN, command="trtcal run")
    broken = next((check for check in check_digests(folder) if not check.holds), None)
    if broken is not None:
        raise InputError(f"{folder}: {broken.what}: {broken.problem}", AGAIN)
    return parsing(path, lambda: from_fields(RunRecord, document))


def read_report(folder: Path) -> Document:
    """Return the report of a run."""
    return read_document(folder / "report.json", REPORT, REPORT_VERSION)


def inside(folder: Path, name: str) -> Path:
    """Return a file of a run; `InputError` if its name, or a link, leads out of the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{path} is not inside the run's folder", AGAIN)
    return path


def copy(folder: Path, name: str, destination: Path) -> None:
    """Copy a file of a run."""
    shutil.copyfile(inside(folder, name), destination)


def find_model(folder: Path, run: RunRecord, variant: str) -> tuple[Model, list[str]]:
    """Return a variant's quantized model and its files, the ONNX file first.

    `InputError` if the run has no such variant, or the file is not the one that it made.
    """
    made = {Path(step.output).stem: step for step in run.of_stage("quantize")}
    step = made.get(variant)
    if step is None:
        raise InputError(
            f"{folder} has no variant {variant!r}", f"its variants are {', '.join(made)}"
        )
    path = inside(folder, step.output)
    model = load_model(path)
    if digest_file(path) != step.digest:
        raise InputError(f"{path} is not the file that the run wrote", AGAIN)
    beside = Path(step.output).parent
    return model, [step.output, *(f"{beside}/{name}" for name in _weights_of(path))]


def _weights_of(path: Path) -> list[str]:
    """Return the names of the files in which a model's weights lie beside it."""
    import onnx

    from trtcal.model.files import tensors_of

    proto = onnx.load(path, load_external_data=False)
    found = {
        entry.value
        for tensor in tensors_of(proto)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(found)


def find_builds(folder: Path, run: RunRecord, model: Model) -> list[Build]:
    """Return the builds of a quantized model, in the order of the run."""
    found = [
        (read_build(inside(folder, step.output)), step.digest) for step in run.of_stage("build")
    ]
    return [
        made for made, digest in found if made.digest == digest and made.model == model.fingerprint
    ]
