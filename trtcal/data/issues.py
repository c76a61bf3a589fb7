"""What is wrong with data, one by one, and as a document: `trtcal check-data --json`.

Labels and the samples themselves prove that something is wrong. What a model answers does not: it also
answers little where nothing that it knows is in the samples. That is a question.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trtcal.documents import Sealed
from trtcal.documents.overview import Overview, Shown

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class DataIssue(Shown):
    """One thing that is wrong with data for a model.

    `kind` is a stable word, `subject` the input, "samples" or "labels", `sentence` the
    measurement, `evidence` its figures by name, `fix` what to do. `settings` are the keys of
    [images] that correct it for image files, if there are any. `severity` is "error" where figures on
    these data show nothing, else "warning".

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
    severity: str = ERROR

    def overview(self) -> Overview:
        """Return the measurement, what to do, and the figures."""
        columns = {"evidence": "{0}", "value": "{1:.6g}"}
        title = f"{type(self).__name__} {self.kind}: {self.sentence}"
        facts = (f"fix: {self.fix}",)
        return Overview(title, facts, things=self.evidence.items(), columns=columns)

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}; {self.fix}"

    @property
    def answer(self) -> str:
        """What a verdict says that does not ship for it."""
        return f"{self.sentence}. Next: {self.fix}."

    @classmethod
    def error_of(cls, issues: Iterable[DataIssue]) -> DataIssue | None:
        """Return the first error of several issues, None without one."""
        return next((issue for issue in issues if issue.severity == ERROR), None)


class Question(DataIssue):
    """What would be an issue if labels, or who trained the model, confirmed it; `fix` says how."""


@dataclass(frozen=True)
class DataCheck(Sealed, kind="data_check", command="trtcal check-data"):
    """All issues, and questions, that the check has about `checked` of `samples` samples for a model.

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
    questions: tuple[Question, ...] = ()

    def overview(self) -> Overview:
        """Return the issues and questions."""
        several = (*self.issues, *self.questions)
        words = [f"{each.kind}: {each.sentence}" for each in several]
        counts = f"issues {len(self.issues)}, questions {len(self.questions)}"
        title = f"Data check of {self.checked:,} of {self.samples:,} samples of "
        title += f"{self.dataset_name!r}: {counts if several else 'no issue'}"
        columns = {"kind": "{kind}", "of": "{subject}", "measured": "{sentence}", "fix": "{fix}"}
        return Overview(title, brief=words, things=several, columns=columns)
