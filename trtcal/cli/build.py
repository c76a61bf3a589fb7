"""`trtcal build`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from trtcal.cli.advice import advise, recall, remember
from trtcal.cli.diagnose import show as show_diagnosis
from trtcal.cli.options import JudgingOptions, argument, config_here, option
from trtcal.cli.output import clock, note, print_overview, say, say_written, size_in_bytes
from trtcal.documents.streams import command_line
from trtcal.errors import BackendError, ResourceError

if TYPE_CHECKING:
    from trtcal.backends.base import Backend
    from trtcal.backends.options import BuildOptions, Route
    from trtcal.evidence.diagnosis.build_diagnosis import Diagnosis
    from trtcal.evidence.manifest import Build
    from trtcal.model import Model

NODES_SHOWN = 30


class BuildEngine(
    JudgingOptions,
    example="trtcal build model-int8.onnx --target sm89 "
    "--shapes image=1x1x8x8:8x1x8x8:64x1x8x8 -o builds/sm89",
):
    """Build an engine from MODEL in a child process, and list the precision of every layer.

    Without --target it builds for the targets of trtcal.toml; each of several gets its own folder
    OUTPUT/TARGET. Without --backend the target decides: onnxruntime for cpu, tensorrt-rtx for sm89 and
    similar. The status is 1 if a limit, given here or in trtcal.toml, is broken.
    """

    model: Path = argument()
    backend: str | None = option(
        "Backend: onnxruntime, tensorrt-rtx or tensorrt.  [default: by target]"
    )
    targets: tuple[str, ...] = option(
        "Target: cpu, cuda, tensorrt-ep; sm89 or rtx4090; one engine for several like sm86,sm120; "
        "portable; gpu (this machine's). May be repeated, for one engine each.  [default: targets "
        "of [build] in trtcal.toml]",
        "--target",
        metavar="TARGET",
    )
    shapes: tuple[str, ...] = option(
        "Shapes of a dynamic input; repeat it for every input and optimization profile.  "
        "[default: batches of 1, 8, 32; other sizes from the data]",
        metavar="INPUT=MIN:OPT:MAX",
    )
    route: Literal["qdq", "cache", "dynamic-ranges", "calibrator"] = option(
        "How TensorRT gets INT8; all but qdq need TensorRT up to 10 and a float MODEL.",
        default="qdq",
    )
    calibration: Path | None = option(
        "Ranges for cache and dynamic-ranges: calibration.json, or a file that `trtcal "
        "ranges import` reads."
    )
    data: Path | None = option(
        "Data that give dynamic inputs their sizes, and TensorRT its batches with --route "
        "calibrator."
    )
    builder_calibrator: Literal["entropy2", "minmax", "entropy"] = option(
        "TensorRT's calibrator class, for cache and calibrator.", default="entropy2"
    )
    plan: Path | None = option("Plan: precision by layer, in addition to Q/DQ.")
    constraints: Literal["obey", "prefer"] | None = option(
        "How strictly TensorRT follows the plan.  [default: prefer, with a plan]"
    )
    workspace: str | None = option("Workspace memory of a layer, such as 2GB.", metavar="SIZE")
    timing_cache: Path | None = option("Timing cache, read if it exists, and updated.")
    profiling_verbosity: Literal["detailed", "layer_names_only", "none"] = option(
        "How much the engine records about its layers.", default="detailed"
    )
    optimization_level: int | None = option(
        "TensorRT's optimization level: higher searches longer.", type=click.IntRange(0, 5)
    )
    layer_times: bool = option("Time every layer on the GPU after the build.")
    bisect: bool = option(
        "If no engine is built and no node is named, find the node by builds of parts, however long "
        "it takes.  [default: if it takes at most a minute]"
    )
    time_limit: float = option("Time limit of the build in seconds.", default=1800.0)
    output: Path | None = option(
        "Folder for the engine, build.log, build.jsonl and build.json.  [default: builds/TARGET]",
        "-o",
    )

    def _run(self) -> None:
        from trtcal.backends.capabilities import check_precisions
        from trtcal.backends.registry import find_backend
        from trtcal.evidence.diagnosis.build_diagnosis import hold
        from trtcal.model import load_model
        from trtcal.quantization.qdq import asked_precisions

        targets = self.config.build.targets  # which makes its devices known
        named = self.targets or (() if self.backend else targets)
        places = [find_backend(self.backend, target) for target in named or (None,)]
        model = load_model(self.model)
        precisions = set(asked_precisions(model.proto).values())
        check_precisions(precisions, named or [target for _, target in places])
        is_alone, root = self.output is not None and len(places) == 1, self.output or Path("builds")
        folders = [root if is_alone else root / target for _, target in places]
        jobs = zip(places, folders, strict=True)
        builds = [_build_one(self, model, place, folder) for place, folder in jobs]
        documents = [result.to_document() for result, _, _ in builds]

        def show_all() -> None:
            for result, command, diagnosis in builds:
                _show(result, self.model, command, diagnosis)

        self.present(documents[0] if len(documents) == 1 else {"builds": documents}, show_all)
        for folder in folders:
            remember(folder, **recall(self.model), quantized=self.model)
        advise(self, "diagnose", folders[0], "--model", self.model)
        for _, _, diagnosis in builds:
            hold(diagnosis)


command = BuildEngine.command()


def _build_one(
    options: BuildEngine, model: Model, place: tuple[Backend, str], folder: Path
) -> tuple[Build, str | None, Diagnosis]:
    """Build for one target; return the build, the backend's own command, and the diagnosis."""
    from trtcal.backends.bisection import BISECT_S
    from trtcal.backends.building import build
    from trtcal.backends.child import watching
    from trtcal.evidence.diagnosis.build_diagnosis import check_build, write_diagnosis
    from trtcal.evidence.log.reader import Live

    backend, target = place
    build_options = _with_sizes(options, _build_options(options, model, target), model)
    settings = options.config_of_builds
    live = Live()
    diagnoses: list[Diagnosis] = []
    limit_s = math.inf if options.bisect else BISECT_S

    def examine(result: Build) -> None:
        diagnoses.append(check_build(result, settings, model))
        write_diagnosis(result.folder, diagnoses[0])

    def watch(data: bytes) -> None:
        live.feed(data)
        show_state(live.findings())

    state = f"building for {target} with {backend.name}"
    with clock(state) as show_state, watching(watch):
        try:
            result = build(model, backend, build_options, folder, examine, limit_s)
        except (BackendError, ResourceError) as error:
            if error.__cause__ is not None:  # its log was kept
                more = command_line("diagnose", folder, model=options.model)
                error.hint = f"{(error.hint or '').rstrip('.')}. More: `{more}`".lstrip(". ")
            raise
    if why := result.measured.get("unrecorded"):
        note(f"no record of building it here, so `trtcal compare --trust` has to load it: {why}")
    command = backend.command(model, build_options, str(options.model), str(result.engine))
    return result, command, diagnoses[0]


def _build_options(options: BuildEngine, model: Model, target: str) -> BuildOptions:
    from trtcal.backends.options import BuildOptions, parse_profiles

    first, *further = parse_profiles(options.shapes)
    return BuildOptions(
        target,
        first,
        options.time_limit,
        tuple(further),
        None if options.workspace is None else size_in_bytes(options.workspace),
        options.timing_cache,
        options.profiling_verbosity,
        options.optimization_level,
        options.layer_times,
        _route(options, model),
    )


def _with_sizes(options: BuildEngine, settings: BuildOptions, model: Model) -> BuildOptions:
    """Return the options with the sizes of the data, or those recorded in the model, and say so."""
    from trtcal.backends.options import with_sizes, write_range
    from trtcal.data import open_dataset, size_ranges

    sizes, config = None, options.config
    if options.data and options.route != "calibrator":
        dataset = open_dataset(options.data, model, config.images, settings=config.data)
        sizes = size_ranges(model, dataset)
    sized = with_sizes(settings, model, sizes)
    for name, shapes in sized.shapes.items():
        if name not in settings.shapes:
            note(f"shapes of {name}, taken from the data: {write_range(shapes)}")
    return sized


def _show(result: Build, model: Path, command: str | None, diagnosis: Diagnosis) -> None:
    view = result.overview()
    print_overview(view, result.model_name, NODES_SHOWN)
    say(view.title)
    if command:
        say(f"the same with the backend's own tool: {command}")
    say_written(result.engine, result.digest)
    show_diagnosis(diagnosis, command_line("diagnose", result.folder, "-v", model=model))


def _route(options: BuildEngine, model: Model) -> Route:
    """Return a route and its inputs; `InputError` if it is not for this model."""
    from trtcal.backends.options import Route
    from trtcal.calibration.formats.convert import import_calibration

    path = options.calibration
    ranges = import_calibration(path, model, partial=True) if path else None
    data = options.data if options.route == "calibrator" else None
    return Route(
        options.route,
        {tensor: item.amax for tensor, item in ranges.ranges.items()} if ranges else {},
        {} if options.route == "qdq" and options.plan is None else _precisions(model, options.plan),
        options.constraints or ("prefer" if options.plan else None),
        options.builder_calibrator,
        data,
        config_here(None).images if data else None,
        ranges.digest if ranges else None,
    )


def _precisions(model: Model, path: Path | None) -> dict[str, str]:
    """Return the planned precision of each layer that can be quantized, INT8 without a plan."""
    from trtcal.quantization import Plan, find_layers, prepare, read_plan, resolve

    prepared = prepare(model)
    names = {layer.name for layer in find_layers(prepared).layers}
    nodes = resolve(read_plan(path) if path else Plan(), prepared)
    return {row.node: row.precision for row in nodes if row.node in names and not row.follows}
