"""AIMET's encodings 0.6.1, 1.0.0 and 2.0.0: JSON that says for each tensor how it is quantized.

1.0.0 lists `activation_encodings` and `param_encodings`, whose offsets count from unsigned integers:
x = scale * (q + offset), q from 0. 0.6.1 has tensor -> entries for each channel in their place.
2.0.0 has one list, `encodings`, in the words of ONNX: x = y_scale * (q - y_zero_point), and no scale
per tensor is of a weight. Of weights nothing is taken: trtcal chooses their scales itself.
Source: AIMET, "Encoding specification"; what aimet-onnx 2.42 writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.range import scale_of
from trtcal.calibration.formats.qdq import interval, scaled
from trtcal.calibration.formats.table import foreign
from trtcal.documents import json_bytes, read_json
from trtcal.errors import InputError
from trtcal.formats import FORMATS
from trtcal.ranges import Calibration, TensorRange

AIMET, AIMET_1, AIMET_FP8 = "aimet", "aimet-1", "aimet-fp8"
OLD_LISTS = ("activation_encodings", "param_encodings")
LISTS = {"0.6.1": OLD_LISTS, "1.0.0": OLD_LISTS, "2.0.0": ("encodings",)}
FP8 = "float8e4m3fn"
INTEGER = re.compile(r"(u?)int(\d{1,2})")
MOST_BITS = 32
ENCODINGS_HINT = "export the encodings with encoding_version 0.6.1, 1.0.0 or 2.0.0"
Entry = Mapping[str, Any]


def is_aimet(document: object) -> bool:
    """Tell whether a JSON document is one of encodings, of any version."""
    names = {"activation_encodings", "encodings"}
    return isinstance(document, dict) and "version" in document and not names.isdisjoint(document)


def read_aimet(path: Path) -> Calibration:
    """Read the ranges of activations; `InputError` with the entry that is none.

    What is not a range per tensor of an integer type or float8e4m3fn stands under `unranged`.
    """
    document = read_json(path)
    version = str(document.get("version")) if isinstance(document, dict) else None
    if version not in LISTS:
        raise InputError(
            f"{path} has no AIMET encodings of a known version ({version})", ENCODINGS_HINT
        )
    int8: dict[str, TensorRange] = {}
    fp8: dict[str, TensorRange] = {}
    unranged: dict[str, str] = {}
    for where, name, entry in _entries(document, version, path):
        result = _read(entry, version, where)
        if isinstance(result, str):
            unranged[name] = result
        elif name in (ranges := fp8 if _kind(entry, version) == FP8 else int8):
            raise InputError(f"{where}: tensor {name!r} is listed twice", "remove one of the two")
        else:
            ranges[name] = result
    return foreign(AIMET, int8, fp8, unranged, {"version": version})


def _entries(document: Any, version: str, path: Path) -> Iterator[tuple[str, str, Entry]]:
    """Yield where each entry stands, its tensor and itself; those of weights as entries per channel."""
    for part in LISTS[version]:
        entries = document.get(part, [])
        if version == "0.6.1" and isinstance(entries, dict):
            entries = [_first_of(entries[name], name) for name in entries]
        if not isinstance(entries, list):
            raise InputError(f"{path}: {part} is not a list", ENCODINGS_HINT)
        for number, entry in enumerate(entries):
            where = f"{path}: {part}[{number}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise InputError(f"{where} has no name", ENCODINGS_HINT)
            yield where, entry["name"], {**entry, "is_weight": part == "param_encodings"}


def _first_of(entries: Any, name: str) -> Any:
    """Return an entry of 0.6.1, which lists one for each channel, in the words of 1.0.0."""
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        return None
    kind = "PER_TENSOR" if len(entries) == 1 else "PER_CHANNEL"
    return {**entries[0], "name": name, "bw": entries[0].get("bitwidth"), "enc_type": kind}


def _read(entry: Entry, version: str, where: str) -> TensorRange | str:
    """Return an entry's range, or why it has none."""
    kind = _kind(entry, version)
    what = "LPBQ" if "per_block_int_scale" in entry else str(entry.get("enc_type", ""))
    if entry["is_weight"] or "axis" in entry or what not in ("", "PER_TENSOR"):
        named = kind if version == "2.0.0" else kind.removeprefix("u")
        return f"it is a weight in {named}: trtcal chooses the scales of weights itself"
    if kind == FP8:
        return scaled(_numbers(entry, "y_scale", where), FORMATS["fp8"].top)
    match = INTEGER.fullmatch(kind)
    if not match or not 2 <= int(match[2]) <= MOST_BITS:
        return f"it is in {kind}, of which INT8 and FP8 have no range"
    scales, zeros = _scales(entry, version, where)
    first = 0 if match[1] else -(2 ** (int(match[2]) - 1))
    return interval(scales, zeros, first, first + 2 ** int(match[2]) - 1)


def _kind(entry: Entry, version: str) -> str:
    """Return the type of an entry, in ONNX's words; 1.0.0 counts all integers from 0."""
    if version == "2.0.0":
        return str(entry.get("output_dtype", "an unknown type"))
    prefix = {"INT": "uint", "FLOAT": "float"}.get(str(entry.get("dtype")).upper(), "type ")
    return f"{prefix}{entry.get('bw')}"


def _scales(
    entry: Entry, version: str, where: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    if version == "2.0.0":
        return _numbers(entry, "y_scale", where), _numbers(entry, "y_zero_point", where, 0.0)
    shift = _numbers(entry, "zero_point_shift", where, 0.0)
    return _numbers(entry, "scale", where), -_numbers(entry, "offset", where, 0.0) - shift


def _numbers(
    entry: Entry, name: str, where: str, default: float | None = None
) -> npt.NDArray[np.float64]:
    """Return the one number of a field, shape (1,); `InputError` if it is none."""
    numbers = entry.get(name)
    value = numbers[0] if isinstance(numbers, list) and len(numbers) == 1 else numbers
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: {name} is not one number", ENCODINGS_HINT)
    return np.asarray([value], np.float64)


def to_aimet(amaxes: Mapping[str, float]) -> bytes:
    """Return encodings 2.0.0 in int8, symmetric."""
    return _encodings("int8", {name: scale_of(amax) for name, amax in amaxes.items()})


def to_aimet_1(amaxes: Mapping[str, float]) -> bytes:
    """Return encodings 1.0.0 in int8, symmetric."""
    kind = {"dtype": "INT", "bw": 8, "is_sym": True, "enc_type": "PER_TENSOR", "offset": [-128.0]}
    encodings = [{"name": n, **kind, "scale": [float(scale_of(a))]} for n, a in amaxes.items()]
    lists = {"activation_encodings": encodings, "param_encodings": list[Entry]()}
    return json_bytes({"version": "1.0.0", **lists})


def to_aimet_fp8(amaxes: Mapping[str, float]) -> bytes:
    """Return encodings 2.0.0 in float8e4m3fn; `amaxes` are those for FP8."""
    top = FORMATS["fp8"].top
    return _encodings(FP8, {name: np.float32(amax / top) for name, amax in amaxes.items()})


def _encodings(kind: str, scales: Mapping[str, np.float32]) -> bytes:
    entries = [
        {"name": name, "output_dtype": kind, "y_scale": float(scale)}
        for name, scale in scales.items()
    ]
    return json_bytes({"version": "2.0.0", "encodings": entries})


READERS = dict.fromkeys((AIMET, AIMET_1, AIMET_FP8), read_aimet)
WRITERS = {AIMET: to_aimet, AIMET_1: to_aimet_1, AIMET_FP8: to_aimet_fp8}
