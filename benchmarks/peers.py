"""Quantizers as programs for a process of their own: trtcal, and its peers in their own Pythons.

Each program of a peer takes MODEL DATA FOLDER and settings, and writes one ONNX file into the folder.
DATA is an .npz; each of its rows is a sample, scalars belong to all. At the end it prints its peak
memory: Linux counts what the parent had into a child's ru_maxrss, so the child reads its own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PEAK = """
import pathlib
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
print(*[line for line in lines if line.startswith("VmHWM")])
"""
TRTCAL = f"""
import sys
from trtcal.cli.main import run_command
status = run_command(sys.argv[1:])
{PEAK}
sys.exit(status)
"""
ROWS = """
import sys
import numpy as np
def rows(data, ranks):
    of = {name: np.load(data)[name] for name in ranks}
    of = {k: v[:, None] if 0 < v.ndim == ranks[k] else v for k, v in of.items()}
    for row in range(max(map(len, filter(np.ndim, of.values())))):
        yield {name: value[row] if value.ndim else value for name, value in of.items()}
"""
READER = f"""{ROWS}
import pathlib
import onnx
from onnxruntime.quantization import CalibrationDataReader
model, data, out, *settings = sys.argv[1:]
graph = onnx.load(model, load_external_data=False).graph
weights = {{tensor.name for tensor in graph.initializer}}
inputs = [value for value in graph.input if value.name not in weights]
class Reader(CalibrationDataReader):
    def __init__(self):
        self.rows = rows(data, {{v.name: len(v.type.tensor_type.shape.dim) for v in inputs}})
    def get_next(self):
        return next(self.rows, None)
    def get_first(self):
        return next(Reader().rows)
    def rewind(self):
        self.__init__()
"""
ORT = f"""{READER}
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
quant_pre_process(model, out + "/ready.onnx", skip_symbolic_shape=True)
quantize_static(out + "/ready.onnx", out + "/quantized.onnx", Reader(),
    quant_format=QuantFormat.QDQ, per_channel=True,
    activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
    calibrate_method=CalibrationMethod[settings[0] if settings else "MinMax"],
    extra_options={{"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}})
pathlib.Path(out, "ready.onnx").unlink()
{PEAK}"""
NNCF = f"""{READER}
import nncf
feeds = list(Reader().rows)
how = {{}}
if "mixed" in settings:
    how["preset"] = nncf.QuantizationPreset.MIXED
if "transformer" in settings:
    how["model_type"] = nncf.ModelType.TRANSFORMER
made = nncf.quantize(onnx.load(model), nncf.Dataset(feeds), subset_size=len(feeds), **how)
onnx.save(made, out + "/quantized.onnx")
{PEAK}"""
MODELOPT = f"""{READER}
import shutil
from modelopt.onnx.quantization import quantize
shutil.copy(model, out + "/given.onnx")
precision, method = (settings + ["int8", "max"][len(settings):])[:2]
quantize(out + "/given.onnx", quantize_mode=precision, calibration_method=method, dq_only=True,
    calibration_data_reader=Reader(), calibration_eps=["cpu"], high_precision_dtype="fp32",
    output_path=out + "/quantized.onnx")
for path in pathlib.Path(out).glob("given*"):
    path.unlink()
{PEAK}"""
MEMORY = 12 * 2**30
"""Bytes that a process may have: a quantizer that keeps all activations can take a machine's."""


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds of wall clock, of processors, and its peak memory in MB."""

    seconds: float
    cpu: float
    peak_mb: float

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of two processes, one after the other."""
        peak = max(self.peak_mb, other.peak_mb)
        return Cost(self.seconds + other.seconds, self.cpu + other.cpu, peak)


def run(python: str, code: str, arguments: list[str], folder: Path, limit_s: float) -> Cost | str:
    """Run a program in a folder; return its cost, or why it failed."""
    started, log = time.perf_counter(), folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: S603  # the user names the Python
            [python, "-c", code, *arguments], stdout=output, stderr=output, cwd=folder
        )
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    peaks = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    if process.returncode or not peaks:
        late = f"no result after {limit_s:.0f} s" if seconds >= limit_s else ""
        return late or _reason(lines) or f"exit status {process.returncode}"
    return Cost(seconds, used.ru_utime + used.ru_stime, int(peaks[0]) * 1024 / 1e6)


@cache
def version_in(python: str, package: str) -> str:
    """Return the version of a package in a Python, "" if it cannot be imported."""
    code = f"import {package}; print({package}.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)  # noqa: S603
    return "" if done.returncode else done.stdout.split()[-1]


def _reason(lines: list[str]) -> str:
    """Return the error in a log: the last line that names one, else the last."""
    errors = [line for line in lines if "rror" in line.split(":")[0]]
    return (errors or lines or [""])[-1][:200]
