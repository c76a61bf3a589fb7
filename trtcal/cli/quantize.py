"""`trtcal quantize`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trtcal.cli.advice import advise, recall, remember
from trtcal.cli.check_data import warn
from trtcal.cli.options import METRIC_FILE, OptimizedOptions, option, required
from trtcal.cli.output import note, print_overview, progress, say, show_coverage, warning
from trtcal.errors import some
from trtcal.formats import NARROW, RANGED, WEIGHTS_ONLY

if TYPE_CHECKING:
    from trtcal.model import Model
    from trtcal.ptq.improver import Improved
    from trtcal.quantization import Plan, QuantizedModel
    from trtcal.quantization.coverage import Coverage
    from trtcal.quantization.fp16_subgraphs import Fp16Subgraphs
    from trtcal.ranges import Calibration

    Subject = tuple[Model, Calibration | None, Improved | None]
    """A prepared model with optimizations, its ranges, and the result of `--improve`."""

NAMES_SHOWN = 5


def _subject(options: Quantize, plan: Plan) -> Subject:
    """Return the prepared model and its ranges: read, found by `--improve`, or none if none count."""
    from trtcal.ranges import Calibration

    model = options.load_model()
    prepared = options.prepare(model, options.optimizations)
    if options.improve:
        return _improved(model, prepared, options, plan)
    path = options.chosen_ranges(plan)
    return prepared, None if path is None else Calibration.read(path), None


def _improved(model: Model, prepared: Model, options: Quantize, plan: Plan) -> Subject:
    from trtcal.check.data_check import check_data
    from trtcal.evaluate.metrics import load_metric
    from trtcal.ptq.improver import improve
    from trtcal.ptq.optimizations import ImproveOptions

    metric = load_metric(options.metric_file) if options.metric_file else None
    effort = options.improve or "fast"
    settings = ImproveOptions(effort, options.time_limit, options.objective, metric, plan=plan)
    dataset = options.open_data(model, options.config.calibration)
    warn(check_data(model, dataset, fingerprint=False))
    result = improve(prepared, dataset, settings, progress)
    for line in result.warnings:
        warning(line)
    return result.optimized, result.calibration if plan.ranged else None, result


def files_beside(output: Path) -> tuple[Path, Path, Path]:
    """Return where optimizations, their record and their ranges stand beside an output."""
    name = output.with_suffix
    return name(".optimizations.npz"), name(".optimizations.json"), name(".calibration.json")


def _write_improved(result: Improved, options: Quantize) -> None:
    optimizations, record, ranges = files_beside(options.output_path)
    result.write(optimizations, record, ranges)
    names = [optimizations, record, *([ranges] if result.plan.ranged else [])]
    note(f"wrote {', '.join(map(str, names))}")
    if options.float_output:
        _write_floats(options.float_output, result.optimized, result.calibration)


def _write_floats(path: Path, model: Model, calibration: Calibration) -> None:
    """Write the optimized model in float, and its ranges, for builders that quantize by themselves."""
    from trtcal.documents import together
    from trtcal.model import load_model
    from trtcal.model.files import write_onnx
    from trtcal.ptq.artifact import in_float

    ranges = path.with_suffix(".calibration.json")
    with together() as batch:
        write_onnx(path, in_float(model).proto)
        written = load_model(batch.of(path.parent).new / path.name)
        replace(calibration, model=written.fingerprint).write(ranges)
    note(f"wrote {path}, in float, and {ranges}")


def show_tries(document: dict[str, Any]) -> None:
    """Print the optimizations that were tried, and the loss with each."""
    from trtcal.ptq.improver import tries_overview

    title = f"on {document['samples']['selection']} samples held back"
    print_overview(tries_overview(document), title)
    say(*document["untried"], head="not tried, because the time ran out: ")


class Quantize(
    OptimizedOptions,
    example="trtcal quantize model.onnx --calibration calibration.json "
    "--plan mixed.json -o model-mixed.onnx",
):
    """Write Q/DQ into MODEL where TensorRT and the plan take INT8, and casts for fp16.

    A plan is JSON: {"default": "int8", "layers": {"layer name": "fp32"}, "rules": [{"match":
    "glob", "pattern": "head/*", "op": "Conv", "precision": "fp16", "reason": "..."}]}. Exact names
    come first, then the first rule that matches, then the default.

    --improve chooses the ranges as well, and keeps each optimization that helps on samples held
    back: equalized channels, corrected biases, weights rounded by the outputs of their layer. It
    writes the ranges and the optimizations beside OUTPUT; --optimizations of other commands takes
    the latter.

    Formats for weights alone (see --precision) need no calibration.
    """

    plan: Path | None = option("Plan: precision by layer.  [default: --precision for every layer]")
    precision: str | None = option(
        f"Precision of every layer that can have it; {' and '.join(WEIGHTS_ONLY)} are for weights; "
        "fp16 adds no Q/DQ, and keeps those of other tools.  [default: int8]",
        type=click.Choice((*NARROW, "fp16")),
    )
    targets: tuple[str, ...] = option(
        "Target that the plan must suit: sm89, rtx4090, portable, cpu; may be repeated.  [default: "
        "targets of [build] in trtcal.toml]",
        "--target",
        metavar="TARGET",
    )
    ranges: Path | None = option(
        "Ranges: the calibration.json that `trtcal calibrate` wrote.  [default: calibration.json, "
        f"if the plan asks for {' or '.join(RANGED)}]",
        "--calibration",
    )
    output: Path | None = option(
        "ONNX file for the quantized model.  [default: MODEL-PLAN.onnx, without --plan "
        "MODEL-PRECISION.onnx]",
        "-o",
    )
    keep_float: tuple[str, ...] = option("Node to leave in fp32; may be repeated.", metavar="GLOB")
    only: tuple[str, ...] = option(
        "Node to quantize, and no others; may be repeated.", metavar="GLOB"
    )
    rest: Literal["fp16", "fp32"] | None = option(
        "Precision of what stays in float.  [default: as the plan says, else trtcal.toml (fp16 if a "
        "target is a GPU), else fp32]"
    )
    improve: Literal["fast", "best"] | None = option(
        "Calibrate from --data, and try optimizations of weights, biases and ranges."
    )
    time_limit: float = option(
        "Seconds after which no optimization starts or continues.", default=600.0, least=0
    )
    objective: Literal["sqnr", "kl"] = option(
        "Figure that an optimization must improve.", default="sqnr"
    )
    metric_file: Path | None = option(
        f"In place of --objective: {METRIC_FILE}", formerly="--metric"
    )
    float_output: Path | None = option(
        "ONNX file for the optimized model in float, for TensorRT up to 10 with a cache."
    )

    def check(self) -> None:
        """Refuse options that contradict each other."""
        for name, other in (("improve", "optimizations"), ("only", "plan"), ("precision", "plan")):
            if getattr(self, name) and getattr(self, other):
                text = f"--{name} and --{other} exclude each other: leave --{other} out"
                raise click.UsageError(text)
        if not self.improve and (self.metric_file or self.float_output):
            raise click.UsageError("--metric-file and --float-output need --improve")

    @property
    def output_path(self) -> Path:
        """The file of the quantized model: as given, else beside the model, named after the plan."""
        if self.output is not None:
            return self.output
        model = required(self.model or self.config.model, "the model", "MODEL")
        plan = self.plan.stem if self.plan else self.precision or "int8"
        return Path(f"{model.stem}-{plan}.onnx")

    @property
    def _suited(self) -> tuple[str, ...]:
        return self.targets or self.config.build.targets

    def chosen_ranges(self, plan: Plan) -> Path | None:
        """Return the file of ranges, None if none is given and the plan needs none."""
        return self.ranges or (Path("calibration.json") if plan.ranged else None)

    def _run(self) -> None:
        from trtcal.backends.capabilities import check_precisions
        from trtcal.documents import together
        from trtcal.quantization import quantize, write_quantized
        from trtcal.quantization.coverage import asked_coverage
        from trtcal.quantization.qdq import in_fp16_already

        self.check()
        plan = _plan(self)
        if self.float_output and not plan.is_int8:
            raise click.UsageError("--float-output is for plans whose one narrow precision is int8")
        if self.data and not self.improve and "fp16" not in plan.asked:
            raise click.UsageError("--data needs --improve, or a plan that asks for fp16")
        check_precisions(plan.asked, self._suited)
        model, calibration, improved = _subject(self, plan)
        plan = improved.plan if improved else plan
        if "fp16" in plan.asked and not (calibration and calibration.peaks):
            calibration = self._with_peaks(model, calibration)
        quantized, path = quantize(model, calibration, plan), self.output_path
        if narrow := in_fp16_already(model, plan):
            warning(
                f"the plan keeps in fp32 what is float16 in the model, and stays so: {some(narrow)}",
                "convert the model again from float32 and keep these nodes in float32",
            )
        with together():
            if improved:
                _write_improved(improved, self)
            written = write_quantized(path, quantized)
        coverage = asked_coverage(replace(model, proto=quantized.proto))
        record = improved.optimizations.document if improved else None
        document = {
            "coverage": coverage.to_document(),
            "asked": quantized.asked,
            "skipped": quantized.skipped,
            "excluded": quantized.excluded,
            "unused": quantized.unused,
            "fp16_subgraphs": asdict(quantized.fp16_subgraphs),
            "improvement": record,
        }
        self.present_onnx(path, written, document, lambda: _show(quantized, coverage, record))
        self._advise(plan)

    def _with_peaks(self, model: Model, calibration: Calibration | None) -> Calibration | None:
        """Return the calibration with the values that float16 would have to hold, if data are known."""
        from trtcal.evaluate.overflow import tensor_peaks
        from trtcal.quantization.qdq import without_ranges

        settings = self.config.calibration
        recalled = recall(self.ranges or Path("calibration.json")).get("data", "")
        if not (self.data or settings.data) and (not recalled or recalled.endswith(".py")):
            return calibration
        dataset = self.open_data(model, replace(settings, data=settings.data or Path(recalled)))
        with progress("finding values beyond float16", len(dataset), "samples") as advance:
            peaks = tensor_peaks(model, dataset, advance)
        return replace(calibration or without_ranges(model), peaks=peaks)

    def _advise(self, plan: Plan) -> None:
        from trtcal.backends.registry import likely_target

        ranges, optimizations = self.chosen_ranges(plan), self.optimizations
        if self.improve:
            optimizations, _, beside = files_beside(self.output_path)
            ranges = beside if plan.ranged else None
        data = self.data or (self.config.calibration.data if self.improve else None)
        known = {"data": data} if data or ranges is None else recall(ranges)
        sources = {"model": self.model or self.config.model, "data": known.get("data")}
        files = {"ranges": ranges, "optimizations": optimizations, "plan": self.plan}
        remember(self.output_path, **sources, **files)
        target = (*self._suited, likely_target())[0]
        advise(self, "build", self.output_path, "--target", target, "-o", Path("builds", target))


command = Quantize.command()


def _plan(options: Quantize) -> Plan:
    from trtcal.backends.registry import floated
    from trtcal.quantization import Plan, Rule, read_plan

    config = options.config
    targets = options.targets or (config.build.run_targets if config.path.is_file() else ())
    rest = options.rest or config.build.rest_for(targets)
    precision = options.precision or "int8"
    plan = read_plan(options.plan) if options.plan else Plan(rest if options.only else precision)
    plan = replace(plan, rest=options.rest or plan.rest).suited(rest, floated(targets))
    rules = [Rule("fp32", glob, reason="--keep-float") for glob in options.keep_float]
    rules += [Rule(precision, glob, reason="--only") for glob in options.only]
    return replace(plan, rules=(*rules, *plan.rules))


def _show(quantized: QuantizedModel, coverage: Coverage, record: dict[str, Any] | None) -> None:
    from trtcal.quantization.weighted_ops import QUANTIZED

    if record:
        show_tries(record)
    show_coverage(coverage)
    if not quantized.is_quantized:
        warning("nothing is quantized: all layers are computed in float")
    for name, reason in quantized.excluded.items():
        say(f"left in float by the plan: {name}: {reason}")
    for name, reason in quantized.skipped.items():
        say(f"{'kept' if reason == QUANTIZED else 'left in float'}: {name}: {reason}")
    for name, reason in quantized.unused.items():
        warning(f"quantized without its optimizations: {name}: {reason}")
    if quantized.fp16_subgraphs.nodes:
        _show_fp16(quantized.fp16_subgraphs)


def _show_fp16(part: Fp16Subgraphs) -> None:
    say(f"{len(part.nodes)} nodes are in fp16, with {part.casts} casts around them")
    if part.subnormal:
        count, names = sum(part.subnormal.values()), some(part.subnormal, NAMES_SHOWN)
        say(f"{count:,} constants are subnormal in fp16 and lose digits: in {names}")
    if part.unknown:
        names = some(part.unknown, NAMES_SHOWN)
        warning(
            f"fp16_overflow: values of these tensors may exceed the range of fp16: {names}",
            "measure them, so that what overflows stays in fp32: give --data",
        )
