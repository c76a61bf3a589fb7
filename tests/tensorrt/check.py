"""Check our claims about TensorRT against real packages, without a GPU: `make test-tensorrt`.

Every version has a folder of its own with its package, where stubs stand for TensorRT's libraries: they
are needed to import the package, and do nothing. What cannot be had here (Python 3.10 for TensorRT
8.6, a C compiler for the stubs) is said and left out; exit status 1 if a claim is wrong or nothing
was checked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.tensorrt.claims import TOUCHED
from trtcal.backends.options import ROUTES

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".venv-tensorrt"
PARTS = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
CALIBRATOR_TESTS = "tests/calibrators/test_tensorrt_builder.py"
ALGORITHMS = {
    "entropy": ("ENTROPY_CALIBRATION", "EntropyCalibration"),
    "entropy2": ("ENTROPY_CALIBRATION_2", "EntropyCalibration2"),
    "legacy": ("LEGACY_CALIBRATION", "LegacyCalibration"),
    "minmax": ("MINMAX_CALIBRATION", "MinMaxCalibration"),
}
LOG = ["[E] internal_error", "[E] error", "[W] warning", "[I] info", "[V] verbose"]
LINES = "images: 3c010204\n(Unnamed Layer* 64) [Shuffle]_output: 4000890a\n"


class MissingError(Exception):
    """Something on this machine is missing to check a version."""


@dataclass(frozen=True)
class Version:
    """A version, its package, the libraries to stand in for, and its cache's digits."""

    name: str
    package: str
    stubs: tuple[str, ...]
    digits: str | None
    module: str = "tensorrt"
    python: str | None = None


VERSIONS = (
    Version("8.6", "tensorrt==8.6.0", ("libnvinfer_plugin.so.8",), "8600", python="python3.10"),
    Version(
        "10.16",
        "tensorrt-cu12-bindings==10.16.1.11",
        tuple(f"lib{part}.so.10" for part in PARTS),
        "101601",
    ),
    Version(
        "11.4",
        "tensorrt-cu12-bindings==11.4.0.106",
        tuple(f"lib{part}.so.11" for part in PARTS),
        None,
    ),
    Version("rtx", "tensorrt-rtx", (), None, module="tensorrt_rtx"),
)


def main() -> int:
    """Check every version and return the exit status."""
    checked = [check(version) for version in VERSIONS]
    done = [result for result in checked if result is not None]
    print(f"{len(done)} of {len(VERSIONS)} versions checked, {done.count(False)} with wrong claims")
    return 0 if done and all(done) else 1


def check(version: Version) -> bool | None:
    """Print what was found; return whether all claims hold, None if they could not be checked."""
    try:
        python, environment = prepare(version)
    except MissingError as error:
        print(f"tensorrt {version.name}: NOT CHECKED: {error}")
        return None
    command = [python, "-m", "tests.tensorrt.probe", version.module]
    done = run(command, environment)
    if done.returncode:
        print(f"tensorrt {version.name}: cannot be imported: {done.stderr.strip()[-300:]}")
        return False
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = [*differences(version, found["has"]), *wrong_answers(version, found)]
    wrong += wrong_calls(found["calls"])
    print(f"{version.module} {found['version']}: {summary(version, found)}")
    if found["answers"]:
        passed, line = calibrator_tests(python, environment)
        print(f"  calibrator tests through its bindings: {line}")
        wrong += [] if passed else ["the calibrator tests failed"]
    for text in wrong:
        print(f"  WRONG: {text}")
    return not wrong


def differences(version: Version, found: list[str]) -> list[str]:
    """Return the attributes that are not where they are claimed to be."""
    claimed = {path for path, versions in TOUCHED.items() if version.name in versions}
    lacks = [f"it has no {path}" for path in sorted(claimed - set(found))]
    return lacks + [f"it has {path}, unclaimed" for path in sorted(set(found) - claimed)]


def wrong_calls(calls: list[tuple[str, int, list[str]]]) -> list[str]:
    """Return the calls whose number of arguments no documented signature of this version takes."""
    return [
        f"{path} takes {' or '.join(signatures) or 'what is not documented'}, not {count} arguments"
        for path, count, signatures in calls
        if not any(takes(signature, count) for signature in signatures)
    ]


def takes(signature: str, count: int) -> bool:
    """Tell whether `self: X, a: T, b: T = 1` takes so many arguments besides the object."""
    parameters = re.split(r", (?=\w+: )", signature)
    others = [text for text in parameters if text and not text.startswith("self: ")]
    return len([text for text in others if " = " not in text]) <= count <= len(others)


def wrong_answers(version: Version, found: dict[str, Any]) -> list[str]:
    """Return what our own calibrator objects and refusals get wrong in this version."""
    old = version.digits is not None
    expected = {
        kind: {"algorithm": name, "cache": f"TRT-{version.digits}-{header}\n{LINES}"}
        for kind, (name, header) in ALGORITHMS.items()
        if old
    }
    wrong = []
    if found["answers"] != expected:
        wrong.append(f"calibrators answer {found['answers']}, not {expected}")
    if found["log"] != LOG:
        wrong.append(f"the worker's logger writes {found['log']}, not {LOG}")
    expected.pop("legacy", None)  # which no route takes
    if found["worker"] != expected:
        wrong.append(f"the worker's calibrators answer {found['worker']}, not {expected}")
    if found["refused"] != ([] if old else list(ROUTES[1:])):
        wrong.append(f"routes refused are {found['refused']}")
    return wrong


def summary(version: Version, found: dict[str, Any]) -> str:
    absent = len(TOUCHED) - len(found["has"])
    kinds = ", ".join(found["answers"]) or "none"
    refused = ", ".join(found["refused"]) or "none"
    return (
        f"{len(found['has'])} attributes there, {absent} not; "
        f"{len(found['calls'])} calls compared with their signatures\n"
        f"  calibrators made, and their caches read: {kinds}\n"
        f"  routes refused: {refused}"
    )


def calibrator_tests(python: str, environment: dict[str, str]) -> tuple[bool, str]:
    done = run([python, "-m", "pytest", "-p", "no:cacheprovider", CALIBRATOR_TESTS], environment)
    counts = [line for line in done.stdout.splitlines() if " passed" in line or " failed" in line]
    return done.returncode == 0, counts[-1].split(" in ")[0] if counts else "none ran"


def prepare(version: Version) -> tuple[str, dict[str, str]]:
    """Return the Python and the environment that a version runs in, made if they are not there."""
    python = sys.executable if version.python is None else python_with_trtcal(version.python)
    if not version.stubs and find_spec(version.module) is None:
        raise MissingError(
            f"package {version.package} is not installed: it is not for every machine"
        )
    folders = [str(ROOT)]
    stubs = [make_stub(name) for name in version.stubs]
    if version.stubs:
        folders.append(str(install(version, python)))
    paths = os.pathsep.join(folders)
    return python, {**os.environ, "PYTHONPATH": paths, "LD_PRELOAD": ":".join(map(str, stubs))}


def python_with_trtcal(name: str) -> str:
    """Return the Python of an environment with trtcal's packages, for an old version of Python."""
    python = HOME / name / "bin" / "python"
    if not (HOME / name / ".ready").exists():
        program = shutil.which(name)
        if program is None or run([program, "--version"]).returncode:
            raise MissingError(f"{name} is not on the PATH, and its package is for no other")
        must([program, "-m", "venv", str(HOME / name)])
        must([str(python), *PIP, "-e", str(ROOT), "pytest", "hypothesis"])
        (HOME / name / ".ready").touch()
    return str(python)


def install(version: Version, python: str) -> Path:
    """Return the folder with a version's package alone, under the name `tensorrt`."""
    folder = HOME / version.name
    if not (folder / ".ready").exists():
        must([python, *PIP, "--no-deps", "--target", str(folder), version.package])
        if not (folder / "tensorrt").exists():
            lines = ("from tensorrt_bindings import *", "from tensorrt_bindings import __version__")
            (folder / "tensorrt.py").write_text("\n".join(lines) + "\n")
        (folder / ".ready").touch()
    return folder


def make_stub(name: str) -> Path:
    path = HOME / "stubs" / name
    if not path.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            raise MissingError("there is no C compiler (cc) to make stubs of TensorRT's libraries")
        path.parent.mkdir(parents=True, exist_ok=True)
        source = str(Path(__file__).with_name("stubs.c"))
        must([compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", source, "-o", str(path)])
    return path


PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def must(command: list[str]) -> None:
    done = run(command)
    if done.returncode:
        raise MissingError(f"`{Path(command[0]).name} {command[2]} …` failed: {last(done.stderr)}")


def last(text: str) -> str:
    return (text.strip().splitlines() or ["(it said nothing)"])[-1]


def run(command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
