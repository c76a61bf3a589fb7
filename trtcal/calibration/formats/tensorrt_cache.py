"""TensorRT's calibration cache (up to TensorRT 10), whose text `calibrators.tensorrt_cache` describes.

Names are ONNX's, or `(Unnamed Layer* N) [Type]_output` where TensorRT's parser added a layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrators import tensorrt_cache
from calibrators.range import amax_of
from calibrators.tensorrt_cache import NoCacheError, cache_text, version_digits
from trtcal.calibration.formats.table import (
    Table,
    add_once,
    read_lines,
    table_of,
    writable,
)
from trtcal.documents import write_text
from trtcal.errors import InputError
from trtcal.ranges import Calibration, scales_of

ALGORITHMS = tuple(tensorrt_cache.ALGORITHMS.values())
HEADER = re.compile(rf"TRT-([0-9X]+)-({'|'.join(ALGORITHMS)})")
ENTRY = re.compile(r"(.+): ([0-9a-fA-F]{1,8})", re.DOTALL)  # so it is the last ": " that divides
UNNAMED = re.compile(r"\(Unnamed Layer\* \d+\) \[.+\]_output(_\d+)?( copy)?", re.DOTALL)


@dataclass(frozen=True)
class TensorRTCache:
    """A cache: its header's version digits and algorithm, and each tensor's scale as float32 bits."""

    version: str
    algorithm: str
    bits: dict[str, int]

    def scale(self, name: str) -> np.float32:
        """Return a tensor's scale."""
        return np.uint32(self.bits[name]).view(np.float32)

    @property
    def findings(self) -> dict[str, str]:
        """Tensors whose scale is 0, negative, denormal, infinite, NaN or too large, and which."""
        return self.to_table().unranged

    def to_table(self) -> Table:
        """Return the ranges; tensors with a finding get none."""
        table = table_of({name: amax_of(self.scale(name)) for name in self.bits})
        return replace(table, parameters={"version": self.version, "algorithm": self.algorithm})

    def to_text(self) -> str:
        r"""Return the file as TensorRT writes it: lower case, no padding, "\n" after each line."""
        bits = {writable(name): bits for name, bits in self.bits.items()}
        return cache_text(self.version, self.algorithm, bits)


def cache_of(
    calibration: Calibration, tensorrt: str, algorithm: str = "EntropyCalibration2"
) -> TensorRTCache:
    """Return the cache for one version of TensorRT (such as "8.6.1") and calibrator class.

    `InputError` if either is unknown, or there is no range.
    """
    if algorithm not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise InputError(f"unknown algorithm {algorithm!r}", f"choose one of: {known}")
    scales = scales_of(calibration)
    bits = {name: int(scale.view(np.uint32)) for name, scale in scales.items()}
    return TensorRTCache(header_version(tensorrt), algorithm, bits)


def header_version(tensorrt: str) -> str:
    """Return the header's digits for a version: 8.6.1 -> 8601, 10.3.0 -> 100300.

    Digits that a header could hold (8601, 8XXX) stay. `InputError` for what is no version, and for
    TensorRT 11 and later, which read no cache.
    """
    try:
        return version_digits(tensorrt)
    except NoCacheError as error:
        raise InputError(str(error), "give it a quantized model: `trtcal quantize`") from None
    except ValueError as error:
        raise InputError(str(error), "write it like 8.6.1") from None


def read_cache(path: Path) -> TensorRTCache:
    """Read a cache of any version and algorithm; `InputError` with the line that is not one."""
    header, *lines = read_lines(path)
    match = HEADER.fullmatch(header.rstrip())
    if not match:
        raise InputError(
            f"{path} line 1 is no header of a TensorRT calibration cache: {header[:80]!r}",
            "it must read like TRT-8601-EntropyCalibration2",
        )
    bits: dict[str, int] = {}
    for number, line in enumerate(lines, 2):
        if line.strip():
            add_once(bits, *_entry(line, f"{path} line {number}"), f"{path} line {number}")
    return TensorRTCache(match[1], match[2], bits)


def _entry(line: str, where: str) -> tuple[str, int]:
    match = ENTRY.fullmatch(line.rstrip())
    if not match:
        raise InputError(
            f"{where} is not `tensor: scale`: {line[:80]!r}",
            "the scale is up to 8 hexadecimal digits, the bits of a float32",
        )
    return match[1], int(match[2], 16)


def write_cache(path: Path, cache: TensorRTCache) -> None:
    """Write a cache; written again after reading it has the same bytes."""
    write_text(path, cache.to_text())


def is_unnamed(tensor: str) -> bool:
    """Tell whether TensorRT made a tensor's name up, so that no ONNX model has it."""
    return UNNAMED.fullmatch(tensor) is not None
