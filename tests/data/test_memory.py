"""The memory of a pass does not grow with the data: measured in a process of its own."""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import model_of
from tests.fixtures.slow import slow_but

SAMPLE = (1, 3, 32, 1024)  # 393,216 bytes
PROGRAM = """
import sys
from pathlib import Path
from trtcal.data import open_dataset
from trtcal.model import load_model

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

for path in sys.argv[2:]:
    data = open_dataset(Path(path), load_model(Path(sys.argv[1])))
    for feeds in data.batches(32):
        pass
    print(peak())
"""


def write(path, samples, method):
    """Write zeros, but for one value, without holding them."""
    head = {"descr": "<f4", "fortran_order": False, "shape": (samples, *SAMPLE[1:])}
    row = np.zeros(SAMPLE, np.float32)
    row[0, 1, 2, 3] = 5
    if method is None:
        path.mkdir()
        with (path / "x.npy").open("wb") as file:
            fill(file, head, samples, row)
        return path
    archive = zipfile.ZipFile(path, "w", method, compresslevel=1)
    with archive, archive.open("x.npy", "w") as file:
        fill(file, head, samples, row)
    return path


def fill(file, head, samples, row):
    np.lib.format.write_array_header_1_0(file, head)
    for _ in range(samples):
        file.write(row)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux")
@pytest.mark.parametrize(
    "method", slow_but([None, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], zipfile.ZIP_DEFLATED)
)
def test_a_thousand_samples_take_the_memory_of_a_few(tmp_path, method):
    model_of(tmp_path / "net.onnx", ("n", *SAMPLE[1:]))
    paths = [write(tmp_path / str(count), count, method) for count in (64, 1024)]
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "net.onnx"), *map(str, paths)]
    few, many = map(int, subprocess.check_output(command, text=True).split())  # KiB
    assert many < few + 8 * 1024  # of 384 MiB more
