"""`trtcal search`."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trtcal.cli.advice import advise, recall
from trtcal.cli.options import (
    ON,
    CalibratedOptions,
    LimitOptions,
    TaskOptions,
    VerdictOptions,
    option,
)
from trtcal.cli.output import note, print_table, progress, remark, say, show_coverage, warning
from trtcal.config import hardware_of
from trtcal.errors import GateFailed, InputError, some
from trtcal.formats import NARROW
from trtcal.limits import BROKEN, UNDECIDED, Judgement, Limit, parse_limits, require
from trtcal.metrics import SQNR

if TYPE_CHECKING:
    from trtcal.data import Dataset
    from trtcal.evaluate.search.pipeline import Compile, SearchOptions
    from trtcal.model import Model

LAYERS_SHOWN = 4  # of many, and plans that are out for infinite values


def show(document: dict[str, Any]) -> None:
    """Print the plans from fastest to most accurate, the recommended one and why."""
    from trtcal.documents import from_fields
    from trtcal.quantization.coverage import Coverage

    is_mixed = document["precisions"] != ["int8"] or document["goal"] == "smallest"
    of_mixed: dict[str, Any] = {
        "other": lambda row: ", ".join(
            f"{count} {name}"
            for name, count in Counter(row["narrow_layers"].values()).most_common()
        ),
        "MB": "{size_mb:.3g}",
    }
    columns: dict[str, Any] = {
        "plan": lambda row: f"{row['plan']}{' *' if row['recommended'] else ''}",
        "left in float": lambda row: _named(row["float_layers"]),
        **(of_mixed if is_mixed else {}),
        "INT8 MACs %": "{int8_macs:.3g}",
        "ms": lambda row: _with_ends(row["cost_ms"], row["cost_interval_ms"]),
        "speed-up": lambda row: _with_ends(row["speedup"], row["speedup_interval"]),
        "SQNR dB": lambda row: "inf" if row["sqnr_db"] is None else f"{row['sqnr_db']:.2f}",
        "KL": "{loss[kl]:.3g}",
        "drop": lambda row: _drop(row["loss"]),
        "MB moved": lambda row: _built(row["built"])[0],
        "lost": lambda row: _built(row["built"])[1],
    }
    first = "smallest" if document["goal"] == "smallest" else "fastest"
    title = f"plans from {first} to most accurate; ms: {document['costs']}"
    print_table(document["front"], columns, title)
    plans, samples = len(document["measured_plans"]), document["samples"]["plans"]
    say(f"{plans} plans measured on {samples} samples")
    show_coverage(from_fields(Coverage, document["coverage"]))
    _show_unfit(document)
    if not document["complete"]:
        cut = "; ".join(document["missing"])
        note(f"note: stopped by a limit: {cut}; the same command with more time or --plans resumes")
    if device := document["measured"]["device"]:
        _show_device(device)
    for plan in _recommended(document):
        say(f"recommended: {plan['plan']}: {document['reason']}")
        say(f"to apply it: {plan['command']}")
    _show_tested(document)


def _recommended(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan for plan in document["front"] if plan["recommended"]]


def _show_unfit(document: dict[str, Any]) -> None:
    if document["beyond_float16"]:
        names = _named(document["beyond_float16"])
        warning(
            f"float16 is too small for values of these layers, which run in INT8 or float32: {names}"
        )
    unfit = [row["float_layers"] for row in document["measured_plans"] if not row["finite"]]
    for layers in unfit[:LAYERS_SHOWN]:
        where = f"with {document['float_precision']} for {_named(layers)}"
        warning(f"values are infinite or NaN {where}; that plan is not used")
    if len(unfit) > LAYERS_SHOWN:
        warning(f"and those of {len(unfit) - LAYERS_SHOWN} more plans")


def _with_ends(value: float, ends: Sequence[float]) -> str:
    """Return a figure with its interval, where it is no measured one."""
    low, high = ends
    return f"{value:.3g}" + ("" if low == high else f" ({low:.3g} to {high:.3g})")


def _show_device(device: dict[str, Any]) -> None:
    columns: dict[str, Any] = {
        "plan": "{plan}",
        "p50 ms": lambda row: _with_ends(row["p50_ms"], row["p50_interval_ms"]),
        "beside all INT8": lambda row: _with_ends(row["over_int8"], row["over_int8_interval"]),
    }
    rows = [{"plan": name, **times} for name, times in device["plans"].items()]
    print_table(rows, columns, f"times on {device['on']} ({device['hardware']})")
    for text in device["warnings"]:
        warning(f"the times of {device['on']} were disturbed: {text}")
    if not device["complete"]:
        note("note: --budget-minutes are over: the same command tries further plans")


def _named(layers: list[str]) -> str:
    return f"{len(layers)}: {some(layers, LAYERS_SHOWN)}" if layers else "none"


def _drop(loss: dict[str, Any]) -> str:
    """Return by how much top-1 falls, or without labels the disagreement."""
    value = loss["disagreement"] if loss["top1_drop"] is None else loss["top1_drop"]
    return "" if value is None else f"{value:.3g}"


def _built(built: dict[str, Any] | None) -> tuple[str, str]:
    if built is None or built["failed"]:
        return "" if built is None else "failed", ""
    return f"{built['bytes_moved'] / 1e6:.4g}", str(built["float_heavy"])


class Search(
    CalibratedOptions,
    TaskOptions,
    LimitOptions,
    VerdictOptions,
    example="trtcal search model.onnx --calibration calibration.json --data test.npz "
    "--limit 'top1 >= -0.3' --target sm89 -o search",
):
    """Find which layers of MODEL to quantize, and to what: plans from fastest to most accurate.

    Losses are measured by running the Q/DQ model. Where all in INT8 misses a limit or loses more than
    noise, the search starts from the model that --improve fast gives. Times are estimates from the
    GPU's datasheet, or measurements with --times. A limit is about top1, agreement, sqnr_db,
    speedup, latency_p50 (the time of a batch) or int8_macs, as in "top1 >= -0.3". Without a limit
    the command recommends all in INT8 where that holds the task's limits, else the plan that loses
    least and keeps 90 % of the INT8 speed-up. The output folder keeps the measurements, so that the
    same command resumes where it was stopped. The status is 1 if no plan meets the limits, or the
    recommended one leaves a limit undecided on samples held back.

    --precisions lets layers have other narrow formats than INT8. --goal smallest looks for the
    smallest file within the limits, or within half a point of accuracy if no limit is about it.
    """

    data: Path | None = option("Data that plans are judged on.")
    precision: Literal["fp16", "fp32"] | None = option(
        "Precision of what stays in float.  [default: fp16, on the CPU of a device fp32]",
        "--rest",
        formerly="--float",
    )
    precisions: str = option(
        f"Precisions to choose from, besides float: of {', '.join(NARROW)}, or all that the "
        "--target, else the --gpu, has.",
        default="int8",
        metavar="A,B,...|all",
    )
    goal: Literal["fastest", "smallest"] = option(
        "What to optimize within the limits: the time, or the size of the file.", default="fastest"
    )
    gpu: str | None = option(
        "GPU to estimate times for: a name, or a TOML file of datasheet numbers.  [default: that of "
        "--target, else of a target in trtcal.toml, else t4]",
        metavar="NAME|FILE",
    )
    times: tuple[Path, Path] | None = option(
        "Folder of a build with --layer-times: measured layer times in place of estimates; may "
        "be repeated.",
        metavar="INT8 FLOAT",
    )
    on: str | None = option(
        f"{ON} Layer times are taken from it, and plans timed there.", metavar="NAME"
    )
    budget_minutes: float = option(
        "Minutes after which --on begins no further trial of plans.",
        default=10.0,
        type=click.FloatRange(0, min_open=True),
    )
    batch: int = option("Batch size for times.", default=1, least=1)
    improve: Literal["auto", "fast", "best", "off"] = option(
        "Start from a model optimized without training: where INT8 falls short (auto), always (fast, "
        "best), or never (off). Not with --optimizations.",
        default="auto",
    )
    target: str | None = option(
        "Target to build each plan for: sm89, rtx4090 and similar.",
        metavar="TARGET",
        formerly="--build",
    )
    samples: int = option("Number of samples for sensitivities.", default=64, least=2)
    evaluate: int | None = option(
        "Number of samples for plans; the recommended one is tested on the others.  [default: 512, or "
        "half of --data]",
        least=2,
    )
    plans: int = option("Number of plans to measure at most.", default=48, least=2)
    time_limit: float | None = option(
        "Seconds after which no further layer or plan is measured or built."
    )
    output: Path = option(
        "Folder for search.json, the plans, and the measurements.", "-o", default=Path("search")
    )

    def _run(self) -> None:
        from trtcal.cli.quantize import files_beside
        from trtcal.documents import together
        from trtcal.evaluate.search.document import write_search
        from trtcal.evaluate.search.pipeline import cache_beside, find_plans
        from trtcal.pipeline.improving import improved_for_search
        from trtcal.ranges import Calibration

        loaded, prepared, dataset = self.open_all()
        settings = _settings(self, prepared)
        cache = cache_beside(self.output, loaded, dataset, self.task_reader)
        table, files = Calibration.read(self.ranges), (self.ranges, self.optimizations)
        more = (partial(self._to_calibrate, loaded), progress, remark)
        if improved := improved_for_search(prepared, table, dataset, settings, *more):
            note("note: the search starts from the optimized model")
            prepared, table = improved.optimized, improved.calibration
            optimizations, record, ranges = files_beside(self.output / "improved")
            files = (ranges, optimizations)
            with together():
                improved.write(optimizations, record, ranges)
        result = find_plans(prepared, table, dataset, settings, cache, progress)
        self.say_guesses(settings.reader)
        with together():
            document = write_search(self.output, result, settings, loaded, files, dataset)
        self.present(document, lambda: show(document), self.output / "search.json")
        self._advise(document)
        _require(document)
        if document["limits"]:
            tested = document["tested"]
            self.refuse(tested["word"], tested["sentence"], _hint_of(tested))
        if not self.allow_undecided:
            judged = map(Judgement.from_document, document["judged"])
            require(judged, "measure the time on the device: `trtcal search --times`", (UNDECIDED,))

    def _advise(self, document: dict[str, Any]) -> None:
        """Advise to apply the recommended plan; where there is none, or it fails, another limit."""
        tested = document["tested"] if document["limits"] else None
        judged = tested["limits"] if tested else ()
        broken = {item["limit"] for item in judged if item["state"] == BROKEN}
        others = changed_limits(parse_limits(self.limits), document["reliefs"], broken)
        if others:
            advise(self, *self.again(limits=tuple(limit.plain for limit in others)))
        for plan in _recommended(document) if not others else ():
            advise(self, *shlex.split(plan["command"])[1:])

    def _to_calibrate(self, model: Model) -> Dataset | None:
        """Return the data that the ranges were calibrated on, None where they are not known."""
        from trtcal.pipeline.inputs import open_section

        settings, known = self.config.calibration, recall(self.ranges).get("data")
        if known is not None:
            settings = replace(settings, data=Path(known))
        if settings.data is None:
            return None
        return open_section(model, self.config, settings, "calibration.data")


command = Search.command()


def changed_limits(
    limits: Sequence[Limit], reliefs: Sequence[dict[str, Any]], broken: Collection[str]
) -> tuple[Limit, ...]:
    """Return other limits to search with: the one that has to give least relaxed, broken ones stricter.

    Stricter is 3 dB more, or half the points. None where neither calls for it.
    """
    bounds = {
        str(limit): limit.bound + 3 if limit.metric == SQNR else limit.bound / 2
        for limit in limits
        if str(limit) in broken
    }
    for relief in reliefs[:1]:
        whole = math.floor if ">=" in relief["limit"] else math.ceil
        bounds[relief["limit"]] = whole(100 * relief["needed"]) / 100
    if not bounds:
        return ()
    return tuple(replace(each, bound=bounds.get(str(each), each.bound)) for each in limits)


def _require(document: dict[str, Any]) -> None:
    from trtcal.evaluate.search.exchange import NONE_HOLDS

    if document["recommended"] is None:
        if document["reason"] == NONE_HOLDS:
            raise GateFailed("no measured plan meets all limits", _advice(document))
        precision = document["float_precision"]
        raise GateFailed(document["reason"], f"build the network in {precision}, without INT8")


def _hint_of(tested: dict[str, Any]) -> str:
    """Return what helps where the A/B test of the recommended plan is not good."""
    from trtcal.reporting.advice import more_samples

    if tested["samples_needed"]:
        judged = list(map(Judgement.from_document, tested["limits"]))
        return f"add samples to --data: {more_samples(judged)}"
    return "use a stricter --limit, which leaves a margin, or more samples (--evaluate)"


def _show_tested(document: dict[str, Any]) -> None:
    tested = document["tested"]
    if tested is not None:
        where = "{} held-back samples" if tested["held_back"] else "the {} samples that chose it"
        verdict = f"{tested['word']}: {tested['sentence']}"
        say(f"A/B test against the limits on {where.format(tested['samples'])}: {verdict}")
    if beside := document["beside_int8"]:
        ends, unit = beside["difference"], f" {beside['unit']}".rstrip()
        change = f"{ends['value']:+.3g}{unit} of {beside['name']}"
        low, high = (math.nan if end is None else end for end in (ends["low"], ends["high"]))
        interval = f"95 % interval {low:+.3g} to {high:+.3g}"
        times = " to ".join(f"{end:.3g}" for end in beside["speed_interval"])
        speed = f"{beside['speed']:.3g} times as fast ({times}; {beside['source']})"
        say(f"beside all in INT8 it is {speed}, with {change} ({interval})")
    if document["shared_samples"] is not None:
        from trtcal.data.overlap import Overlap
        from trtcal.documents import from_fields

        shared = from_fields(Overlap, document["shared_samples"])
        warning(f"{shared}: new data may lose more")


def _settings(options: Search, prepared: Model) -> SearchOptions:
    from trtcal.evaluate.search.limits import Limits
    from trtcal.evaluate.search.pipeline import SearchOptions

    device = _trials(options)
    hardware = hardware_of(device.target) if device else None
    is_cpu = hardware == "cpu"
    target = options.target or (None if is_cpu else hardware)
    gpu = options.gpu or _gpu_of(target, options.config.build.targets)
    return SearchOptions(
        Limits(parse_limits(options.limits), device=device.target if device else ""),
        gpu,
        options.precision or ("fp32" if is_cpu else "fp16"),
        options.samples,
        options.evaluate,
        options.plans,
        math.inf if options.time_limit is None else options.time_limit,
        options.batch,
        _times(prepared, options.times) if options.times else {},
        _compiler(options.target, prepared) if options.target else None,
        reader=options.task_reader,
        precisions=_precisions(options, gpu),
        goal=options.goal,
        improve="off" if options.optimizations else options.improve,
        device=device,
    )


def _trials(options: Search) -> Any:
    from trtcal.evaluate.on_device import backend_on

    if options.on is None:
        return None
    backend, target = backend_on(options.on)
    return backend.trials(target, options.output, 60 * options.budget_minutes)


def _precisions(options: Search, gpu: str) -> tuple[str, ...]:
    """Return the precisions to choose from, the first of which others are compared with."""
    from trtcal.backends.capabilities import check_precisions, has
    from trtcal.evidence.gpus import find_target

    target = options.target or find_target(gpu).capability or ""
    if options.precisions == "all":
        return tuple(name for name in NARROW if has(target, name))
    precisions = tuple(dict.fromkeys(name.strip() for name in options.precisions.split(",")))
    unknown = [name for name in precisions if name not in NARROW]
    if unknown:
        raise InputError(
            f"--precisions has {unknown[0]!r}", f"choose from {', '.join(NARROW)}, or give all"
        )
    if options.times and precisions != ("int8",):
        raise InputError(
            "--times gives times in INT8 and in float only",
            "leave --precisions out, or use --target",
        )
    check_precisions(precisions, [target] if target else [])
    return precisions


def _gpu_of(target: str | None, configured: Sequence[str] = ()) -> str:
    """Return the GPU whose datasheet is that of a build's target; say if none is."""
    from trtcal.evidence.gpus import DEFAULT_GPU, datasheet_of

    targets = target.split(",") if target else configured
    known = next(filter(None, map(datasheet_of, targets)), None)
    if target and known is None:
        note(f"note: trtcal knows no datasheet of {target}: times are estimates for {DEFAULT_GPU}")
        note("hint: give --gpu the name of a GPU, or a TOML file of datasheet numbers")
    return known or DEFAULT_GPU


def _compiler(target: str, model: Model) -> Compile:
    from trtcal.backends.options import BuildOptions
    from trtcal.backends.registry import find_backend
    from trtcal.errors import BackendError
    from trtcal.evaluate.search.pipeline import compiler

    backend, chosen = find_backend(None, target)
    available = backend.availability()
    if not available.works:
        raise BackendError(f"backend {backend.name!r}: {available.missing}", available.hint)
    return compiler(backend, BuildOptions(chosen), model)


def _times(model: Model, folders: tuple[Path, Path]) -> Any:
    from trtcal.evaluate.search.plan_time import measured_times
    from trtcal.evidence.layers.reading import read_engine
    from trtcal.quantization import find_layers

    units = [layer.name for layer in find_layers(model).layers]
    int8, floats = (read_engine(folder, None) for folder in folders)
    return measured_times(units, int8, floats)


def _advice(document: dict[str, Any]) -> str:
    words = "{limit} to {needed:.4g} {unit}"
    reliefs = [words.format(**relief).strip() for relief in document["reliefs"]]
    if reliefs:
        return f"a single limit to relax: {', or '.join(reliefs)}"
    return "no single limit is enough to relax: relax several, or use another calibration method"
