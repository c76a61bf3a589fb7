"""CPU seconds and peak memory of commands over the nodes of a graph, and the exponent of the growth.

    python -m benchmarks.graph_scale [--sizes 500 1000 2000 4000]

Residual blocks of small convolutions on four samples, so that the graph's cost dominates. Each command
is a process. The exponent is that of a power law through the sizes, with the CPU seconds that the
command takes for 10 nodes subtracted; it is near 1 where a command is linear.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

COMMANDS = {
    "calibrate": "calibrate {model} --data {data} -o {out}/calibration.json --method percentile",
    "quantize": "quantize {model} --calibration {out}/calibration.json -o {out}/int8.onnx",
    "prepare": "prepare {model} -o {out}/prepared.onnx",
    "ranges show": "ranges show {out}/calibration.json",
    "layers show MODEL": "layers show {out}/int8.onnx --gpu t4",
    "layers fusions": "layers fusions {out}/int8.onnx",
    "diagnose --model": "diagnose --model {out}/int8.onnx",
    "build": "build {out}/int8.onnx --target cpu -o {out}/cpu",
    "layers show BUILD": "layers show {out}/cpu",
    "diagnose": "diagnose {out}/cpu",
    "log": "log {out}/cpu/build.log",
    "compare": "compare {model} {out}/int8.onnx --data {data} --rounds 10 -o {out}/compare.json",
}
CHANNELS, SIDE, SAMPLES = 8, 8, 4
START = 10  # nodes of a network that costs start-up alone


def residual(nodes: int) -> onnx.ModelProto:
    """Return a network of residual blocks with as many nodes, five a block."""
    rng, made, weights, last = np.random.default_rng(1), [], [], "x"
    for block in range(nodes // 5):
        names = [f"block{block}_{part}" for part in ("conv1", "relu1", "conv2", "add", "relu2")]
        conv1, relu1, conv2, add, relu2 = names
        for name, scale in ((conv1, 0.08), (conv2, 0.02)):
            values = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) * scale
            weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}_w"))
        inputs = [[last, f"{conv1}_w"], [conv1], [relu1, f"{conv2}_w"], [conv2, last], [add]]
        for op, name, read in zip(
            ("Conv", "Relu", "Conv", "Add", "Relu"), names, inputs, strict=True
        ):
            pads = {"pads": [1] * 4} if op == "Conv" else {}
            made.append(helper.make_node(op, read, [name], name, **pads))
        last = relu2
    shape = ["batch", CHANNELS, SIDE, SIDE]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", last)]
    graph = helper.make_graph(made, "residual", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def measure(line: list[str]) -> tuple[float, float]:
    """Run a command of trtcal; return its CPU seconds and its peak memory in MB."""
    code = (
        "import sys; from trtcal.cli.main import run_command; sys.exit(run_command(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, *line]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) > 1:  # 1 is an answer
        raise SystemExit(f"trtcal {' '.join(line)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    sizes = [START, *parser.parse_args().sizes]
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            model, data = Path(folder, f"{size}.onnx"), Path(folder, f"{size}.npz")
            onnx.save(residual(size), model)
            samples = np.random.default_rng(2).random((SAMPLES, CHANNELS, SIDE, SIDE), np.float32)
            np.savez(data, x=samples)
            for name, line in COMMANDS.items():
                words = [w.format(model=model, data=data, out=folder) for w in line.split()]
                rows[name].append(measure(words))
    print(f"{'CPU seconds at nodes':20}" + "".join(f"{size:8}" for size in sizes) + " exponent  MB")
    for name, figures in rows.items():
        start, *seconds = [cpu for cpu, _ in figures]
        grown = [max(cpu - start, 0.01) for cpu in seconds]
        growth = np.polyfit(np.log(sizes[1:]), np.log(grown), 1)[0]
        cells = "".join(f"{cpu:8.2f}" for cpu in (start, *seconds))
        print(f"{name:20}{cells} {growth:8.2f} {figures[-1][1]:4.0f}")


if __name__ == "__main__":
    main()
