"""The worker's own way to the CUDA driver, on a stand-in of it: each call fails, and nothing leaks.

None of this shows that a GPU's driver behaves so: nothing of it has run on a GPU yet.
"""

import ctypes

import pytest

from tests.cuda.stand_in import build
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.wings.devices.worker import cuda_driver
from trtcal.wings.devices.worker.cuda_driver import Device, Driver, NoCudaError, Resources, Stream
from trtcal.wings.devices.worker.frames import Fault
from trtcal.wings.devices.worker.power import describe

BYTES = bytes(range(200))
MEMORY, NO_DEVICE, LOST = 2, 100, 719


def copy_twice(library):
    """Copy bytes to the device and back in a graph, and return what came back, and the time."""
    driver = Driver(library)
    resources = Resources(driver)
    try:
        stream, size = Stream(resources), len(BYTES)
        host, device = resources.allocate_host(size), resources.allocate(size)
        back, events = resources.allocate_host(size), [resources.event(), resources.event()]
        graph = resources.graph(stream.handle, lambda: stream.download(back, device, size))
        ctypes.memmove(host, BYTES, size)
        stream.record(events[0])
        stream.upload(device, host, size)
        stream.launch(graph)
        stream.record(events[1])
        stream.wait()
        return ctypes.string_at(back, size), stream.elapsed_ms(*events)
    finally:
        resources.close()
        driver.close()


def test_bytes_come_back_by_a_graph_and_everything_is_given_back(cuda):
    content, ms = copy_twice(cuda.library)
    assert content == BYTES
    assert ms == pytest.approx(2)  # two copies of a millisecond each
    assert cuda.held() == {}


def test_whatever_call_fails_it_is_one_error_and_nothing_is_held(cuda):
    copy_twice(cuda.library)
    calls = cuda.calls()
    giving_back = ("cuMemFree", "cuMemFreeHost", "cuGraphDestroy", "cuGraphExecDestroy")
    giving_back += ("cuStreamDestroy", "cuEventDestroy", "cuCtxPopCurrent")
    giving_back += ("cuDevicePrimaryCtxRelease",)
    for number, name in enumerate(calls):
        cuda.reset()
        cuda.fail(number, LOST)
        if name in giving_back:
            continue
        with fails(Fault, f"{name} failed: unspecified launch failure (719)"):
            copy_twice(cuda.library)
        assert cuda.held() == {}, name


@each("code, kind", [(MEMORY, "resource"), (LOST, "backend")])
def test_full_memory_is_a_resource(cuda, code, kind):
    driver = Driver(cuda.library)
    cuda.fail(cuda.library.stand_in_calls(), code)
    with pytest.raises(Fault) as caught:
        Resources(driver).allocate(1 << 20)
    driver.close()
    assert caught.value.kind == kind
    assert caught.value.hint


def test_a_capture_that_fails_ends_so_that_the_next_one_can_begin(cuda):
    driver = Driver(cuda.library)
    resources = Resources(driver)
    stream = Stream(resources)
    with fails(Fault, "cuStreamSynchronize failed"):
        resources.graph(stream.handle, stream.wait)
    assert resources.graph(stream.handle, lambda: None) is not None
    resources.close()
    driver.close()


def test_an_old_driver_says_what_it_lacks(cuda):
    with fails(Fault, "the CUDA driver is too old: it has no cuQuantumLeap"):
        Device(cuda.library).call("cuQuantumLeap")


def test_a_device_is_described_without_a_context(cuda):
    assert Device(cuda.library).describe() == {
        "kind": "GPU",
        "name": "Imaginary GTX 1",
        "capability": "sm99",
        "cuda": "12.4",
        "clock_mhz": 0.009,
    }
    assert cuda.held() == {}


def test_no_driver_and_no_device_are_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_driver, "LIBRARIES", ("libnothing.so.1",))
    with fails(NoCudaError, "cannot be loaded"):
        Device()
    assert describe() is None
    monkeypatch.setattr(cuda_driver, "LIBRARIES", (str(build(tmp_path)),))
    monkeypatch.setenv("CUDA_STAND_IN", f"cuInit:{NO_DEVICE}")
    with fails(NoCudaError, "no CUDA-capable device is detected"):
        Device()
    assert describe() is None
