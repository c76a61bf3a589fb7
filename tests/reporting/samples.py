"""Comparisons, builds and run folders made up for the tests of the report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from trtcal.documents import Document, digest_file, seal, write_document
from trtcal.evaluate.accuracy import Accuracy, Mean, OutputFigures
from trtcal.evaluate.comparison import Comparison, Row
from trtcal.evaluate.latency import Latency
from trtcal.evaluate.target_times import TargetTime
from trtcal.evaluate.tasks import TaskRecord
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.evidence.manifest import Build
from trtcal.evidence.times import TENSORRT
from trtcal.limits import parse_limits
from trtcal.ptq.artifact import OPTIMIZATIONS_KIND as OPTIMIZED
from trtcal.ptq.artifact import optimized_fingerprint
from trtcal.quantization.plan import Plan, write_plan
from trtcal.ranges import Calibration, TensorRange
from trtcal.reporting.document import assemble, read_report
from trtcal.reporting.render import check_page, write_page
from trtcal.stats import Moments, paired_difference

SAMPLES = 2000
EXACT = Accuracy(SAMPLES, 98.6, 0.0, (-0.18, 0.18), 100.0, None, 1.0)
LOG = (
    "[11/21/2026-05:00:00] [W] [TRT] Missing scale and zero-point for tensor relu_3, expect fall "
    "back to non-int8 implementation for any layer consuming or producing given tensor\n"
    "[11/21/2026-05:00:01] [I] [TRT] Fallback triggered for leaky_relu_5\n"
    "[11/21/2026-05:00:02] [I] [TRT] Total Host Persistent Memory: 4096\n"
)


def accuracy(lost: int, won: int, **changes: Any) -> Accuracy:
    """Return an accuracy of which the reference alone has `lost` samples right, the variant `won`."""
    ends = paired_difference(lost, won, SAMPLES).scaled(100.0)
    made = Accuracy(
        samples=SAMPLES,
        top1=98.6 - ends.value,
        top1_drop=ends.value,
        top1_drop_interval=(ends.low, ends.high),
        agreement=99.0 - max(ends.value, 0.0),
        sqnr_db=30.0,
        cosine=0.999,
        top1_lost=lost,
        top1_won=won,
    )
    return replace(made, **changes)


def unlabelled(agreement: float | None, samples: int = SAMPLES) -> Accuracy:
    """Return an accuracy without labels."""
    return Accuracy(samples, None, None, None, agreement, 25.0, 0.99)


def latency(p50: float = 1.0, speedup: float = 2.0, margin: float = 0.1) -> Latency:
    """Return a latency with an interval of `margin` (a share) to both sides."""
    around = (p50 * (1 - margin), p50 * (1 + margin))
    between = (speedup * (1 - margin), speedup * (1 + margin))
    return Latency(32, 60, p50, p50 * 1.2, p50 * 1.5, around, speedup, between)


def row(name: str, figures: Accuracy, timing: Latency | None = None, size: int = 40_000) -> Row:
    """Return a variant whose model's fingerprint follows from its name."""
    quantization = {"method": "percentile", "calibration": "sha256:c", "plan": "sha256:p"}
    about = (name, f"sha256:{name}", quantization, figures, timing or latency(), size)
    return Row(*about, outputs_of(figures), means_of(figures))


def outputs_of(figures: Accuracy) -> tuple[OutputFigures, ...]:
    """Return the one output that has these figures."""
    kind = "values" if figures.agreement is None else "classes"
    noise = Moments(figures.samples, 10 ** (-(figures.sqnr_db or 300.0) / 10), 1e-12, 0.0)
    own = (figures.agreement, None, figures.cosine, 0.05, figures.sqnr_db, noise)
    return (OutputFigures("logits", kind, *own),)


def means_of(figures: Accuracy) -> dict[str, Mean]:
    """Return the means of agreement and of right answers, where there are any."""
    if figures.agreement is None:
        return {}
    share, count = figures.agreement / 100, figures.samples
    moments = (Moments(count, one, 0.0, 0.0) for one in (share, share - 1))
    means = {"agreement": Mean(*moments, 1.0, count - round(share * count), 0)}
    if figures.top1 is not None and figures.top1_lost is not None:
        pair = (figures.top1 / 100, -(figures.top1_drop or 0.0) / 100)
        moments = (Moments(count, one, 0.0, 0.0) for one in pair)
        means["top1"] = Mean(*moments, 1.0, figures.top1_lost, figures.top1_won)
    return means


def comparison(
    *rows: Row, limits: tuple[str, ...] = ("top1 >= -1.0",), reference: str = "digits"
) -> Comparison:
    """Return a comparison of these variants with an FP32 reference."""
    timing = latency(2.0, 1.0, 0.0)
    own = (outputs_of(EXACT), means_of(EXACT))
    first = Row(reference, "sha256:fp32", {}, EXACT, timing, 130_000, *own)
    known = [one.accuracy.agreement for one in rows if one.accuracy.agreement is not None]
    kinds = {"logits": "classes" if known or not rows else "values"}
    task = TaskRecord("classification", False, kinds, {"agreement": 0.55})
    about = ("sha256:data", "test", SAMPLES, 32, task)
    return Comparison(*about, parse_limits(limits), (first, *rows))


def build(model: str, got: dict[str, str], **changes: Any) -> Build:
    """Return a build of the variant called `model` in which each node was asked INT8."""
    outcomes = tuple(
        Outcome(node, "int8", precision, f"layer of {node}", *_why(precision))
        for node, precision in got.items()
    )
    made = Build(
        folder=Path("nowhere"),
        backend="tensorrt-rtx",
        backend_version="1.7",
        target="sm89",
        model=f"sha256:{model}",
        model_name=model,
        layers=tuple(Layer(f"layer of {node}", "conv", nodes=(node,)) for node in got),
        outcomes=outcomes,
        skipped={},
        quantization={},
        engine_file="engine.plan",
        measured={"engine_bytes": 1_440_000},
    )
    return replace(made, **changes)


def _why(precision: str) -> tuple[str | None, str | None]:
    return (None, None) if precision == "int8" else ("its input is float", "quantize its input")


def calibration(method: str = "percentile", note: str | None = None) -> Calibration:
    """Return a calibration of two tensors, of which one has no range."""
    ranges = {"conv1": TensorRange(2.0, 3.0, 0.001, note)}
    return Calibration(
        *(method, {"percentile": 99.99}, "sha256:fp32", "sha256:cal", 128, "sha256:histograms"),
        ranges=ranges,
        unranged={"dead": "it has no finite value"},
    )


def write_build(folder: Path, made: Build, log: str = LOG) -> Build:
    """Write a build's manifest and log into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build.log").write_text(log, encoding="utf-8")
    measured = {**made.measured, "log_digest": digest_file(folder / "build.log")}
    made = replace(made, folder=folder, measured=measured)
    write_document(folder / "build.json", made.to_document())
    return made


def write_run(folder: Path, compared: Comparison, *builds: Build) -> Path:
    """Write a whole run folder."""
    compared.write(folder / "comparison.json")
    for number, made in enumerate(builds):
        write_build(folder / "builds" / f"{number}", made)
    calibration(note="kept short").write(folder / "calibrations" / "percentile.json")
    write_plan(folder / "plan.json", Plan("int8", {"head/gemm": "fp32"}))
    return folder


def improvement(**changes: Any) -> Document:
    """Return a record of optimizations: ranges, one that did not help and one that did."""
    tries = (
        ("ranges: percentile", "", True, -12.9, 0.05),
        ("ranges: auto", "", True, -14.0, 0.01),
        ("cross-layer equalization", "channels scaled alike (2019)", False, -13.0, 0.02),
        ("adaptive rounding", "by each layer's output error (2020)", True, -21.2, 0.001),
    )
    return {
        "kind": OPTIMIZED,
        "schema_version": 1,
        "model": "sha256:prepared",
        "optimizations": "sha256:optimizations",
        "effort": "best",
        "objective": "sqnr",
        "samples": {"fitted": 64, "calibration": 96, "selection": 32},
        "tries": [
            {
                "name": name,
                "what": what,
                "kept": kept,
                "value": value,
                "loss": {"noise": noise, "disagreement": 100 * noise, "kl": 0.1},
            }
            for name, what, kept, value, noise in tries
        ],
        "untried": [],
        "layers": [
            {"name": "conv1", "weights": 1000, "rounded": 75, "bias": 0.5},
            {"name": "gemm", "weights": None, "rounded": None, "bias": None},
        ],
        "warnings": [],
        "measured": {"seconds": [0.1, 0.2, 0.3, 0.4]},
        **changes,
    }


def write_improvement(folder: Path, record: Document) -> Calibration:
    """Write a record of optimizations into a run folder, and the ranges of the optimized model."""
    write_document(folder / "optimizations" / "int8-improved.json", seal(record))
    fingerprint = optimized_fingerprint(record["model"], record["optimizations"])
    made = replace(calibration("auto"), model=fingerprint)
    made.write(folder / "calibrations" / "int8-improved.json")
    return made


def write_report(source, output):
    """Write the report on a run folder, or a report's JSON again, as `trtcal report` does."""
    check_page(output)
    return write_page(output, assemble(source) if source.is_dir() else read_report(source), source)


def estimated(ms: float, **changes: Any) -> TargetTime:
    """Return the estimate of a variant on sm89."""
    ends = (ms, 0.6 * ms, 1.5 * ms)
    time = TargetTime(*ends, 9, 0, "L4", TENSORRT, too_small=False, target="sm89", batch=8)
    return replace(time, **changes)


def measured(name: str, ms: float | None, **changes: Any) -> Build:
    """Return a build for sm89 with the time of its one layer."""
    tensors = (TensorInfo("x", "fp32", (-1, 10)),), (TensorInfo("y", "fp32", (-1, 1)),)
    layers = (Layer("copy", "kgen", *tensors, time_ms=ms),)
    model = f"sha256:{name}"
    return replace(build(name, {}), layers=layers, model=model, backend="tensorrt", **changes)
