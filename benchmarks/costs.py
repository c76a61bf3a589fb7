"""What trtcal's commands cost as processes, beside another checkout and other tools, in turns.

    python -m benchmarks.costs FOLDER [NAME ...] [--samples 8 64 512] [--rounds 1]
        [--commands quantize run search fast best ...] [--before PYTHON] [--peers PYTHON ...]

FOLDER has NAME.onnx, and NAME.npz or the images NAME/*.jpg, and NAME.toml where trtcal needs it, such
as what `python -m benchmarks.made_networks` writes. `--before` is the Python of another checkout. Each
of `--peers` is a Python with NNCF, ModelOpt or ONNX Runtime: their `quantize` runs beside `quantize`.

One line for each tool: wall clock of all its commands and of each, CPU seconds, peak memory (of the
largest process). Imports and writing are included. The first N samples calibrate, the last `--test`
samples test. Medians of the rounds. Every tool works once before all that is measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

BARE = """
import sys, numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
for sample in np.load(sys.argv[2])[name]:
    session.run(None, {name: sample[None]})
"""
ORT = """
import sys, numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
class Reader(CalibrationDataReader):
    def __init__(self):
        of = dict(np.load(sys.argv[2]))
        self.rows = ({k: of[k][i:i + 1] for k in of} for i in range(len(next(iter(of.values())))))
    def get_next(self):
        return next(self.rows, None)
quantize_static(sys.argv[1], sys.argv[3] + "/ort.onnx", Reader(), quant_format=QuantFormat.QDQ,
    per_channel=True, activation_type=QuantType.QInt8, weight_type=QuantType.QInt8)
"""
NNCF = """
import sys
import numpy as np, nncf, openvino as ov
model, data, out, *kind = sys.argv[1:]
of = dict(np.load(data))
rows = [{name: of[name][i:i + 1] for name in of} for i in range(len(next(iter(of.values()))))]
made = nncf.quantize(ov.Core().read_model(model), nncf.Dataset(rows), subset_size=len(rows),
    model_type=nncf.ModelType(kind[0]) if kind else None)
ov.save_model(made, out + "/nncf.xml", compress_to_fp16=False)
"""
MODELOPT = """
import sys
import numpy as np
from modelopt.onnx.quantization import quantize
model, data, out, precision, method = (sys.argv[1:] + ["int8", "max"])[:5]
quantize(model, quantize_mode=precision, calibration_method=method, dq_only=True,
    calibration_data=dict(np.load(data)), calibration_eps=["cpu"], high_precision_dtype="fp32",
    output_path=out + "/modelopt.onnx")
"""
PEERS = {"NNCF": ("nncf", NNCF), "ModelOpt max": ("modelopt", MODELOPT)}
PEERS |= {"ORT MinMax": ("onnxruntime.quantization", ORT)}

CALIBRATE = "calibrate {model} --data {data} {toml} --method percentile -o {out}/calibration.json"
QUANTIZE = "quantize {model} --calibration {out}/calibration.json {toml} -o {out}/int8.onnx"
IMPROVE = "quantize {model} --improve %s --data {data} {toml} -o {out}/%s.onnx"
BY_CALIBRATION = "{model} --calibration {out}/calibration.json --data {test} {toml}"
COMMANDS = {
    "help": ("--help",),
    "check-data": ("check-data {model} --data {data} {toml}",),
    "quantize": (CALIBRATE, QUANTIZE),
    "fast": (IMPROVE % ("fast", "fast"),),
    "best": (IMPROVE % ("best", "best"),),
    "compare": (CALIBRATE, QUANTIZE, "compare {model} {out}/int8.onnx --data {test} {toml}"),
    "ab": (CALIBRATE, QUANTIZE, "ab {model} {out}/int8.onnx --data {test} {toml}"),
    "sensitivity": (CALIBRATE, f"sensitivity {BY_CALIBRATION}"),
    "search": (CALIBRATE, f"search {BY_CALIBRATION} -o {{out}}/search"),
    "run": ("run {model} --data {data} --test {test} {toml} --output {out}/run",),
    "report": ("report {large} -o {out}/report.html",),
    "dashboard": ("history dashboard --db {history} -o {out}/dashboard",),
}
MACHINE = """
import platform, pathlib
from benchmarks.int8_speed import describe_machine
flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
known = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if flag in flags]
print(f"# {describe_machine()}, instructions: {' '.join(known)}")
"""
CUT = """
import sys, numpy as np
path, first, last, out = sys.argv[1:]
data = np.load(path)
cut = slice(int(first) or None, int(last) or None)
np.savez(out, **{name: data[name][cut] if data[name].ndim else data[name] for name in data.files})
"""
LARGE = """
import sys, pathlib
from tests.reporting.large import write_large_run
write_large_run(pathlib.Path(sys.argv[1]))
"""
HISTORY = """
import sys, pathlib, shutil
from benchmarks.history import filled
shutil.move(filled(pathlib.Path(sys.argv[1]).parent, 10_000), sys.argv[1])
"""


@dataclass(frozen=True)
class Cost:
    """What a process took: wall clock and processor time in seconds, peak memory in MB."""

    seconds: float
    cpu: float
    megabytes: float


def run(command: list[str], folder: Path) -> Cost | None:
    """Run a process and what it starts; None if it fails. 1 is an answer: a limit is broken.

    The peak that the system names is at least that of the process that starts another, so that this
    program imports no library.
    """
    started = time.perf_counter()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)  # noqa: S603
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1) or (process.returncode and "-c" in command):
        last = (folder / "log").read_text(errors="replace").strip()[-300:]
        print(f"# failed: {last}", file=sys.stderr, flush=True)
        return None
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)


def run_here(code: str, *words: object) -> None:
    """Run a program of this checkout in a process of its own."""
    subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True)  # noqa: S603


@dataclass(frozen=True)
class Tool:
    """Commands to run one after the other; words in braces stand for paths."""

    commands: tuple[tuple[str, ...], ...]

    def costs(self, paths: dict[str, str]) -> tuple[Cost, ...] | None:
        """Return the cost of each command in a new folder, None if one fails."""
        with tempfile.TemporaryDirectory() as name:
            costs = []
            for command in self.commands:
                words = [word.format(**paths, out=name) for word in command if "\n" not in word]
                words = [word for whole in words for word in whole.split("\0") if word]
                words[1:1] = ["-c", *(word for word in command if "\n" in word)] * ("\n" in command[1])
                cost = run(words, Path(name))
                if cost is None:
                    return None
                costs.append(cost)
        return tuple(costs)
