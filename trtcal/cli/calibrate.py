"""`trtcal calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.check_data import warn
from trtcal.cli.output import (
    config_here,
    config_option,
    data_option,
    json_option,
    note,
    parameters,
    prepared_model,
    print_json,
    print_table,
    progress,
    required,
    say,
    size_in_bytes,
    skip_option,
)

if TYPE_CHECKING:
    from trtcal.calibration import Observation

NAMED = 10  # arrays or files that a note names, at most


@click.command(
    epilog="Example: trtcal calibrate model.onnx --data images.npz --method percentile "
    "-p percentile=99.9 -o calibration.json"
)
@click.argument("model", type=click.Path(path_type=Path), required=False)
@data_option
@click.option("--method", help="minmax, percentile, entropy, mse, auto, or a plug-in's.")
@click.option(
    "-p",
    "--parameter",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the method; may be repeated.",
)
@click.option("--batch", type=click.IntRange(1), help="Samples run together.  [default: 32]")
@click.option(
    "--workers", type=click.IntRange(1), help="Processes that share the cores out.  [default: 1]"
)
@click.option(
    "--cluster",
    type=click.Choice(["ray"]),
    help="Take the workers from a Ray cluster, all its cores if --workers says nothing.",
)
@click.option(
    "--max-memory",
    metavar="SIZE",
    help="Ceiling like 4GB: the data are then read several times if need be.",
)
@click.option("--profile", is_flag=True, help="Say where the time went and what would bring more.")
@click.option(
    "--histograms",
    type=click.Path(path_type=Path),
    help="Keep the histograms in this .npz; if it fits model and data, run nothing.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write the ranges.  [default: calibration.json]",
)
@click.option(
    "--how-many",
    is_flag=True,
    help="Choose no ranges: say how many samples this model needs, and how sure that is.",
)
@skip_option
@config_option
@json_option
def command(
    model: Path | None,
    data: Path | None,
    method: str | None,
    pairs: tuple[str, ...],
    batch: int | None,
    workers: int | None,
    cluster: str | None,
    max_memory: str | None,
    profile: bool,
    histograms: Path | None,
    output: Path | None,
    how_many: bool,
    skipped: tuple[str, ...],
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Choose the range of every tensor of MODEL from data, and write calibration.json.

    MODEL and the data may stand in trtcal.toml. One pass over the data fills a histogram for each
    tensor; a method only reads the histograms. If it is interrupted or killed, the same command goes on
    from the checkpoint beside its output.

    With `--method auto` a quarter of the samples is held back, and all methods are judged there by what
    INT8 loses; of fewer than 32 samples each tensor's method is chosen by its histogram alone.

    With --how-many, ranges from 8, 16, 32, ... of the samples are judged on others by what INT8 loses.
    Nothing is written then, unless -o says where the learning curve goes.
    """
    from trtcal.calibration import ObserveOptions, cached, create_calibrator, observe, unfinished
    from trtcal.check.check import check_data
    from trtcal.cli.held_out import choose, note_if_few, refuse, show_curve, split_for_auto
    from trtcal.data import open_dataset
    from trtcal.evaluate.variants import batch_for
    from trtcal.model import load_model
    from trtcal.quantization import find_layers, tensors_to_observe

    if how_many:
        foreign = {"batch": batch, "workers": workers, "cluster": cluster, "profile": profile}
        refuse(foreign | {"max-memory": max_memory, "histograms": histograms})
    config = config_here(config_path)
    settings = config.calibration
    chosen = method or settings.method
    given = {**settings.parameters.get(chosen, {}), **parameters(pairs)}
    create_calibrator(chosen, given)  # a wrong name is refused before the work, not after
    loaded = load_model(required(model or config.model, "the model", "MODEL"))
    prepared = prepared_model(loaded, config, skipped)
    tensors = tensors_to_observe(find_layers(prepared))
    source = required(data or settings.data, "the data", "--data")
    dataset = open_dataset(source, loaded, config.images, settings.labels)
    if dataset.unused:
        more = len(dataset.unused) - NAMED
        names = ", ".join(dataset.unused[:NAMED]) + (f" and {more} more" if more > 0 else "")
        note(f"note: not used from the data: {names}")

    if how_many:
        show_curve(prepared, dataset, chosen, given, output, as_json)
        return
    note_if_few(len(dataset))
    whole = dataset
    dataset, select = split_for_auto(prepared, whole, chosen)
    output = output or Path("calibration.json")
    options = ObserveOptions(
        batch_for(loaded, batch or settings.batch),
        workers=workers or (0 if cluster else settings.workers),
        cluster=cluster,
        max_memory=None if max_memory is None else size_in_bytes(max_memory),
        checkpoint=unfinished(histograms or output),
    )

    def make() -> Observation:
        checked = check_data(loaded, whole, batch_size=16 if max_memory is None else 1)
        checked.write(output.with_suffix(".data-check.json"))
        warn(checked.issues)
        with progress(f"observing {len(tensors)} tensors", len(dataset)) as advance:
            return observe(
                prepared, dataset, tensors, options, advance, lambda text: note(f"note: {text}")
            )

    observation = cached(histograms, loaded, dataset, tensors, make)
    if profile:
        show_profile(observation, output.with_suffix(".profile.json"))
    result = choose(prepared, observation, select, chosen, given, as_json)
    document = result.write(output)
    if as_json:
        print_json(document)
        return
    rows = [
        (
            name,
            f"{item.amax:.6g}",
            f"{item.observed_amax:.6g}",
            f"{item.clipped:.4%}",
            item.note or "",
        )
        for name, item in result.ranges.items()
    ]
    title = f"{result.method} over {result.samples} samples of {dataset.name}"
    print_table(("tensor", "amax", "max |x|", "clipped", "note"), rows, title)
    for name, reason in result.unranged.items():
        say(f"no range for {name}: {reason}")
    say(f"wrote {output}  {document['digest'][:19]}")


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
