"""TensorRT's calibration cache (up to TensorRT 10), whose text `calibrators.tensorrt_cache` describes.

Names are ONNX's, or where TensorRT's parser added a layer, `(Unnamed Layer* N) [Type]_output`; from
TensorRT 10 on `ONNXTRT_Broadcast_N_output`, and `NAME_output` for a constant or a part of a node.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from calibrators import tensorrt_cache
from calibrators.range import amax_of
from calibrators.tensorrt_cache import NoCacheError, cache_text, version_digits
from trtcal.calibration.formats.table import add_once, read_lines, table_of, writable
from trtcal.errors import InputError, check_choice
from trtcal.ranges import Calibration, scales_of

FORM = "tensorrt-cache"
ALGORITHMS = tuple(tensorrt_cache.ALGORITHMS.values())
HEADER = re.compile(rf"TRT-([0-9X]+)-({'|'.join(ALGORITHMS)})")
LEGACY = re.compile(r"0 [0-9a-f]{1,16} [0-9a-f]{1,16}")
"""What 8.6.0 begins a legacy calibrator's cache with: bits of its regression cutoff and quantile."""
ENTRY = re.compile(r"(.+): ([0-9a-fA-F]{1,8})", re.DOTALL)  # so it is the last ": " that divides
UNNAMED = re.compile(
    r"(\(Unnamed Layer\* \d+\) \[.+\]|ONNXTRT_.+|tmp_weight\w*)_output(_\d+)?( copy)?", re.DOTALL
)
OF_LAYER = re.compile(r"(.+?)(?:_InputLayer)?(_\d+)?_output(_\d+)?", re.DOTALL)
"""A layer's name, which is an ONNX node's or constant's, with what TensorRT 10 adds for a tensor."""


def cache_of(
    calibration: Calibration, tensorrt: str, algorithm: str = "EntropyCalibration2"
) -> bytes:
    """Return the cache for one version of TensorRT (such as "8.6.1") and calibrator class.

    `InputError` if either is unknown or reads no cache, if there is no range, or for a name that no
    line can hold.
    """
    check_choice(algorithm, ALGORITHMS, f"unknown algorithm {algorithm!r}")
    scales = scales_of(calibration)
    bits = {writable(name): int(scale.view(np.uint32)) for name, scale in scales.items()}
    return cache_text(header_version(tensorrt), algorithm, bits).encode("utf-8", "surrogateescape")


def header_version(tensorrt: str) -> str:
    """Return the header's digits for a version: 8.6.1 -> 8601, 10.3.0 -> 100300.

    Digits that a header could hold (8601, 8XXX) stay. `InputError` for what is no version, and for
    TensorRT 11 and later, which read no cache.
    """
    try:
        return version_digits(tensorrt)
    except NoCacheError as error:
        raise InputError(str(error), "give TensorRT a quantized model: `trtcal quantize`") from None
    except ValueError as error:
        raise InputError(str(error), "write it like 8.6.1") from None


def read_cache(path: Path) -> Calibration:
    """Read a cache of any version and algorithm; `InputError` with the line that is not one.

    A tensor whose scale is 0, negative, denormal, infinite, NaN or too large has no range.
    """
    header, *lines = read_lines(path)
    match, legacy = HEADER.fullmatch(header.rstrip()), LEGACY.fullmatch(header.rstrip())
    if not (match or legacy):
        raise InputError(
            f"{path} line 1 is not the header of a TensorRT calibration cache: {header[:80]!r}",
            "give a cache whose first line is like TRT-8601-EntropyCalibration2",
        )
    amaxes: dict[str, float] = {}
    for number, line in enumerate(lines, 2):
        if line.strip():
            add_once(amaxes, *_entry(line, f"{path} line {number}"), f"{path} line {number}")
    if match is None:
        return table_of(FORM, amaxes, algorithm=tensorrt_cache.ALGORITHMS["legacy"])
    return table_of(FORM, amaxes, version=match[1], algorithm=match[2])


def _entry(line: str, where: str) -> tuple[str, float]:
    match = ENTRY.fullmatch(line.rstrip())
    if not match:
        hint = "write the scale as up to 8 hexadecimal digits, the bits of a float32"
        raise InputError(f"{where} is not `tensor: scale`: {line[:80]!r}", hint)
    return match[1], amax_of(np.uint32(int(match[2], 16)).view(np.float32))


def is_unnamed(tensor: str) -> bool:
    """Tell whether TensorRT made a tensor's name up, so that no ONNX model has it."""
    return UNNAMED.fullmatch(tensor) is not None


def layers_of(tensor: str) -> set[str]:
    """Return the names that the layer may have after which TensorRT 10 called a tensor."""
    match = OF_LAYER.fullmatch(tensor)
    return {match[1], f"{match[1]}{match[2]}"} if match else set()
