"""What `prepare` and `fusion` share: run a changed model beside the given one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.output import note, progress

if TYPE_CHECKING:
    from trtcal.config import ImagesConfig
    from trtcal.evaluate.equality import Equality
    from trtcal.model import Model

BATCH = 32


def run_both(
    given: Model,
    other: Model,
    data: Path | None,
    random_samples: int | None,
    images: ImagesConfig | None,
) -> Equality | None:
    """Return the difference of two models' outputs on data or random samples; None with neither."""
    from trtcal.data import open_dataset
    from trtcal.data.feeds import draw_batches
    from trtcal.evaluate.equality import check_equal
    from trtcal.evaluate.variants import batch_for

    if data and random_samples:
        raise click.UsageError("give --data or --random, not both")
    if data:
        dataset = open_dataset(data, given, images)
        batches, samples = dataset.batches(batch_for(given, BATCH)), len(dataset)
    elif random_samples:
        note("note: random inputs show less than data: most of them no network ever sees")
        batches, samples = draw_batches(given, random_samples, BATCH), random_samples
    else:
        return None
    with progress("running both models", samples) as advance:
        return check_equal(given, other, batches, advance)
