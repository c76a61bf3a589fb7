"""In which context PyCUDA is asked, on a stand-in of the CUDA driver (`tests/cuda`)."""

import threading
from collections import Counter

import numpy as np
import pytest

from calibrators.device_memory import PyCudaMemory


def use(memory):
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    address = memory.allocate(24)
    memory.copy(address, array)
    return address, array.tobytes()


def test_a_copy_has_arrived_when_it_returns(cuda):
    memory = PyCudaMemory()
    address, data = use(memory)
    assert cuda.read(address, 24) == data
    memory.free(address)
    assert cuda.held() == {"contexts": 1}


def test_the_primary_context_is_retained_once_and_current_only_for_a_moment(cuda):
    use(PyCudaMemory())
    use(PyCudaMemory())
    assert Counter(cuda.calls())["cuDevicePrimaryCtxRetain"] == 1
    assert cuda.held() == {"contexts": 1}


def test_a_context_of_the_caller_is_used_and_left(cuda):
    from pycuda import driver

    driver.init()
    mine = driver.Device(1).retain_primary_context()
    mine.push()
    try:
        memory = PyCudaMemory()
        address, _ = use(memory)
        assert cuda.calls().count("cuCtxPushCurrent") == 1
        assert cuda.held() == {"contexts": 2, "memory": 1, "current": 1}
        memory.free(address)
    finally:
        driver.Context.pop()
        mine.detach()


def test_memory_can_be_used_in_another_thread_than_it_was_made_in(cuda):
    memory, used = PyCudaMemory(), []
    thread = threading.Thread(target=lambda: used.append(use(memory)))
    thread.start()
    thread.join()
    address, data = used[0]
    assert cuda.read(address, 24) == data
    memory.free(address)


def test_an_address_is_given_back_once(cuda):
    memory = PyCudaMemory()
    address = memory.allocate(8)
    memory.free(address)
    with pytest.raises(KeyError):
        memory.free(address)
