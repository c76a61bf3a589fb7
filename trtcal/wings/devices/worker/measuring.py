"""Measures the engines of an archive of `trtcal bundle --measure` by TensorRT's Python package.

    PYTHONPATH=worker.pyz python3 -m trtcal_worker.measuring tensorrt

It runs in the archive's folder, where `trtexec` is not. What it writes to `results/` has the forms of
trtexec's files, so that one reader reads both. Not yet run on a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from functools import reduce
from operator import mul
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .frames import Fault
from .machine import hardware
from .runtimes import Tensor, runtime
from .timing import time_engines

ROUNDS = 100
CODES = {"float32": "f", "float64": "d", "float16": "e", "int64": "q", "int32": "i", "int8": "b"}
LOG = """=== Device Information ===
[I] Selected Device: {name}
[I] Compute Capability: {capability}
[I] TensorRT version: {version}
[I] Input binding for {input} with dimensions {shape}
[I] Timed in turns with the other engines
"""


def measure(name: str, place: Path) -> None:
    """Build, time and run all engines; what they write lies in `place/results`."""
    archive, module = json.loads((place / "measure.json").read_text()), runtime(name)
    folders = [place / "results" / str(number) for number in range(len(archive["variants"]))]
    paths = [_build(module, archive, place, folder) for folder in folders]
    engines = [module.open(path, {}) for path in paths]
    few = {each["name"]: _tensor(each, place, None) for each in archive["inputs"]}
    many = {each["name"]: _tensor(each, place, archive["batch"]) for each in archive["inputs"]}
    for engine in engines:
        engine.prepare(many)
    timing = time_engines(engines, SimpleNamespace(fields={"rounds": ROUNDS}), print)
    about = _about(module, archive, many) + "".join(f"[W] {text}\n" for text in timing["warnings"])
    for number, (engine, folder) in enumerate(zip(engines, folders)):
        _write(folder / "times-1.log", about)
        _write(folder / "times-1.json", json.dumps(_times(timing, number), indent=1))
        _write(folder / "output.json", _outputs(engine.run(few, None)))
        engine.close()


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)


def _build(module: Any, archive: dict[str, Any], place: Path, folder: Path) -> str:
    variant, old = archive["variants"][int(folder.name)], str(module.version()).startswith("8.")
    models = sorted(variant["files"])  # N-trt8.onnx comes before N.onnx
    model = str(place / models[0 if old else -1])
    request = {
        "profiles": [archive["profiles"]] if archive["profiles"] else [],
        "layer_times": True,
        "quantized": "q" in variant["kind"],
        "fp16": "h" in variant["kind"],
    }
    work = place / f"engine-{folder.name}"
    for each in (folder, work):
        each.mkdir(parents=True)
    with (folder / "build.log").open("w") as log:
        job = SimpleNamespace(options=request, path=lambda _: model)
        files = module.build(job, str(work), lambda text: print(text, file=log))["files"]
    for kind, file in (("layers", "layers.json"), ("layer_times", "profile.json")):
        if kind in files:
            shutil.copyfile(files[kind], str(folder / file))
    return str(files["engine"])


def _tensor(described: dict[str, Any], place: Path, batch: int | None) -> Tensor:
    """Return an input's values, those of a larger batch by repeating them."""
    data, shape = (place / described["file"]).read_bytes(), list(described["shape"])
    if batch and described["is_open"]:
        size = len(data) // shape[0] * batch
        data, shape[0] = (data * -(-size // len(data)))[:size], batch
    return Tensor(described["type"], tuple(shape), data)


def _about(module: Any, archive: dict[str, Any], feeds: dict[str, Tensor]) -> str:
    known, first = hardware(), archive["inputs"][0]["name"]
    capability = known["capability"] or "unknown"
    return LOG.format(
        name="{}{name}".format("CPU " if known["kind"] == "CPU" else "", **known),
        capability=capability.replace("sm", "")[:-1] + "." + capability[-1],
        version=module.version(),
        input=first,
        shape="x".join(map(str, feeds[first].shape)),
    )


def _times(timing: dict[str, Any], number: int) -> list[dict[str, float]]:
    whole = [ms for block in timing["times_ms"] for ms in block[number]]
    compute = [ms for block in timing["compute_ms"] or timing["times_ms"] for ms in block[number]]
    return [
        {"latencyMs": ms, "computeMs": part, "h2dMs": max(ms - part, 0.0), "d2hMs": 0.0}
        for ms, part in zip(whole, compute)
    ]


def _outputs(tensors: dict[str, Tensor]) -> str:
    rows = []
    for name, tensor in tensors.items():
        if tensor.dtype in CODES:
            count = reduce(mul, tensor.shape, 1)
            values = struct.unpack(f"<{count}{CODES[tensor.dtype]}", bytes(tensor.data))
            sizes, text = "x".join(map(str, tensor.shape)), ", ".join(map(repr, values))
            row = (
                f'{{ "name" : "{name}"\n  , "dimensions" : "{sizes}"\n  , "values" : [ {text} ] }}'
            )
            rows.append(row)
    return "[\n  " + "\n, ".join(rows) + "\n]\n"


if __name__ == "__main__":
    try:
        measure(sys.argv[1], Path(os.getcwd()))
    except Fault as fault:
        sys.exit(f"error: {fault}")
