"""Run the tests of other frameworks with those frameworks: `make test-frameworks`.

TensorFlow, tf2onnx, PyTorch and TVM go into an environment of their own (2 GB, no GPU). A test that
is skipped there because a package is missing is an error.
"""

import os
import subprocess
import sys
from pathlib import Path

HOME = Path(".venv-frameworks").absolute()
READY = HOME / ".ready"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
MISSING = "not installed"


def prepare():
    """Return the environment's Python; it is made if it is not there."""
    python = HOME / "bin" / "python"
    if not READY.exists():
        subprocess.run([sys.executable, "-m", "venv", HOME], check=True)
        subprocess.run([python, *PIP, "-e", ".[dev,tensorflow,torch,tvm]"], check=True)
        READY.touch()
    return python


def main():
    """Run the tests and return their exit status, 1 if one was skipped for a missing package."""
    command = [prepare(), "-m", "pytest", "-rs", "tests/frameworks", *sys.argv[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as child:
        lines = []
        for line in child.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    is_missing = any(line.startswith("SKIPPED") and MISSING in line for line in lines)
    return child.returncode or int(is_missing)


if __name__ == "__main__":
    sys.exit(main())
