"""`trtcal calibration`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtcal.cli.output import (
    config_here,
    config_option,
    data_option,
    json_option,
    note,
    prepared_model,
    print_json,
    print_table,
    progress,
    required,
    say,
)

if TYPE_CHECKING:
    from trtcal.ranges import Calibration

READABLE = ("calibration", "tensorrt-cache", "onnxruntime", "json", "text", "qdq")
FORMATS = """\b
tensorrt-cache  TensorRT's calibration cache
onnxruntime     the flatbuffers that ONNX Runtime's TensorRT provider reads
json, text      ONNX Runtime's other tables
qdq             an ONNX model with Q/DQ (read only)
calibration     what trtcal calibrate writes (read only)"""

format_option = click.option(
    "--format", "form", type=click.Choice(READABLE), help="Found out from the file if not given."
)
file_argument = click.argument("file", type=click.Path(path_type=Path))


@click.group(
    epilog="Example: trtcal calibration export calibration.json --format tensorrt-cache "
    "--tensorrt 8.6.1 -o model.cache",
    help=f"Show, diff, import and export tables of ranges.\n\n{FORMATS}",
)
def command() -> None:
    """Gather the commands about tables of ranges."""


@command.command(epilog="Example: trtcal calibration show model.cache")
@file_argument
@format_option
@json_option
def show(file: Path, form: str | None, as_json: bool) -> None:
    """List the ranges in FILE, and the entries that are not usable."""
    from trtcal.calibration.formats.convert import read_ranges

    found = read_ranges(file, form)
    if as_json:
        print_json(found.to_document())
        return
    _show(found, str(file))


def _show(found: Calibration, title: str) -> None:
    rows = [
        (name, f"{item.amax:.6g}", f"{item.amax / 127:.6g}", item.note or "")
        for name, item in found.ranges.items()
    ]
    print_table(("tensor", "amax", "scale", "note"), rows, title)
    for name, reason in found.unranged.items():
        say(f"no range for {name}: {reason}")
    facts = [found.method, *(f"{name} {value}" for name, value in found.parameters.items())]
    say(f"{len(found.ranges)} ranges, {len(found.unranged)} without; {', '.join(facts)}")


@command.command(epilog="Example: trtcal calibration diff minmax.json entropy.cache --json")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@json_option
def diff(a: Path, b: Path, as_json: bool) -> None:
    """Show which ranges differ from A to B and by how much, the largest change first."""
    from trtcal.calibration.formats.convert import read_ranges
    from trtcal.ranges import diff as compare

    result = compare(read_ranges(a), read_ranges(b))
    if as_json:
        print_json(result.to_document())
        return
    rows = [
        (m.tensor, f"{m.before:.6g}", f"{m.after:.6g}", f"{m.percent:+.3g} %", f"{m.db:+.3f}")
        for m in result.moved
    ]
    print_table(("tensor", "before", "after", "moved", "dB"), rows, f"{a} -> {b}")
    for path, only in ((a, result.only_before), (b, result.only_after)):
        for name, reason in only.items():
            say(f"only in {path}: {name}: {reason}")
    say(f"{len(result.moved)} ranges moved, {result.same} are the same")


@command.command(
    epilog="Example: trtcal calibration export calibration.json --format tensorrt-cache "
    "--tensorrt 8.6.1 --algorithm EntropyCalibration2 -o model.cache"
)
@file_argument
@click.option("--format", "form", type=click.Choice(READABLE[1:-1]), required=True)
@click.option("--tensorrt", metavar="VERSION", help="TensorRT that reads the cache, such as 8.6.1.")
@click.option(
    "--algorithm",
    default="EntropyCalibration2",
    show_default=True,
    help="Calibrator class that reads the cache (trtexec's is EntropyCalibration2).",
)
@click.option("--tensor", "tensors", multiple=True, help="Write only this one; may be repeated.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@json_option
def export(
    file: Path,
    form: str,
    tensorrt: str | None,
    algorithm: str,
    tensors: tuple[str, ...],
    output: Path,
    as_json: bool,
) -> None:
    """Write the ranges in FILE in the format of another tool."""
    from trtcal.calibration.formats.convert import export_calibration, read_ranges
    from trtcal.documents import digest_file

    found = read_ranges(file)
    export_calibration(output, found, form, tensors or None, tensorrt, algorithm)
    for name, reason in found.unranged.items():
        note(f"note: {name} has no range and is not written: {reason}")
    count, digest = len(set(tensors)) or len(found.ranges), digest_file(output)
    if as_json:
        print_json({"output": str(output), "digest": digest, "format": form, "ranges": count})
        return
    say(f"wrote {count} ranges to {output}  {digest[:19]}")


@command.command(
    "import", epilog="Example: trtcal calibration import model.cache --model model.onnx"
)
@file_argument
@click.option("--model", type=click.Path(path_type=Path), required=True, help="The float model.")
@format_option
@click.option("--data", type=click.Path(path_type=Path), help="Data that the ranges come from.")
@click.option("--partial", is_flag=True, help="Take what fits where not all does.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("calibration.json"),
    show_default=True,
    help="Where to write the ranges.",
)
@json_option
def import_(
    file: Path,
    model: Path,
    form: str | None,
    data: Path | None,
    partial: bool,
    output: Path,
    as_json: bool,
) -> None:
    """Write the ranges in FILE as the calibration of a model that they fit."""
    from trtcal.calibration.formats.convert import import_calibration
    from trtcal.data import open_dataset
    from trtcal.model import load_model

    loaded = load_model(model)
    dataset = open_dataset(data, loaded).fingerprint if data else "unknown"
    found = import_calibration(file, loaded, form, dataset, partial)
    document = found.write(output)
    if as_json:
        print_json(document)
        return
    _show(found, str(file))
    say(f"wrote {output}  {document['digest'][:19]}")


@command.command(epilog="Example: trtcal calibration tails net.onnx c.json --data images.npz")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1, required=True)
@data_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("tails.json"),
    show_default=True,
    help="Where to write them.",
)
@config_option
@json_option
def tails(
    model: Path,
    tables: tuple[Path, ...],
    data: Path | None,
    output: Path,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Name the samples that stretch the ranges of which TABLES cut most.

    TABLES are what `trtcal calibrate` wrote for MODEL.
    """
    from trtcal.calibration.extremes import TENSORS, find_tails
    from trtcal.data import open_dataset
    from trtcal.model import load_model
    from trtcal.ranges import Calibration, most_stretched

    config = config_here(config_path)
    settings = config.calibration
    tensors = most_stretched([Calibration.read(path) for path in tables], TENSORS)
    loaded = load_model(model)
    source = required(data or settings.data, "the data", "--data")
    dataset = open_dataset(source, loaded, config.images, settings.labels)
    prepared = prepared_model(loaded, config, ())
    with progress(f"finding what stretches {len(tensors)} ranges", len(dataset)) as advance:
        found = find_tails(prepared, dataset, tensors, advance)
    document = found.write(output)
    if as_json:
        print_json(document)
        return
    rows = [
        (name, f"{one.value:.6g}", one.name or f"sample {one.index}")
        for name, reaches in found.tensors.items()
        for one in reaches
    ]
    print_table(("tensor", "largest", "sample"), rows, f"{loaded.name}: what stretches the ranges")
    say(f"wrote {output}  {document['digest'][:19]}")
