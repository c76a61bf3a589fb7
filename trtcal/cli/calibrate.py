"""`trtcal calibrate`."""

from __future__ import annotations

from pathlib import Path

import click

from trtcal.cli.output import (
    config_here,
    config_option,
    json_option,
    note,
    parameters,
    print_json,
    print_table,
    progress,
    required,
    say,
)

NAMED = 10  # arrays or files that a note names, at most


@click.command(
    epilog="Example: trtcal calibrate model.onnx --data images.npz --method percentile "
    "-p percentile=99.9 -o calibration.json"
)
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="An .npz; a folder of .npy files or images; Polygraphy's .json; a load_data() script.",
)
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
    "--histograms",
    type=click.Path(path_type=Path),
    help="Keep the histograms in this .npz; if it fits model and data, run nothing.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("calibration.json"),
    show_default=True,
    help="Where to write the ranges.",
)
@config_option
@json_option
def command(
    model: Path | None,
    data: Path | None,
    method: str | None,
    pairs: tuple[str, ...],
    batch: int | None,
    histograms: Path | None,
    output: Path,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Choose the range of every tensor of MODEL from data, and write calibration.json.

    MODEL and the data may stand in trtcal.toml. One pass over the data fills a histogram for each
    tensor; a method only reads the histograms.
    """
    from trtcal.calibration import calibrate, create_calibrator, write_calibration
    from trtcal.compare.comparison import batch_for
    from trtcal.data import open_dataset
    from trtcal.model import load_model
    from trtcal.observe import Observation, cached, observe
    from trtcal.quantize import find_layers, prepare, tensors_to_observe

    config = config_here(config_path)
    settings = config.calibration
    chosen = method or settings.method
    given = {**settings.parameters.get(chosen, {}), **parameters(pairs)}
    create_calibrator(chosen, given)  # a wrong name is said before the work, not after
    loaded = load_model(required(model or config.model, "the model", "MODEL"))
    prepared = prepare(loaded)
    tensors = tensors_to_observe(find_layers(prepared))
    source = required(data or settings.data, "the data", "--data")
    dataset = open_dataset(source, loaded, config.images, settings.labels)
    if dataset.unused:
        more = len(dataset.unused) - NAMED
        names = ", ".join(dataset.unused[:NAMED]) + (f" and {more} more" if more > 0 else "")
        note(f"note: not used from the data: {names}")

    def look() -> Observation:
        with progress(f"observing {len(tensors)} tensors", len(dataset)) as advance:
            size = batch_for(loaded, batch or settings.batch)
            return observe(prepared, dataset, tensors, size, advance)

    observation = cached(histograms, loaded, dataset, tensors, look)
    result = calibrate(observation, chosen, given)
    document = write_calibration(output, result)
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
