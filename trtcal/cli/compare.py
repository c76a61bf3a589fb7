"""`trtcal compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.advice import advise_after_success, advise_on_loss
from trtcal.cli.options import (
    MEASURED,
    MEASURED_FILE,
    ON,
    EvaluationOptions,
    VerdictOptions,
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
    from trtcal.model import Model

GROUPS_SHOWN, SAMPLES_SHOWN, TENSORS_SHOWN = 8, 5, 30
MISSING = "\0"
OF_SIMULATION = (
    "top-1 {accuracy.top1:.2f} %",
    "agreement {accuracy.agreement:.2f} %",
    "SQNR {accuracy.sqnr_db:.1f} dB",
)
"""Figures of a simulation, of which those are shown that are known."""
OF_TIMES = {
    "p50 ms": "{latency.p50_ms:.3f}",
    "p99 ms": "{latency.p99_ms:.3f}",
    "speed-up": "{latency.speedup:.2f}",
}
OF_STOPPED = {"samples": "{accuracy.samples:,}"}
OF_DEVICES = {"compute ms": "{latency.compute_p50_ms:.4g}", "energy mJ": "{latency.energy_mj:.4g}"}
"""Figures that a device may report."""


def show_details(comparison: Comparison) -> None:
    """Print figures beside the means, variant by variant; classes only if one got worse."""
    from trtcal.evaluate.collectors import SLICES
    from trtcal.evaluate.groups import SUSPECT, WORSE

    for row in comparison.rows:
        for figure in row.own:
            low, high = figure.interval
            drop = f", {figure.drop:+.3g} lower (95 % interval {low:.3g} to {high:.3g})"
            say(f"{row.name}: {figure.name} {figure.variant:.5g}{drop if figure.drop else ''}")
    for row in comparison.rows[1:]:
        _show_simulation(row)
        for breakdown in row.breakdowns:
            if breakdown.by == SLICES or breakdown.ranked(WORSE) or breakdown.ranked(SUSPECT):
                _show_groups(row.name, breakdown)
        if row.layers is not None:
            _show_worst(row.name, row.worst)
            _show_layers(row.name, row.layers)
    _show_throughput(comparison)


def _show_simulation(row: Row) -> None:
    simulation = row.simulation
    if simulation is None:
        if row.quantization:
            say(f"{row.name}: not compared with a simulation in float")
        return
    figures = (filled(template, simulation, MISSING) for template in OF_SIMULATION)
    known = ", ".join(figure for figure in figures if MISSING not in figure)
    same = filled("; integer kernels agree with it on {same:.2f} %", simulation)
    shown = same if simulation.same is not None else ""
    say(f"{row.name}: Q/DQ computed in float: {known}{shown}")


def _show_groups(name: str, breakdown: Breakdown) -> None:
    groups = breakdown.groups[: most(GROUPS_SHOWN)]
    columns: Columns = {
        breakdown.by: "{name}",
        "samples": "{samples}",
        "reference": "{reference:.4g}",
        "variant": "{variant:.4g}",
        "drop": "{drop:+.3g}",
        "interval": "{interval[0]:+.3g} to {interval[1]:+.3g}",
        "p": "{p:.2g}",
        "adjusted p": "{adjusted_p:.2g}",
    }
    rest = breakdown.rest + len(breakdown.groups) - len(groups)
    more = f", {rest} more not shown" if rest else ""
    title = f"{name}: {breakdown.figure} by {breakdown.by}, the worst first{more}"
    print_table(groups, columns, title, "-")


def _show_worst(name: str, samples: Sequence[Sample]) -> None:
    columns: Columns = {
        "sample": lambda sample: sample.name or f"sample {sample.index}",
        "index": "{index}",
        "l2": "{l2:.4g}",
        "cosine": "{cosine:.5f}",
        "label": "{label}",
        "reference": "{reference}",
        "variant": "{variant}",
    }
    if samples:
        title = f"{name}: samples with the largest error"
        print_table(samples[: most(SAMPLES_SHOWN)], columns, title, "-")


def _show_layers(name: str, layers: Layerwise) -> None:
    figures = layers.figures
    if layers.unknown:
        say(f"{name}: {layers.unknown} quantized tensors were not found in both models")
    if not figures:
        return
    known = [tensor for tensor in figures if {tensor.leaves_db, tensor.own_db} != {None}]
    worst = sorted(known, key=_lowest_db)[: most(TENSORS_SHOWN)]
    shown = [tensor for tensor in figures if tensor in worst]
    columns: Columns = {
        "tensor": "{tensor}",
        "read by": lambda tensor: next(iter(tensor.nodes), ""),
        "arrives dB": "{arrives_db:.1f}",
        "own dB": "{own_db:.1f}",
        "leaves dB": "{leaves_db:.1f}",
        "growth dB": "{growth_db:.1f}",
        "clipped %": "{clipped:.3g}",
    }
    rest = len(figures) - len(shown)
    more = f"; {rest} better ones not shown" if rest else ""
    title = f"{name}: SQNR of quantized tensors, in the graph's order{more}"
    print_table(shown, columns, title, "-")
    entries = "; ".join(f"{_place(tensor)} ({tensor.own_db:.1f} dB)" for tensor in layers.enters())
    growth = "; ".join(f"{tensor.tensor} (+{tensor.growth_db:.1f} dB)" for tensor in layers.grows())
    say(f"{name}: error enters most at {entries}; it grows most before {growth or 'none'}")


def _place(tensor: LayerFigure) -> str:
    is_named = tensor.is_weight and tensor.nodes
    return f"the weights of {tensor.nodes[0]}" if is_named else tensor.tensor


def _lowest_db(tensor: LayerFigure) -> float:
    return min(value for value in (tensor.leaves_db, tensor.own_db) if value is not None)


def _show_throughput(comparison: Comparison) -> None:
    rows = [(row.name, rate) for row in comparison.rows for rate in row.latency.throughput]
    columns = {"variant": "{0}", "batch": "{1.batch}", "p50 ms": "{1.p50_ms:.3f}"}
    columns |= {"samples/s": "{1.samples_per_s:.0f}", "speed-up": "{1.speedup:.2f}"}
    if rows:
        print_table(rows, columns, "throughput")


class Compare(
    EvaluationOptions,
    VerdictOptions,
    example="trtcal compare model.onnx int8.onnx mixed.onnx --data test.npz --limit 'top1 >= -1.0'",
):
    """Compare VARIANTs (ONNX files or builds) with the FP32 REFERENCE.

    Latency is measured on this machine, with the models in turn; with --on it is that of the engines
    that a device builds of them, whose outputs are compared. The status is 1 if a variant breaks a
    limit, given here or in trtcal.toml, or leaves it undecided.
    """

    reference: Path = argument()
    variants: tuple[Path, ...] = argument()
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
    on: str | None = option(ON, metavar="NAME")
    measured: tuple[str, ...] = option(MEASURED, metavar=MEASURED_FILE)
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
        from trtcal.evaluate.on_device import open_compared
        from trtcal.evaluate.overflow import cure_in
        from trtcal.evaluate.variant_limits import is_compared, judge_variants
        from trtcal.limits import BROKEN, HOLDS, UNDECIDED, overall, require
        from trtcal.metrics import FINDINGS
        from trtcal.model import load_model

        model = load_model(self.reference)
        dataset = self.open_data(model, self.config.evaluation)
        paths = (self.reference, *self.variants, *([self.beside] if self.beside else []))
        sources = [(path, None) for path in paths]
        first, others, crashes = open_compared(sources, model, dataset, self.on, self.trust)
        settings = replace(_settings(self, model, dataset), crashes=crashes)
        crashed = {name for name, _ in crashes}
        if self.beside and self.beside.stem not in crashed:
            settings = replace(settings, alternative=others[-1].name)
        limits = self.limits_of(is_compared)
        with progress("comparing", len(dataset), "samples") as advance:
            result = compare(first, others, dataset, limits, settings, advance)
        if self.per_layer:
            samples = min(self.layer_samples or len(dataset), len(dataset))
            literal = {each.name: each.literal for each in others if each.literal}
            with progress("layer by layer", samples * len(literal), "samples") as advance:
                result = with_layers(result, model, literal, dataset, advance, samples)
        result = self._with_measured(result, model, paths[1:])
        document = result.write(self.output)

        def show_all() -> None:
            show_details(result)
            show(result)

        self.present(document, show_all, self.output)
        if self.as_json:
            _say_warnings(result, note, with_times=True)
        by_name = judge_variants(result)
        names = (variant.name for variant in others)
        paths = tuple(path for path in self.variants if path.stem not in crashed)
        judged = {path: by_name.get(name, ()) for path, name in zip(paths, names, strict=False)}
        holding = (path for path, limits in judged.items() if overall(limits) == HOLDS)
        if judged and not advise_on_loss(self, self.reference, judged):
            advise_after_success(self, self.reference, next(holding))
        every = [judgement for several in by_name.values() for judgement in several]
        if result.limits or any(each.limit.about.of == FINDINGS for each in every):
            states = (BROKEN,) if self.allow_undecided else (BROKEN, UNDECIDED)
            hint = cure_in(every) or "choose another method, or run `trtcal search`"
            require(every, hint, states)
        if crashes:
            raise crashes[0][1]

    def _with_measured(
        self, result: Comparison, reference: Model, variants: Sequence[Path]
    ) -> Comparison:
        """Return the comparison with times of other tools' files, and print what is to be known."""
        if not self.measured:
            return result
        from trtcal.model import load_model
        from trtcal.reporting.measured import read_measured, with_measured

        models = [reference, *map(load_model, filter(Path.is_file, variants))]
        measured = read_measured(self.measured, result, {each.fingerprint: each for each in models})
        for each in measured:
            note(*each.facts["notes"], head=f"note: {each.variant} on {each.facts['on']}: ")
        return with_measured(result, measured)


command = Compare.command()


def _settings(options: Compare, model: Model, dataset: Dataset) -> CompareSettings:
    from trtcal.check.evaluation_data import EvaluationCheck
    from trtcal.evaluate.collectors import CollectSettings
    from trtcal.evaluate.comparison import CompareSettings

    config = options.config.evaluation
    slices, metric = options.slices or config.slices, options.metric_file or config.metric
    options.config.check_trusted(metric)
    user = (options.simulate, options.chosen_task, options.chosen_outputs)
    question = CollectSettings((), None, *user, EvaluationCheck(model, dataset))
    return CompareSettings(
        options.test_batch,
        options.rounds or config.rounds,
        question.reading(dataset, slices, metric),
        options.interval / 100 if options.interval else None,
        _sizes(options.batch_sizes),
    )


def _sizes(text: str | None) -> list[int]:
    """Read `1,8,32`; `InputError` if it is none."""
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and 0 < int(part) < 2**31 for part in parts):
        raise InputError(f"{text!r} is not a list of batch sizes", "write them like 1,8,32")
    return [int(part) for part in parts]


def show(comparison: Comparison, with_times: bool = True) -> None:
    """Print the comparison as a table, its limits, and what the table does not show."""
    from trtcal.evaluate.target_times import of_latency
    from trtcal.evaluate.variant_limits import judge_variants

    say(*comparison.task.lines)
    columns: Columns = {
        "variant": "{name}",
        **(OF_STOPPED if any(row.stopped for row in comparison.rows) else {}),
        **comparison.columns(),
        **_of_times(comparison, with_times),
        "KiB": lambda row: f"{row.size_bytes / 1024:.0f}",
    }
    title = f"{comparison.samples} samples of {comparison.dataset_name}, batch {comparison.batch}"
    if comparison.rows[0].latency.on:
        title += f"; times of {of_latency(comparison.rows[0].latency).gpu}"
    print_table(comparison.rows, columns, title, "-")
    _show_outputs(comparison)
    by_variant = judge_variants(comparison).values()
    print_limits([judgement for several in by_variant for judgement in several])
    _say_warnings(comparison, say, with_times)


def _of_times(comparison: Comparison, with_times: bool) -> Columns:
    """Return the columns of times: of rows timed where the reference was, if asked or of a device."""
    on = comparison.rows[0].latency.on
    templates = {**(OF_TIMES if with_times or on else {}), **(OF_DEVICES if on else {})}

    def cell(row: Row, template: str) -> str:
        return filled(template, row, "-") if row.latency.on == on else "-"

    columns = {name: partial(cell, template=text) for name, text in templates.items()}
    return {name: each for name, each in columns.items() if {*map(each, comparison.rows)} != {"-"}}


def _show_outputs(comparison: Comparison) -> None:
    rows = [(row.name, output) for row in comparison.rows[1:] for output in row.outputs]
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


def _say_warnings(result: Comparison, write: Callable[..., None], with_times: bool) -> None:
    from trtcal.evaluate.comparison import notes, warnings

    write(*notes(result), head="note: ")
    write(*warnings(result, with_times), head="warning: ")
