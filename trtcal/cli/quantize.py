"""`trtcal quantize`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.check_data import warn
from trtcal.cli.output import (
    config_here,
    config_option,
    data_option,
    json_option,
    note,
    optimizations_option,
    prepared_model,
    print_json,
    print_table,
    progress,
    required,
    say,
    show_written,
    skip_option,
)

if TYPE_CHECKING:
    from trtcal.config import Config
    from trtcal.model import Model
    from trtcal.model.files import OnnxFile
    from trtcal.quantization import Plan, QuantizedModel
    from trtcal.quantization.fp16_subgraphs import Fp16Subgraphs
    from trtcal.ranges import Calibration


@dataclass(frozen=True)
class Options:
    """What the options say, each by its name."""

    model: Path | None
    ranges: Path
    plan: Path | None
    output: Path
    skipped: tuple[str, ...]
    keep_float: tuple[str, ...]
    only: tuple[str, ...]
    target: str | None
    tune_time: float
    improve: str | None
    data: Path | None
    time_limit: float
    objective: str
    metric: Path | None
    float_output: Path | None
    optimizations: Path | None
    config_path: Path | None
    as_json: bool

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.improve and self.optimizations:
            raise click.UsageError("--improve finds optimizations: leave --optimizations out")
        if not self.improve and (self.data or self.metric or self.float_output):
            raise click.UsageError("--data, --metric and --float-output belong to --improve")
        if self.only and self.plan:
            raise click.UsageError("--only makes a plan of its own: leave --plan out")


@dataclass(frozen=True)
class Subject:
    """A prepared model with optimizations, its ranges, and the record of those found here."""

    model: Model
    calibration: Calibration
    record: dict[str, Any] | None = None


def _subject(options: Options, config: Config) -> Subject:
    """Return the prepared model and its ranges: read, or found by `--improve`."""
    from trtcal.model import load_model
    from trtcal.ranges import Calibration

    given = load_model(required(options.model or config.model, "the model", "MODEL"))
    prepared = prepared_model(given, config, options.skipped, options.optimizations)
    if options.improve:
        return _improved(given, prepared, options, config)
    return Subject(prepared, Calibration.read(options.ranges))


def _improved(given: Model, prepared: Model, options: Options, config: Config) -> Subject:
    """Find optimizations; write them, their record and the ranges beside the output."""
    from trtcal.check.check import check_data
    from trtcal.data import open_dataset
    from trtcal.evaluate.metrics import load_metric
    from trtcal.ptq.improver import improve
    from trtcal.ptq.optimizations import ImproveOptions

    metric = load_metric(options.metric) if options.metric else None
    effort = options.improve or "fast"
    wanted = ImproveOptions(effort, options.time_limit, options.objective, metric)
    source = required(options.data or config.calibration.data, "the data", "--data")
    dataset = open_dataset(source, given, config.images, config.calibration.labels)
    warn(check_data(given, dataset).issues)
    found = improve(prepared, dataset, wanted, given, progress)
    for line in found.warnings:
        note(f"warning: {line}")
    endings = (".optimizations.npz", ".optimizations.json", ".calibration.json")
    optimizations, record, ranges = (options.output.with_suffix(one) for one in endings)
    found.write(optimizations, record, ranges)
    note(f"wrote {optimizations}, {record} and {ranges}")
    if options.float_output:
        _write_floats(options.float_output, found.optimized, found.calibration)
    return Subject(found.optimized, found.calibration, found.optimizations.document)


def _write_floats(path: Path, model: Model, calibration: Calibration) -> None:
    """Write the optimized model in float, and its ranges, for builders that quantize by themselves."""
    from trtcal.model import load_model
    from trtcal.model.files import write_onnx
    from trtcal.ptq.artifact import in_float

    write_onnx(path, in_float(model).proto)
    ranges = path.with_suffix(".calibration.json")
    replace(calibration, model=load_model(path).fingerprint).write(ranges)
    note(f"wrote {path}, in float, and {ranges}")


def show_tries(document: dict[str, Any]) -> None:
    """Print what was tried, and what each brought."""
    tries = document["tries"]
    rows = [
        (
            one["name"],
            "-" if one["value"] is None else f"{one['value']:.4g}",
            _decibels(one["loss"]["noise"]),
            "-" if one["loss"]["disagreement"] is None else f"{one['loss']['disagreement']:.2f}",
            "kept" if one["kept"] else "not kept",
        )
        for one in tries
    ]
    samples = document["samples"]
    title = f"on {samples['selection']} samples held back"
    loss = {"sqnr": "noise, mean dB", "kl": "KL, nats"}.get(document["objective"], "-metric")
    print_table(("optimization", loss, "SQNR dB", "disagreement %", ""), rows, title)
    for name in document["untried"]:
        say(f"not tried for lack of time: {name}")


def _decibels(noise: float | None) -> str:
    return f"{-10 * math.log10(noise):.2f}" if noise else "-"


SHOWN = 5


@click.command(
    epilog="Example: trtcal quantize model.onnx --calibration calibration.json "
    "--plan mixed.json -o model-mixed.onnx"
)
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option(
    "--calibration",
    "ranges",
    type=click.Path(path_type=Path),
    default=Path("calibration.json"),
    show_default=True,
    help="What calibrate wrote.",
)
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    help="Precision by layer; without it every layer is asked in INT8.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Where to write the ONNX.",
)
@skip_option
@click.option(
    "--keep-float", metavar="GLOB", multiple=True, help="Leave these nodes in fp32; repeatable."
)
@click.option(
    "--only", metavar="GLOB", multiple=True, help="Ask these in INT8, no others; repeatable."
)
@click.option(
    "--tune-placement",
    "target",
    metavar="TARGET",
    help="Try light nodes in INT8, in float and with a second Q/DQ pair, by building for sm89 or "
    "its like; also tune_placement under [build] in trtcal.toml.",
)
@click.option(
    "--tune-time",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="Seconds for that.",
)
@click.option(
    "--improve",
    type=click.Choice(["fast", "best"]),
    help="Calibrate from --data, and try optimizations of weights, biases and ranges.",
)
@data_option
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="Seconds after which no optimization is begun or goes on.",
)
@click.option(
    "--objective",
    type=click.Choice(["sqnr", "kl"]),
    default="sqnr",
    show_default=True,
    help="What an optimization has to improve.",
)
@click.option(
    "--metric",
    type=click.Path(path_type=Path),
    help="A Python file whose metric(outputs, labels) is to become larger, in place of --objective.",
)
@click.option(
    "--float-output",
    type=click.Path(path_type=Path),
    help="Write the optimized model in float too, for TensorRT up to 10 with a cache.",
)
@optimizations_option
@config_option
@json_option
def command(**options: Any) -> None:
    """Write Q/DQ into MODEL where TensorRT's rules and the plan want INT8, and casts for fp16.

    A plan is JSON: {"default": "int8", "layers": {"layer name": "fp32"}, "rules": [{"match":
    "glob", "pattern": "head/*", "op": "Conv", "precision": "fp16", "reason": "..."}]}. Exact names
    come first, then the first rule that matches, then the default.

    With --improve the ranges are chosen here, and what helps on samples held back is kept: channels
    scaled alike, other biases, weights rounded by what a layer computes, other ranges. Beside OUTPUT
    it writes the ranges, and what was changed, which --optimizations takes.
    """
    from trtcal.quantization import quantize, write_quantized

    asked = Options(**options)
    asked.check()
    config = config_here(asked.config_path)
    plan, subject = _plan(asked), _subject(asked, config)
    if target := asked.target or config.build.tune_placement:
        plan = _tuned(subject, plan, target, asked, config)
    quantized = quantize(subject.model, subject.calibration, plan)
    written = write_quantized(asked.output, quantized)
    if asked.as_json:
        print_json(_document(quantized, written, asked, subject))
    else:
        _show(quantized, written, asked, subject)


def _plan(options: Options) -> Plan:
    """Return the plan of a file, with the rules of options before its own."""
    from trtcal.quantization import Plan, Rule, read_plan

    default = Plan("fp32" if options.only else "int8")
    plan = read_plan(options.plan) if options.plan else default
    rules = [Rule("fp32", glob, reason="--keep-float") for glob in options.keep_float]
    rules += [Rule("int8", glob, reason="--only") for glob in options.only]
    return replace(plan, rules=(*rules, *plan.rules))


def _tuned(subject: Subject, plan: Plan, target: str, options: Options, config: Config) -> Plan:
    """Return the plan that trials on the compiler find best; write it, and the trials, beside."""
    from trtcal.backends.options import BuildOptions, parse_shapes
    from trtcal.backends.registry import find_backend
    from trtcal.documents import write_document
    from trtcal.evaluate.placement_search import compiler, described, tune_placement
    from trtcal.quantization import write_plan

    shapes, seconds = parse_shapes(config.build.shapes), options.tune_time
    backend, chosen = find_backend(None, target)
    measure = compiler(backend, BuildOptions(chosen, shapes), subject.model)
    tuned = tune_placement(subject.model, subject.calibration, plan, measure, seconds)
    for trial in tuned.trials:
        say(f"{described(trial)}: {'kept' if trial.kept else 'not kept'}")
    if tuned.untried:
        say(f"{tuned.untried} trials were not made in {seconds:g} s: raise --tune-time")
    endings = (".placement.json", ".plan.json")
    trials, best = (options.output.with_suffix(one) for one in endings)
    write_document(trials, tuned.to_document())
    write_plan(best, tuned.plan)
    say(f"wrote {trials}, and {best}, with which --plan gives the same without building")
    return tuned.plan


def _document(
    quantized: QuantizedModel, written: OnnxFile, options: Options, subject: Subject
) -> dict[str, Any]:
    return {
        "output": str(options.output),
        "digest": written.digest,
        "weights": written.weights,
        "asked": quantized.asked,
        "skipped": quantized.skipped,
        "excluded": quantized.excluded,
        "fp16_subgraphs": asdict(quantized.fp16_subgraphs),
        "improvement": subject.record,
    }


def _show(quantized: QuantizedModel, written: OnnxFile, options: Options, subject: Subject) -> None:
    if subject.record:
        show_tries(subject.record)
    asked = list(quantized.asked.values())
    say(f"{asked.count('int8')} of {len(asked)} heavy layers are asked in INT8")
    for name, reason in quantized.excluded.items():
        say(f"left out of INT8 by the plan: {name}: {reason}")
    for name, reason in quantized.skipped.items():
        say(f"left in float: {name}: {reason}")
    if quantized.fp16_subgraphs.nodes:
        _show_fp16(quantized.fp16_subgraphs)
    show_written(options.output, written)


def _show_fp16(found: Fp16Subgraphs) -> None:
    """Print how much is in float16, and which of its tensors have no known bound."""
    say(f"{len(found.nodes)} nodes are in fp16, with {found.casts} casts around them")
    for name, count in found.subnormal.items():
        say(f"{count} values of {name} are subnormal in fp16 and lose digits")
    if found.unknown:
        more = len(found.unknown) - SHOWN
        first = ", ".join(found.unknown[:SHOWN]) + (f" and {more} more" if more > 0 else "")
        say(f"no known bound keeps these within fp16: {first}")
