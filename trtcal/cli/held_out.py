"""`trtcal calibrate --method auto` and `--how-many`, which judge on held-out samples."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import TYPE_CHECKING

from trtcal.cli.output import Columns, note, print_table, progress, say, warning
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.calibration import Observation
    from trtcal.cli.calibrate import Calibrate
    from trtcal.cli.options import JsonOptions
    from trtcal.data import Dataset
    from trtcal.evaluate.learning_curve import LearningCurve
    from trtcal.model import Model
    from trtcal.ranges import Calibration, Parameters

LEAST_SAMPLES = 32  # samples, below which ranges depend on which ones they are


def note_if_few(samples: int) -> None:
    """Say on standard error where there are plainly too few samples to choose ranges from."""
    if samples < LEAST_SAMPLES:
        note(
            f"note: {samples} samples are few: other samples may give other ranges; with 96 or more, "
            "`trtcal calibrate --how-many` estimates how many this model needs"
        )


def refuse(options: Mapping[str, object]) -> None:
    """Raise `InputError` for options that have no part in a learning curve."""
    name = next((name for name, value in options.items() if value), None)
    if name is not None:
        hint = "--how-many reads the data in its own chunks, and keeps no histograms"
        raise InputError(f"--how-many and --{name} exclude each other", hint)


def split_for_auto(model: Model, dataset: Dataset, method: str) -> tuple[Dataset, Dataset | None]:
    """Return the samples to observe, and for `auto` those to judge by, None if there are too few."""
    if method != "auto":
        return dataset, None
    if len(dataset) < LEAST_SAMPLES:
        note(
            "note: auto chooses each tensor's method by its histogram alone: judging by outputs "
            f"takes {LEAST_SAMPLES} samples"
        )
        return dataset, None
    from trtcal.ptq.improver import split_samples

    return split_samples(model, dataset)


def choose(
    options: JsonOptions,
    model: Model,
    observation: Observation,
    select: Dataset | None,
    method: str,
    values: Parameters,
) -> Calibration:
    """Return a method's ranges, with samples to judge by those of the method that loses least."""
    from trtcal.calibration import calibrate
    from trtcal.evaluate.judging import METHODS, choose_method

    if select is None:
        return calibrate(observation, method, values)
    with progress("judging ranges", len(METHODS), "methods") as advance:
        chosen, verdicts = choose_method(model, observation, select, values, advance)
    columns: Columns = {
        "method": lambda row: "auto, by tensor" if row[0] == "auto" else row[0],
        "SQNR, mean dB": lambda row: f"{-row[1].value:.2f}",
        "": lambda row: "chosen" if row[0] == chosen.method else "",
    }
    if not options.as_json:
        title = f"on {len(select)} samples held back; the first, unless another is clearly better"
        print_table([*verdicts.items()], columns, title)
    return chosen


def show_curve(
    options: Calibrate, model: Model, dataset: Dataset, method: str, values: Parameters
) -> None:
    """Measure the curve of a prepared model and print it; write it only where `-o` says."""
    from trtcal.documents import write_document
    from trtcal.evaluate.learning_curve import learning_curve

    curve = learning_curve(model, dataset, method, values, progress)
    document = curve.to_document()
    if options.output is not None:
        write_document(options.output, document)
    for line in curve.warnings:
        warning(line)
    options.present(document, lambda: _print(curve, method, dataset.name), options.output)


def _print(curve: LearningCurve, method: str, data: str) -> None:
    columns: Columns = {
        "samples": "{samples}",
        "loss": lambda point: f"{mean(point.losses):.4g}",
        "of each series": lambda point: " ".join(f"{loss:.4g}" for loss in point.losses),
        f"against {curve.points[-1].samples}": "{excess.value:+.1%}",
        "95 % of that": "{excess.low:+.1%} to {excess.high:+.1%}",
    }
    measure = "KL divergence in nats" if curve.measure == "kl" else "error power over signal power"
    title = f"{method}, loss ({measure}) on the last {curve.held_back} samples of {data}, held back"
    print_table(curve.points, columns, title)
    say(curve.sentence)
