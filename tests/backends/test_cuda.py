"""Whether a CUDA device can be opened, asked of a stand-in of the driver (`tests/cuda`)."""

import importlib
import json
import os

import pytest

from tests.cuda.stand_in import build
from trtcal.backends import cuda, targets
from trtcal.backends.cuda import Device, find_device, known_errors
from trtcal.backends.registry import BACKENDS
from trtcal.cli.main import run_command

CRASHES, HANGS = -1, -2

ERRORS = {int(code): known for code, known in known_errors().items()}


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Return what makes a call of a driver's answer with a code, or crash or hang."""
    library = build(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))

    def make(call="", code=0):
        monkeypatch.setenv("CUDA_STAND_IN", f"{call}:{code}")
        find_device.cache_clear()

    yield make
    find_device.cache_clear()


def test_a_device_that_can_be_opened_is_named(driver):
    driver()
    assert find_device() == Device("Imaginary GTX 1", "12.4", capability=(9, 9))


@pytest.mark.parametrize("code", [100, 803])
def test_an_error_of_the_driver_is_given_with_its_meaning(driver, code):
    driver("cuInit", code)
    device = find_device()
    meaning, hint = ERRORS[code]
    assert device.name is None
    assert device.missing == f"no CUDA device can be opened: error {code} of cuInit: {meaning}"
    assert device.hint == hint


@pytest.mark.parametrize(
    "call",
    [
        *("cuDriverGetVersion", "cuInit", "cuDeviceGet"),
        *("cuDevicePrimaryCtxRetain", "cuDeviceGetName", "cuDeviceGetAttribute"),
    ],
)
def test_each_call_failing_is_no_device_and_says_why(driver, call):
    for code in (2, 46, 201, 719):
        driver(call, code)
        device = find_device()
        assert device.name is None
        assert device.missing.endswith(f"error {code} of {call}: {ERRORS[code][0]}")
        assert device.hint == ERRORS[code][1]


def test_a_gpu_whose_driver_fails_is_none(driver):
    driver()
    assert str(targets.find_gpu()) == "Imaginary GTX 1 (sm99)"
    driver("cuDeviceGet", 719)
    assert targets.find_gpu() is None


def test_an_unknown_error_is_given_as_it_is(driver):
    driver("cuInit", 4321)
    assert find_device().missing.endswith("error 4321 of cuInit")


def test_a_driver_that_crashes_crashes_a_child_only(driver):
    driver("cuInit", CRASHES)
    assert find_device().missing == "the NVIDIA driver crashes when it opens a device"


def test_a_driver_that_hangs_is_given_up(driver, monkeypatch):
    driver("cuInit", HANGS)
    monkeypatch.setattr(cuda, "WAIT_S", 0.5)
    assert "does not answer within 0.5 s" in find_device().missing


@pytest.mark.parametrize(("code", "works"), [(0, True), (100, False)])
def test_tensorrt_works_only_with_a_device(driver, tmp_path, monkeypatch, capsys, code, works):
    driver("cuInit", code)
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
    says = "CUDA device: Imaginary GTX 1, with a driver that supports CUDA 12.4"
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
