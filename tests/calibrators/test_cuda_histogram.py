"""The kernels of `histogram.cu`, compiled for this machine's CPU, against the histogram of the host."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators import Histogram, cuda_histogram
from calibrators import histogram as histograms
from calibrators.cuda_histogram import BINS, WORDS, DeviceHistogram, PyCudaDevice, kernel_source
from calibrators.device_memory import DeviceError, DeviceMemoryError
from tests.calibrators.bindings import HostMemory
from tests.cuda.stand_in import offer_nvcc
from tests.fixtures.examples import examples
from tests.fixtures.fails import fails
from tests.fixtures.slow import SLOW, slow_but

ARGUMENTS = (ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_int, ctypes.c_void_p)
FLAGS = ("-x", "c++", "-std=c++20", "-O1", "-fno-strict-aliasing", "-pthread")
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)


def patterns(dtype, of):
    """Arrays of any bit patterns and, more often than by chance, of the special ones and one bin."""
    special = np.array(
        [0.0, -0.0, np.nan, np.inf, -np.inf, 1, 1.0001, -1, 6e-8, -6e-8, 65504], dtype
    ).view(of)
    sign = 1 << (8 * special.itemsize - 1)
    denormal = [1, sign + 1]
    elements = st.sampled_from([*special.tolist(), *denormal]) | st.integers(0, 2 * sign - 1)
    return arrays(of, st.integers(0, 200), elements=elements).map(lambda bits: bits.view(dtype))


tensors = patterns(np.float32, np.uint32) | patterns(np.float16, np.uint16)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The kernels as a library; the sources are the header, what nvcc would get, and two entries."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    header = Path(__file__).with_name("cuda_on_host.h")
    if compiler is None or subprocess.run([compiler, *FLAGS, "-fsyntax-only", header]).returncode:
        pytest.skip("there is no compiler of C++20 `c++`, and CXX names no other")
    folder = tmp_path_factory.mktemp("kernels")
    launchers = "LAUNCHER(count_values)\nLAUNCHER(count_nonzero)\n"
    (folder / "kernels.cpp").write_text(header.read_text() + kernel_source() + launchers)
    command = [compiler, *FLAGS, "-shared", "-fPIC", "kernels.cpp", "-o", "kernels.so"]
    subprocess.run(command, check=True, cwd=folder)
    return ctypes.CDLL(str(folder / "kernels.so"))


class HostDevice(HostMemory):
    """The kernels on this machine's memory; `blocks` and `threads` are tried instead of a GPU's."""

    def __init__(self, kernels, blocks=2, threads=4):
        super().__init__()
        self.kernels, self.blocks, self.threads = kernels, blocks, threads
        self.launched, self.bytes_read = [], 0

    def copy(self, address, array):
        ctypes.memmove(address, array.tobytes(), array.nbytes)

    def read(self, address, array):
        self.bytes_read += array.nbytes
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def launch(self, kernel, blocks, *arguments):
        assert 1 <= blocks <= cuda_histogram.BLOCKS
        self.launched.append(kernel)
        run = getattr(self.kernels, f"launch_{kernel}")
        run.argtypes, run.restype = (ctypes.c_uint, ctypes.c_uint, *ARGUMENTS), None
        run(self.blocks, self.threads, *arguments)


def count(histogram, array, padding=0):
    histogram.update(array.ctypes.data, array.size, array.dtype, padding)


def on_host(*parts):
    made = Histogram()
    for part in parts:
        made.update(part)
    return made


def at_offset(array, elements):
    """Return a copy of an array that lies so many elements behind an address for 16 bytes."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 16 + elements * array.itemsize
    moved = room[start : start + array.nbytes].view(array.dtype)
    moved[:] = array
    return moved


@pytest.fixture(params=[0, 10, histograms.VALUES_KEPT], ids="at most {} kept".format)
def kept(request, monkeypatch):
    """With none kept every value goes through the kernels, with 10 the host and the kernels share."""
    monkeypatch.setattr(histograms, "VALUES_KEPT", request.param)
    return request.param


@pytest.mark.parametrize("limit", slow_but([histograms.COUNT_LIMIT, 100], 100))
def test_the_device_counts_what_the_host_counts(kernels, kept, limit, monkeypatch):
    monkeypatch.setattr(cuda_histogram, "COUNT_LIMIT", limit)

    @examples(40)
    @given(st.lists(tensors, max_size=3), st.integers(1, 3), st.integers(1, 9), st.integers(0, 3))
    def law(parts, blocks, threads, offset):
        device = HostDevice(kernels, blocks, threads)
        with DeviceHistogram(device) as counted:
            for part in parts[:2]:
                count(counted, at_offset(part, offset))
            early = counted.histogram()
            for part in parts[2:]:
                count(counted, at_offset(part, offset))
        assert early == on_host(*parts[:2])
        assert counted.histogram() == on_host(*parts)
        assert not device.buffers

    law()


@pytest.mark.parametrize("kept", [0], indirect=True)
def test_every_fp16_value_is_counted_as_itself(kernels, kept):
    halves = np.arange(1 << 16, dtype=np.uint16)
    halves = np.repeat(halves, halves % 7 + 1).view(np.float16)  # each has a bin; numbers differ
    counted = DeviceHistogram(HostDevice(kernels, threads=8))
    count(counted, halves)
    assert counted.histogram() == on_host(halves)


@pytest.mark.parametrize("kept", [0], indirect=True)
def test_every_bin_is_counted_to_its_ends(kernels, kept):
    first = np.arange(BINS, dtype=np.uint32) << histograms.SHIFT
    ends = np.concatenate([first, first + ((1 << histograms.SHIFT) - 1), first[1::3]])
    counted = DeviceHistogram(HostDevice(kernels, threads=8))
    count(counted, ends.view(np.float32))
    assert counted.histogram() == on_host(ends.view(np.float32))


@pytest.mark.parametrize("kept", [10], indirect=True)
def test_many_threads_at_frequent_and_rare_bins_lose_nothing(kernels, kept):
    random = np.random.default_rng(0)
    values = random.standard_normal(300_000).astype(np.float32)
    values[random.random(values.size) < 0.5] = 6.0
    counted = DeviceHistogram(HostDevice(kernels, blocks=5, threads=64))
    count(counted, values)
    assert counted.histogram() == on_host(values)


@pytest.mark.parametrize("kept", [10], indirect=True)
def test_a_tensor_is_copied_only_while_its_values_are_kept(kernels, kept):
    device, large = HostDevice(kernels), np.arange(1, 1001, dtype=np.float32)
    counted = DeviceHistogram(device)
    count(counted, large[:4])
    assert (device.bytes_read, device.launched) == (16, [])
    count(counted, large)
    assert (device.bytes_read, device.launched) == (16 + 4, ["count_nonzero", "count_values"])
    count(counted, large[:1])
    assert (device.bytes_read, device.launched[2:]) == (16 + 4, ["count_values"])
    assert counted.histogram() == on_host(large[:4], large, large[:1])
    assert device.bytes_read == 16 + 4 + WORDS * 4


@pytest.mark.parametrize("kept", [10], indirect=True)
def test_few_values_in_large_tensors_are_kept_exactly(kernels, kept):
    sparse = np.zeros(1000, np.float16)
    sparse[::250] = 0.3, np.nan, -2.7, 1e-7
    counted = DeviceHistogram(HostDevice(kernels))
    for _ in range(3):
        count(counted, sparse)
    low, high, _ = counted.histogram().magnitudes()
    assert (low == high).all()
    assert counted.histogram() == on_host(*[sparse] * 3)
    last = sparse[:1]
    for number in (10, 11):  # of all values: as many as are kept, and one more
        count(counted, last)
        assert counted.histogram() == on_host(*[sparse] * 3, *[last] * (number - 9))


@pytest.mark.parametrize("kept", [10], indirect=True)
def test_counts_are_moved_before_they_can_overflow(kernels, kept):
    device, ones = HostDevice(kernels), np.ones(100, np.float32)
    counted = DeviceHistogram(device)
    count(counted, ones)
    words = (ctypes.c_uint32 * WORDS).from_address(counted._words)
    words[int(ones.view(np.uint32)[0]) >> histograms.SHIFT] = histograms.COUNT_LIMIT - 99
    counted._pending = histograms.COUNT_LIMIT - 99  # as if there had been so many ones
    count(counted, ones)
    assert counted.histogram().count == histograms.COUNT_LIMIT - 99 + ones.size


def test_padding_is_not_counted(kernels, kept):
    values = np.array([0, 1, 0, 0], np.float32)
    counted, wanted = DeviceHistogram(HostDevice(kernels)), Histogram()
    for _ in range(2):
        count(counted, values, padding=2)
        wanted.update(values, padding=2)
    assert counted.histogram() == wanted
    assert wanted.zeros == 2


def test_other_types_and_addresses_are_refused(kernels):
    counted = DeviceHistogram(HostDevice(kernels))
    with fails(TypeError, "float64"):
        counted.update(64, 1, np.float64)
    with fails(ValueError, "0x42", "1"):
        counted.update(66, 1, "float32")
    with fails(ValueError, "-1"):
        counted.update(64, -1, "float16")


def test_memory_is_given_back_when_reading_it_fails(kernels, kept):
    device = HostDevice(kernels)
    counted = DeviceHistogram(device)
    count(counted, np.ones(histograms.VALUES_KEPT + 1, np.float32))
    device.read = None
    with pytest.raises(TypeError):
        counted.close()
    assert not device.buffers


def test_memory_is_given_back_when_it_cannot_be_written(kernels):
    device = HostDevice(kernels)
    device.copy = None
    with pytest.raises(TypeError):
        count(DeviceHistogram(device), np.ones(histograms.VALUES_KEPT + 1, np.float32))
    assert not device.buffers


def nvcc(*arguments):
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    command = ["nvcc", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@SLOW
def test_nvcc_compiles_the_kernels_for_every_architecture(tmp_path):
    known = nvcc("--list-gpu-code").split()
    wanted = [number for number in ARCHITECTURES if f"sm_{number}" in known]
    assert wanted
    (tmp_path / "kernels.cu").write_text(kernel_source())
    codes = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in wanted]
    nvcc("-fatbin", *codes, "-o", f"{tmp_path}/fat", f"{tmp_path}/kernels.cu")
    assert (tmp_path / "fat").stat().st_size


def test_there_is_no_floating_point_that_could_flush_a_denormal(tmp_path):
    (tmp_path / "kernels.cu").write_text(kernel_source())
    nvcc("-ptx", "-o", f"{tmp_path}/kernels.ptx", f"{tmp_path}/kernels.cu")
    text = (tmp_path / "kernels.ptx").read_text()
    assert "count_values" in text
    assert not re.findall(r"\.(?:f|bf|tf)\d\d", text)


@pytest.fixture
def nvcc_on_host(cuda, kernels, tmp_path, monkeypatch):
    """The stand-in of the driver, and an `nvcc` that gives it these kernels."""
    offer_nvcc(tmp_path, kernels._name, monkeypatch)
    return cuda


LARGE = np.arange(1, 1001, dtype=np.float32)


def on_device():
    """Return what two histograms count of tensors that lie on the device."""
    device = PyCudaDevice()
    address = device.allocate(LARGE.nbytes)
    try:
        device.copy(address, LARGE)
        with DeviceHistogram(device) as first, DeviceHistogram(device) as second:
            for elements in (4, 1000, 1000):
                first.update(address, elements, "float32")
            second.update(address, 1000, "float32")
    finally:
        device.free(address)
        device.close()
    return first.histogram(), second.histogram()


COUNTED = on_host(LARGE[:4], LARGE, LARGE), on_host(LARGE)


def failing():
    """Return what was counted, or the error without what it holds."""
    try:
        return on_device()
    except DeviceError as error:
        return type(error)(str(error))


@pytest.mark.parametrize("kept", [10], indirect=True)
def test_pycuda_counts_what_the_host_counts(nvcc_on_host, kept):
    assert on_device() == COUNTED
    assert nvcc_on_host.held() == {"contexts": 1}
    assert nvcc_on_host.calls().count("cuModuleUnload") == 1


@pytest.mark.parametrize("kept", [0, 10, 10_000], indirect=True)
def test_a_tensor_is_counted_after_it_is_made_and_before_the_next_one_is(nvcc_on_host, kept):
    device, stream = PyCudaDevice(), ctypes.c_void_p()
    address, library = device.allocate(LARGE.nbytes), nvcc_on_host.library
    place, size = ctypes.c_uint64(address), ctypes.c_size_t(LARGE.nbytes)
    with nvcc_on_host.tensorrt():
        library.cuStreamCreate(ctypes.byref(stream), 1)
    with DeviceHistogram(device) as counted:
        for part in (LARGE, -LARGE, 0 * LARGE):
            with nvcc_on_host.tensorrt():
                library.cuMemcpyHtoDAsync_v2(place, part.ctypes, size, stream)
                if not part.any():  # the others are under way when they are to be counted
                    library.cuStreamSynchronize(stream)
            counted.update(address, LARGE.size, "float32")
    assert counted.histogram() == on_host(LARGE, -LARGE, 0 * LARGE)
    with nvcc_on_host.tensorrt():
        library.cuStreamDestroy_v2(stream)
    device.free(address)


# PyCUDA prints the errors of these and goes on, or asks without need.
GOES_ON = {"cuMemFree", "cuModuleUnload", "cuCtxGetDevice", "cuDeviceComputeCapability"}


@pytest.mark.parametrize("kept", [10], indirect=True)
@pytest.mark.parametrize(
    ("code", "forever"), slow_but([(2, False), (719, False), (719, True)], (719, True))
)
def test_every_call_failing_is_a_clear_error_and_no_leak(nvcc_on_host, kept, code, forever):
    on_device()
    for number, call in enumerate(nvcc_on_host.calls()):
        nvcc_on_host.reset()
        nvcc_on_host.fail(number, code, forever)
        outcome = failing()
        if call in GOES_ON or (call == "cuMemAlloc" and code == 2):
            assert outcome == COUNTED or forever, (number, call)
        else:
            assert type(outcome) is (DeviceMemoryError if code == 2 else DeviceError)
            assert f"{call} failed: " in str(outcome)
            assert "\n" not in str(outcome)
        held = nvcc_on_host.held()
        assert not held.pop("current", 0) or forever  # a lost context cannot be left
        assert held in ({"contexts": 1}, {}), (number, call, held)


def test_what_is_missing_is_said(cuda, monkeypatch):
    monkeypatch.setattr(cuda_histogram, "which", lambda name: None)
    counted = DeviceHistogram(PyCudaDevice())
    with fails(ImportError, "CUDA toolkit"):
        count(counted, np.ones(histograms.VALUES_KEPT + 1, np.float32))
    counted.close()
    assert cuda.held() == {"contexts": 1}
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    with fails(ImportError, "pip install pycuda"):
        PyCudaDevice()
