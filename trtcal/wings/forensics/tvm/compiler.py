"""An ONNX model through TVM, in a child process: checkpoints of all passes, and the fusion check."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

from trtcal.documents import Workplace, from_fields, together, write_document
from trtcal.documents.bounds import raising, scaled
from trtcal.errors import BackendError, InputError, ResourceError
from trtcal.evidence.fusion.fusions import Fusions
from trtcal.model import Model
from trtcal.model.files import write_onnx
from trtcal.model.isolated import ask
from trtcal.wings.forensics.checkpoints import Checkpoints, write_checkpoints
from trtcal.wings.forensics.tvm.fusion import Step, fusions_of

LIMIT_S = 900.0
MODEL, MADE = "model.onnx", "made"
FUSIONS = "fusion.json"


def compile_in_tvm(model: Model, output: Path, target: str) -> tuple[Checkpoints, Fusions]:
    """Import a model into Relax, run the target's default pipeline, and check the fusions.

    `output` then holds `checkpoints.jsonl`, `graphs.npz` and `fusion.json`. `target` is TVM's. Only
    what is computed from constants alone is compiled and run, by TVM's FoldConstant. `InputError`
    if TVM is not installed; `BackendError` if it fails or crashes, `ResourceError` after `LIMIT_S`.
    """
    _check_installed()
    with Workplace() as place:
        folder = Path(place)
        write_onnx(folder / MODEL, model.reference)
        steps = _run(model, folder, target)
        checkpoints = Checkpoints.read(folder / MADE)
        fusions = fusions_of(steps, model.name)
        with together():
            write_checkpoints(output, checkpoints.chain, checkpoints.graphs.values())
            write_document(output / FUSIONS, fusions.to_document())
    return Checkpoints.read(output), fusions


def _check_installed() -> None:
    try:
        metadata.version("apache-tvm")
    except metadata.PackageNotFoundError as error:
        raise InputError("TVM is not installed", "pip install 'trtcal[tvm]'") from error


def _run(model: Model, folder: Path, target: str) -> tuple[Step, ...]:
    limit = scaled(LIMIT_S)
    try:
        request = {"target": target, "model": model.fingerprint}
        answer = ask("trtcal.wings.forensics.tvm.worker", request, folder, limit)
    except subprocess.TimeoutExpired:
        raise ResourceError(
            f"TVM was stopped after the time limit of {limit:g} s", raising("times")
        ) from None
    if "steps" not in answer.found:
        ending = f"it ended with status {answer.status}; last line: {answer.last_line}"
        reason = answer.found.get("error") or ending
        raise BackendError(
            f"TVM cannot compile {model.path.name}: {reason.splitlines()[0][:300]}",
            "its importer supports fewer operators than ONNX; `trtcal prepare` may rewrite the "
            "model with these",
        )
    return tuple(from_fields(Step, step) for step in answer.found["steps"])
