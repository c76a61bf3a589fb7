"""The files of a run that a bundle is made of, inside its folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import onnx

from trtcal.errors import InputError
from trtcal.evidence.manifest import Build, read_build
from trtcal.model import Model, load_model
from trtcal.model.model import external_files
from trtcal.runs.origin import Origin

AGAIN = "run it again: `trtcal run`"


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
    if (step := steps.get(variant)) is None:
        hint = f"its variants are {', '.join(steps)}"
        raise InputError(f"{folder} has no variant {variant!r}", hint)
    path = inside(folder, step.output)
    model = load_model(path)
    weights = external_files(path, onnx.load(path, load_external_data=False))
    return model, [step.output, *(os.path.relpath(file, folder.resolve()) for file in weights)]


def find_builds(folder: Path, run: Origin, model: Model) -> list[Build]:
    """Return the builds of a quantized model, in the order of the run."""
    steps = [(step.digest, inside(folder, step.output)) for step in run.of_stage("build")]
    builds = [(digest, read_build(path)) for digest, path in steps]
    return [b for digest, b in builds if (b.digest, b.model) == (digest, model.fingerprint)]
