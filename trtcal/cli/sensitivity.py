"""`trtcal sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.output import (
    config_here,
    config_option,
    data_option,
    json_option,
    optimizations_option,
    prepared_model,
    print_json,
    print_table,
    progress,
    required,
    say,
    skip_option,
)

if TYPE_CHECKING:
    from trtcal.evaluate.search.sensitivity import Sensitivities


@click.command(
    epilog="Example: trtcal sensitivity model.onnx --calibration calibration.json --data test.npz"
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
@data_option
@click.option(
    "--samples", type=click.IntRange(2), default=64, show_default=True, help="The first so many."
)
@click.option(
    "--exact", is_flag=True, help="Run every layer on all samples, even if it is known earlier."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the table here too.")
@optimizations_option
@skip_option
@config_option
@json_option
def command(
    model: Path | None,
    ranges: Path,
    data: Path | None,
    samples: int,
    exact: bool,
    output: Path | None,
    optimizations: Path | None,
    skipped: tuple[str, ...],
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Measure what each layer of MODEL loses in INT8, those that lose most first.

    Each layer is quantized alone, and left alone in float with all others in INT8. Its share is the
    mean of what it adds to the loss in these two, of all INT8's loss. Losses are of the outputs against
    FP32: KL divergence where they are class scores, else noise over signal.
    """
    from trtcal.data import open_dataset
    from trtcal.documents import seal, write_document
    from trtcal.evaluate.search import Sampling, measure_sensitivities
    from trtcal.evaluate.search.sensitivity import TOLERANCE
    from trtcal.model import load_model
    from trtcal.quantization import find_layers
    from trtcal.ranges import Calibration

    config = config_here(config_path)
    loaded = load_model(required(model or config.model, "the model", "MODEL"))
    prepared = prepared_model(loaded, config, skipped, optimizations)
    source = required(data or config.evaluation.data, "the data", "--data")
    dataset = open_dataset(source, loaded, config.images, config.evaluation.labels)
    table = Calibration.read(ranges)
    tolerance = 0.0 if exact else TOLERANCE
    with progress("sensitivity of layers", len(find_layers(prepared).layers)) as advance:
        sampling = Sampling(samples, tolerance)
        seen = measure_sensitivities(prepared, table, dataset, sampling, progress=advance)
    of = {
        "model": loaded.fingerprint,
        "calibration": table.digest,
        "dataset": dataset.fingerprint,
        "tolerance": tolerance,
    }
    document = seal(seen.to_document(of))
    if output:
        document = write_document(output, document)
    if as_json:
        print_json(document)
        return
    show(seen)
    if output:
        say(f"wrote {output}  {document['digest'][:19]}")


def show(seen: Sensitivities) -> None:
    """Print the layers, those with the largest share first."""
    whole = seen.whole
    rows = [
        (
            one.layer,
            one.op,
            f"{one.share(seen.measure) / (whole.of(seen.measure) or 1.0):.1%}",
            f"{one.alone.of(seen.measure):.3g}",
            f"{one.left.of(seen.measure):.3g}",
            f"{one.alone.sqnr_db:.2f}",
            f"{one.left.sqnr_db:.2f}",
            one.left.samples,
        )
        for one in seen.ranked
    ]
    name = "KL" if seen.measure == "kl" else "noise"
    columns = ("layer", "op", "share", f"{name} of it alone", f"{name} with it left in float",
               "SQNR dB alone", "SQNR dB with it left", "samples")  # fmt: skip
    title = f"all INT8: {name} {whole.of(seen.measure):.3g}, SQNR {whole.sqnr_db:.2f} dB"
    print_table(columns, rows, f"{title}, {whole.samples} samples")
