"""`trtcal compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.output import (
    config_here,
    config_option,
    json_option,
    print_json,
    print_table,
    progress,
    required,
    say,
)
from trtcal.errors import GateFailed

if TYPE_CHECKING:
    from trtcal.compare import Comparison


@click.command(
    epilog="Example: trtcal compare model.onnx int8.onnx mixed.onnx --data test.npz --max-drop 1"
)
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidates", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="An .npz; a folder of .npy files or images; Polygraphy's .json; a load_data() script.",
)
@click.option("--batch", type=click.IntRange(1), help="Samples run together.  [default: 32]")
@click.option("--rounds", type=click.IntRange(2), help="Runs timed of each one.  [default: 60]")
@click.option("--max-drop", type=float, help="Gate: points of top-1 that a candidate may lose.")
@click.option("--min-speedup", type=float, help="Gate: speed-up over FP32 that it must bring.")
@click.option(
    "--trust", is_flag=True, help="Load engines that were built elsewhere: they are programs."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("comparison.json"),
    show_default=True,
    help="Where to write the comparison.",
)
@config_option
@json_option
def command(
    reference: Path,
    candidates: tuple[Path, ...],
    data: Path | None,
    batch: int | None,
    rounds: int | None,
    max_drop: float | None,
    min_speedup: float | None,
    trust: bool,
    output: Path,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Compare CANDIDATEs (ONNX files or onnxruntime builds) with the FP32 REFERENCE.

    Latency is measured here, in turns. With a gate given, the status is 1 if a candidate fails it.
    """
    from trtcal.compare import Gates, compare, open_candidate, write_comparison
    from trtcal.compare.comparison import batch_for
    from trtcal.data import open_dataset
    from trtcal.model import load_model

    config = config_here(config_path)
    settings = config.evaluation
    model = load_model(reference)
    source = required(data or settings.data, "the data", "--data")
    dataset = open_dataset(source, model, config.images, settings.labels)
    limits = config.gates
    gates = Gates(
        limits.max_top1_drop if max_drop is None else max_drop,
        limits.min_speedup if min_speedup is None else min_speedup,
    )
    everyone = [
        open_candidate(path, trust=trust, reference=model) for path in (reference, *candidates)
    ]
    size = batch_for(model, batch or settings.batch)
    with progress("comparing", len(dataset)) as advance:
        result = compare(
            everyone[0], everyone[1:], dataset, gates, size, rounds or settings.rounds, advance
        )
    document = write_comparison(output, result)
    if as_json:
        print_json(document)
    else:
        show(result)
        say(f"wrote {output}  {document['digest'][:19]}")
    _check(result, max_drop is not None, min_speedup is not None)


def show(comparison: Comparison) -> None:
    """Print the comparison as a table."""
    rows = [
        (
            row.name,
            _figure(row.accuracy.top1, ".2f"),
            _figure(row.accuracy.top1_drop, "+.2f"),
            _figure(row.accuracy.agreement, ".2f"),
            _figure(row.accuracy.sqnr_db, ".1f"),
            f"{row.accuracy.cosine:.5f}",
            f"{row.latency.p50_ms:.3f}",
            f"{row.latency.p99_ms:.3f}",
            f"{row.latency.speedup:.2f}",
            f"{row.size_bytes / 1024:.0f}",
        )
        for row in comparison.rows
    ]
    columns = ("candidate", "top-1 %", "drop", "agree %", "SQNR dB", "cosine", "p50 ms", "p99 ms",
               "speed-up", "KiB")  # fmt: skip
    title = f"{comparison.samples} samples of {comparison.dataset_name}, batch {comparison.batch}"
    print_table(columns, rows, title)


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _check(comparison: Comparison, drop: bool, speed: bool) -> None:
    gates = comparison.gates
    for row in comparison.rows[1:]:
        lost = row.accuracy.top1_drop
        if drop and lost is not None and lost > gates.max_top1_drop:
            raise GateFailed(
                f"{row.name!r} loses {lost:.2f} points of top-1, more than {gates.max_top1_drop:g}",
                "choose another method, or leave its worst layers in float",
            )
        if speed and gates.min_speedup is not None and row.latency.speedup < gates.min_speedup:
            raise GateFailed(
                f"{row.name!r} is {row.latency.speedup:.2f} times as fast as FP32, "
                f"less than {gates.min_speedup:g}",
                "see in `trtcal build` which layers stayed in float",
            )
