"""CPU seconds and peak memory of commands over the nodes of a graph, and the exponent of the growth.

    python -m benchmarks.graph_scale [--sizes 500 1000 2000 4000]

Residual blocks of small convolutions on four samples, so that the graph's cost dominates. Each command
is a process. The exponent is that of a power law through the sizes, with the CPU seconds that the
command takes for 10 nodes subtracted; it is near 1 where a command is linear.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

from benchmarks.costs import run
from benchmarks.made_networks import deep

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
SAMPLES = 4
START = 10  # nodes of a network that costs start-up alone


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    sizes = [START, *parser.parse_args().sizes]
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            model, data = Path(folder, f"{size}.onnx"), Path(folder, f"{size}.npz")
            onnx.save(deep(size), model)
            samples = np.random.default_rng(2).random((SAMPLES, 3, 16, 16), np.float32)
            np.savez(data, input=samples)
            for name, line in COMMANDS.items():
                words = line.format(model=model, data=data, out=folder).split()
                cost = run([str(Path(sys.executable).parent / "trtcal"), *words], Path(folder))
                if cost is None:
                    raise SystemExit(f"trtcal {name} failed")
                rows[name].append((cost.cpu, cost.megabytes))
    print(f"{'CPU seconds at nodes':20}" + "".join(f"{size:8}" for size in sizes) + " exponent  MB")
    for name, figures in rows.items():
        start, *seconds = [cpu for cpu, _ in figures]
        grown = [max(cpu - start, 0.01) for cpu in seconds]
        growth = np.polyfit(np.log(sizes[1:]), np.log(grown), 1)[0]
        cells = "".join(f"{cpu:8.2f}" for cpu in (start, *seconds))
        print(f"{name:20}{cells} {growth:8.2f} {figures[-1][1]:4.0f}")


if __name__ == "__main__":
    main()
