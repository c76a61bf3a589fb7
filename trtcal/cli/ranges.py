"""`trtcal ranges`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trtcal.cli.advice import recall, remember
from trtcal.cli.options import DataOptions, JsonOptions, PairOptions, add_commands, argument, option
from trtcal.cli.output import Columns, note, print_table, progress, reasons, say

if TYPE_CHECKING:
    from trtcal.ranges import Calibration, CalibrationDiff

Writable = Literal["tensorrt-cache", "onnxruntime", "json", "text", "aimet", "aimet-1", "aimet-fp8"]
Readable = Literal["calibration", Writable, "qdq"]
ENDINGS = {"tensorrt-cache": "cache", "onnxruntime": "flatbuffers", "json": "json", "text": "txt"}
FORMATS = """\b
tensorrt-cache  TensorRT's calibration cache
onnxruntime     the flatbuffers that ONNX Runtime's TensorRT provider reads
json, text      ONNX Runtime's other tables
aimet           AIMET's encodings 2.0.0 (aimet-1: 1.0.0; aimet-fp8: 2.0.0 in FP8)
qdq             an ONNX model with Q/DQ (read only)
calibration     what trtcal calibrate writes (read only)"""


@click.group(
    epilog="Example: trtcal ranges export calibration.json --format tensorrt-cache "
    "--tensorrt 8.6.1 -o model.cache",
    help=f"Show, compare, import and export tables of ranges.\n\n{FORMATS}",
)
def command() -> None:
    """Gather the commands about tables of ranges."""


class TableOptions(JsonOptions):
    """The options of a command that reads a table in any format."""

    file: Path = argument()
    form: Readable | None = option("Format of the file.  [default: detected]", "--format")


class Show(TableOptions, example="trtcal ranges show model.cache"):
    """List the ranges in FILE, and the entries that cannot be used."""

    def _run(self) -> None:
        from trtcal.calibration.formats.convert import read_ranges

        calibration = read_ranges(self.file, self.form)
        self.present(calibration.to_document(), lambda: _show(calibration, self.file))


def _show(calibration: Calibration, path: Path) -> None:
    columns: dict[str, str | Callable[[Any], object]] = {
        "tensor": "{0}",
        "amax": "{1.amax:.6g}",
        "scale": lambda item: f"{item[1].amax / 127:.6g}" if item[1].is_for_int8 else "-",
    }
    if any(entry.fp8_amax for entry in calibration.ranges.values()):
        columns |= {"FP8 scale": lambda item: f"{item[1].scale_in('fp8'):.6g}"}
    columns |= {"note": "{1.note}"}
    print_table([*calibration.ranges.items()], columns, str(path))
    say(*reasons(calibration.unranged), head="no range for ")
    values = (f"{name} {value}" for name, value in calibration.parameters.items())
    facts = ", ".join([calibration.method, *values])
    say(f"{len(calibration.ranges)} ranges, {len(calibration.unranged)} without; {facts}")


class Diff(PairOptions, example="trtcal ranges diff minmax.json entropy.cache --json"):
    """Show which ranges differ from A to B and by how much, the largest change first."""

    def _run(self) -> None:
        from trtcal.calibration.formats.convert import read_ranges
        from trtcal.ranges import diff as compare

        result = compare(read_ranges(self.a), read_ranges(self.b))
        self.present(result.to_document(), lambda: _show_diff(result, self))


def _show_diff(result: CalibrationDiff, options: Diff) -> None:
    columns = {"tensor": "{tensor}", "before": "{before:.6g}", "after": "{after:.6g}"}
    columns |= {"moved": "{percent:+.3g} %", "dB": "{db:+.3f}"}
    print_table(result.moved, columns, options.title)
    for path, only in ((options.a, result.only_before), (options.b, result.only_after)):
        say(*reasons(only), head=f"only in {path}: ")
    say(f"{len(result.moved)} ranges moved, {result.same} are the same")


class Export(
    JsonOptions,
    example="trtcal ranges export calibration.json --format tensorrt-cache "
    "--tensorrt 8.6.1 --algorithm EntropyCalibration2 -o model.cache",
):
    """Write the ranges in FILE in the format of another tool."""

    file: Path = argument()
    form: Writable = option("Form of the table.", "--format")
    tensorrt: str | None = option(
        "Version of TensorRT that reads the cache, such as 8.6.1.", metavar="VERSION"
    )
    algorithm: str = option(
        "Calibrator class that reads the cache; trtexec has EntropyCalibration2.",
        default="EntropyCalibration2",
    )
    tensors: tuple[str, ...] = option("Write only this tensor; may be repeated.", "--tensor")
    model: Path | None = option(
        "The float model, to check that a cache covers it.  [default: the one that was calibrated]"
    )
    partial: bool = option("Write a cache that lacks ranges which TensorRT needs.")
    output: Path | None = option(
        "File for the table.  [default: ranges with the ending of the format, such as ranges.cache]",
        "-o",
    )

    def _run(self) -> None:
        from trtcal.calibration.formats.convert import check_covers, export_calibration, read_ranges
        from trtcal.documents import digest_file
        from trtcal.model import load_model

        table, tensors = read_ranges(self.file), self.tensors
        output = self.output or Path(f"ranges.{ENDINGS.get(self.form, 'encodings')}")
        files, is_whole = recall(self.file), not (tensors or self.partial)
        model, is_cache = self.model or files.get("model"), self.form == "tensorrt-cache"
        if is_cache and is_whole and model:
            check_covers(table, load_model(Path(model)), self.file, files.get("data", "DATA"))
        export_calibration(output, table, self.form, tensors or None, self.tensorrt, self.algorithm)
        if is_cache and not model:
            note("note: give --model to know whether TensorRT needs ranges that are not there")
        note(*reasons(table.unranged), head="note: not written, for want of a range: ")
        count, digest = len(set(tensors)) or len(table.ranges), digest_file(output)
        document = {"output": str(output), "digest": digest, "format": self.form, "ranges": count}
        self.present(document, lambda: say(f"wrote {count} ranges to {output}  {digest[:19]}"))


class Import(TableOptions, example="trtcal ranges import model.cache --model model.onnx"):
    """Write the ranges in FILE as the calibration.json of a model."""

    model: Path = option("The float model that the ranges are for.")
    data: Path | None = option("The data that the ranges were made from.")
    partial: bool = option("Take the ranges that fit, if some do not.")
    output: Path = option("JSON file for the calibration.", "-o", default=Path("calibration.json"))

    def _run(self) -> None:
        from trtcal.calibration.formats.convert import import_calibration
        from trtcal.data import open_dataset
        from trtcal.model import load_model

        model = load_model(self.model)
        dataset = open_dataset(self.data, model).fingerprint if self.data else "unknown"
        calibration = import_calibration(self.file, model, self.form, dataset, self.partial)
        document = calibration.write(self.output)
        remember(self.output, model=self.model, data=self.data)
        self.present(document, lambda: _show(calibration, self.file), self.output)


class Tails(DataOptions, example="trtcal ranges tails net.onnx c.json --data images.npz"):
    """Name the samples that stretch the ranges of which TABLES clip most.

    TABLES are calibration.json files that `trtcal calibrate` wrote for MODEL.
    """

    model: Path = argument()
    tables: tuple[Path, ...] = argument()
    output: Path = option("JSON file for the samples.", "-o", default=Path("tails.json"))

    def _run(self) -> None:
        from trtcal.calibration import observe
        from trtcal.calibration.extremes import TENSORS, tails_of
        from trtcal.model import load_model
        from trtcal.ranges import Calibration, most_stretched

        tensors = most_stretched([Calibration.read(path) for path in self.tables], TENSORS)
        model = load_model(self.model)
        dataset = self.open_data(model, self.config.calibration)
        title = f"finding the samples that stretch {len(tensors)} ranges"
        with progress(title, len(dataset), "samples") as advance:
            seen = observe(self.ready(model), dataset, tensors, progress=advance)
        tails = tails_of(seen, dataset.files, tensors)
        reaches = [(name, reach) for name, own in tails.tensors.items() for reach in own]
        columns: Columns = {
            "tensor": "{0}",
            "largest": "{1.value:.6g}",
            "sample": lambda item: item[1].name or f"sample {item[1].index}",
        }
        title = f"{model.name}: samples that stretch the ranges"
        document = tails.write(self.output)
        self.present(document, lambda: print_table(reaches, columns, title), self.output)


add_commands(command, Show, Diff, Export, Import, Tails)
