"""TensorRT 8.5 to 11 by its program `trtexec` alone. Not yet run on a GPU.

Its JSON files are handed on as they are; times and outputs are read here. Every call loads the engine
again, so engines take turns by blocks of runs, and each batch costs seconds.
Source: `samples/trtexec` and `samples/common` in NVIDIA's repository, releases 8.5 to 11.1.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import shutil
import struct
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence

from trtcal.backends.tensorrt_objects import usual_shapes
from trtcal.backends.trtexec_words import build_words, quoted, shape_words

from . import jobs
from .frames import Fault
from .power import open_meter
from .runtimes import Tensor
from .tensorrt_routes import cache_of_ranges, converted, typing_of, write_file
from .timing import order_of, timing_result

if TYPE_CHECKING:
    from .jobs import Job

FOLDERS = ("/usr/src/tensorrt/bin", "/opt/tensorrt/bin")
BANNER = re.compile(r"\[TensorRT v(\d+?)(\d\d?)(\d\d)\]")  # v8601, v101601
ERROR = re.compile(r"\[E\] (.*)")
NO_GRAPH = re.compile(r"\[W\] (.* without using CUDA graph .*)")
FILES = {
    "engine": "engine.plan",
    "layers": "layers.json",
    "layer_times": "layer-times.json",
    "cache": "calibration.cache",
}
LOAD_BUILT = "--loadEngine=" + FILES["engine"]
OUTPUTS, TIMES = "outputs.json", "times.json"
BLOCKS = 4  # calls for an engine in each direction
FORMATS = {"float32": "f", "float16": "e", "int8": "b", "int32": "i", "int64": "q", "bool": "?"}


def program() -> str | None:
    """Return the path of `trtexec`: that of the PATH, else where NVIDIA's packages put it."""
    return shutil.which("trtexec", path=os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]))


@functools.lru_cache(maxsize=None)
def version() -> str | None:
    """Return the version that `trtexec` prints first, if it is installed and starts."""
    command = [program() or "trtexec", "--help"]
    try:
        done = subprocess.run(  # noqa: S603  # TensorRT's own program
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    banner = BANNER.search(done.stdout.decode("utf-8", "replace"))
    return ".".join(str(int(digits)) for digits in banner.groups()) if banner else None


def _numbers() -> tuple[int, int]:
    """Return the first two numbers of the version; a fault if there is no trtexec, or an old one."""
    major, minor = [int(part) for part in (version() or "0.0").split(".")[:2]]
    if (major, minor) < (8, 5):
        what = f"trtexec of TensorRT 8.5 or later is needed on the device, there is {version()}"
        raise Fault("backend", what.replace("None", "none"), "sudo apt-get install libnvinfer-bin")
    return major, minor


def build(job: Job, folder: str, log: Callable[[str], None]) -> dict[str, Any]:
    """Build an engine, and list its layers; see `runtimes.py`."""
    request, numbers = job.options, _numbers()
    words = ["--onnx=" + job.path("model"), "--saveEngine=" + FILES["engine"], "--verbose"]
    words += ["--noTF32", "--skipInference" if numbers >= (8, 6) else "--buildOnly"]
    words += ["--exportLayerInfo=" + FILES["layers"], *option_words(request, numbers)]
    if request.get("route", "qdq") != "qdq":
        cache = cache_of_ranges(str(version()), request["kind"], request.get("ranges") or {})
        write_file(folder, FILES["cache"], cache)
    run(words, folder, log)
    if request.get("layer_times"):
        words = [LOAD_BUILT, "--exportProfile=" + FILES["layer_times"], "--duration=0"]
        words += ["--iterations=100", *shape_words("shapes", usual_shapes(request))]
        run(words, folder, log)
    paths = {name: os.path.join(folder, file) for name, file in FILES.items()}
    return {"files": {name: path for name, path in paths.items() if os.path.exists(path)}}


def option_words(request: Mapping[str, Any], numbers: tuple[int, int]) -> list[str]:
    """Return the options of one build; a fault where this version's trtexec has none."""
    profiles = request.get("profiles") or []
    if len(profiles) > 1 and numbers < (10, 0):
        raise _cannot("several optimization profiles")
    if request.get("optimization_level") is not None and numbers < (8, 6):
        raise _cannot("the optimization level of the builder")
    check_names(name for profile in profiles for name in profile)
    return build_words(request) + typing_words(request, numbers)


def _cannot(what: str) -> Fault:
    hint = "install TensorRT's Python package there, or leave the option out"
    return Fault("input", f"trtexec {version()} on the device has no option for {what}", hint)


def typing_words(request: Mapping[str, Any], numbers: tuple[int, int]) -> list[str]:
    """Return the options for precision: none from 11 on, strong typing in 10, flags before.

    Of the routes beside Q/DQ only `cache` of the class that trtexec has is left, up to 10.
    """
    route, kind = request.get("route", "qdq"), request.get("kind")
    if route == "qdq" and numbers >= (9, 0):
        return ["--stronglyTyped"] if numbers < (11, 0) else []
    if route != "qdq" and ((route, kind) != ("cache", "entropy2") or numbers >= (11, 0)):
        raise _cannot(f"the route {route} of {kind}")
    int8, fp16, precisions, constraints = typing_of(request)
    words = ["--int8"] if int8 else []
    words += ["--calib=" + FILES["cache"]] if route == "cache" else []
    words += ["--fp16"] if fp16 else []
    if constraints:
        check_names(precisions)
        pairs = [f"{quoted(name)}:{precision}" for name, precision in precisions.items()]
        words += ["--precisionConstraints=" + constraints, "--layerPrecisions=" + ",".join(pairs)]
    return words


def check_names(names: Iterable[str]) -> None:
    """Raise a fault if a name cannot be in one of trtexec's lists."""
    for name in names:
        if not name or set(name) & {",", "'"}:
            raise _cannot(f"the name {name!r}")


def run(words: Iterable[str], folder: str, log: Callable[[str], None]) -> None:
    """Run trtexec in a folder; a fault with its first error if it fails."""
    errors: list[str] = []

    def say(line: str) -> None:
        errors.extend(ERROR.findall(line))
        log(line)

    status = jobs.run_program([program() or "trtexec", *words], folder, say)
    if status:
        why = errors[0].strip() if errors else f"exit status {status}"
        raise Fault("backend", f"trtexec {version()} failed: {why}", "read the build log")


def open(path: str, options: dict[str, Any]) -> Engine:  # noqa: A001  # the interface's name
    """Take an engine; `inputs` and `outputs` in the options are the model's, with their types."""
    return Engine(path, *[_described(options, name) for name in ("inputs", "outputs")])


def _described(options: Mapping[str, Any], which: str) -> list[dict[str, Any]]:
    """Return inputs or outputs in the engine's types: before TensorRT 10 there is no int64."""
    is_narrow = _numbers() < (10, 0)
    try:
        types = [str(item["dtype"]) for item in options[which]]
    except (KeyError, TypeError) as error:
        what = f"trtexec does not tell what the engine's {which} are"
        raise Fault("input", what, "install TensorRT's Python package there") from error
    types = [dtype.replace("int64", "int32") if is_narrow else dtype for dtype in types]
    return [dict(item, dtype=dtype) for item, dtype in zip(options[which], types)]


class Engine:
    """An engine that is loaded for each batch."""

    def __init__(self, path: str, inputs: list[Any], outputs: list[Any]) -> None:
        self.metadata: dict[str, str] = {}
        self._path, self.inputs, self.outputs = path, inputs, outputs

    def run(self, feeds: dict[str, Tensor], names: list[str] | None) -> dict[str, Tensor]:
        """Run one batch."""
        types = {item["name"]: item["dtype"] for item in self.inputs + self.outputs}
        with tempfile.TemporaryDirectory(dir=os.path.dirname(self._path)) as folder:
            words = ["--iterations=1", "--duration=0", "--warmUp=0", *running_words(False)]
            words += [f"--loadEngine={self._path}", f"--exportOutput={OUTPUTS}"]
            run([*words, *fed_words(feeds, types, folder)], folder, lambda _: None)
            outputs = read_outputs(Path(folder, OUTPUTS).read_text("utf-8"), types)
        chosen = list(outputs) if names is None else names
        if any(name not in outputs for name in chosen):
            raise Fault("backend", f"trtexec wrote only the outputs {', '.join(outputs)}")
        return {name: outputs[name] for name in chosen}

    def close(self) -> None:
        """Do nothing: nothing is loaded."""


def fed_words(feeds: Mapping[str, Tensor], types: Mapping[str, str], folder: str) -> list[str]:
    """Write a batch to files, in the engine's types; return the options that load it."""
    check_names(feeds)
    pairs = []
    for number, (name, tensor) in enumerate(feeds.items()):
        write_file(folder, f"{number}.bin", converted(tensor, name, types.get(name)))
        pairs.append(f"{quoted(name)}:{number}.bin")
    words = ["--loadInputs=" + ",".join(pairs)]
    return words + shape_words("shapes", {name: tensor.shape for name, tensor in feeds.items()})


NOT_JSON = re.compile(r"(?<=[\[,\s])(?:-?(nan)(?:\(\w*\))?|(-?)inf)(?=[\],\s])")


def read_outputs(text: str, types: Mapping[str, str]) -> dict[str, Tensor]:
    """Return what `--exportOutput` holds; values have the six digits that trtexec writes.

    `types` are those of the outputs. A fault for what is not such a file.
    """
    spelled = NOT_JSON.sub(lambda number: "NaN" if number[1] else f"{number[2]}Infinity", text)
    try:
        return {item["name"]: _tensor(item, types[item["name"]]) for item in json.loads(spelled)}
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise Fault("backend", f"trtexec's outputs cannot be read: {error!r}") from error


def _tensor(item: Mapping[str, Any], dtype: str) -> Tensor:
    shape = tuple(int(size) for size in item["dimensions"].split("x") if size)
    values = item["values"]
    if len(values) != functools.reduce(operator.mul, shape, 1):
        raise ValueError(f"{item['name']} has {len(values)} values for {shape}")
    return Tensor(dtype, shape, struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values))


# Timing.


def time(
    paths: Sequence[str],
    feeds: dict[str, Tensor],
    job: Job,
    folder: str,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Time engines in turns by blocks of runs; see `timing.timing_result`."""
    rounds = int(job.fields["rounds"])
    size = -(-rounds // BLOCKS)
    words = ["--warmUp=200", "--duration=0", f"--iterations={size}", f"--exportTimes={TIMES}"]
    types = {item["name"]: item["dtype"] for item in _described(job.options, "inputs")}
    words += [*running_words(bool(job.fields.get("cuda_graph"))), *fed_words(feeds, types, folder)]
    clocks = []  # the highest of each call: the GPU is idle while an engine is loaded
    warnings: dict[str, None] = {}

    def say(line: str) -> None:
        warnings.update(dict.fromkeys(NO_GRAPH.findall(line)))
        log(line)

    blocks: list[list[list[Any]]] = [[[] for _ in paths] for _ in range(-(-rounds // size))]
    with closing(open_meter()) as meter:
        for number, row in enumerate(blocks):
            for index in order_of(number, len(paths)):
                with meter.sampling() as seen:
                    run([f"--loadEngine={paths[index]}", *words], folder, say)
                clocks.append(max(seen, default=0.0))
                row[index].append(read_times(Path(folder, TIMES).read_text("utf-8"), size))
    runs = [cells for row in blocks for cells in zip(*[list(zip(*turns)) for turns in row])]
    return timing_result(runs[:rounds], (clocks[0], clocks[-1]), [*warnings, *meter.warnings()])


def running_words(with_graph: bool) -> list[str]:
    """Return the options with which each run has its transfers, and nothing overlaps them.

    From 11 on trtexec leaves transfers out and takes a CUDA graph by default.
    """
    if _numbers() >= (11, 0):
        return ["--exposeDMA", "--includeDataTransfers", *([] if with_graph else ["--noCudaGraph"])]
    return ["--exposeDMA", "--useSpinWait", *(["--useCudaGraph"] if with_graph else [])]


def read_times(text: str, count: int) -> list[tuple[float, float]]:
    """Return (latency, compute) in milliseconds of `count` runs in a file of `--exportTimes`."""
    try:
        runs = [(float(run["latencyMs"]), float(run["computeMs"])) for run in json.loads(text)]
    except (ValueError, KeyError, TypeError) as error:
        raise Fault("backend", f"trtexec's times cannot be read: {error!r}") from error
    if len(runs) < count or not all(latency > 0 for latency, _ in runs):
        raise Fault("backend", f"trtexec measured {len(runs)} runs, not {count}")
    return runs[:count]
