"""Measures the engines of an archive of `trtcal bundle --measure` by TensorRT's Python package.

    PYTHONPATH=worker.pyz python3 -m trtcal_worker.measuring tensorrt

It runs in the archive's folder, where `trtexec` is not. What it writes to `results/` has the forms of
trtexec's files, so that one reader reads both. Not yet run on a GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .frames import Fault
from .machine import hardware
from .runtimes import Tensor, runtime
from .tensorrt_routes import write_file
from .timing import time_engines
from .trtexec_runtime import FORMATS

ROUNDS = 100
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
    about = _about(module, many) + "".join(f"[W] {text}\n" for text in timing["warnings"])
    for number, (engine, folder) in enumerate(zip(engines, folders)):
        times, outputs = json.dumps(_times(timing, number)), _outputs(engine.run(few, None))
        files = {"times-1.log": about, "times-1.json": times, "output.json": outputs}
        for file, text in files.items():
            write_file(str(folder), file, text.encode())
        engine.close()


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
    with (folder / "build.log").open("w", encoding="utf-8") as log:
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


def _about(module: Any, feeds: dict[str, Tensor]) -> str:
    known, (name, tensor) = hardware(), next(iter(feeds.items()))
    return LOG.format(
        name="{}{name}".format("CPU " if known["kind"] == "CPU" else "", **known),
        capability=re.sub(r"sm(\d+)(\d)$", r"\1.\2", known.get("capability", "unknown")),
        version=module.version(),
        input=name,
        shape="x".join(map(str, tensor.shape)),
    )


def _times(timing: dict[str, Any], number: int) -> list[dict[str, float]]:
    whole, compute = [
        [ms for row in table for ms in row[number]]
        for table in (timing["times_ms"], timing["compute_ms"] or timing["times_ms"])
    ]
    return [
        {"latencyMs": ms, "computeMs": part, "h2dMs": max(ms - part, 0.0), "d2hMs": 0.0}
        for ms, part in zip(whole, compute)
    ]


def _outputs(tensors: dict[str, Tensor]) -> str:
    rows = []
    for name, tensor in tensors.items():
        if tensor.dtype in FORMATS:
            values = struct.iter_unpack("<" + FORMATS[tensor.dtype], bytes(tensor.data))
            text, shape = (
                ", ".join(repr(value) for (value,) in values),
                "x".join(map(str, tensor.shape)),
            )
            row = f'"name" : "{name}", "dimensions" : "{shape}", "values" : [ {text} ]'
            rows.append("{ " + row + " }")
    return "[\n  " + "\n, ".join(rows) + "\n]\n"


if __name__ == "__main__":
    try:
        measure(sys.argv[1], Path(os.getcwd()))
    except Fault as fault:
        sys.exit(f"error: {fault}")
