"""What `prepare` and `layers fusions` share: run a changed model beside the given one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.options import Options, option
from trtcal.cli.output import progress, remark, say

if TYPE_CHECKING:
    from trtcal.config import Config
    from trtcal.evaluate.equality import Equality
    from trtcal.model import Model

BATCH = 32


class EqualityOptions(Options):
    """The options that say on what two models are run."""

    data: Path | None = option(
        "Data to run both models on; if the outputs differ, nothing is written."
    )
    random_samples: int | None = option(
        "Number of random samples to run both models on, from a fixed seed: weaker evidence than "
        "data.",
        "--random",
        least=1,
        metavar="N",
    )

    def run_both(self, model: Model, other: Model, config: Config) -> Equality | None:
        """Return the difference of two models' outputs on data or random samples; None with neither."""
        from trtcal.data import open_dataset
        from trtcal.data.feeds import draw_batches
        from trtcal.evaluate.equality import check_equal
        from trtcal.evaluate.replay import carry

        if self.data and self.random_samples:
            raise click.UsageError("--data and --random exclude each other")
        if self.data:
            dataset = open_dataset(self.data, model, config.images, settings=config.data)
            dataset = carry(model, dataset, config.data)
            batches, samples = dataset.batches(BATCH), len(dataset)
        elif self.random_samples:
            remark("random inputs show less than data: a network never sees most of them")
            samples = self.random_samples
            batches = draw_batches(model, samples, BATCH)
        else:
            return None
        with progress("running both models", samples, "samples") as advance:
            return check_equal(model, other, batches, advance)


def show_equality(equality: Equality | None, allowed: str, kind: str = "") -> None:
    """Print by how much outputs differ on samples of a kind, and what is allowed."""
    if equality is None:
        say("the models were not run: give --data to compare their outputs")
    else:
        samples = f"{equality.samples} {kind}samples"
        say(f"largest relative difference over {samples}: {equality.largest:.3g} ({allowed})")
