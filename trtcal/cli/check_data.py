"""`trtcal check-data`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtcal.cli.advice import advise
from trtcal.cli.options import DataOptions, ModelOptions, option
from trtcal.cli.output import note, say, warning
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.data.issues import DataCheck


class CheckData(
    DataOptions, ModelOptions, example="trtcal check-data model.onnx --data images.npz"
):
    """Check whether data are prepared as MODEL expects: pixels, channels, layout, samples, labels.

    The check runs the FP32 model on the samples as given, and with other preprocessing that may
    have been meant. trtcal.toml can name MODEL and the data. The status is 1 if there is an issue;
    what labels would have to prove is a question.
    """

    samples: int = option(
        "Number of samples to run, taken from all over the data.", default=64, least=1
    )

    def _run(self) -> None:
        from trtcal.check.data_check import check_data

        model = self.load_model()
        result = check_data(model, self.open_data(model, self.config.calibration), self.samples)
        self.present(result.to_document(), lambda: _show(result))
        data = self.data or self.config.calibration.data
        if result.issues:
            kinds = ", ".join(issue.kind for issue in result.issues)
            hint = "do what the fix of each issue says"
            raise GateFailed(f"data {data} do not fit the model: {kinds}", hint)
        advise(self, "calibrate", self.model or self.config.model, "--data", data)


command = CheckData.command()


def _show(check: DataCheck) -> None:
    for issue in check.issues:
        say(f"{issue.kind}: {issue.sentence}", f"  {issue.fix}")
    for question in check.questions:
        say(f"question ({question.kind}): {question.sentence}", f"  {question.fix}")
    if not (check.issues or check.questions):
        checked = f"{check.checked} of {check.samples} samples checked"
        say(f"no issue with {check.dataset_name} ({checked})")


def warn(check: DataCheck) -> None:
    """Print issues as warnings on standard error, and questions as notes."""
    for issue in check.issues:
        warning(f"{issue.sentence} ({issue.kind})", issue.fix)
    for question in check.questions:
        note(f"question: {question.sentence} ({question.kind})", f"hint: {question.fix}")
