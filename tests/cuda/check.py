"""Run the tests of our PyCUDA code with PyCUDA itself, on the stand-in of the driver: `make test-cuda`.

PyCUDA has no wheels: it is compiled against CUDA's headers, which have. No toolkit, no GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.cuda.stand_in import SOURCE

HOME = Path(".venv-cuda").absolute()
SITE, HEADERS = HOME / "site", HOME / "headers"
PACKAGES = ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-profiler-api-cu12==12.9.79")
SETTINGS = """CUDA_ENABLE_CURAND = False
CUDA_INC_DIR = []
CUDADRV_LIB_DIR = []
CUDART_LIB_DIR = []
CURAND_LIB_DIR = []
"""
TESTS = (
    "tests/cuda",
    "tests/calibrators/test_device_memory.py",
    "tests/calibrators/test_cuda_histogram.py",
)


def install(target, *arguments, **environment):
    """Install packages into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", target, *arguments]
    subprocess.run(command, check=True, env={**os.environ, **environment})


def compile_pycuda():
    """Install PyCUDA, whose set-up reads its settings in the home folder."""
    install(HEADERS, "--no-deps", *PACKAGES)
    (HOME / ".aksetup-defaults.py").write_text(SETTINGS)
    library = ["-Wl,-soname,libcuda.so.1", "-o", HOME / "libcuda.so", SOURCE]
    subprocess.run(["cc", "-shared", "-fPIC", *library], check=True)  # noqa: S607
    includes = os.pathsep.join(map(str, HEADERS.glob("nvidia/*/include")))
    paths = {"CPATH": includes, "LIBRARY_PATH": str(HOME), "HOME": str(HOME), "CFLAGS": "-O0"}
    install(SITE, "pycuda==2026.1", **paths)


def main():
    """Compile PyCUDA unless it is there, and run the tests."""
    if not (SITE / "pycuda").exists():
        compile_pycuda()
    paths = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "WITH_PYCUDA": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-rs", *TESTS]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
