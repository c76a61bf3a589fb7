"""`trtcal build`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.diagnose import show as show_diagnosis
from trtcal.cli.output import (
    clock,
    config_here,
    config_option,
    json_option,
    limit_option,
    limits_here,
    note,
    print_json,
    print_table,
    say,
    size_in_bytes,
)
from trtcal.errors import BackendError, ResourceError

if TYPE_CHECKING:
    from trtcal.backends.options import BuildOptions, Route
    from trtcal.config import Config
    from trtcal.evidence.manifest import Build
    from trtcal.model import Model

SHOWN_OF_FAILURE = 3


@click.command(
    epilog="Example: trtcal build model-int8.onnx --target sm89 "
    "--shapes image=1x1x8x8:8x1x8x8:64x1x8x8 -o builds/sm89"
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--backend", "backend_name", help="onnxruntime, tensorrt-rtx or tensorrt.")
@click.option(
    "--target",
    help="cpu, cuda or tensorrt-ep; sm89, several like sm86,sm120, or portable; gpu (the one here).",
)
@click.option(
    "--shapes",
    multiple=True,
    metavar="INPUT=MIN:OPT:MAX",
    help="Shapes of a dynamic input; for every input, and once for each optimization profile.  "
    "[default: batch 1, 8, 32]",
)
@click.option(
    "--route",
    type=click.Choice(["qdq", "cache", "dynamic-ranges", "calibrator"]),
    default="qdq",
    show_default=True,
    help="How INT8 reaches TensorRT; all but qdq need TensorRT up to 10 and a float MODEL.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Ranges for cache and dynamic-ranges: calibration.json, or a file that `import` reads.",
)
@click.option(
    "--data", type=click.Path(path_type=Path), help="What the route calibrator feeds to TensorRT."
)
@click.option(
    "--builder-calibrator",
    type=click.Choice(["entropy2", "minmax", "entropy"]),
    default="entropy2",
    show_default=True,
    help="TensorRT's class, for cache and calibrator.",
)
@click.option("--plan", type=click.Path(path_type=Path), help="Precision by layer, beside Q/DQ.")
@click.option(
    "--constraints",
    type=click.Choice(["obey", "prefer"]),
    help="How the plan binds TensorRT.  [default: prefer, if there is a plan]",
)
@click.option("--workspace", metavar="SIZE", help="Memory that a layer may use, such as 2GB.")
@click.option(
    "--timing-cache",
    type=click.Path(path_type=Path),
    help="Timing cache: read if it exists, and written back.",
)
@click.option(
    "--profiling-verbosity",
    "verbosity",
    type=click.Choice(["detailed", "layer_names_only", "none"]),
    default="detailed",
    show_default=True,
    help="What the engine records of its layers.",
)
@click.option(
    "--optimization-level", type=click.IntRange(0, 5), help="How long the builder searches."
)
@click.option("--layer-times", is_flag=True, help="Time every layer on the GPU, once it is built.")
@click.option("--time-limit", type=float, default=1800.0, show_default=True, help="In seconds.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for the engine, build.log, build.jsonl and build.json.",
)
@limit_option
@config_option
@json_option
def command(**given: Any) -> None:
    """Build an engine from MODEL in a child process, and say what every layer got.

    Without --backend the target decides: cpu is onnxruntime's, sm89 and its like tensorrt-rtx's.
    The status is 1 if a limit, given here or in trtcal.toml, is broken.
    """
    _build(Asked(**given))


@dataclass(frozen=True)
class Asked:
    """The command line."""

    model: Path
    backend_name: str | None
    target: str | None
    shapes: tuple[str, ...]
    route: str
    calibration: Path | None
    data: Path | None
    builder_calibrator: str
    plan: Path | None
    constraints: str | None
    workspace: str | None
    timing_cache: Path | None
    verbosity: str
    optimization_level: int | None
    layer_times: bool
    time_limit: float
    output: Path
    limits: tuple[str, ...]
    config_path: Path | None
    as_json: bool


def _build(asked: Asked) -> None:
    from trtcal.backends.base import build
    from trtcal.backends.child import watching
    from trtcal.backends.registry import find_backend
    from trtcal.evidence.diagnosis.build_diagnosis import (
        check_build,
        hold,
        write_diagnosis,
    )
    from trtcal.model import load_model

    backend, target = find_backend(asked.backend_name, asked.target)
    model = load_model(asked.model)
    options = _options(asked, model, target)
    settings = config_here(asked.config_path)
    settings = replace(
        settings, limits=limits_here(settings, asked.limits, lambda one: one.is_of_findings)
    )
    state = f"building for {target} with {backend.name}"
    with clock(state) as show_state, watching(_watcher(show_state)):
        try:
            result = build(model, backend, options, asked.output)
        except (BackendError, ResourceError):
            _show_failure(asked.output, settings)
            raise
    diagnosis = check_build(result, settings, model)
    write_diagnosis(asked.output, diagnosis)
    if asked.as_json:
        print_json(result.to_document())
    else:
        show(result, backend.command(model, options, str(asked.model), str(result.engine)))
        show_diagnosis(diagnosis)
    if "unrecorded" in result.measured:
        note(f"not recorded as yours, so loading it needs --trust: {result.measured['unrecorded']}")
    hold(diagnosis)


def _options(asked: Asked, model: Model, target: str) -> BuildOptions:
    from trtcal.backends.options import BuildOptions, parse_profiles

    first, *further = parse_profiles(asked.shapes)
    return BuildOptions(
        target,
        first,
        asked.time_limit,
        tuple(further),
        None if asked.workspace is None else size_in_bytes(asked.workspace),
        asked.timing_cache,
        asked.verbosity,
        asked.optimization_level,
        asked.layer_times,
        _route(asked, model),
    )


def _show_failure(folder: Path, settings: Config) -> None:
    """Print on standard error what the log of a failed build means."""
    from trtcal.evidence.diagnosis.build_diagnosis import check_engine
    from trtcal.evidence.layers.reading import Engine
    from trtcal.evidence.manifest import LOG

    failed = [folder / name for name in (f"failed-{LOG}", LOG)]
    log = next((path for path in failed if path.exists()), None)
    found = check_engine(Engine(str(folder), ()), settings, [log] if log else []).findings
    for finding in found[:SHOWN_OF_FAILURE]:
        note(f"{finding.kind}: {finding.what}")
        note(f"   fix: {finding.fix}")


def _watcher(show_state: Callable[[str], None]) -> Callable[[bytes], None]:
    """Return what shows after every piece of a running build's log what was found so far."""
    from trtcal.evidence.log.reader import Live

    live = Live()

    def watch(data: bytes) -> None:
        live.feed(data)
        show_state(live.found())

    return watch


def show(result: Build, command: str | None) -> None:
    """Print what every node got, and the command that builds the same."""
    rows = [(o.node, o.asked, o.got, o.layer or "", o.reason or "") for o in result.outcomes]
    title = f"{result.model_name}: {result.backend} {result.backend_version} for {result.target}"
    print_table(("node", "asked", "got", "engine layer", "why"), rows, title)
    lost = sum(outcome.is_lost for outcome in result.outcomes)
    say(f"{len(result.layers)} engine layers; {lost} nodes did not get what was asked")
    if command:
        say(f"the same by hand: {command}")
    say(f"wrote {result.engine}  {result.digest[:19]}")


def _route(asked: Asked, model: Model) -> Route:
    """Read what a route needs; `InputError` if it is not for this model."""
    from trtcal.backends.options import Route
    from trtcal.calibration.formats.convert import import_calibration

    ranges = (
        import_calibration(asked.calibration, model, partial=True) if asked.calibration else None
    )
    return Route(
        asked.route,
        {tensor: item.amax for tensor, item in ranges.ranges.items()} if ranges else {},
        {} if asked.route == "qdq" and asked.plan is None else _precisions(model, asked.plan),
        asked.constraints or ("prefer" if asked.plan else None),
        asked.builder_calibrator,
        asked.data,
        config_here(None).images if asked.data else None,
        ranges.digest if ranges else None,
    )


def _precisions(model: Model, path: Path | None) -> dict[str, str]:
    """Return what a plan asks for each layer that can be quantized, INT8 without a plan."""
    from trtcal.quantization import Plan, find_layers, prepare, read_plan, resolve

    prepared = prepare(model)
    names = {layer.name for layer in find_layers(prepared).layers}
    found = resolve(read_plan(path) if path else Plan(), prepared)
    return {one.node: one.precision for one in found if one.node in names and not one.follows}
