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
    from trtcal.check import DataIssue


@click.command(epilog="Example: trtcal check-data model.onnx --data images.npz")
@click.argument("model", type=click.Path(path_type=Path), required=False)
@data_option
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Response at so many, from all over the data.",
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
    """Say whether data look wrongly prepared for MODEL: pixels, channels, layout, samples, labels.

    The FP32 model is run on samples as given and as they might have been meant. MODEL and the data to
    calibrate with may stand in trtcal.toml. The status is 1 if something is suspected.
    """
    from trtcal.check import check_data
    from trtcal.data import open_dataset
    from trtcal.model import load_model

    config = config_here(config_path)
    settings = config.calibration
    loaded = load_model(required(model or config.model, "the model", "MODEL"))
    source = required(data or settings.data, "the data", "--data")
    dataset = open_dataset(source, loaded, config.images, settings.labels)
    found = check_data(loaded, dataset, samples)
    if as_json:
        print_json(
            {
                "model": loaded.fingerprint,
                "data": dataset.name,
                "samples": len(dataset),
                "issues": [one.to_document() for one in found],
            }
        )
    else:
        for one in found:
            say(f"{one.code}: {one.seen}")
            say(f"  {one.fix}")
    if found:
        codes = ", ".join(one.code for one in found)
        raise GateFailed(f"data {source} look wrong for the model: {codes}", found[0].fix)
    if not as_json:
        say(f"nothing suspected of {dataset.name} ({min(samples, len(dataset))} samples looked at)")


def warn(issues: Iterable[DataIssue]) -> None:
    """Print issues as warnings on standard error."""
    for one in issues:
        note(f"warning: {one.seen} ({one.code})")
        note(f"hint: {one.fix}")
