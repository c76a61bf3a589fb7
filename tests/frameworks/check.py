"""Run the tests of other frameworks with those frameworks: `make test-frameworks`.

TensorFlow, tf2onnx, PyTorch, TVM and OpenVINO go into an environment of their own (2 GB, no GPU). A
test that is skipped there because a package is missing is an error.
"""

import os
import subprocess
import sys
from pathlib import Path

PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
MISSING = "not installed"


def prepare(home, packages):
    """Return the Python of an environment with these packages; it is made if it is not there."""
    python, ready = home / "bin" / "python", home / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, *PIP, "-e", *packages], check=True)
        ready.touch()
    return python


def check(name, *packages):
    """Run the tests in `tests/NAME` with packages of their own, the first of which is trtcal.

    Return their exit status, 1 if one was skipped for a missing package.
    """
    python = prepare(Path(f".venv-{name}").absolute(), packages)
    command = [python, "-m", "pytest", "-rs", f"tests/{name}", *sys.argv[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as child:
        lines = []
        for line in child.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    is_missing = any(line.startswith("SKIPPED") and MISSING in line for line in lines)
    return child.returncode or int(is_missing)


if __name__ == "__main__":
    sys.exit(check("frameworks", ".[dev,openvino,tensorflow,torch,tvm]"))
