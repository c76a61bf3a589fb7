"""`make test-gpu` without a GPU, and on the stand-in of the driver, which is none of NVIDIA's."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import pack
from benchmarks.gpu.stages import TRTCAL, Stage, stages
from calibrators.cuda_histogram import kernel_source
from tests.cuda.stand_in import build
from tests.fixtures.slow import SLOW, slow_but

HEADER = Path("tests/calibrators/cuda_on_host.h")
FLAGS = ("-x", "c++", "-std=c++20", "-O1", "-fno-strict-aliasing", "-pthread", "-shared", "-fPIC")
NVCC = '#!/bin/sh\nfor last; do :; done\nprintf "%s\\0" {} > "$last"\n'


def call(*words, python=(sys.executable,), **environment):
    """Return the status and lines of `python -m benchmarks.gpu`."""
    done = subprocess.run(
        [*python, "-m", "benchmarks.gpu", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def every_stage():
    return stages(Path("work"), None, 1000)


def test_a_bare_python_shows_all_stages_with_their_needs(tmp_path):
    """Without packages, and without what the suite's environment has."""
    status, lines = call("--dry", "--results", tmp_path, python=(sys.executable, "-S"))
    assert status == 0
    text = "\n".join(lines)
    for stage in every_stage():
        assert f"\n{stage.name} " in text
        assert f"gpu, {', '.join(stage.needs)}" in text
        assert stage.minutes <= 8
    assert "no numpy: 15 MiB" in text
    assert "no tensorrt: 445 MiB" in text
    assert "docs/backends.md:" in text.partition("Marked as never run")[2]


@pytest.mark.parametrize("failure", slow_but(["cuInit:100", "cuInit:-1"], "cuInit:-1"))
def test_without_a_gpu_each_stage_says_in_a_line_what_it_lacks(tmp_path, failure):
    """The driver shows no device, or crashes."""
    build(tmp_path)
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "CUDA_STAND_IN": failure}
    status, lines = call("--results", tmp_path / "results", **environment)
    lacking = [line.split(": not run: no GPU that the driver shows")[0] for line in lines]
    assert (status, lacking) == (4, [stage.name for stage in every_stage()])
    assert not (tmp_path / "results").exists()


def test_a_stage_that_is_none_is_bad_input():
    status, lines = call("--only", "kernels")
    assert status == 2
    assert "no stage kernels" in lines[0]
    assert "kernel, sanitizer" in lines[1]


def test_wheels_go_into_an_empty_folder(tmp_path):
    (tmp_path / "kept").touch()
    assert call("--pack", tmp_path) == (
        2,
        [f"error: {tmp_path} is not empty", "hint: name a new folder"],
    )


@SLOW
def test_wheels_that_cannot_be_downloaded_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu", "--pack", str(tmp_path / "new")])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert command.main() == 4


def test_every_command_names_a_module_that_is_there():
    words = [command for stage in every_stage() for command in stage.commands]
    modules = {one[one.index("-m") + 1] for one in words if "-m" in one}
    assert len(modules) == 4
    assert all(find_spec(module) for module in modules)


def test_every_dependency_has_its_module():
    assert all(find_spec(module) for module in TRTCAL.values())


def stage_of(code, minutes=1.0):
    return Stage("it", "something", ((sys.executable, "-c", code),), minutes=minutes)


@pytest.mark.parametrize(
    ("code", "minutes", "status", "shown"),
    [
        ("print('42 ms')", 1, 0, "42 ms"),
        ("print('42 ms'); import os, no_such_module", 1, 1, "ModuleNotFoundError: No module named"),
        ("import time; time.sleep(600)", 0.002, 124, "# status 124"),
        ("import os; os.kill(os.getpid(), 11)", 1, -11, "# status -11"),
    ],
)
def test_a_result_has_what_was_printed_and_the_status(tmp_path, code, minutes, status, shown):
    path = tmp_path / "results/it.txt"
    assert command.run(stage_of(code, minutes), path, "GPU X, sources y") == status
    text = path.read_text()
    assert shown in text
    assert "Traceback" not in text
    assert command.is_done(path, "GPU X, sources y") == (status == 0)
    assert not command.is_done(path, "GPU Z, sources y")


def test_a_result_that_was_cut_off_is_not_done(tmp_path):
    path = tmp_path / "it.txt"
    command.run(stage_of("print(1)"), path, "known")
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    assert not command.is_done(path, "known")


def test_parts_are_of_60_mib_with_the_kernels_needs_first(tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "PART", 60)
    for name, size in {"llvmlite": 57, "numpy": 15, "scipy": 34, "rich": 3, "onnx": 20}.items():
        (tmp_path / f"{name}-1-cp312-cp312-any.whl").write_bytes(b"x" * size)
    parts = pack.parts(list(tmp_path.iterdir()))
    names = [[path.name.split("-")[0] for path in part] for part in parts]
    assert names == [["numpy", "scipy", "rich"], ["llvmlite"], ["onnx"]]


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp310-abi3-manylinux2014_x86_64.whl", True),
        ("a-1-cp313-abi3-manylinux2014_x86_64.whl", False),
        ("a-1-py2.py3-none-any.whl", True),
    ],
)
def test_wheels_for_this_python_are_unpacked(name, fits, tmp_path, monkeypatch):
    monkeypatch.setattr(pack.sys, "version_info", (3, 12, 1))
    monkeypatch.setattr(pack, "SITE", tmp_path / "site")
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("a/__init__.py", "")
    assert (pack.unpack(tmp_path) / "a/__init__.py").exists() == fits


@pytest.fixture
def driver(tmp_path):
    """The environment of a machine with the stand-in of the driver, and an nvcc for this CPU."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("there is no compiler of C++20 `c++`, and CXX names no other")
    build(tmp_path)

    def environment(change=str):
        entries = "LAUNCHER(count_values)\nLAUNCHER(count_nonzero)\n"
        source = HEADER.read_text() + change(kernel_source()) + entries
        (tmp_path / "kernels.cpp").write_text(source)
        command = [compiler, *FLAGS, "kernels.cpp", "-o", "kernels.so"]
        subprocess.run(command, cwd=tmp_path, check=True)
        (tmp_path / "nvcc").write_text(NVCC.format(tmp_path / "kernels.so"))
        (tmp_path / "nvcc").chmod(0o755)
        path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
        return {"LD_LIBRARY_PATH": str(tmp_path), "PATH": path}

    return environment


@SLOW
def test_the_kernel_stage_on_the_stand_in_of_the_driver(driver, tmp_path):
    environment, results = driver(), tmp_path / "results"
    words = "--only", "kernel", "--elements", 3000, "--results", results
    assert call(*words, **environment) == (0, [f"kernel: done: {results}/kernel.txt"])
    text = (results / "kernel.txt").read_text()
    assert text.count(" yes ") == 12
    assert "Imaginary GTX 1, driver None" in text
    assert "Imaginary GTX 1 (sm99), CUDA 12.4, kernels compiled by nvcc for sm99" in text
    status, lines = call(*words, **environment)
    assert (status, lines) == (0, [f"kernel: has its result: {results}/kernel.txt"])
    (tmp_path / "kernel.ptx").write_text(f"{tmp_path}/kernels.so\0")
    environment["PATH"] = str(results)  # without nvcc
    words = "--only", "kernel", "--elements", 300, "--results", tmp_path, "--wheels", tmp_path
    assert call(*words, **environment)[0] == 0
    assert f"kernels from {tmp_path}/kernel.ptx" in (tmp_path / "kernel.txt").read_text()


@SLOW
def test_a_kernel_that_counts_wrong_fails_its_stage(driver, tmp_path):
    environment = driver(lambda source: source.replace("++nan", "nan += 2"))
    words = "--only", "kernel", "--elements", 3000, "--results", tmp_path
    status, lines = call(*words, **environment)
    assert (status, lines) == (1, [f"kernel: failed, status 1: {tmp_path}/kernel.txt"])
    assert (tmp_path / "kernel.txt").read_text().count(" NO ") == 2
