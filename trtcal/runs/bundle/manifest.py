"""A bundle's manifest: what is in the bundle, by digest, and what it was made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path

from trtcal.backends.options import shape_ranges
from trtcal.backends.targets import CAPABILITY, PORTABLE, parse_target, runs_on
from trtcal.documents import Document, digest_file, files_in
from trtcal.errors import __version__
from trtcal.evidence.gpus import GPUS
from trtcal.evidence.manifest import Build
from trtcal.runs.bundle.verifying import HEADER, MANIFEST, PREDICATE, SIGNATURE
from trtcal.runs.statement import statement

LATEST_PORTABLE = "sm120"
"""From this capability on portable engines run on all; source: TensorRT-RTX's documents."""
DRIVERS = {"11": "450.80.02", "12": "525.60.13", "13": "580"}
"""CUDA's major version -> the first Linux driver that runs all of it; source: CUDA's release notes."""
ON_CPU = "onnxruntime"


def manifest_of(folder: Path, contents: Document, materials: Mapping[str, str]) -> Document:
    """Return the in-toto Statement of everything in a folder: what it is, and was made of by name."""
    names = (name for name in files_in(folder) if name not in (MANIFEST, SIGNATURE))
    subjects = {name: digest_file(folder / name) for name in names}
    sizes = {name: (folder / name).stat().st_size for name in subjects}
    predicate = {**contents, "trtcal": __version__, "sizes": sizes}
    return statement(subjects, materials, PREDICATE, predicate)


def describe_engine(build: Build, file: str, platform: str) -> Document:
    """Return what the manifest says of one engine; `platform` is the architecture it was built on.

    `capabilities` are the GPUs that it was built for; a portable one loads on those of `portable_to`,
    and on what is later than `at_least`. `shapes` are the smallest, usual and largest one of each
    dynamic input, by optimization profile.
    """
    with build.engine.open("rb") as opened:
        header = opened.read(HEADER).hex()
    is_portable = build.target == PORTABLE
    profiles = [] if build.backend == ON_CPU else build.options.get("profiles") or [{}]
    devices = [gpu for gpu in GPUS if is_portable and runs_on(PORTABLE, parse_target(gpu)[0])]
    return {
        "file": file,
        "target": build.target,
        "product": build.backend,
        "version": build.backend_version,
        "header": header,
        "capabilities": _capabilities(build),
        "portable_to": devices,
        "at_least": LATEST_PORTABLE if is_portable else None,
        "compatibility": "portable" if is_portable else "none",
        "gpu": build.gpu,
        "platform": platform,
        "smallest_driver": smallest_driver(build.backend, build.backend_version),
        "plugins": list(build.plugins),
        "shapes": [{**shape_ranges(build.inputs, profile)} for profile in profiles],
        "precision": _precision(build),
        "build": build.digest,
        "quantized_model": build.model,
    }


def _capabilities(build: Build) -> list[str]:
    """Return the compute capabilities of an engine: of TensorRT's the one of the GPU it is built on."""
    if build.gpu is not None:
        targets = [build.gpu.rstrip(")").rpartition("(")[2]]
    else:
        targets = build.target.split(",")
    return [target for target in targets if CAPABILITY.fullmatch(target)]


def smallest_driver(product: str, version: str) -> Document | None:
    """Return the CUDA that a TensorRT's packages are for, and the driver that it takes.

    The wheels are named after it: `tensorrt_rtx_cu13`. None if they are not installed.
    """
    if product == ON_CPU:
        return None
    stem = f"{product.replace('-', '_')}_cu"
    for package in distributions():
        name = str(package.metadata["Name"]).replace("-", "_")
        major = name[len(stem) :]
        if name.startswith(stem) and package.version == version and major in DRIVERS:
            return {"cuda": f"{major}.0", "linux": DRIVERS[major]}
    return None


def _precision(build: Build) -> Document:
    """Return how many nodes were asked and got each precision, and the shares of compute."""
    coverage = build.coverage
    return {
        "asked": _counts(outcome.asked for outcome in build.outcomes),
        "got": _counts(outcome.got or "unknown" for outcome in build.outcomes),
        "lost": [outcome.node for outcome in build.outcomes if outcome.is_lost],
        "int8_macs_percent": coverage and coverage.share,
        "narrow_macs_percent": coverage and coverage.shares,
        "is_built": bool(coverage and coverage.is_built),
    }


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
