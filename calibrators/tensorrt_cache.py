r"""The text of TensorRT's calibration cache (up to TensorRT 10): a header, then one line a tensor.

    TRT-8601-EntropyCalibration2
    images: 3c010204

The number is the scale, amax / 127, as the hexadecimal digits of its float32 bits without leading
zeros. Format: caches published with TensorRT's samples and in its issues; `sampleEngines.cpp` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from calibrators.range import scale_of

ALGORITHMS = {
    "entropy": "EntropyCalibration",
    "entropy2": "EntropyCalibration2",
    "minmax": "MinMaxCalibration",
    "legacy": "LegacyCalibration",
}
LAST_MAJOR = 10


class NoCacheError(ValueError):
    """TensorRT of this version reads no calibration cache."""


def version_digits(tensorrt: str) -> str:
    """Return the header's digits for a version: 8.6.1 -> 8601, 10.3.0 -> 100300.

    Digits that a header could hold (8601, 8XXX) stay. `ValueError` for what is no version,
    `NoCacheError` for TensorRT 11 and later. Source: NV_TENSORRT_VERSION in NvInferVersion.h.
    """
    if re.fullmatch(r"\d[\dX]{3,5}", tensorrt):
        return tensorrt
    if not re.fullmatch(r"\d{1,2}\.\d{1,2}(\.\d{1,2}(\.\d+)?)?", tensorrt, re.ASCII):
        raise ValueError(f"{tensorrt!r} is not a version of TensorRT")
    major, minor, patch = [int(part) for part in (*tensorrt.split("."), "0")[:3]]
    if major > LAST_MAJOR:
        raise NoCacheError(f"TensorRT {tensorrt} reads no calibration cache")
    return str(major * (10_000 if major >= 10 else 1_000) + minor * 100 + patch)


def cache_text(digits: str, algorithm: str, bits: Mapping[str, int]) -> str:
    r"""Return a cache as TensorRT writes it: lower case, no padding, "\n" after each line.

    `algorithm` is the header's, `bits` are those of each tensor's scale.
    """
    lines = [f"{writable(name)}: {number:x}" for name, number in bits.items()]
    return "\n".join([f"TRT-{digits}-{algorithm}", *lines, ""])


def cache_of_ranges(tensorrt: str, kind: str, amaxes: Mapping[str, float]) -> bytes:
    """Return the cache that a calibrator of this kind answers with in this version of TensorRT."""
    bits = {name: int(scale_of(amax).view(np.uint32)) for name, amax in amaxes.items()}
    text = cache_text(version_digits(tensorrt), ALGORITHMS[kind], bits)
    return text.encode("utf-8", "surrogateescape")


def writable(name: str) -> str:
    """Return a tensor's name; `ValueError` if no line of text can hold it."""
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"tensor name {name!r} is not text") from None
    if not name or "\n" in name:
        raise ValueError(f"tensor name {name!r} does not fit on a line")
    return name
