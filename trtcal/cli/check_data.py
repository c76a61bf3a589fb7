"""`trtcal check-data`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.output import (
    config_here,
    config_option,
    data_option,
    json_option,
    note,
    print_json,
    required,
    say,
)
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.check.issues import DataIssue


@click.command(epilog="Example: trtcal check-data model.onnx --data images.npz")
@click.argument("model", type=click.Path(path_type=Path), required=False)
@data_option
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Run so many, from all over the data.",
)
@config_option
@json_option
def command(
    model: Path | None,
    data: Path | None,
    samples: int,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Check whether data are prepared as MODEL needs them: pixels, channels, layout, samples, labels.

    The FP32 model is run on samples as given and as they may have been meant. MODEL and the data to
    calibrate with may stand in trtcal.toml. The status is 1 if there is an issue.
    """
    from trtcal.check.check import check_data
    from trtcal.data import open_dataset
    from trtcal.model import load_model

    config = config_here(config_path)
    settings = config.calibration
    loaded = load_model(required(model or config.model, "the model", "MODEL"))
    source = required(data or settings.data, "the data", "--data")
    dataset = open_dataset(source, loaded, config.images, settings.labels)
    found = check_data(loaded, dataset, samples)
    if as_json:
        print_json(found.to_document())
    else:
        for issue in found.issues:
            say(f"{issue.kind}: {issue.sentence}")
            say(f"  {issue.fix}")
    if found.issues:
        kinds = ", ".join(issue.kind for issue in found.issues)
        raise GateFailed(f"data {source} do not fit the model: {kinds}", found.issues[0].fix)
    if not as_json:
        say(f"no issue with {dataset.name} ({found.checked} of {found.samples} samples checked)")


def warn(issues: Iterable[DataIssue]) -> None:
    """Print issues as warnings on standard error."""
    for issue in issues:
        note(f"warning: {issue.sentence} ({issue.kind})")
        note(f"hint: {issue.fix}")
