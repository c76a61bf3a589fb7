"""Calibration inside TensorRT's builder on a GPU's memory: each call of CUDA fails, and nothing leaks.

PyCUDA's own calls go to a stand-in of the CUDA driver (`driver.c`). With `make test-cuda` it is PyCUDA
that makes them, elsewhere `pycuda_driver`, which stands in for it. TensorRT's builder is a stand-in
too. None of this shows that a GPU's driver behaves so, or that TensorRT takes the batches.
"""

import ctypes
import threading
from collections import Counter

import numpy as np
import pytest

from calibrators.device_memory import DeviceError, DeviceMemoryError, PyCudaMemory
from calibrators.feeder import Feeder
from calibrators.tensorrt_builder import calibrator_object
from tests.calibrators.bindings import Builder
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, samples
from tests.tensorrt.stand_in import chain, module
from trtcal.backends.options import Route
from trtcal.backends.tensorrt_network import routed
from trtcal.errors import BackendError, InputError, ResourceError
from trtcal.model import load_model

TRT = module("8.6")
SIZE = 5 * 3 * 8 * 8 * 4
MEMORY, CONTEXT, LOST = 2, 201, 719
CLEANING_UP = {"cuMemFree"}  # PyCUDA prints its error and goes on, and allocates once more


class StreamedBuilder(Builder):
    """Reads the batches as TensorRT does: in a stream of its own, at some time after it has them."""

    def __init__(self, on, **options):
        super().__init__({"x": SIZE}, **options)
        self.on, self.library, self.reads = on, on.library, []
        self.stream, self.event = ctypes.c_void_p(), ctypes.c_void_p()

    def build(self, calibrator):
        with self.on.tensorrt():
            self.library.cuStreamCreate(ctypes.byref(self.stream), 1)
            self.library.cuEventCreate(ctypes.byref(self.event), 0)
        super().build(calibrator)
        with self.on.tensorrt():
            self.library.cuEventRecord(self.event, self.stream)
            self.library.cuEventSynchronize(self.event)
            self.library.cuEventDestroy_v2(self.event)
            self.library.cuStreamDestroy_v2(self.stream)

    def read(self, address, size):
        kept = ctypes.create_string_buffer(size)
        with self.on.tensorrt():
            copy = self.library.cuMemcpyDtoHAsync_v2
            assert copy(kept, ctypes.c_uint64(address), ctypes.c_size_t(size), self.stream) == 0
        return kept


@pytest.fixture
def fed(tmp_path, monkeypatch):
    """The request of the route `calibrator` for a sample network and its data."""
    monkeypatch.chdir(tmp_path)
    samples(tmp_path / "data.npz", count=10)
    model = load_model(conv_net(tmp_path / "model.onnx"))
    shapes = {"x": ((1, 3, 8, 8), (5, 3, 8, 8), (8, 3, 8, 8))}
    body = Route("calibrator", data=tmp_path / "data.npz").to_request(model.inputs, shapes)
    return {**body, "model": "model.onnx"}


def calibrate(on, fed, error=None, **options):
    """Return the batches that TensorRT read."""
    builder = StreamedBuilder(on, **options)
    with routed(TRT, chain("x"), fed, lambda *_: None) as made:
        builder.build(made["calibrator"])
        if error is not None:
            raise error
    return b"".join(seen["x"].raw for seen in builder.seen)


def failing(on, fed):
    """Return what came of a calibration: True, or the error without what it holds."""
    try:
        return calibrate(on, fed) == np.load("data.npz")["x"].tobytes()
    except (BackendError, ResourceError) as error:
        return type(error)(error.message, error.hint)


def test_every_batch_is_read_in_time_and_all_is_given_back(cuda, fed):
    assert failing(cuda, fed) is True
    assert cuda.held() == {"contexts": 1}
    made = Counter(cuda.calls())
    assert (made["cuMemAlloc"], made["cuMemcpyHtoD"], made["cuMemFree"]) == (1, 2, 1)
    assert made["cuDevicePrimaryCtxRetain"] == 1


@pytest.mark.parametrize(
    ("code", "forever"), [(MEMORY, False), (CONTEXT, False), (LOST, False), (LOST, True)]
)
def test_every_call_failing_is_one_clear_error_and_no_leak(cuda, fed, code, forever):
    assert failing(cuda, fed) is True
    calls = cuda.calls()
    for number, call in enumerate(calls):
        cuda.reset()
        cuda.fail(number, code, forever)
        outcome = failing(cuda, fed)
        again = call in CLEANING_UP or (call == "cuMemAlloc" and code == MEMORY)
        if again and not forever:
            assert outcome is True, (number, call)
        else:
            check(outcome, "cuCtxPopCurrent" if call in CLEANING_UP else call, code)
        held = cuda.held()
        assert not held.pop("current", 0) or forever  # a lost context cannot be left
        assert held in ({"contexts": 1}, {}), (number, call, held)


def check(error, call, code):
    assert type(error) is (ResourceError if code == MEMORY else BackendError)
    assert error.message.startswith("calibration inside TensorRT failed: ")
    assert f"{call} failed: " in error.message
    assert "\n" not in error.message
    assert error.hint


def test_too_little_memory_is_a_lack_of_resources(cuda, fed):
    cuda.room(SIZE - 1)
    with fails(ResourceError, f"{SIZE} bytes"):
        calibrate(cuda, fed)
    assert cuda.held() == {"contexts": 1}


def test_data_that_break_on_the_way_leave_nothing_behind(cuda):
    def breaking():
        yield {"x": np.zeros((5, 3, 8, 8), np.float32)}
        raise InputError("the disk is gone")

    made = calibrator_object("entropy2", breaking(), {"x": (5, 3, 8, 8)}, trt=TRT)
    with fails(InputError, "the disk is gone"), made:
        StreamedBuilder(cuda).build(made)
    assert cuda.calls().count("cuMemcpyHtoD") == 1
    assert cuda.held() == {"contexts": 1}


@pytest.mark.parametrize("error", [RuntimeError("no engine"), KeyboardInterrupt()])
def test_what_ends_a_build_is_not_hidden_by_a_device_that_is_lost_too(cuda, fed, error):
    calibrate(cuda, fed)
    free = len(cuda.calls()) - 3
    for ends in (None, free):
        cuda.reset()
        if ends is not None:
            cuda.fail(ends, LOST)
        with pytest.raises(type(error)):
            calibrate(cuda, fed, error)
        error.__traceback__ = error.__context__ = None
        assert cuda.held() == {"contexts": 1}


def test_the_other_buffers_are_freed_where_one_cannot_be(cuda):
    shapes = {"a": (1, 2), "b": (1, 2)}
    feeds = {name: np.zeros((1, 2), np.float32) for name in shapes}
    memory = PyCudaMemory()
    feeder = Feeder([feeds], shapes, memory)
    feeder.next(["a", "b"])
    cuda.fail(len(cuda.calls()), CONTEXT)
    with fails(DeviceError, "cuCtxPushCurrent"):
        feeder.close()
    assert cuda.held() == {"contexts": 1}
    assert cuda.calls().count("cuMemFree") == 2


@pytest.mark.parametrize("forever", [False, True])
def test_a_thread_leaves_no_context_behind_when_cuda_fails(cuda, forever):
    """PyCUDA aborts the process with a thread that does."""
    memory, caught = PyCudaMemory(), []
    address = memory.allocate(8)
    cuda.fail(len(cuda.calls()) + 4, LOST, forever)

    def copy():
        from pycuda.driver import Context

        with fails(DeviceError, "cuCtxPopCurrent", "unspecified launch failure"):
            memory.copy(address, np.zeros(1))
        caught.append(Context.get_current())

    thread = threading.Thread(target=copy)
    thread.start()
    thread.join()
    assert caught == [None]


def test_a_context_that_is_given_up_is_not_used_again(cuda):
    memory = PyCudaMemory()
    address = memory.allocate(8)
    cuda.fail(len(cuda.calls()), LOST, forever=True)
    with fails(DeviceError, "cuCtxPushCurrent"):
        memory.allocate(8)
    cuda.fail(-1, 0)
    with fails(DeviceError, "context"):
        memory.allocate(8)
    memory.free(address)
    assert not cuda.held()
    assert PyCudaMemory().allocate(8)


def test_full_memory_is_an_error_of_its_own(cuda):
    memory = PyCudaMemory()
    cuda.room(100)
    with fails(DeviceMemoryError, "out of memory"):
        memory.allocate(101)
    with fails(DeviceError, "invalid argument") as caught:
        memory.copy(memory.allocate(4), np.zeros(1))
    assert not isinstance(caught.value, DeviceMemoryError)
