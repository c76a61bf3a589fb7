"""`trtcal compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.advice import advise, advise_on_loss, advise_samples
from trtcal.cli.options import (
    DataOptions,
    LimitOptions,
    TaskOptions,
    argument,
    option,
)
from trtcal.cli.output import Columns, filled, most, note, print_limits, print_table, progress, say
from trtcal.errors import InputError

if TYPE_CHECKING:
    from trtcal.data import Dataset
    from trtcal.evaluate.comparison import CompareSettings, Comparison, Row
    from trtcal.evaluate.groups import Breakdown, Sample
    from trtcal.evaluate.layerwise import LayerFigure, Layerwise
    from trtcal.limits import Judgement
    from trtcal.model import Model


GROUPS_SHOWN = 8
SAMPLES_SHOWN = 5
TENSORS_SHOWN = 30


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
            say(f"{row.name}: not compared with a simulation in float")
        return
    known = ", ".join(filled(one, found) for one in SIMULATED if _is_known(one, found))
    same = filled("; integer kernels agree with it on {same:.2f} %", found, "")
    say(f"{row.name}: Q/DQ computed in float: {known}{same if found.same is not None else ''}")


def _is_known(template: str, thing: Any) -> bool:
    """Tell whether the field that a template has is there."""
    return MISSING not in filled(template, thing, MISSING)


MISSING = "\0"
SIMULATED = (
    "top-1 {accuracy.top1:.2f} %",
    "agreement {accuracy.agreement:.2f} %",
    "SQNR {accuracy.sqnr_db:.1f} dB",
)
"""What is said of a simulation, as far as it is known."""


def _show_groups(name: str, found: Breakdown) -> None:
    shown = found.groups[: most(GROUPS_SHOWN)]
    columns: Columns = {
        found.by: "{name}",
        "samples": "{samples}",
        "reference": "{reference:.4g}",
        "variant": "{variant:.4g}",
        "drop": "{drop:+.3g}",
        "interval": "{interval[0]:+.3g} to {interval[1]:+.3g}",
        "p": "{p:.2g}",
        "adjusted p": "{adjusted_p:.2g}",
    }
    rest = found.rest + len(found.groups) - len(shown)
    more = f", {rest} more not shown" if rest else ""
    print_table(shown, columns, f"{name}: {found.figure} by {found.by}, the worst first{more}", "-")


def _show_worst(name: str, samples: Sequence[Sample]) -> None:
    columns: Columns = {
        "sample": lambda one: one.name or f"sample {one.index}",
        "index": "{index}",
        "l2": lambda one: f"{one.l2:.4g}",
        "cosine": lambda one: f"{one.cosine:.5f}",
        "label": "{label}",
        "reference": "{reference}",
        "variant": "{variant}",
    }
    if samples:
        title = f"{name}: samples with the largest error"
        print_table(samples[: most(SAMPLES_SHOWN)], columns, title, "-")


def _show_layers(name: str, found: Layerwise) -> None:
    """Show the worst tensors in the graph's order, and where the error enters and grows."""
    if found.unknown:
        say(f"{name}: {found.unknown} quantized tensors were not found in both models")
    if not found.figures:
        return
    known = [one for one in found.figures if one.leaves_db is not None or one.own_db is not None]
    worst = sorted(known, key=_least)[: most(TENSORS_SHOWN)]
    shown = [one for one in found.figures if one in worst]
    columns: Columns = {
        "tensor": "{tensor}",
        "read by": lambda one: one.nodes[0] if one.nodes else "",
        "arrives dB": lambda one: "-" if one.arrives_db is None else f"{one.arrives_db:.1f}",
        "own dB": "{own_db:.1f}",
        "leaves dB": "{leaves_db:.1f}",
        "growth dB": "{growth_db:.1f}",
        "clipped %": "{clipped:.3g}",
    }
    rest = len(found.figures) - len(shown)
    more = f"; {rest} better ones not shown" if rest else ""
    title = f"{name}: SQNR of quantized tensors, in the graph's order{more}"
    print_table(shown, columns, title, "-")
    entries = "; ".join(f"{_place(one)} ({one.own_db:.1f} dB)" for one in found.enters())
    growth = "; ".join(f"{one.tensor} (+{one.growth_db:.1f} dB)" for one in found.grows())
    say(f"{name}: error enters most at {entries}; it grows most before {growth or 'none'}")


def _place(figure: LayerFigure) -> str:
    named = figure.is_weight and figure.nodes
    return f"the weights of {figure.nodes[0]}" if named else figure.tensor


def _least(figure: LayerFigure) -> float:
    return min(one for one in (figure.leaves_db, figure.own_db) if one is not None)


def _show_throughput(comparison: Comparison) -> None:
    rows = [(row.name, one) for row in comparison.rows for one in row.latency.throughput]
    columns = {"variant": "{0}", "batch": "{1.batch}", "p50 ms": "{1.p50_ms:.3f}"}
    columns |= {"samples/s": "{1.samples_per_s:.0f}", "speed-up": "{1.speedup:.2f}"}
    if rows:
        print_table(rows, columns, "throughput")


class Compare(
    DataOptions,
    TaskOptions,
    LimitOptions,
    example="trtcal compare model.onnx int8.onnx mixed.onnx --data test.npz --limit 'top1 >= -1.0'",
):
    """Compare VARIANTs (ONNX files or onnxruntime builds) with the FP32 REFERENCE.

    Latency is measured on this machine, with the models in turn. The status is 1 if a variant
    breaks a limit, given here or in trtcal.toml.
    """

    reference: Path = argument()
    variants: tuple[Path, ...] = argument()
    batch: int | None = option("Samples in a batch.  [default: 32]", least=1)
    rounds: int | None = option(
        "Number of timed runs of each model.  [default: 60 if a limit is about times, else a few]",
        least=2,
    )
    beside: Path | None = option(
        "A variant shown for comparison that is not a candidate, such as one in FP16."
    )
    interval: float | None = option(
        "Time more runs until the 95 % interval of each speed-up is this many percent wide.",
        type=click.FloatRange(0, min_open=True),
        metavar="PERCENT",
    )
    batch_sizes: str | None = option(
        "Batch sizes at which throughput is measured as well, such as 1,8,32.", metavar="N,N"
    )
    slices: Path | None = option(
        "CSV file of slices: a header of attributes, then one row for each sample."
    )
    metric_file: Path | None = option(
        "A Python file with metric(outputs, labels) -> {name: value}, higher is better."
    )
    per_layer: bool = option("Show SQNR and clipping of every quantized tensor.")
    layer_samples: int | None = option(
        "Number of samples for --per-layer.  [default: all]", least=1
    )
    simulate: bool = option(
        "Run the Q/DQ in float too, and report where integer kernels differ.",
        "--simulate/--no-simulate",
        default=True,
    )
    output: Path = option("JSON file for the comparison.", "-o", default=Path("comparison.json"))

    def _run(self) -> None:
        from trtcal.evaluate.comparison import compare, with_layers
        from trtcal.evaluate.variant_limits import is_compared, judge_variants
        from trtcal.evaluate.variants import open_variant
        from trtcal.limits import require
        from trtcal.model import load_model

        model = load_model(self.reference)
        dataset = self.open_data(model, self.config.evaluation)
        given = (self.reference, *self.variants, *([self.beside] if self.beside else []))
        first, *others = (open_variant(one, trust=self.trust, reference=model) for one in given)
        limits = self.limits_of(self.limits, is_compared)
        settings = _settings(self, model, dataset)
        settings = replace(settings, alternative=others[-1].name if self.beside else None)
        with progress("comparing", len(dataset), "samples") as advance:
            result = compare(first, others, dataset, limits, settings, advance)
        if self.per_layer:
            seen = min(self.layer_samples or len(dataset), len(dataset))
            with progress("layer by layer", seen * len(others), "samples") as advance:
                result = with_layers(result, model, others, dataset, advance, seen)
        document = result.write(self.output)
        self.present(document, lambda: show_all(result), self.output)
        if self.as_json:
            _say_warnings(result, note)
        found = judge_variants(result)
        _advise(
            self,
            {
                path: found.get(one.name, ())
                for path, one in zip(self.variants, others, strict=False)
            },
            len(dataset),
        )
        if result.limits:
            judged = [one for several in found.values() for one in several]
            require(judged, "choose another method, or leave the layers that lose most in float")


command = Compare.command()


def _advise(options: Compare, judged: Mapping[Path, Sequence[Judgement]], samples: int) -> None:
    """Advise what a loss or an open verdict calls for, else the test whether a variant can replace."""
    from trtcal.limits import BROKEN

    needed = [one.samples_needed for several in judged.values() for one in several]
    if known := [one for one in needed if one is not None and one > samples]:
        advise_samples(max(known), samples)
    for path, several in judged.items():
        if any(one.state == BROKEN for one in several):
            advise_on_loss(options, options.reference, path)
            return
    data = options.data or options.config.evaluation.data
    advise(options, "ab", options.reference, next(iter(judged)), "--data", data)


def _settings(options: Compare, model: Model, dataset: Dataset) -> CompareSettings:
    from trtcal.data.dataset import batch_for
    from trtcal.evaluate.collectors import read_wanted
    from trtcal.evaluate.comparison import CompareSettings

    config = options.config.evaluation
    slices, metric = options.slices or config.slices, options.metric_file or config.metric
    options.config.check_trusted(metric)
    return CompareSettings(
        batch_for(model, options.batch or config.batch),
        options.rounds or config.rounds,
        read_wanted(
            dataset,
            slices,
            metric,
            options.simulate,
            options.chosen_task,
            options.chosen_outputs,
        ),
        options.interval / 100 if options.interval else None,
        _sizes(options.batch_sizes),
    )


def _sizes(text: str | None) -> list[int]:
    """Read `1,8,32`; `InputError` if it is none."""
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and 0 < int(part) < 2**31 for part in parts):
        raise InputError(f"{text!r} is not a list of batch sizes", "write them like 1,8,32")
    return [int(part) for part in parts]


def show_all(comparison: Comparison) -> None:
    """Print all that was compared: what was asked beside the means, then the table."""
    show_details(comparison)
    show(comparison)


def show(comparison: Comparison, with_times: bool = True) -> None:
    """Print the comparison as a table, its limits, and what the table does not show."""
    from trtcal.evaluate.variant_limits import judge_variants

    say(f"task {comparison.task}")
    columns: Columns = {
        "variant": "{name}",
        **comparison.columns(),
        **(OF_TIMES if with_times else {}),
        "KiB": lambda row: f"{row.size_bytes / 1024:.0f}",
    }
    title = f"{comparison.samples} samples of {comparison.dataset_name}, batch {comparison.batch}"
    print_table(comparison.rows, columns, title, "-")
    _show_outputs(comparison)
    judged = [one for found in judge_variants(comparison).values() for one in found]
    if judged:
        print_limits(judged)
    _say_warnings(comparison, say, with_times)


OF_TIMES: Columns = {
    "p50 ms": "{latency.p50_ms:.3f}",
    "p99 ms": lambda row: f"{row.latency.p99_ms:.3f}",
    "speed-up": "{latency.speedup:.2f}",
}


def _show_outputs(comparison: Comparison) -> None:
    """Show each output's own figures, where there are several."""
    rows = [(row.name, one) for row in comparison.rows[1:] for one in row.outputs]
    if len(rows) <= len(comparison.rows[1:]):
        return
    columns: Columns = {
        "variant": "{0}",
        "output": "{1.name}",
        "kind": "{1.kind}",
        "agree %": "{1.agreement:.2f}",
        "SQNR dB": "{1.sqnr_db:.1f}",
        "cosine": "{1.cosine:.5f}",
        "rel. error": "{1.relative_error:.4f}",
    }
    print_table(rows, columns, "by output", "-")


def _say_warnings(
    comparison: Comparison, print_line: Callable[[str], None], with_times: bool = True
) -> None:
    from trtcal.evaluate.comparison import warnings

    for warning in warnings(comparison, with_times):
        print_line(f"care: {warning}")
