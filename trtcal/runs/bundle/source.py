"""The run that a bundle is made of: its record, every digest checked, and files inside its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from trtcal.documents import Document, read_document
from trtcal.errors import InputError
from trtcal.evidence.manifest import Build, read_build
from trtcal.model import Model, load_model
from trtcal.reporting.document import REPORT_KIND as REPORT
from trtcal.reporting.document import VERSION as REPORT_VERSION
from trtcal.runs.origin import Origin
from trtcal.runs.verify import check_whole

AGAIN = "run it again: `trtcal run`"


def read_run(folder: Path) -> Origin:
    """Return a run's origin once every digest in its folder holds; else `InputError`."""
    origin = Origin.read(folder)
    check_whole(folder)
    return origin


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


def find_model(folder: Path, run: Origin, variant: str) -> tuple[Model, list[str]]:
    """Return a variant's quantized model and its files, the ONNX file first.

    `InputError` if the run has no such variant.
    """
    steps = {Path(step.output).stem: step for step in run.of_stage("quantize")}
    step = steps.get(variant)
    if step is None:
        raise InputError(
            f"{folder} has no variant {variant!r}", f"its variants are {', '.join(steps)}"
        )
    path = inside(folder, step.output)
    model = load_model(path)
    beside = Path(step.output).parent
    return model, [step.output, *(f"{beside}/{name}" for name in _weights_of(path))]


def _weights_of(path: Path) -> list[str]:
    """Return the names of the files in which a model's weights lie beside it."""
    import onnx

    from trtcal.model.files import tensors_of

    proto = onnx.load(path, load_external_data=False)
    entries = (entry for tensor in tensors_of(proto) for entry in tensor.external_data)
    return sorted({entry.value for entry in entries if entry.key == "location"})


def find_builds(folder: Path, run: Origin, model: Model) -> list[Build]:
    """Return the builds of a quantized model, in the order of the run."""
    steps = [(step.digest, inside(folder, step.output)) for step in run.of_stage("build")]
    builds = [(digest, read_build(path)) for digest, path in steps]
    return [b for digest, b in builds if (b.digest, b.model) == (digest, model.fingerprint)]
