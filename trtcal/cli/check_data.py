"""`trtcal check-data`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtcal.cli.options import DataOptions, ModelOptions, make_command, option
from trtcal.cli.output import note, say
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.check import DataCheck, DataIssue


@dataclass(frozen=True, kw_only=True)
class Options(DataOptions, ModelOptions):
    """The options of `trtcal check-data`."""

    samples: int = option("Run so many, from all over the data.", default=64, least=1)


@make_command(Options, "trtcal check-data model.onnx --data images.npz")
def command(options: Options) -> None:
    """Check whether data are prepared as MODEL needs them: pixels, channels, layout, samples, labels.

    The FP32 model is run on samples as given and as they may have been meant. MODEL and the data to
    calibrate with may stand in trtcal.toml. The status is 1 if there is an issue.
    """
    from trtcal.check import check_data

    model = options.load_model()
    dataset = options.open_data(model, options.config.calibration)
    found = check_data(model, dataset, options.samples)
    options.present(found.to_document(), lambda: _show(found))
    if found.issues:
        source = options.data or options.config.calibration.data
        kinds = ", ".join(issue.kind for issue in found.issues)
        raise GateFailed(f"data {source} do not fit the model: {kinds}", found.issues[0].fix)


def _show(found: DataCheck) -> None:
    for issue in found.issues:
        say(f"{issue.kind}: {issue.sentence}")
        say(f"  {issue.fix}")
    if not found.issues:
        say(
            f"no issue with {found.dataset_name} ({found.checked} of {found.samples} samples checked)"
        )


def warn(issues: Iterable[DataIssue]) -> None:
    """Print issues as warnings on standard error."""
    for issue in issues:
        note(f"warning: {issue.sentence} ({issue.kind})")
        note(f"hint: {issue.fix}")
