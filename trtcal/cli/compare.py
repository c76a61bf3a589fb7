"""`trtcal compare`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.comparison import figure, show_details
from trtcal.cli.output import (
    config_here,
    config_option,
    data_option,
    json_option,
    note,
    print_json,
    print_table,
    progress,
    required,
    say,
    trust_option,
)
from trtcal.errors import GateFailed, InputError

if TYPE_CHECKING:
    from trtcal.compare import Comparison


@click.command(
    epilog="Example: trtcal compare model.onnx int8.onnx mixed.onnx --data test.npz --max-drop 1"
)
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidates", type=click.Path(path_type=Path), nargs=-1, required=True)
@data_option
@click.option("--batch", type=click.IntRange(1), help="Samples run together.  [default: 32]")
@click.option("--rounds", type=click.IntRange(2), help="Runs timed of each one.  [default: 60]")
@click.option(
    "--interval",
    type=click.FloatRange(0, min_open=True),
    metavar="PERCENT",
    help="Time more runs until the 95 % intervals of the speed-ups are as narrow.",
)
@click.option(
    "--batch-sizes", metavar="N,N", help="Measure throughput at these sizes too, as in 1,8,32."
)
@click.option(
    "--slices", type=click.Path(path_type=Path), help="CSV: attributes, then one row a sample."
)
@click.option(
    "--metric-file",
    type=click.Path(path_type=Path),
    help="A Python file with metric(outputs, labels) -> {name: value}, higher is better.",
)
@click.option("--per-layer", is_flag=True, help="SQNR and clipping of every quantized tensor.")
@click.option(
    "--layer-samples",
    type=click.IntRange(1),
    help="On how many samples --per-layer looks.  [default: all]",
)
@click.option(
    "--simulate/--no-simulate",
    default=True,
    show_default=True,
    help="Run the Q/DQ in float too, and tell where integer kernels differ.",
)
@click.option("--max-drop", type=float, help="Gate: points of top-1 that a candidate may lose.")
@click.option("--min-speedup", type=float, help="Gate: speed-up over FP32 that it must bring.")
@trust_option
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
    interval: float | None,
    batch_sizes: str | None,
    slices: Path | None,
    metric_file: Path | None,
    per_layer: bool,
    layer_samples: int | None,
    simulate: bool,
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
    from trtcal.compare.comparison import batch_for, with_layers
    from trtcal.compare.evaluating import read_wanted
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
    wanted = read_wanted(
        dataset, slices or settings.slices, metric_file or settings.metric, simulate
    )
    with progress("comparing", len(dataset)) as advance:
        result = compare(
            everyone[0],
            everyone[1:],
            dataset,
            gates,
            size,
            rounds or settings.rounds,
            advance,
            wanted,
            interval / 100 if interval else None,
            _sizes(batch_sizes),
        )
    if per_layer:
        seen = min(layer_samples or len(dataset), len(dataset))
        with progress("layer by layer", seen * len(candidates)) as advance:
            result = with_layers(result, model, everyone[1:], dataset, advance, seen)
    document = write_comparison(output, result)
    if as_json:
        print_json(document)
        _say_remarks(result, note)
    else:
        show_details(result)
        show(result)
        say(f"wrote {output}  {document['digest'][:19]}")
    _check(result, max_drop is not None, min_speedup is not None)


def _sizes(text: str | None) -> list[int]:
    """Read `1,8,32`; `InputError` if it is none."""
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and 0 < int(part) < 2**31 for part in parts):
        raise InputError(f"the batch sizes {text!r} are none", "write them like 1,8,32")
    return [int(part) for part in parts]


def show(comparison: Comparison) -> None:
    """Print the comparison as a table, and what the table does not show."""
    rows = [
        (
            row.name,
            figure(row.accuracy.top1, ".2f"),
            figure(row.accuracy.top1_drop, "+.2f"),
            figure(row.accuracy.agreement, ".2f"),
            figure(row.accuracy.sqnr_db, ".1f"),
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
    _say_remarks(comparison, say)


def _say_remarks(comparison: Comparison, tell: Callable[[str], None]) -> None:
    from trtcal.compare.remarks import remarks

    for remark in remarks(comparison):
        tell(f"care: {remark}")


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
