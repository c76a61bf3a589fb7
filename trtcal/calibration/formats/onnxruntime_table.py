"""The calibration tables of ONNX Runtime: flatbuffers, JSON and plain text.

Its TensorRT provider reads flatbuffers (`trt_int8_calibration_table_name`) or TensorRT's own cache
(`trt_int8_use_native_calibration_table`); its quantizer reads the JSON. The schema, as its
`ReadDynamicRange` and `write_calibration_table` use it:

    table KeyValue { key: string; value: string; }     a tensor's name, its amax as decimal digits
    table TrtTable { dict: [KeyValue]; }               the root
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flatbuffers  # type: ignore[import-untyped]  # it comes with onnxruntime
import numpy as np

from trtcal.calibration.formats.table import add_once, read_lines, table_of, writable
from trtcal.documents import json_bytes, read_json
from trtcal.documents.bounds import read_bytes
from trtcal.errors import InputError
from trtcal.ranges import Calibration

KEY, VALUE, DICT = 0, 1, 0  # places of the fields in their tables


def to_flatbuffers(amaxes: Mapping[str, float]) -> bytes:
    """Return the table that the TensorRT provider reads; the bytes are those ONNX Runtime writes."""
    builder = flatbuffers.Builder(1024)
    pairs = [_pair(builder, name, amaxes[name]) for name in sorted(amaxes)]
    builder.StartVector(4, len(pairs), 4)
    for pair in pairs:
        builder.PrependUOffsetTRelative(pair)
    entries = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(DICT, entries, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _pair(builder: Any, name: str, amax: float) -> int:
    key = builder.CreateString(writable(name).encode("utf-8", "surrogateescape"))
    value = builder.CreateString(repr(amax))
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(KEY, key, 0)
    builder.PrependUOffsetTRelativeSlot(VALUE, value, 0)
    return int(builder.EndObject())


def read_flatbuffers(path: Path) -> Calibration:
    """Read the table; `InputError` if the file is not one, or is cut short."""
    amaxes: dict[str, float] = {}
    try:
        for name, value in _Reader(read_bytes(path)).pairs():
            add_once(amaxes, name, float(value), str(path))
    except ValueError as error:
        raise InputError(
            f"{path} is not a calibration table of ONNX Runtime: {error}",
            "give a complete calibration.flatbuffers of ONNX Runtime or trtcal",
        ) from error
    return table_of("onnxruntime", amaxes)


class _Reader:
    """Reads one table with every offset checked: what flatbuffers' own Python reader leaves out."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.unread = len(data)  # of text: strings that overlap can't make more of it than there is

    def pairs(self) -> Iterator[tuple[str, str]]:
        start = self.follow(self.field(self.follow(0), DICT))
        for entry in range(self.number(start)):
            pair = self.follow(start + 4 + 4 * entry)
            yield self.string(self.field(pair, KEY)), self.string(self.field(pair, VALUE))

    def number(self, at: int, size: int = 4, signed: bool = False) -> int:
        return int.from_bytes(self.slice(at, size), "little", signed=signed)

    def slice(self, at: int, size: int) -> bytes:
        if not 0 <= at <= len(self.data) - size:
            raise ValueError(f"an offset points to {at} in {len(self.data)} bytes")
        return self.data[at : at + size]

    def follow(self, at: int) -> int:
        return at + self.number(at)

    def field(self, table: int, place: int) -> int:
        layout = table - self.number(table, signed=True)
        at = 4 + 2 * place
        offset = self.number(layout + at, 2) if at < self.number(layout, 2) else 0
        if not offset:
            raise ValueError("a field is missing")
        return table + offset

    def string(self, at: int) -> str:
        start = self.follow(at)
        size = self.number(start)
        self.unread -= size
        if self.unread < 0:
            raise ValueError("its strings overlap")
        return self.slice(start + 4, size).decode("utf-8", "surrogateescape")


def to_table_text(amaxes: Mapping[str, float]) -> bytes:
    """Return `name amax` lines, sorted by name."""
    lines = (f"{writable(name)} {amaxes[name]!r}\n" for name in sorted(amaxes))
    return "".join(lines).encode("utf-8", "surrogateescape")


def read_table_text(path: Path) -> Calibration:
    """Read `name amax` lines; `InputError` with the line that is none."""
    amaxes: dict[str, float] = {}
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            where = f"{path} line {number}"
            name, _, text = line.rstrip().rpartition(" ")
            add_once(amaxes, name, _decimal(text if name else "", line, where), where)
    return table_of("text", amaxes)


def _decimal(text: str, line: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        hint = "give a table of ranges, or name its --format"
        raise InputError(f"{where} is not `tensor amax`: {line[:80]!r}", hint) from None


def to_table_json(amaxes: Mapping[str, float]) -> bytes:
    """Return the JSON that `quantize_static(calibration_cache_path=...)` reads."""
    data = {name: {**_bounds(amax), "CLS": "TensorData"} for name, amax in amaxes.items()}
    method = {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"}
    return json_bytes({"CLS": "TensorsData", "data": data, "calibration_method": method})


def _bounds(amax: float) -> dict[str, Any]:
    kind = {"dtype": "float32", "CLS": "numpy.array"}
    return {"lowest": {"data": -amax, **kind}, "highest": {"data": amax, **kind}}


def read_table_json(path: Path) -> Calibration:
    """Read the JSON in the forms that versions of ONNX Runtime wrote.

    An entry is `[lowest, highest]` or an object with both. The amax is the larger magnitude: ONNX
    Runtime's own table takes the larger number, which for a tensor below zero is the wrong one.
    """
    document = read_json(path)
    if isinstance(document, dict) and document.get("CLS") == "TensorsData":
        document = document.get("data")
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a table of ranges", "give an object: tensor -> bounds")
    return table_of("json", {name: _magnitude(item, name, path) for name, item in document.items()})


def _magnitude(item: Any, name: str, path: Path) -> float:
    try:
        bounds = [item["lowest"], item["highest"]] if isinstance(item, dict) else item
        plain = [bound["data"] if isinstance(bound, dict) else bound for bound in bounds]
        return float(np.max([np.max(np.abs(np.asarray(bound, np.float64))) for bound in plain]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: tensor {name!r} has no lowest and highest ({error!r})",
            "write the table with compute_data() of ONNX Runtime's calibrator",
        ) from error


READERS = {"onnxruntime": read_flatbuffers, "json": read_table_json, "text": read_table_text}
WRITERS = {"onnxruntime": to_flatbuffers, "json": to_table_json, "text": to_table_text}
