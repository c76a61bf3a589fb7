"""The data check of an evaluation: it shares the reference's answers with the replay of all samples.

What labels and the samples themselves prove forbids a verdict. Nothing is asked here: the calibration
data, prepared alike, were asked already.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from trtcal.check.data_check import BATCH, SAMPLES, ImageChecks, in_doubt
from trtcal.check.evidence import check_label_numbers, check_labels
from trtcal.check.probe import ModelProbe, Response, plain_response
from trtcal.check.ranking import NO_CLASS
from trtcal.check.samples import ImageInput, Samples, check_samples, drop_duplicates, take_samples
from trtcal.data import Dataset
from trtcal.data.dataset import Array
from trtcal.data.issues import ERROR, DataIssue, Question
from trtcal.errors import BackendError
from trtcal.evaluate.per_sample import Values, class_labels
from trtcal.evaluate.replay import Batch
from trtcal.model import Model

ANSWERS = 4096  # by which labels are checked, at most
LEAST = 8  # samples of each data set, below which chance may separate them
RATIO = 1.6  # of standard deviations: [0, 1] and [-1, 1] differ by 2
SHIFT = 1.0  # of means, in standard deviations


class EvaluationCheck:
    """Checks evaluation data as `check_data` does, with the answers that their replay shows it.

    With `calibration` it also compares how both are prepared.
    """

    def __init__(self, model: Model, dataset: Dataset, calibration: Dataset | None = None) -> None:
        self.model, self.dataset, self.calibration = model, dataset, calibration
        self.labels = class_labels(dataset.labels)
        self.classes = np.full(len(dataset), NO_CLASS)
        self.confidence = np.zeros(len(dataset))
        self.known: tuple[DataIssue, ...] | None = None

    def see(self, batch: Batch) -> None:
        """Keep the reference's classes of a batch, where the data have class labels."""
        outputs = [] if self.labels is None else [*batch.expected.values()]
        response = plain_response(outputs, batch.size)
        if response is not None and response.classes is not None:
            self.classes[batch.numbers] = response.classes
            self.confidence[batch.numbers] = response.confidence

    def issues(self) -> tuple[DataIssue, ...]:
        """Return the issues, which samples seen later do not change."""
        if self.known is None:
            samples = take_samples(self.model, self.dataset, SAMPLES)
            issues = [issue for issue in check_samples(samples) if issue.severity == ERROR]
            if self.calibration is not None:
                first = take_samples(self.model, self.calibration, SAMPLES)
                issues += prepared_otherwise(first, samples)
            issues += [] if issues else self._with_answers(drop_duplicates(samples))
            self.known = tuple(issue for issue in issues if not isinstance(issue, Question))
        return self.known

    def _with_answers(self, samples: Samples) -> list[DataIssue]:
        rows = np.flatnonzero(self.classes != NO_CLASS)
        rows = rows[:: -(-len(rows) // ANSWERS) or 1]
        if self.labels is None or not len(rows):
            return self._of_images(replace(samples, labels=None))
        response = Response(self.classes[rows], self.confidence[rows])
        if issue := check_label_numbers(response, self.labels[rows]):
            return [issue]
        issue = check_labels(response, self.labels[rows])
        return self._of_images(samples) or ([issue] if issue else [])

    def _of_images(self, samples: Samples) -> list[DataIssue]:
        if (image := ImageInput.of(self.model)) is None:
            return []
        probe = ModelProbe(self.model, BATCH, only_classes=True)
        more = in_doubt(self.model, self.dataset, samples)
        with suppress(BackendError):  # it may take no other batch than that of the evaluation
            return ImageChecks(probe, image, more, self.classes).run(samples)
        return []


def prepared_otherwise(calibration: Samples, evaluation: Samples) -> list[DataIssue]:
    """Return for which inputs no calibration sample is of the scale or mean of an evaluation sample."""
    inputs = [name for name, array in evaluation.feeds.items() if array.dtype.kind == "f"]
    pairs = ((name, calibration.feeds[name], evaluation.feeds[name]) for name in inputs)
    issues = (_otherwise(*pair) for pair in pairs if min(map(len, pair[1:])) >= LEAST)
    return [issue for issue in issues if issue is not None]


def _otherwise(name: str, first: Array, second: Array) -> DataIssue | None:
    both = [array.reshape(len(array), -1).astype(np.float64) for array in (first, second)]
    means, scales = ([rows.mean(1) for rows in both], [rows.std(1) for rows in both])
    (mean, other_mean), (scale, other) = (map(float, map(np.median, of)) for of in (means, scales))
    is_scaled = max(scale, other) > RATIO * min(scale, other) and _are_apart(*scales)
    is_moved = abs(mean - other_mean) > SHIFT * max(scale, other) and _are_apart(*means)
    if not (is_scaled or is_moved):
        return None
    return DataIssue(
        "prepared_otherwise",
        name,
        f"calibration and evaluation data are not prepared alike: a sample of {name!r} has a mean of "
        f"{mean:.4g} and a standard deviation of {scale:.4g} in the calibration data, {other_mean:.4g} "
        f"and {other:.4g} in the evaluation data (medians)",
        {"mean": mean, "std": scale, "evaluation_mean": other_mean, "evaluation_std": other},
        "prepare both as in training: the same scale, mean, layout and type",
    )


def _are_apart(first: Values, second: Values) -> bool:
    """Tell whether all values of one are larger than all of the other."""
    return bool(first.min() > second.max() or second.min() > first.max())
