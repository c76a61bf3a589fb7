"""Peak memory of an observation at 1,024 samples, against that at 64.

    python -m benchmarks.calibration_memory [network ...]

Each runs as `trtcal calibrate` in a process of its own; its peak is what the system says of it. The
samples lie in an .npz on disk. One line a network: both peaks in MB, and their ratio.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.int8_speed import describe_machine
from benchmarks.networks import light_network, random_images
from trtcal.model import Model

NETWORKS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
FEW, MANY = 64, 1024
# Linux counts what the parent had into a child's ru_maxrss, so the child reads its own peak.
CHILD = """
import pathlib, sys
from trtcal.cli.main import run_command
status = run_command(sys.argv[1:])
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
print(*[line for line in lines if line.startswith("VmHWM")])
sys.exit(status)
"""


def write_samples(path: Path, model: Model, samples: int) -> None:
    """Write standard-normal samples, the first ones always the same."""
    np.savez(path, **{model.inputs[0].name: random_images(model, samples)})


def peak_mb(model: Model, data: Path, options: list[str]) -> float:
    """Return the peak memory of calibrating in a child process, in MB."""
    command = [sys.executable, "-c", CHILD, "calibrate", str(model.path), "--data", str(data)]
    command += ["-o", str(data.with_suffix(".json")), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.splitlines()[-1].split()[1]) * 1024 / 1e6


def main() -> None:
    """Print the peaks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--option", action="append", default=[], help="for trtcal calibrate")
    options = parser.parse_args()
    print(f"# {describe_machine()} {' '.join(options.option)}")
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            model = light_network(name, Path(folder))
            peaks = []
            for samples in (FEW, MANY):
                data = Path(folder) / "samples.npz"
                write_samples(data, model, samples)
                peaks.append(peak_mb(model, data, options.option))
            few, many = peaks
            print(f"{name:14} {few:.0f} MB, {many:.0f} MB, ratio {many / few:.3f}", flush=True)


if __name__ == "__main__":
    main()
