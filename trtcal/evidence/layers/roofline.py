"""What a layer would take at least, on a GPU as its datasheet describes it: an estimate.

A layer can't be faster than its bytes take at full memory bandwidth, nor than its multiplications
take at the full rate of their precision; the longer of both is the estimate (Williams et al., 2009).
Data that stays in a cache can beat it. Launch times, tails and clocks are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtcal.errors import InputError
from trtcal.evidence.layers.layer import Layer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TARGETS = Path(__file__).parent / "targets"
RATES = ("bandwidth_gb_s", "int8_tops", "fp16_tflops", "fp32_tflops")
OPTIONAL = ("tf32_tflops",)
MAX_BYTES = 1 << 16
LEAST, MOST = 0.001, 1e9
EXAMPLE = "bandwidth_gb_s = 1555, int8_tops = 624, fp16_tflops = 312, fp32_tflops = 19.5"


@dataclass(frozen=True)
class Target:
    """What a GPU can do at best: memory in GB/s, dense rates in 10^12 operations a second.

    One multiply-accumulate is two operations, as in datasheets.
    """

    name: str
    bandwidth_gb_s: float
    int8_tops: float
    fp16_tflops: float
    fp32_tflops: float
    tf32_tflops: float | None = None

    def rate_of(self, layer: Layer) -> float | None:
        """Return the rate for a layer's precision; None if it has none."""
        precision = layer.precision
        if precision == "fp32" and self.tf32_tflops and "tf32" in (layer.tactic or "").lower():
            return self.tf32_tflops
        rates = {"int8": self.int8_tops, "fp16": self.fp16_tflops, "fp32": self.fp32_tflops}
        return {**rates, "bf16": self.fp16_tflops}.get(precision)


@dataclass(frozen=True)
class Estimate:
    """A layer's lower limit in ms, the part of memory and arithmetic, and which of them binds.

    `efficiency` is the limit over the measured time, above 1 where a cache held the data; None if
    there is no time.
    """

    layer: str
    estimated_ms: float | None
    memory_ms: float | None
    compute_ms: float | None
    bound: str
    time_ms: float | None
    efficiency: float | None


def target_names() -> tuple[str, ...]:
    """Return the names of the GPUs that trtcal describes."""
    return tuple(sorted(path.stem for path in TARGETS.glob("*.toml")))


def find_target(name: str) -> Target:
    """Return the GPU of this name, or that a TOML file of this path describes."""
    if name in target_names():
        return read_target(TARGETS / f"{name}.toml")
    if not Path(name).is_file():
        known = ", ".join(target_names())
        raise InputError(
            f"{name!r} is neither a known target nor a file",
            f"known are {known}; a file of your own holds {EXAMPLE}",
        )
    return read_target(Path(name))


def read_target(path: Path) -> Target:
    """Read a GPU's description; `InputError` if a rate is missing or no such number."""
    try:
        with path.open("rb") as file:
            table = tomllib.loads(file.read(MAX_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as TOML: {error}", f"write {EXAMPLE}") from error
    unknown = sorted(set(table) - {"name", *RATES, *OPTIONAL})
    if unknown:
        raise InputError(f"{path} has unknown key {unknown[0]!r}", f"write {EXAMPLE}")
    rates = {key: _rate(path, table, key) for key in RATES}
    tf32 = _rate(path, table, "tf32_tflops") if "tf32_tflops" in table else None
    return Target(str(table.get("name", path.stem)), **rates, tf32_tflops=tf32)


def _rate(path: Path, table: Mapping[str, Any], key: str) -> float:
    value = table.get(key)
    if not isinstance(value, (int, float)) or not LEAST <= value <= MOST or value is True:
        raise InputError(
            f"{path}: {key} must be a number from {LEAST} to {MOST:g}", f"write {EXAMPLE}"
        )
    return float(value)


def estimate(layer: Layer, target: Target) -> Estimate:
    """Estimate one layer; only what is known of it counts, and `bound` says what that is.

    `bound` is memory, compute, none (nothing to do) or unknown.
    """
    memory = _memory_ms(layer, target)
    compute = _compute_ms(layer, target)
    known = [ms for ms in (memory, compute) if ms is not None]
    limit = max(known) if memory is not None else None
    if limit is None or (layer.is_heavy and compute is None):
        bound = "unknown"
    elif limit == 0:
        bound = "none"
    else:
        bound = "compute" if compute == limit else "memory"
    time = layer.time_ms
    efficiency = limit / time if limit is not None and time else None
    return Estimate(layer.name, limit, memory, compute, bound, time, efficiency)


def _memory_ms(layer: Layer, target: Target) -> float | None:
    moved = layer.bytes_moved
    return None if moved is None else moved / target.bandwidth_gb_s / 1e6


def _compute_ms(layer: Layer, target: Target) -> float | None:
    rate = target.rate_of(layer)
    if layer.macs is None or rate is None:
        return None
    return 2 * layer.macs / rate / 1e9
