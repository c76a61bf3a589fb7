"""What is wrong with data, as a document: `trtcal check-data --json`, and beside a calibration.

Labels and the samples themselves prove that something is wrong. What a model answers does not: it also
answers little where nothing that it knows is in the samples. That is a question.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtcal.data.issues import DataIssue, Question
from trtcal.documents import Sealed


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
