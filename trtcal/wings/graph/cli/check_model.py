"""`trtcal check-model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.options import JsonOptions, argument
from trtcal.cli.output import say
from trtcal.errors import GateFailed, some

if TYPE_CHECKING:
    from trtcal.evidence.findings import Finding


class CheckModel(JsonOptions, example="trtcal check-model model-int8.onnx"):
    """Check whether TensorRT can read the Q/DQ of MODELs; the status is 1 if it refuses one.

    A model in float passes. `trtcal diagnose --model` shows what else costs speed or accuracy.
    """

    models: tuple[Path, ...] = argument()

    def _run(self) -> None:
        from trtcal.documents import to_fields
        from trtcal.evidence.diagnosis.build_diagnosis import find_misread
        from trtcal.evidence.diagnosis.failure import is_refused
        from trtcal.model import load_model

        findings = {str(path): find_misread(load_model(path)) for path in self.models}
        document = {path: [*map(to_fields, own)] for path, own in findings.items()}
        self.present(document, lambda: _show(findings))
        refused = [path for path, own in findings.items() if any(map(is_refused, own))]
        if refused:
            hint = "do what the fix of each finding says"
            raise GateFailed(f"TensorRT refuses {some(refused)}", hint)


command = CheckModel.command()


def _show(findings: Mapping[str, Sequence[Finding]]) -> None:
    for path, own in findings.items():
        if not own:
            say(f"{path}: nothing that TensorRT refuses")
        for each in own:
            say(f"{path}: {each.kind}: {each.what}", f"  why: {each.why}", f"  fix: {each.fix}")
