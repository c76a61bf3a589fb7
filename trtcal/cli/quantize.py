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
    skip_option,
)

if TYPE_CHECKING:
    from trtcal.backends.options import ShapeRanges
    from trtcal.config import Config
    from trtcal.model import Model
    from trtcal.model.files import OnnxFile
    from trtcal.ptq import Wanted
    from trtcal.quantization import Plan, QuantizedModel
    from trtcal.quantization.fp16_subgraphs import Fp16Subgraphs
    from trtcal.ranges import Calibration


@dataclass(frozen=True)
class Asked:
    """What the options say: effort, seconds, objective, a metric's file, data, where to write."""

    effort: str | None
    seconds: float
    objective: str
    metric: Path | None
    data: Path | None
    output: Path
    floats: Path | None

    def check(self, optimizations: Path | None) -> None:
        """Refuse options that say nothing together."""
        if self.effort and optimizations:
            raise click.UsageError(
                "--improve finds optimizations of its own: leave --optimizations out"
            )
        if not self.effort and (self.data or self.metric or self.floats):
            raise click.UsageError("--data, --metric and --float-output belong to --improve")

    def wanted(self) -> Wanted:
        """Return it as the library takes it."""
        from trtcal.evaluate.metrics import load_metric
        from trtcal.ptq import Wanted

        metric = load_metric(self.metric) if self.metric else None
        return Wanted(self.effort or "fast", self.seconds, self.objective, metric)


def improved_model(
    original: Model, prepared: Model, config: Config, asked: Asked
) -> tuple[Model, Calibration, dict[str, Any]]:
    """Find optimizations, write them and the ranges beside the output; return model, ranges and record."""
    from trtcal.check import check_data
    from trtcal.data import open_dataset
    from trtcal.ptq import improve
    from trtcal.ptq.records import write_files

    source = required(asked.data or config.calibration.data, "the data", "--data")
    dataset = open_dataset(source, original, config.images, config.calibration.labels)
    warn(check_data(original, dataset).issues)
    found = improve(prepared, dataset, asked.wanted(), original, progress)
    for line in found.warnings:
        note(f"warning: {line}")
    endings = (".optimizations.npz", ".optimizations.json", ".calibration.json")
    optimizations, record, ranges = (asked.output.with_suffix(one) for one in endings)
    write_files(found, optimizations, record, ranges)
    note(f"wrote {optimizations}, {record} and {ranges}")
    if asked.floats:
        _write_floats(asked.floats, found.optimized, found.calibration)
    return found.optimized, found.calibration, found.optimizations.document


def _write_floats(path: Path, model: Model, calibration: Calibration) -> None:
    """Write the optimized model in float, and its ranges, for builders that quantize by themselves."""
    from dataclasses import replace

    from trtcal.model import load_model
    from trtcal.model.files import write_onnx
    from trtcal.ptq import in_float

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
    "plan_path",
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
    "effort",
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
    help="What a optimization has to better.",
)
@click.option(
    "--metric",
    type=click.Path(path_type=Path),
    help="A Python file whose metric(outputs, labels) is to become larger, in place of --objective.",
)
@click.option(
    "--float-output",
    "floats",
    type=click.Path(path_type=Path),
    help="Write the optimized model in float too, for TensorRT up to 10 with a cache.",
)
@optimizations_option
@config_option
@json_option
def command(
    model: Path | None,
    ranges: Path,
    plan_path: Path | None,
    output: Path,
    skipped: tuple[str, ...],
    keep_float: tuple[str, ...],
    only: tuple[str, ...],
    target: str | None,
    tune_time: float,
    effort: str | None,
    data: Path | None,
    time_limit: float,
    objective: str,
    metric: Path | None,
    floats: Path | None,
    optimizations: Path | None,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Write Q/DQ into MODEL where TensorRT's rules and the plan want INT8, and casts for fp16.

    A plan is JSON: {"default": "int8", "layers": {"layer name": "fp32"}, "rules": [{"match":
    "glob", "pattern": "head/*", "op": "Conv", "precision": "fp16", "reason": "..."}]}. Exact names
    come first, then the first rule that matches, then the default.

    With --improve the ranges are chosen here, and what helps on samples held back is kept: channels
    scaled alike, other biases, weights rounded by what a layer computes, other ranges. Beside OUTPUT
    it writes the ranges, and what was changed, which --optimizations takes.
    """
    from trtcal.backends.options import parse_shapes
    from trtcal.model import load_model
    from trtcal.quantization import quantize, write_quantized
    from trtcal.ranges import Calibration

    config = config_here(config_path)
    asked = Asked(effort, time_limit, objective, metric, data, output, floats)
    asked.check(optimizations)
    plan = _plan(plan_path, keep_float, only)
    loaded, record = load_model(required(model or config.model, "the model", "MODEL")), None
    prepared = prepared_model(loaded, config, skipped, optimizations)
    if effort:
        prepared, calibration, record = improved_model(loaded, prepared, config, asked)
    else:
        calibration = Calibration.read(ranges)
    if target := target or config.build.tune_placement:
        shapes = parse_shapes(config.build.shapes)
        plan = _tuned(prepared, calibration, plan, target, shapes, tune_time, output)
    quantized = quantize(prepared, calibration, plan)
    written = write_quantized(output, quantized)
    if not as_json:
        _show(quantized, written, output, record)
        return
    print_json(
        {
            "output": str(output),
            "digest": written.digest,
            "weights": written.weights,
            "asked": quantized.asked,
            "skipped": quantized.skipped,
            "excluded": quantized.excluded,
            "fp16_subgraphs": asdict(quantized.fp16_subgraphs),
            "improvement": record,
        }
    )


def _plan(path: Path | None, keep_float: tuple[str, ...], only: tuple[str, ...]) -> Plan:
    """Return the plan of a file, with the rules of options before its own."""
    from trtcal.quantization import Plan, Rule, read_plan

    if only and path:
        raise click.UsageError("--only makes a plan of its own: leave --plan out")
    plan = read_plan(path) if path else Plan("fp32" if only else "int8")
    rules = [Rule("fp32", glob, reason="--keep-float") for glob in keep_float]
    rules += [Rule("int8", glob, reason="--only") for glob in only]
    return replace(plan, rules=(*rules, *plan.rules))


def _show(
    quantized: QuantizedModel, written: OnnxFile, output: Path, record: dict[str, Any] | None
) -> None:
    if record:
        show_tries(record)
    asked = list(quantized.asked.values())
    say(f"{asked.count('int8')} of {len(asked)} heavy layers are asked in INT8")
    for name, reason in quantized.excluded.items():
        say(f"left out of INT8 by the plan: {name}: {reason}")
    for name, reason in quantized.skipped.items():
        say(f"left in float: {name}: {reason}")
    if quantized.fp16_subgraphs.nodes:
        _tell(quantized.fp16_subgraphs)
    say(f"wrote {output}  {written.digest[:19]}")
    if written.weights is not None:
        say(f"wrote its weights beside it, where they have to stay: {written.weights}")


def _tuned(
    prepared: Model,
    calibration: Calibration,
    plan: Plan,
    target: str,
    shapes: ShapeRanges,
    seconds: float,
    output: Path,
) -> Plan:
    """Return the plan that a trial on the compiler finds best; write it, and the trials, beside."""
    from trtcal.backends.options import BuildOptions
    from trtcal.backends.registry import find_backend
    from trtcal.documents import write_document
    from trtcal.evaluate.placement_search import compiler, described, tune_placement
    from trtcal.quantization import write_plan

    backend, chosen = find_backend(None, target)
    measure = compiler(backend, BuildOptions(chosen, shapes), prepared)
    tuned = tune_placement(prepared, calibration, plan, measure, seconds)
    for trial in tuned.trials:
        say(f"{described(trial)}: {'kept' if trial.kept else 'not kept'}")
    if tuned.untried:
        say(f"{tuned.untried} trials were not made in {seconds:g} s: raise --tune-time")
    trials, best = output.with_suffix(".placement.json"), output.with_suffix(".plan.json")
    write_document(trials, tuned.to_document())
    write_plan(best, tuned.plan)
    say(f"wrote {trials}, and {best}, with which --plan gives the same without building")
    return tuned.plan


def _tell(fp16_subgraphs: Fp16Subgraphs) -> None:
    """Say how much is in float16, and what of it nobody knows."""
    say(
        f"{len(fp16_subgraphs.nodes)} nodes are in fp16, with {fp16_subgraphs.casts} casts around them"
    )
    for name, count in fp16_subgraphs.subnormal.items():
        say(f"{count} values of {name} are subnormal in fp16 and lose digits")
    if fp16_subgraphs.unknown:
        first = ", ".join(fp16_subgraphs.unknown[:SHOWN])
        more = (
            f" and {len(fp16_subgraphs.unknown) - SHOWN} more"
            if len(fp16_subgraphs.unknown) > SHOWN
            else ""
        )
        say(f"nothing known keeps these within fp16: {first}{more}")
