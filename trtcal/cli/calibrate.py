"""`trtcal calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtcal.cli.check_data import warn
from trtcal.cli.options import PreparedOptions, make_command, option
from trtcal.cli.output import note, parameters, print_table, progress, say, size_in_bytes

if TYPE_CHECKING:
    from trtcal.calibration import Observation, ObserveOptions
    from trtcal.model import Model
    from trtcal.ranges import Calibration

NAMED = 10  # arrays or files that a note names, at most


@dataclass(frozen=True, kw_only=True)
class Options(PreparedOptions):
    """The options of `trtcal calibrate`."""

    method: str | None = option("minmax, percentile, entropy, mse, auto, or a plug-in's.")
    pairs: tuple[str, ...] = option(
        "A parameter of the method; may be repeated.", "-p", "--parameter", metavar="NAME=VALUE"
    )
    batch: int | None = option("Samples run together.  [default: 32]", least=1)
    workers: int | None = option("Processes that share the cores out.  [default: 1]", least=1)
    cluster: Literal["ray"] | None = option(
        "Take the workers from a Ray cluster, all its cores if --workers says nothing."
    )
    max_memory: str | None = option(
        "Ceiling like 4GB: the data are then read several times if need be.", metavar="SIZE"
    )
    profile: bool = option("Say where the time went and what would bring more.")
    histograms: Path | None = option(
        "Keep the histograms in this .npz; if it fits model and data, run nothing."
    )
    output: Path | None = option("Where to write the ranges.  [default: calibration.json]", "-o")
    how_many: bool = option(
        "Choose no ranges: say how many samples this model needs, and how sure that is."
    )


ALONE = ("batch", "workers", "cluster", "profile", "max_memory", "histograms")
"""The options that do not go with --how-many."""


@make_command(
    Options,
    "trtcal calibrate model.onnx --data images.npz --method percentile "
    "-p percentile=99.9 -o calibration.json",
)
def command(options: Options) -> None:
    """Choose the range of every tensor of MODEL from data, and write calibration.json.

    MODEL and the data may stand in trtcal.toml. One pass over the data fills a histogram for each
    tensor; a method only reads the histograms. If it is interrupted or killed, the same command goes on
    from the checkpoint beside its output.

    With `--method auto` a quarter of the samples is held back, and all methods are judged there by what
    INT8 loses; of fewer than 32 samples each tensor's method is chosen by its histogram alone.

    With --how-many, ranges from 8, 16, 32, ... of the samples are judged on others by what INT8 loses.
    Nothing is written then, unless -o says where the learning curve goes.
    """
    from trtcal.calibration import cached, create_calibrator, observe, unfinished
    from trtcal.check import check_data
    from trtcal.cli.held_out import choose, note_if_few, refuse, show_curve, split_for_auto
    from trtcal.quantization import find_layers, tensors_to_observe

    if options.how_many:
        refuse({name.replace("_", "-"): getattr(options, name) for name in ALONE})
    settings = options.config.calibration
    chosen = options.method or settings.method
    given = {**settings.parameters.get(chosen, {}), **parameters(options.pairs)}
    create_calibrator(chosen, given)  # a wrong name is refused before the work, not after
    loaded = options.load_model()
    prepared = options.prepare(loaded)
    tensors = tensors_to_observe(find_layers(prepared))
    dataset = options.open_data(loaded, settings)
    if dataset.unused:
        more = len(dataset.unused) - NAMED
        names = ", ".join(dataset.unused[:NAMED]) + (f" and {more} more" if more > 0 else "")
        note(f"note: not used from the data: {names}")
    if options.how_many:
        show_curve(options, prepared, dataset, chosen, given)
        return
    note_if_few(len(dataset))
    observed, select = split_for_auto(prepared, dataset, chosen)
    output = options.output or Path("calibration.json")

    def make() -> Observation:
        checked = check_data(loaded, dataset, batch_size=1 if options.max_memory else 16)
        checked.write(output.with_suffix(".data-check.json"))
        warn(checked.issues)
        wanted = _observe_options(options, loaded, unfinished(options.histograms or output))
        with progress(f"observing {len(tensors)} tensors", len(observed)) as advance:
            return observe(
                prepared, observed, tensors, wanted, advance, lambda text: note(f"note: {text}")
            )

    observation = cached(options.histograms, loaded, observed, tensors, make)
    if options.profile:
        show_profile(observation, output.with_suffix(".profile.json"))
    result = choose(options, prepared, observation, select, chosen, given)
    title = f"{result.method} over {result.samples} samples of {observed.name}"
    options.present(result.write(output), lambda: _show(result, title), output)


def _observe_options(options: Options, model: Model, checkpoint: Path) -> ObserveOptions:
    from trtcal.calibration import ObserveOptions
    from trtcal.evaluate.comparison import batch_for

    settings, ceiling = options.config.calibration, options.max_memory
    return ObserveOptions(
        batch_for(model, options.batch or settings.batch),
        workers=options.workers or (0 if options.cluster else settings.workers),
        cluster=options.cluster,
        max_memory=None if ceiling is None else size_in_bytes(ceiling),
        checkpoint=checkpoint,
    )


def _show(result: Calibration, title: str) -> None:
    columns = {"tensor": "{0}", "amax": "{1.amax:.6g}", "max |x|": "{1.observed_amax:.6g}"}
    columns |= {"clipped": "{1.clipped:.4%}", "note": "{1.note}"}
    print_table([*result.ranges.items()], columns, title)
    for name, reason in result.unranged.items():
        say(f"no range for {name}: {reason}")


def show_profile(observation: Observation, path: Path) -> None:
    """Print where the time went, check what an earlier profile predicted, and keep this one."""
    from trtcal.calibration import Profile

    profile = observation.profile
    if profile is None:
        note("note: nothing was run, so there is nothing to profile")
        return
    earlier = Profile.read(path) if path.exists() else None
    profile.write(path)
    for line in profile.lines():
        note(line)
    if earlier and (earlier.model, earlier.dataset) == (profile.model, profile.dataset):
        note(profile.compare_prediction(earlier) or "")
