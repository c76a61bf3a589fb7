"""`trtcal search`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.found import show
from trtcal.cli.output import (
    config_here,
    config_option,
    json_option,
    note,
    prepared_model,
    print_json,
    progress,
    repairs_option,
    required,
    skip_option,
)
from trtcal.errors import GateFailed, InputError

if TYPE_CHECKING:
    from trtcal.data import Dataset
    from trtcal.model import Model
    from trtcal.quantize import QuantizedModel
    from trtcal.search.memory import Memory
    from trtcal.search.methods import Chosen
    from trtcal.tuning import Measured


@click.command(
    epilog="Example: trtcal search model.onnx --calibration calibration.json --data test.npz "
    "--max-drop 0.3 --build sm89 -o search"
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
@click.option("--max-drop", type=float, help="Points of top-1 (without labels, of agreement).")
@click.option("--sqnr", type=float, help="Least signal to noise of the outputs, in dB.")
@click.option("--min-speedup", type=float, help="Least speed-up over FP32.")
@click.option("--budget-ms", type=float, help="Most time of a batch.")
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
@repairs_option
@skip_option
@config_option
@json_option
def command(
    model: Path | None,
    ranges: Path,
    data: Path | None,
    max_drop: float | None,
    sqnr: float | None,
    min_speedup: float | None,
    budget_ms: float | None,
    precision: str,
    gpu: str,
    times: tuple[Path, Path] | None,
    batch: int,
    target: str | None,
    methods: str | None,
    histograms: Path | None,
    samples: int,
    evaluate: int,
    plans: int,
    time_limit: float | None,
    output: Path,
    repairs: Path | None,
    skipped: tuple[str, ...],
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Find which layers of MODEL to leave out of INT8: plans from fastest to most accurate.

    Losses are measured, by running Q/DQ; times are an estimate by the GPU's datasheet unless --times
    gives measured ones. Without a limit the plan is recommended that loses least and keeps 90 % of the
    INT8 speed-up. What was measured is remembered in the output folder, so that the same command goes
    on where it was stopped. The status is 1 if no plan holds the limits.
    """
    from trtcal.calibration import read_calibration
    from trtcal.compare.comparison import batch_for
    from trtcal.data import open_dataset
    from trtcal.engine import find_target
    from trtcal.model import load_model
    from trtcal.search import Limits, Settings, find_plans, memory_beside
    from trtcal.search.document import write_search

    config = config_here(config_path)
    limits = Limits(max_drop, sqnr, min_speedup, budget_ms)
    loaded = load_model(required(model or config.model, "the model", "MODEL"))
    prepared = prepared_model(loaded, config, skipped, repairs)
    settings = config.evaluation
    source = required(data or settings.data, "the data", "--data")
    dataset = open_dataset(source, loaded, config.images, settings.labels)
    gpu_target = find_target(gpu)
    memory = memory_beside(output, loaded, dataset)
    calibration, chosen = ranges, None
    if methods:
        chosen = _chosen(prepared, dataset, methods, histograms, samples, evaluate, memory)
        calibration = _kept(output, chosen)
    table = read_calibration(calibration)
    wanted = Settings(
        limits,
        gpu_target,
        precision,
        samples,
        evaluate,
        plans,
        math.inf if time_limit is None else time_limit,
        batch_for(loaded, batch),
        _times(prepared, times) if times else {},
        _compiler(target, prepared) if target else None,
    )
    result = find_plans(prepared, table, dataset, wanted, memory, progress)
    document = write_search(output, result, wanted, loaded, (calibration, table), dataset, chosen)
    if as_json:
        print_json(document)
    else:
        show(document, output)
    if document["recommended"] is None:
        raise GateFailed("no plan that was measured holds all limits", _advice(document))


def _compiler(target: str, model: Model) -> Callable[[QuantizedModel], Measured]:
    from trtcal.backends.options import BuildOptions
    from trtcal.backends.registry import find_backend
    from trtcal.errors import BackendError
    from trtcal.tuning import compiler

    backend, chosen = find_backend(None, target)
    available = backend.availability()
    if not available.works:
        raise BackendError(f"backend {backend.name!r}: {available.missing}", available.hint)
    return compiler(backend, BuildOptions(chosen), model)


def _times(model: Model, folders: tuple[Path, Path]) -> Any:
    from trtcal.engine import read_engine
    from trtcal.quantize import find_layers
    from trtcal.search.costs import measured_times

    units = [layer.name for layer in find_layers(model).layers]
    int8, floats = (read_engine(folder, None) for folder in folders)
    return measured_times(units, int8, floats)


def _chosen(
    model: Model,
    dataset: Dataset,
    methods: str,
    histograms: Path | None,
    samples: int,
    evaluated: int,
    memory: Memory,
) -> Chosen:
    """Choose a method for each tensor from histograms that calibrate kept."""
    from trtcal.observe import read_observation
    from trtcal.search.evaluating import judge
    from trtcal.search.methods import choose_methods

    if histograms is None:
        raise InputError(
            "--methods wants histograms", "give those of `trtcal calibrate --histograms`"
        )
    observation = read_observation(histograms)
    if observation.model != model.fingerprint:
        raise InputError(f"{histograms} were made of another model", "calibrate this one again")
    with judge(model, dataset, evaluated, memory) as measure:
        return choose_methods(
            model, observation, dataset, measure, memory, methods.split(","), samples
        )


def _kept(folder: Path, chosen: Chosen) -> Path:
    from trtcal.calibration import write_calibration

    path = folder / "calibration.json"
    write_calibration(path, chosen.calibration)
    losses = ", ".join(f"{name} {loss.noise:.3g}" for name, loss in chosen.losses.items())
    note(f"noise of all INT8 by method: {losses}; taken: {chosen.calibration.method}")
    return path


def _advice(document: dict[str, Any]) -> str:
    found = [
        f"{one['limit']} from {one['asked']:.4g} to {one['needed']:.4g} {one['unit']}"
        for one in document["reliefs"]
    ]
    if not found:
        return "no single limit would do: relax several, or another calibration method"
    return f"a single limit that would have to give: {', or '.join(found)}"
