"""The stages of the first day with a GPU: what each needs, runs and settles."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PYTHON, CLI = sys.executable, "from trtcal.cli.main import main; main()"
NETWORKS = ("digits", "classifier", "detector", "vit", "resnet50")
ROUTES = {
    "qdq": ("fp32", "fp16", "int8", "int8-fp16"),
    "routes": ("ranges", "cache", "obey"),
    "calibrators": ("entropy2", "entropy", "minmax"),
}
ON_DEVICE = (
    ("run", "a whole run on @gpu: latency, energy, estimates beside measurements", "tensorrt"),
    (
        "routes",
        "engines by dynamic ranges and cache through the worker",
        "tensorrt",
        "TensorRT up to 10",
    ),
    ("precisions", "FP8, INT4 and NVFP4 on the GPU", "tensorrt", "TensorRT 10 or later"),
    ("bundle", "a bundle made for this GPU and verified on it", "tensorrt"),
)
MARKED = {
    "docs/guides/beyond-int8.md": "device-precisions",
    "docs/backends.md": "providers, routes",
    "docs/plans.md": "qdq",
    "docs/traceability.md": "qdq",
    "README.md": "device-precisions, device-run, routes, providers",
    "trtcal/backends/": "device-bundle",
    "trtcal/runs/bundle/": "device-bundle",
    "trtcal/wings/devices/worker/trtexec_runtime.py": "no stage: a device that has trtexec alone",
    "trtcal/wings/devices/worker/measuring.py": "no stage: `trtcal bundle --measure` there",
    "trtcal/wings/devices/worker/tensorrt_routes.py": "device-routes",
    "trtcal/wings/devices/": "device-run",
    "docs/devices.md": "device-run",
}
"""Where something is marked as never run on a GPU, and the stage that runs it."""
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TRTCAL = {
    name: name
    for name in ("click", "filelock", "flatbuffers", "jinja2", "matplotlib", "numba", "numpy", "onnx")
} | {
    "google-re2": "re2", "onnx-graphsurgeon": "onnx_graphsurgeon", "ml-dtypes": "ml_dtypes",
    "onnxruntime": "onnxruntime", "pillow": "PIL", "polygraphy": "polygraphy", "rich": "rich",
    "scipy": "scipy", "threadpoolctl": "threadpoolctl",
    **({"tomli": "tomli"} if sys.version_info < (3, 11) else {}),
}  # fmt: skip
"""trtcal's dependencies, and the module by which each is seen."""
SIZES_MIB = {"numpy": 15, "trtcal": 173, "tensorrt": 445, "pycuda": 2, "onnxruntime-gpu": 300}
"""What a need weighs: wheels for Python 3.12; TensorRT is 8.6.0's libraries, as xz."""


@dataclass(frozen=True)
class Stage:
    """One thing to find out on a GPU: its commands, in order, and what it needs besides the GPU."""

    name: str
    settles: str
    commands: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...] = ("numpy",)
    minutes: float = 8.0

    @property
    def size_mib(self) -> int:
        """Return how much of what it needs is to be carried here."""
        return sum(SIZES_MIB.get(need, 0) for need in self.needs if lacks(need))


def stages(work: Path, wheels: Path | None, elements: int) -> list[Stage]:
    """Return all stages, the cheapest first; `work` is a folder for engines, kept between calls."""
    image = str((wheels or work) / "kernel.ptx")
    kernel = (PYTHON, "-m", "benchmarks.gpu.kernel", "--image", image, "--elements", str(elements))
    check = tuple(
        ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *kernel, "--check")
        for tool in TOOLS
    )
    pycuda = ((PYTHON, "-m", "benchmarks.cuda_histogram"),)
    build = (PYTHON, "-c", CLI, "build", "samples/digits/digits.onnx", "--target")
    providers = tuple((*build, name, "-o", str(work / name)) for name in ("cuda", "tensorrt-ep"))

    def device(kind: str) -> tuple[str, ...]:
        return PYTHON, "-m", "benchmarks.gpu.device", str(work), kind

    return [
        Stage("kernel", "the compiled kernels' counts, speed and energy", (kernel,)),
        Stage("sanitizer", "races and memory errors", check, ("numpy", "compute-sanitizer")),
        Stage("pycuda", "digests and speed through PyCUDA", pycuda, ("trtcal", "pycuda", "nvcc")),
        Stage("device-local", "the worker and `device check`", (device("local"),), ("trtcal",)),
        Stage(
            "device-ssh", "the same by ssh", (device("ssh"),), ("trtcal", "pytest", "sshd", "ssh")
        ),
        *(_network(work, network, route) for route in ROUTES for network in NETWORKS),
        *(
            Stage(f"device-{kind}", what, (device(kind),), ("trtcal", *needs))
            for kind, what, *needs in ON_DEVICE
        ),
        Stage(
            "providers",
            "ONNX Runtime's providers on the GPU",
            providers,
            ("trtcal", "onnxruntime-gpu"),
        ),
    ]


def _network(work: Path, network: str, route: str) -> Stage:
    variants = f"--variants={','.join(ROUTES[route])}"
    steps = (("prepare",), ("measure", variants), ("report", variants))
    commands = tuple(
        (PYTHON, "-m", "benchmarks.tensorrt_gpu", step, str(work), network, *more)
        for step, *more in steps
    )
    settles = {
        "qdq": "Q/DQ engines beside the simulation, latency, layer times",
        "routes": "engines by dynamic ranges, by the cache, by obeyed precisions",
        "calibrators": "our calibrators in a real builder, its ranges beside ours",
    }[route]
    needs = ("trtcal", "tensorrt", *["pycuda"] * (route == "calibrators"))
    needs += ("TensorRT up to 10",) * (route != "qdq")
    return Stage(f"{route}-{network}", settles, commands, needs)


def lacks(need: str) -> str | None:
    """Return in a few words what of a need is not here; None if nothing."""
    known: dict[str, Callable[[], str | None]] = {
        "gpu": lambda: None if gpu() else "no GPU that the driver shows",
        "nvcc": lambda: _program("nvcc"),
        "sshd": lambda: _program("sshd", "/usr/sbin:/usr/bin"),
        "ssh": lambda: _program("ssh"),
        "compute-sanitizer": lambda: _program("compute-sanitizer"),
        "trtcal": _packages,
        "onnxruntime-gpu": lambda: _package("onnxruntime-gpu"),
        "TensorRT up to 10": lambda: _tensorrt(lambda major: major <= 10, "calibrators"),
        "TensorRT 10 or later": lambda: _tensorrt(lambda major: major >= 10, "these formats"),
    }
    return known.get(need, lambda: _module(need))()


def _program(name: str, path: str | None = None) -> str | None:
    return None if shutil.which(name) or shutil.which(name, path=path) else f"no {name}"


def _module(name: str) -> str | None:
    if find_spec(name):
        return None
    size = SIZES_MIB.get(name)
    return f"no {name}: {size} MiB" if size else f"no {name}"


def _package(name: str) -> str | None:
    try:
        version(name)
    except PackageNotFoundError:
        return f"no {name}: {SIZES_MIB[name]} MiB"
    return None


def _packages() -> str | None:
    missing = [name for name, module in TRTCAL.items() if not find_spec(module)]
    shown = f"no {', '.join(missing[:2])}" + f" and {len(missing) - 2} more" * (len(missing) > 2)
    return f"{shown}: up to {SIZES_MIB['trtcal']} MiB" if missing else None


def _tensorrt(fits: Callable[[int], bool], what: str) -> str | None:
    for name in ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"):
        try:
            major, *rest = version(name).split(".")
        except PackageNotFoundError:
            continue
        return None if fits(int(major)) else f"TensorRT {'.'.join([major, *rest])} has not {what}"
    return None  # that there is none, the need `tensorrt` says


@cache
def gpu() -> dict[str, Any] | None:
    """Return the GPU as the driver describes it; a driver that hangs or crashes shows none."""
    code = "import json\nfrom benchmarks.gpu import worker\n"
    code += "print(json.dumps(worker.module('power').describe()))"
    home = Path(__file__).parents[2]
    try:
        done = subprocess.run(  # noqa: S603
            [PYTHON, "-c", code], capture_output=True, text=True, timeout=60, cwd=home
        )
        found: dict[str, Any] | None = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return found
