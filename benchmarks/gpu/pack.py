"""Wheels for a machine without a network: made here in parts of at most 60 MiB, unpacked there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.stages import PYTHON, TRTCAL

PART = 59 << 20  # with the kernels' PTX at most 60 MiB
SITE = Path(".venv-gpu")
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 17)] + ["manylinux2014_x86_64"]
NOT_PACKED = (
    "tensorrt 8.6.0: 445 MiB as xz, over 60 MiB; Python 3.10, `pip download tensorrt==8.6.0`",
    "pycuda: no wheel; `pip install pycuda` on the machine, with nvcc and a network, 2 MiB",
    "onnxruntime-gpu: 300 MiB, over 60 MiB",
)


def pack(folder: Path, python: str, without: list[str]) -> None:
    """Write the wheels that all stages need for a Python, such as 3.12, and the kernels as PTX.

    Packages that the machine has already are left out: `without` names them.
    """
    there = {name.replace("-", "_").lower() for name in without}
    with TemporaryDirectory() as drawn:
        command = [PYTHON, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "-d", drawn]
        command += ["--python-version", python, *(f"--platform={name}" for name in PLATFORMS)]
        older = ["tomli", "exceptiongroup"] if python == "3.10" else []
        subprocess.run([*command, *TRTCAL, *older, "pytest"], check=True)  # noqa: S603
        wheels = [
            path for path in Path(drawn).glob("*.whl") if path.name.split("-")[0] not in there
        ]
        for number, part in enumerate(parts(wheels), 1):
            home = folder / f"part{number}"
            home.mkdir(parents=True, exist_ok=True)
            for wheel in part:
                (home / wheel.name).write_bytes(wheel.read_bytes())
            show(home)
    if shutil.which("nvcc"):
        from benchmarks.gpu.kernel import compiled

        with TemporaryDirectory() as drawn:
            image = compiled("ptx", "sm75", Path(drawn))
        (folder / "part1").mkdir(parents=True, exist_ok=True)
        (folder / "part1/kernel.ptx").write_bytes(image)
        print(
            f"{folder}/part1/kernel.ptx: the kernels for a machine without nvcc, driver of its CUDA"
        )
    print("\n".join(f"not packed: {line}" for line in NOT_PACKED))


def parts(wheels: list[Path]) -> list[list[Path]]:
    """Return files in lists of at most `PART` bytes, what the kernels need first, then the largest."""
    order = sorted(wheels, key=lambda path: (not path.name.startswith("numpy-"), -size(path)))
    filled: list[list[Path]] = []
    for wheel in order:
        for part in filled:
            if sum(map(size, part)) + size(wheel) <= PART:
                part.append(wheel)
                break
        else:
            filled.append([wheel])
    return filled


def size(path: Path) -> int:
    """Return a file's bytes."""
    return path.stat().st_size


def show(folder: Path) -> None:
    """Print what is in a part."""
    files = sorted(folder.iterdir(), key=size, reverse=True)
    print(f"{folder}: {sum(map(size, files)) / 2**20:.1f} MiB")
    for path in files:
        print(f"  {size(path) / 2**20:6.1f} MiB  {path.name}")


def unpack(folder: Path) -> Path:
    """Unpack the wheels of a folder that fit this Python, once; return where all unpacked ones are."""
    site = SITE / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for wheel in sorted(folder.rglob("*.whl")):
        mark = site / f".{wheel.name}"
        if fits(wheel.name, sys.version_info[:2]) and not mark.exists():
            site.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            mark.touch()
    return site.absolute()


def fits(name: str, python: tuple[int, int]) -> bool:
    """Tell whether a wheel is for a Python, by its file name."""
    tags, abi = name.split("-")[-3].split("."), name.split("-")[-2]
    exact = f"cp{python[0]}{python[1]}"
    older = [f"cp3{minor}" for minor in range(python[1] + 1)] if abi == "abi3" else []
    return bool({*tags} & {exact, "py3", *older})
