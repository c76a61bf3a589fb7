"""What is wrong with data, as a document: `trtcal check-data --json`, and beside a calibration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trtcal.documents import Sealed


@dataclass(frozen=True)
class DataIssue:
    """One thing that is wrong with data for a model.

    `kind` is a stable word, `subject` the input, "samples" or "labels", `sentence` the
    measurement, `evidence` its figures by name, `fix` what to do. `settings` are the keys of
    [images] that correct it for image files, if there are any.

    >>> import numpy as np
    >>> check = check_data("samples/digits/digits.onnx", np.zeros((64, 1, 8, 8), np.float32))
    >>> check.issues[0].kind, check.issues[0].subject
    ('zero_samples', 'samples')
    """

    kind: str
    subject: str
    sentence: str
    evidence: dict[str, float]
    fix: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}; {self.fix}"


@dataclass(frozen=True)
class DataCheck(Sealed, kind="data_check", command="trtcal check-data"):
    """All issues that the check found in `checked` of `samples` samples for a model.

    >>> check = check_data("samples/digits/digits.onnx", "samples/digits/calibration.npz")
    >>> check.checked, check.issues
    (64, ())
    """

    model: str
    dataset: str
    dataset_name: str
    samples: int
    checked: int
    issues: tuple[DataIssue, ...]
