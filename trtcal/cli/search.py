"""`trtcal search`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.output import (
    ModelOptions,
    config_option,
    json_option,
    limit_option,
    model_and_data,
    note,
    optimizations_option,
    print_json,
    print_table,
    progress,
    say,
    skip_option,
)
from trtcal.errors import GateFailed, InputError

if TYPE_CHECKING:
    from trtcal.data import Dataset
    from trtcal.evaluate.caches import EvaluationCache
    from trtcal.evaluate.placement_search import Measured
    from trtcal.evaluate.search.methods import Chosen
    from trtcal.evaluate.search.pipeline import Settings
    from trtcal.model import Model
    from trtcal.quantization import QuantizedModel


SHOWN = 4


def show(document: dict[str, Any], folder: Path) -> None:
    """Print the front, the recommended plan and why."""
    rows = [
        (
            f"{row['plan']}{' *' if row['recommended'] else ''}",
            _named(row["float_layers"]),
            f"{row['cost_ms']:.4g}",
            f"{row['speedup']:.3g}",
            "inf" if row["sqnr_db"] is None else f"{row['sqnr_db']:.2f}",
            _number(row["loss"]["kl"]),
            _number(row["loss"]["top1_drop"], row["loss"]["disagreement"]),
            *_built(row["built"]),
        )
        for row in document["front"]
    ]
    columns = (
        "plan",
        "left in float",
        "ms",
        "speed-up",
        "SQNR dB",
        "KL",
        "drop",
        "MB moved",
        "lost",
    )
    print_table(columns, rows, f"plans worth having; ms: {document['costs']}")
    say(
        f"{len(document['measured_plans'])} plans measured on {document['samples']['plans']} samples"
    )
    _show_unfit(document)
    if not document["complete"]:
        cut = "; ".join(document["missing"])
        note(f"note: stopped by a limit: {cut}; the same command with more time or --plans goes on")
    for one in document["front"]:
        if one["recommended"]:
            say(f"recommended: {one['plan']}: {document['reason']}")
            say(f"the same by hand: {one['command']}")
    if document["held_back"] is not None or document["complete"]:
        _show_held_back(document)
    say(f"wrote {folder / 'search.json'}  {document['digest'][:19]}")


def _show_unfit(document: dict[str, Any]) -> None:
    """Name the layers that float16 is too small for, and the plans that are out for that."""
    if document["beyond_float16"]:
        names = _named(document["beyond_float16"])
        note(f"warning: float16 is too small for values in layers, which stay in INT8: {names}")
        note("hint: --float fp32 can leave them out")
    unfit = [row["float_layers"] for row in document["measured_plans"] if not row["finite"]]
    for layers in unfit[:SHOWN]:
        where = f"with {document['float_precision']} for {_named(layers)}"
        note(f"warning: values are infinite or NaN {where}; that plan is out")
    if len(unfit) > SHOWN:
        note(f"warning: and those of {len(unfit) - SHOWN} more plans")


def _show_held_back(document: dict[str, Any]) -> None:
    """Print what INT8 and the recommended plan lose on samples that had no part in the search."""
    held = document["held_back"]
    if held is None:
        note(
            "note: no plan was checked on other samples than it was chosen on: a smaller "
            "--evaluate, or more data, leaves some for that"
        )
        return
    columns = ("left in float", "judged on", "SQNR dB", "KL", "drop")
    print_table(columns, list(_checks(held)), f"checked on {held['samples']} samples held back")
    for row in held["plans"]:
        name = _named(row["float_layers"])
        if row["differs"]:
            note(f"warning: float {name}: held-back samples differ by more than chance")
        if row["broken_limits"] and row is held["plans"][-1] and document["recommended"]:
            note(f"warning: float {name}: breaks {', '.join(row['broken_limits'])} on them")


def _checks(held: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in held["plans"]:
        for name, key in (
            ("the search's samples", "chosen_on"),
            ("held-back samples", "held_back"),
        ):
            loss, sqnr = row[key]["loss"], row[key]["sqnr_db"]
            drop = _number(loss["top1_drop"], loss["disagreement"])
            yield _named(row["float_layers"]), name, _number(sqnr), _number(loss["kl"]), drop


def _named(layers: list[str]) -> str:
    more = f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
    return f"{len(layers)}: {', '.join(layers[:SHOWN])}{more}" if layers else "none"


def _number(*values: float | None) -> str:
    return next((f"{value:.3g}" for value in values if value is not None), "")


def _built(built: dict[str, Any] | None) -> tuple[str, str]:
    if built is None or built["failed"]:
        return "" if built is None else "failed", ""
    return f"{built['bytes_moved'] / 1e6:.4g}", str(built["float_heavy"])


@click.command(
    epilog="Example: trtcal search model.onnx --calibration calibration.json --data test.npz "
    "--limit 'top1 >= -0.3' --build sm89 -o search"
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
@click.option("--data", type=click.Path(path_type=Path), help="What plans are judged on.")
@limit_option
@click.option(
    "--float",
    "precision",
    type=click.Choice(["fp16", "fp32"]),
    default="fp16",
    show_default=True,
    help="What layers run in that are left out of INT8.",
)
@click.option(
    "--gpu",
    default="t4",
    show_default=True,
    metavar="NAME|FILE",
    help="GPU to estimate times for: a name, or a TOML file of datasheet numbers.",
)
@click.option(
    "--times",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="INT8 FLOAT",
    help="Folders of builds with --layer-times: layer times measured instead of estimated.",
)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="For times.")
@click.option(
    "--build", "target", metavar="TARGET", help="Build each plan found: sm89 or its like."
)
@click.option(
    "--methods", metavar="A,B,...", help="First choose a calibrator for each tensor, of these."
)
@click.option(
    "--histograms", type=click.Path(path_type=Path), help="What calibrate kept, for --methods."
)
@click.option(
    "--samples", type=click.IntRange(2), default=64, show_default=True, help="For sensitivities."
)
@click.option(
    "--evaluate", type=click.IntRange(2), default=512, show_default=True, help="Samples for plans."
)
@click.option(
    "--plans", type=click.IntRange(2), default=48, show_default=True, help="To measure at most."
)
@click.option(
    "--time-limit",
    type=float,
    help="Seconds after which no further layer or plan is measured or built.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("search"),
    show_default=True,
    help="Folder for search.json, the plans, and what was measured.",
)
@optimizations_option
@skip_option
@config_option
@json_option
def command(**given: Any) -> None:
    """Find which layers of MODEL to leave out of INT8: plans from fastest to most accurate.

    Losses are measured, by running Q/DQ; times are an estimate by the GPU's datasheet unless --times
    gives measured ones. Limits are on top1, agreement, sqnr_db, speedup and latency_p50 (the time of a
    batch), as in "top1 >= -0.3". Without one the plan is recommended that loses least and keeps 90 % of
    the INT8 speed-up. What was measured is kept in the output folder, so that the same command goes on
    where it was stopped. The status is 1 if no plan holds the limits.
    """
    search(Options(**given))


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """The options of `trtcal search`, by the names that the command gives them."""

    ranges: Path
    limits: tuple[str, ...]
    precision: str
    gpu: str
    times: tuple[Path, Path] | None
    batch: int
    target: str | None
    methods: str | None
    histograms: Path | None
    samples: int
    evaluate: int
    plans: int
    time_limit: float | None
    output: Path
    as_json: bool


def search(options: Options) -> None:
    """Search, write what was found and show it; `GateFailed` if no plan holds the limits."""
    from trtcal.evaluate.search.document import write_search
    from trtcal.evaluate.search.pipeline import cache_beside, find_plans
    from trtcal.ranges import Calibration

    loaded, prepared, dataset = model_and_data(options)
    settings = _settings(options, loaded, prepared)
    cache = cache_beside(options.output, loaded, dataset)
    path, chosen = options.ranges, None
    if options.methods:
        chosen = _chosen(prepared, dataset, options.methods.split(","), options, cache)
        path = _kept(options.output, chosen)
    table = Calibration.read(path)
    result = find_plans(prepared, table, dataset, settings, cache, progress)
    document = write_search(
        options.output, result, settings, loaded, (path, table), dataset, chosen
    )
    if options.as_json:
        print_json(document)
    else:
        show(document, options.output)
    if document["recommended"] is None:
        raise GateFailed("no plan that was measured holds all limits", _advice(document))


def _settings(options: Options, model: Model, prepared: Model) -> Settings:
    from trtcal.evaluate.search.limits import Limits
    from trtcal.evaluate.search.pipeline import Settings
    from trtcal.evaluate.variants import batch_for
    from trtcal.evidence.layers.costs import find_target
    from trtcal.limits import parse_limits

    return Settings(
        Limits(parse_limits(options.limits)),
        find_target(options.gpu),
        options.precision,
        options.samples,
        options.evaluate,
        options.plans,
        math.inf if options.time_limit is None else options.time_limit,
        batch_for(model, options.batch),
        _times(prepared, options.times) if options.times else {},
        _compiler(options.target, prepared) if options.target else None,
    )


def _compiler(target: str, model: Model) -> Callable[[QuantizedModel], Measured]:
    from trtcal.backends.options import BuildOptions
    from trtcal.backends.registry import find_backend
    from trtcal.errors import BackendError
    from trtcal.evaluate.placement_search import compiler

    backend, chosen = find_backend(None, target)
    available = backend.availability()
    if not available.works:
        raise BackendError(f"backend {backend.name!r}: {available.missing}", available.hint)
    return compiler(backend, BuildOptions(chosen), model)


def _times(model: Model, folders: tuple[Path, Path]) -> Any:
    from trtcal.evaluate.search.costs import measured_times
    from trtcal.evidence.layers.reading import read_engine
    from trtcal.quantization import find_layers

    units = [layer.name for layer in find_layers(model).layers]
    int8, floats = (read_engine(folder, None) for folder in folders)
    return measured_times(units, int8, floats)


def _chosen(
    model: Model, dataset: Dataset, methods: list[str], options: Options, cache: EvaluationCache
) -> Chosen:
    """Choose a method for each tensor from histograms that calibrate kept."""
    from trtcal.calibration import read_observation
    from trtcal.evaluate.search.methods import MethodSettings, choose_methods

    if options.histograms is None:
        raise InputError(
            "--methods needs histograms", "give those of `trtcal calibrate --histograms`"
        )
    observation = read_observation(options.histograms)
    if observation.model != model.fingerprint:
        raise InputError(
            f"{options.histograms} were made of another model", "calibrate this one again"
        )
    settings = MethodSettings(methods, options.samples, options.evaluate)
    return choose_methods(model, observation, dataset, cache, settings)


def _kept(folder: Path, chosen: Chosen) -> Path:

    path = folder / "calibration.json"
    chosen.calibration.write(path)
    losses = ", ".join(f"{name} {loss.noise:.3g}" for name, loss in chosen.losses.items())
    note(f"noise of all INT8 by method: {losses}; taken: {chosen.calibration.method}")
    return path


def _advice(document: dict[str, Any]) -> str:
    found = [
        f"{one['limit']} to {one['needed']:.4g} {one['unit']}".strip()
        for one in document["reliefs"]
    ]
    if not found:
        return "no single limit would do: relax several, or another calibration method"
    return f"a single limit that would have to give: {', or '.join(found)}"
