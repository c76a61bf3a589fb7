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


def choose(
    options: JsonOptions,
    model: Model,
    dataset: Dataset,
    observation: Observation,
    method: str,
    values: Parameters,
) -> Calibration:
    """Return a method's ranges; those of `auto` by what INT8 loses on some of the samples."""
    from trtcal.evaluate.range_choice import AUTO, LEAST_SAMPLES, MOST_TRIALS, ranges_by

    if method == AUTO and len(dataset) < LEAST_SAMPLES:
        note(
            "note: auto chooses each tensor's method by its histogram alone: judging by outputs "
            f"takes {LEAST_SAMPLES} samples"
        )
    rows = list[tuple[str, float]]()
    with progress("judging ranges", MOST_TRIALS, "candidates") as advance:
        chosen = ranges_by(
            *(method, values, model, dataset, observation),
            lambda name, verdict: rows.append((name, -verdict.value)),
            advance,
        )
    columns: Columns = {"ranges": "{0}", "SQNR dB, worst output": "{1:.2f}"}
    if rows and not options.as_json:
        print_table(rows, columns, f"INT8 on {chosen.parameters['samples_judged']} of the samples")
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
