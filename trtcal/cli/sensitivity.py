"""`trtcal sensitivity`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtcal.cli.output import (
    ModelOptions,
    config_option,
    data_option,
    json_option,
    model_and_data,
    optimizations_option,
    print_json,
    print_table,
    progress,
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
def command(**given: Any) -> None:
    """Measure what each layer of MODEL loses in INT8, those that lose most first.

    Each layer is quantized alone, and left alone in float with all others in INT8. Its share is the
    mean of what it adds to the loss in these two, of all INT8's loss. Losses are of the outputs against
    FP32: KL divergence where they are class scores, else noise over signal.
    """
    measure(Options(**given))


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """The options of `trtcal sensitivity`, by the names that the command gives them."""

    ranges: Path
    samples: int
    exact: bool
    output: Path | None
    as_json: bool


def measure(options: Options) -> None:
    """Measure all layers, write the table if it is asked for, and show it."""
    from trtcal.documents import seal, write_document
    from trtcal.evaluate.search.segments import TOLERANCE
    from trtcal.evaluate.search.sensitivity import Sampling, measure_sensitivities
    from trtcal.quantization import find_layers
    from trtcal.ranges import Calibration

    loaded, prepared, dataset = model_and_data(options)
    table = Calibration.read(options.ranges)
    sampling = Sampling(options.samples, 0.0 if options.exact else TOLERANCE)
    with progress("sensitivity of layers", len(find_layers(prepared).layers)) as advance:
        seen = measure_sensitivities(prepared, table, dataset, sampling, progress=advance)
    of = {
        "model": loaded.fingerprint,
        "calibration": table.digest,
        "dataset": dataset.fingerprint,
        "tolerance": sampling.tolerance,
    }
    document = seal(seen.to_document(of))
    if options.output:
        document = write_document(options.output, document)
    if options.as_json:
        print_json(document)
        return
    show(seen)
    if options.output:
        say(f"wrote {options.output}  {document['digest'][:19]}")


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
