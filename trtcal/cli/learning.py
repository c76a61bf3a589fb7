"""`trtcal calibrate --how-many`: the learning curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.output import note, print_json, print_table, progress, say
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.calibration import Parameters
    from trtcal.compare.statistics import Interval
    from trtcal.data import Dataset
    from trtcal.improve.curve import LearningCurve
    from trtcal.model import Model

FEW = 32  # samples, below which ranges hang on which ones they are


def note_if_few(samples: int) -> None:
    """Say on standard error where there are plainly too few samples to choose ranges from."""
    if samples < FEW:
        note(
            f"note: {samples} samples are few: other ones may give other ranges; with {FEW} or more,"
            " `trtcal calibrate --how-many` says how many this model needs"
        )


def refuse(options: Mapping[str, object]) -> None:
    """Raise `InputError` for options that have no part in a learning curve."""
    given = [name for name, value in options.items() if value]
    if given:
        raise InputError(
            f"--how-many does not go with --{given[0]}",
            "it looks at the data in chunks of its own, and keeps no histograms",
        )


def show_curve(
    model: Model,
    dataset: Dataset,
    method: str,
    given: Parameters,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure the curve of a prepared model and print it; write it only where `output` says."""
    from trtcal.improve.curve import learning_curve
    from trtcal.improve.draws import draw
    from trtcal.storage import write_document

    draws = draw(model, dataset)
    with progress("observing and judging", draws.work) as advance:
        curve = learning_curve(model, dataset, method, given, draws, advance)
    document = curve.to_document()
    if output is not None:
        write_document(output, document)
    for line in curve.notes:
        note(f"note: {line}")
    if as_json:
        print_json(document)
        return
    _print(curve, dataset.name)
    if output is not None:
        say(f"wrote {output}  {document['digest'][:19]}")


def _print(curve: LearningCurve, name: str) -> None:
    columns = ("samples", "draws", "loss", "95 %", "one draw ±", f"against {curve.most}", "95 %")
    rows = [
        (
            one.samples,
            f"{len(one.losses)}{'' if one.disjoint else ' overlapping'}",
            f"{one.loss.value:.4g}",
            f"{one.loss.low:.4g} to {one.loss.high:.4g}",
            f"{one.deviation:.2g}",
            *(("", "") if one.samples == curve.most else _relative(one.excess)),
        )
        for one in curve.points
    ]
    what = "KL divergence in nats" if curve.measure == "kl" else "error power over signal power"
    title = (
        f"{curve.method}, loss ({what}) on the last {curve.held_back} samples of {name}, held back;"
        f" draws of chunks of {curve.chunk} samples with seed {curve.seed}"
    )
    print_table(columns, rows, title)
    say(curve.sentence)


def _relative(excess: Interval) -> tuple[str, str]:
    return f"{excess.value:+.1%}", f"{excess.low:+.1%} to {excess.high:+.1%}"
