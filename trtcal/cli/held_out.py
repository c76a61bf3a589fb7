"""What `trtcal calibrate` judges on held-back samples: `--method auto` and `--how-many`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.cli.output import note, print_json, print_table, progress, say
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.calibration import Observation
    from trtcal.data import Dataset
    from trtcal.evaluate.learning_curve import LearningCurve
    from trtcal.model import Model
    from trtcal.ranges import Calibration, Parameters
    from trtcal.stats import Interval

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
            "it reads the data in chunks of its own, and keeps no histograms",
        )


def split_for_auto(model: Model, dataset: Dataset, method: str) -> tuple[Dataset, Dataset | None]:
    """Return the samples to observe, and for `auto` those to judge by, None if there are too few."""
    from trtcal.ptq.improver import MIN_SAMPLES, split_samples

    if method != "auto":
        return dataset, None
    if len(dataset) < MIN_SAMPLES:
        note(
            f"note: auto goes by each tensor alone: to judge by outputs takes {MIN_SAMPLES} samples"
        )
        return dataset, None
    return split_samples(model, dataset)


def choose(
    model: Model,
    observation: Observation,
    select: Dataset | None,
    method: str,
    given: Parameters,
    as_json: bool,
) -> Calibration:
    """Return a method's ranges, with samples to judge by those of the method that loses least."""
    from trtcal.calibration import calibrate
    from trtcal.evaluate.judging import METHODS, choose_method

    if select is None:
        return calibrate(observation, method, given)
    with progress("judging ranges", len(METHODS)) as advance:
        choice = choose_method(model, observation, select, given, advance)
    chosen = choice.calibration.method
    if not as_json:
        rows = [
            (
                "auto, by tensor" if name == "auto" else name,
                f"{-one.value:.2f}",
                "chosen" if name == chosen else "",
            )
            for name, one in choice.verdicts.items()
        ]
        title = f"on {len(select)} samples held back; the first, unless another is clearly better"
        print_table(("method", "SQNR, mean dB", ""), rows, title)
    return choice.calibration


def show_curve(
    model: Model,
    dataset: Dataset,
    method: str,
    given: Parameters,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure the curve of a prepared model and print it; write it only where `output` says."""
    from trtcal.documents import write_document
    from trtcal.evaluate.learning_curve import learning_curve
    from trtcal.evaluate.subsets import choose_subsets

    subsets = choose_subsets(model, dataset)
    with progress("observing and judging", subsets.work) as advance:
        curve = learning_curve(model, dataset, method, given, subsets, advance)
    document = curve.to_document()
    if output is not None:
        write_document(output, document)
    for line in curve.warnings:
        note(f"warning: {line}")
    if as_json:
        print_json(document)
        return
    _print(curve, dataset.name)
    if output is not None:
        say(f"wrote {output}  {document['digest'][:19]}")


def _print(curve: LearningCurve, name: str) -> None:
    columns = (
        "samples",
        "subsets",
        "loss",
        "95 %",
        "one subset ±",
        f"against {curve.most}",
        "95 %",
    )
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
        f" subsets of chunks of {curve.chunk} samples with seed {curve.seed}"
    )
    print_table(columns, rows, title)
    say(curve.sentence)


def _relative(excess: Interval) -> tuple[str, str]:
    return f"{excess.value:+.1%}", f"{excess.low:+.1%} to {excess.high:+.1%}"
