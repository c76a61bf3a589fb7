"""Whether a CUDA device can be opened, asked of drivers that a compiler makes here."""

import importlib
import json
import os
import shutil
import subprocess

import pytest

from trtcal.backends import cuda, targets
from trtcal.backends.cuda import ERRORS, Device, find_device
from trtcal.backends.registry import BACKENDS
from trtcal.backends.tensorrt_worker import main_error
from trtcal.cli.main import run_command

DRIVER = """\
#include <signal.h>
#include <string.h>
#include <unistd.h>
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuInit(unsigned flags) { %s; return 0; }
int cuDeviceGet(int *device, int number) { return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return %d; }
int cuDeviceGetName(char *name, int size, int device) { strcpy(name, "Imaginary GTX 1"); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = 9; return 0; }
"""
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Return what makes a driver whose cuInit does something, and whose device opens with a code."""

    def make(init="", opened=0):
        (tmp_path / "driver.c").write_text(DRIVER % (init, opened))
        command = ["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"]
        subprocess.run(command, check=True)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    find_device.cache_clear()
    yield make
    find_device.cache_clear()


@needs_compiler
def test_a_device_that_can_be_opened_is_named(driver):
    driver()
    assert find_device() == Device("Imaginary GTX 1", "12.4")


@needs_compiler
@pytest.mark.parametrize("code", [100, 803])
def test_an_error_of_the_driver_is_given_with_its_meaning(driver, code):
    driver(f"return {code}")
    device = find_device()
    meaning, hint = ERRORS[code]
    assert device.name is None
    assert device.missing == f"no CUDA device can be opened: error {code} of cuInit: {meaning}"
    assert device.hint == hint


@needs_compiler
def test_a_device_that_is_seen_and_cannot_be_opened_is_no_device(driver):
    driver(opened=46)
    assert "error 46 of cuDevicePrimaryCtxRetain: the device is in use" in find_device().missing


@needs_compiler
def test_an_unknown_error_is_given_as_it_is(driver):
    driver("return 4321")
    assert find_device().missing.endswith("error 4321 of cuInit")


@needs_compiler
def test_a_driver_that_crashes_crashes_a_child_only(driver):
    driver("raise(SIGSEGV)")
    assert find_device().missing == "the NVIDIA driver crashes when a device is opened"


@needs_compiler
def test_a_driver_that_hangs_is_given_up(driver, monkeypatch):
    driver("sleep(60)")
    monkeypatch.setattr(cuda, "WAIT_S", 0.5)
    assert "does not answer within 0.5 s" in find_device().missing


@needs_compiler
@pytest.mark.parametrize(("init", "works"), [("", True), ("return 100", False)])
def test_tensorrt_works_only_with_a_device(driver, tmp_path, monkeypatch, capsys, init, works):
    driver(init)
    package = tmp_path / "tensorrt-10.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorrt\nVersion: 10.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert targets.version_of("tensorrt") == "10.0"
    state = BACKENDS["tensorrt"].availability()
    assert (state.works, state.version) == (works, "10.0")
    assert run_command(["doctor"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    says = "CUDA device: Imaginary GTX 1, whose driver supports CUDA 12.4"
    assert (says in shown) is works
    assert (f"{ERRORS[100][0]} ({ERRORS[100][1]})" in shown) is not works
    assert run_command(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["cuda"]["missing"] is None) is works
    assert ("gpu" in document["targets"]) is works


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a driver here")
def test_without_a_driver_that_is_what_is_missing():
    find_device.cache_clear()
    assert "no NVIDIA driver (libcuda.so.1)" in find_device().missing


NULL = "pybind11::init(): factory function returned nullptr"
WARNINGS = [
    "Unable to determine GPU memory usage",
    "CUDA initialization failure with error: 35. Please check your CUDA installation",
    "Some other thing",
]


def test_a_warning_that_came_before_is_part_of_the_reason():
    text = main_error([], WARNINGS, NULL)
    assert text.startswith(
        f"{NULL}; the warning before it: CUDA initialization failure with error: 35"
    )
    assert ERRORS[35][0] in text
    assert main_error([], WARNINGS[:1], NULL) == f"{NULL}; the warning before it: {WARNINGS[0]}"


def test_errors_say_more_than_warnings():
    errors = ["Error Code 4: first", "Error Code 2: cudaErrorNoDevice", "it ended"]
    assert main_error(errors, WARNINGS, NULL) == "Error Code 4: first"
    assert main_error([], [], NULL) == NULL
