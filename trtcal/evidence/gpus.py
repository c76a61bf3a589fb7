"""GPUs: the targets of engines by their names, and what their datasheets say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtcal.config import TEXT, Kind, is_finite, key, naming, read_section, read_toml
from trtcal.errors import InputError
from trtcal.formats import PRECISIONS

TARGETS = Path(__file__).parent / "layers" / "targets"
DEFAULT_GPU = "t4"
KNOWN = read_toml(Path(__file__).parent / "gpus.toml")
GPUS: Mapping[str, Sequence[str]] = KNOWN["capabilities"]
"""Target of a build -> the GPUs of that compute capability."""
DATASHEETS: Mapping[str, str] = KNOWN["datasheets"]
"""Of those GPUs -> the datasheet that trtcal has; the first of a capability stands for it."""
MAKERS = re.compile(r"^(nvidia|geforce|tesla|jetson)+")
SIZES = re.compile(r"(ti|super|laptop|gpu|mobile|maxq|sxm\d?|pcie|nvl|generation|\d+gb)+$")


def find_gpu_name(text: str) -> str | None:
    """Return a GPU's name as it stands in `GPUS`, of one such as "NVIDIA GeForce RTX 4090"."""
    plain = MAKERS.sub("", re.sub(r"[\s_-]", "", text.lower()))
    known = {name for names in GPUS.values() for name in names}
    return next((name for name in (plain, SIZES.sub("", plain)) if name in known), None)


def capability_of(gpu: str) -> str | None:
    """Return the target, such as `sm89`, that a GPU's name stands for; None if it is not known."""
    name = find_gpu_name(gpu)
    return next((target for target, names in GPUS.items() if name in names), None)


def datasheet_of(target: str) -> str | None:
    """Return the datasheet of a target, which may be a GPU's name; None if there is none."""
    gpu = find_gpu_name(target)
    names = [gpu] if gpu and gpu in DATASHEETS else GPUS.get(capability_of(target) or target, ())
    return next((DATASHEETS[name] for name in names if name in DATASHEETS), None)


LOWEST_RATE, HIGHEST_RATE = 0.001, 1e9
EXAMPLE = "bandwidth_gb_s = 1555, int8_tops = 624, fp16_tflops = 312, fp32_tflops = 19.5"
RATE = Kind(
    f"a number from {LOWEST_RATE} to {HIGHEST_RATE:g}",
    lambda value: is_finite(value) and LOWEST_RATE <= value <= HIGHEST_RATE,
    float,
)


@dataclass(frozen=True)
class Target:
    """What a GPU can do at best: memory in GB/s, dense rates in 10^12 operations a second.

    One multiply-accumulate is two operations, as in datasheets. `capability` is the target of its
    engines, such as sm89, `platform` its machine's architecture, `cuda` what its driver supports,
    `boost_ghz` the boost clock, `l2_mb` the L2 cache in 10^6 bytes.
    """

    name: str = key(TEXT)
    bandwidth_gb_s: float = key(RATE)
    int8_tops: float = key(RATE)
    fp16_tflops: float = key(RATE)
    fp32_tflops: float = key(RATE)
    tf32_tflops: float | None = key(RATE, None)
    fp8_tflops: float | None = key(RATE, None)
    capability: str | None = key(TEXT, None)
    platform: str | None = key(TEXT, None)
    cuda: str | None = key(TEXT, None)
    boost_ghz: float | None = key(RATE, None)
    l2_mb: float | None = key(RATE, None)

    def rate_in(self, precision: str) -> float | None:
        """Return the rate of a precision's products; None where it is not known."""
        return getattr(self, PRECISIONS[precision].rate or "", None)


def target_names() -> tuple[str, ...]:
    """Return the names of the GPUs that trtcal describes."""
    return tuple(sorted(path.stem for path in TARGETS.glob("*.toml")))


def find_target(name: str) -> Target:
    """Return the GPU of this name, or that a TOML file of this path describes."""
    known = name if name in target_names() else DATASHEETS.get(find_gpu_name(name) or "")
    if known is not None:
        return read_target(TARGETS / f"{known}.toml")
    if not Path(name).is_file():
        hint = f"known targets are {', '.join(target_names())}; your own file has {EXAMPLE}"
        raise InputError(f"{name!r} is neither a known target nor a file", hint)
    return read_target(Path(name))


def read_target(path: Path) -> Target:
    """Read a GPU's description; `InputError` if a rate is missing or no such number."""
    table = read_toml(path, f"write {EXAMPLE}")
    with naming(path):
        return read_section(Target, {"name": path.stem, **table}, EXAMPLE)
