"""`trtcal compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.output import (
    config_here,
    config_option,
    data_option,
    json_option,
    limit_option,
    limits_here,
    note,
    print_json,
    print_limits,
    print_table,
    progress,
    required,
    say,
    trust_option,
)
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.config import EvaluationConfig
    from trtcal.data import Dataset
    from trtcal.evaluate.comparison import CompareSettings, Comparison, Row
    from trtcal.evaluate.groups import Breakdown, Sample
    from trtcal.evaluate.layerwise import LayerFigure, Layerwise
    from trtcal.model import Model


GROUPS_SHOWN = 8
SAMPLES_SHOWN = 5
TENSORS_SHOWN = 30


def figure(value: float | None, form: str) -> str:
    """Return a figure for a table, a dash where there is none."""
    return "-" if value is None else format(value, form)


def show_details(comparison: Comparison) -> None:
    """Print what was asked beside the means, variant by variant; classes only if one got worse."""
    from trtcal.evaluate.collectors import SLICES
    from trtcal.evaluate.groups import SUSPECT, WORSE

    for row in comparison.rows:
        _show_own(row)
    for row in comparison.rows[1:]:
        _show_simulation(row)
        for breakdown in row.breakdowns:
            if breakdown.by == SLICES or breakdown.ranked(WORSE) or breakdown.ranked(SUSPECT):
                _show_groups(row.name, breakdown)
        if row.layers is not None:
            _show_worst(row.name, row.worst)
            _show_layers(row.name, row.layers)
    _show_throughput(comparison)


def _show_own(row: Row) -> None:
    for one in row.own:
        low, high = one.interval
        drop = f", {one.drop:+.3g} lower (95 % interval {low:.3g} to {high:.3g})"
        say(f"{row.name}: {one.name} {one.variant:.5g}{drop if one.drop else ''}")


def _show_simulation(row: Row) -> None:
    found = row.simulation
    if found is None:
        if row.quantization:
            say(f"{row.name}: not held against a simulation in float")
        return
    top1, same = figure(found.accuracy.top1, ".2f"), figure(found.same, ".2f")
    say(
        f"{row.name}: Q/DQ executed in float: top-1 {top1} %, agreement "
        f"{figure(found.accuracy.agreement, '.2f')} %, SQNR {figure(found.accuracy.sqnr_db, '.1f')} "
        f"dB; integer kernels give the same class to {same} % of samples"
    )


def _show_groups(name: str, found: Breakdown) -> None:
    shown = found.groups[:GROUPS_SHOWN]
    rows = [
        (
            one.name,
            one.samples,
            f"{one.reference:.4g}",
            f"{one.variant:.4g}",
            f"{one.drop:+.3g}",
            f"{one.interval[0]:+.3g} to {one.interval[1]:+.3g}",
            figure(one.p, ".2g"),
            figure(one.adjusted_p, ".2g"),
        )
        for one in shown
    ]
    columns = (
        found.by,
        "samples",
        "reference",
        "variant",
        "drop",
        "interval",
        "p",
        "adjusted p",
    )
    rest = found.rest + len(found.groups) - len(shown)
    more = f", {rest} more not shown" if rest else ""
    print_table(columns, rows, f"{name}: {found.figure} by {found.by}, the worst first{more}")


def _show_worst(name: str, samples: Sequence[Sample]) -> None:
    rows = [
        (one.name or f"sample {one.index}", one.index, f"{one.l2:.4g}", f"{one.cosine:.5f}",
         *("-" if n is None else n for n in (one.label, one.reference, one.variant)))
        for one in samples[:SAMPLES_SHOWN]
    ]  # fmt: skip
    columns = ("sample", "index", "l2", "cosine", "label", "reference", "variant")
    if rows:
        print_table(columns, rows, f"{name}: the samples of the largest error")


def _show_layers(name: str, found: Layerwise) -> None:
    """Show the worst tensors in the graph's order, and where the error enters and grows."""
    if found.unknown:
        say(f"{name}: {found.unknown} quantized tensors could not be found in both models")
    if not found.figures:
        return
    known = [one for one in found.figures if one.leaves_db is not None or one.own_db is not None]
    worst = sorted(known, key=_least)[:TENSORS_SHOWN]
    shown = [one for one in found.figures if one in worst]
    rows = [
        (one.tensor, one.nodes[0] if one.nodes else "", *(figure(value, ".1f") for value in (
            one.arrives_db, one.own_db, one.leaves_db, one.growth_db)), f"{one.clipped:.3g}")
        for one in shown
    ]  # fmt: skip
    columns = ("tensor", "read by", "arrives dB", "own dB", "leaves dB", "growth dB", "clipped %")
    rest = len(found.figures) - len(shown)
    more = f"; {rest} better ones not shown" if rest else ""
    print_table(columns, rows, f"{name}: SQNR of quantized tensors, in the graph's order{more}")
    entries = "; ".join(f"{_place(one)} ({one.own_db:.1f} dB)" for one in found.enters())
    growth = "; ".join(f"{one.tensor} (+{one.growth_db:.1f} dB)" for one in found.grows())
    say(f"{name}: error enters most at {entries}; it grows most before {growth or 'none'}")


def _place(figure: LayerFigure) -> str:
    named = figure.is_weight and figure.nodes
    return f"the weights of {figure.nodes[0]}" if named else figure.tensor


def _least(figure: LayerFigure) -> float:
    return min(one for one in (figure.leaves_db, figure.own_db) if one is not None)


def _show_throughput(comparison: Comparison) -> None:
    rows = [
        (row.name, one.batch, f"{one.p50_ms:.3f}", f"{one.samples_per_s:.0f}", f"{one.speedup:.2f}")
        for row in comparison.rows
        for one in row.latency.throughput
    ]
    if rows:
        columns = ("variant", "batch", "p50 ms", "samples/s", "speed-up")
        print_table(columns, rows, "throughput")


@click.command(
    epilog="Example: trtcal compare model.onnx int8.onnx mixed.onnx --data test.npz "
    "--limit 'top1 >= -1.0'"
)
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("variants", type=click.Path(path_type=Path), nargs=-1, required=True)
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
    help="Samples that --per-layer runs.  [default: all]",
)
@click.option(
    "--simulate/--no-simulate",
    default=True,
    show_default=True,
    help="Run the Q/DQ in float too, and report where integer kernels differ.",
)
@limit_option
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
def command(**given: Any) -> None:
    """Compare VARIANTs (ONNX files or onnxruntime builds) with the FP32 REFERENCE.

    Latency is measured here, in turns. The status is 1 if a variant breaks a limit, given here or in
    trtcal.toml.
    """
    run(Options(**given))


@dataclass(frozen=True)
class Options:
    """The options of `trtcal compare`, by the names that the command gives them."""

    reference: Path
    variants: tuple[Path, ...]
    data: Path | None
    batch: int | None
    rounds: int | None
    interval: float | None
    batch_sizes: str | None
    slices: Path | None
    metric_file: Path | None
    per_layer: bool
    layer_samples: int | None
    simulate: bool
    limits: tuple[str, ...]
    trust: bool
    output: Path
    config_path: Path | None
    as_json: bool


def run(options: Options) -> None:
    """Compare, write the comparison, show it and hold it to its limits."""
    from trtcal.data import open_dataset
    from trtcal.evaluate.comparison import compare, with_layers
    from trtcal.evaluate.variant_limits import is_compared, judge_variants
    from trtcal.evaluate.variants import open_variant
    from trtcal.limits import require
    from trtcal.model import load_model

    config = config_here(options.config_path)
    model = load_model(options.reference)
    source = required(options.data or config.evaluation.data, "the data", "--data")
    dataset = open_dataset(source, model, config.images, config.evaluation.labels)
    first, *others = (
        open_variant(path, trust=options.trust, reference=model)
        for path in (options.reference, *options.variants)
    )
    limits = limits_here(config, options.limits, is_compared)
    settings = _settings(options, config.evaluation, model, dataset)
    with progress("comparing", len(dataset)) as advance:
        result = compare(first, others, dataset, limits, settings, advance)
    if options.per_layer:
        seen = min(options.layer_samples or len(dataset), len(dataset))
        with progress("layer by layer", seen * len(others)) as advance:
            result = with_layers(result, model, others, dataset, advance, seen)
    document = result.write(options.output)
    if options.as_json:
        print_json(document)
        _say_warnings(result, note)
    else:
        show_details(result)
        show(result)
        say(f"wrote {options.output}  {document['digest'][:19]}")
    if result.limits:
        judged = [one for found in judge_variants(result).values() for one in found]
        require(judged, "choose another method, or leave the layers that lose most in float")


def _settings(
    options: Options, config: EvaluationConfig, model: Model, dataset: Dataset
) -> CompareSettings:
    from trtcal.evaluate.collectors import read_wanted
    from trtcal.evaluate.comparison import CompareSettings
    from trtcal.evaluate.variants import batch_for

    slices, metric = options.slices or config.slices, options.metric_file or config.metric
    return CompareSettings(
        batch_for(model, options.batch or config.batch),
        options.rounds or config.rounds,
        read_wanted(dataset, slices, metric, options.simulate),
        options.interval / 100 if options.interval else None,
        _sizes(options.batch_sizes),
    )


def _sizes(text: str | None) -> list[int]:
    """Read `1,8,32`; `InputError` if it is none."""
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and 0 < int(part) < 2**31 for part in parts):
        raise InputError(f"the batch sizes {text!r} are none", "write them like 1,8,32")
    return [int(part) for part in parts]


def show(comparison: Comparison) -> None:
    """Print the comparison as a table, its limits, and what the table does not show."""
    from trtcal.evaluate.variant_limits import judge_variants

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
    columns = ("variant", "top-1 %", "drop", "agree %", "SQNR dB", "cosine", "p50 ms", "p99 ms",
               "speed-up", "KiB")  # fmt: skip
    title = f"{comparison.samples} samples of {comparison.dataset_name}, batch {comparison.batch}"
    print_table(columns, rows, title)
    if comparison.limits:
        print_limits([one for found in judge_variants(comparison).values() for one in found])
    _say_warnings(comparison, say)


def _say_warnings(comparison: Comparison, print_line: Callable[[str], None]) -> None:
    from trtcal.evaluate.comparison import warnings

    for warning in warnings(comparison):
        print_line(f"care: {warning}")
