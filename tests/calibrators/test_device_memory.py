"""What PyCUDA has to be asked for, and in which context; a driver on host memory stands in for it."""

import sys
import threading
from types import ModuleType

import numpy as np
import pytest

from calibrators import device_memory
from calibrators.device_memory import PyCudaMemory
from tests.calibrators.bindings import HostMemory


class Driver(ModuleType):
    """As `pycuda.driver`: contexts lie on a stack that each thread has, and copies need not be done."""

    def __init__(self):
        super().__init__("pycuda.driver")
        self.host, self.threads = HostMemory(), threading.local()
        self.retained, self.under_way = 0, None
        self.Context = self.Device = self

    @property
    def stack(self):
        return self.threads.__dict__.setdefault("stack", [])

    def init(self):
        pass

    def __call__(self, number):
        self.number = number
        return self

    def retain_primary_context(self):
        self.retained += 1
        return self

    def push(self):
        self.stack.append(self)

    def pop(self):
        self.stack.pop()

    def detach(self):
        pass

    def get_current(self):
        return self.stack[-1] if self.stack else None

    def synchronize(self):
        assert self.stack, "no current context"
        if self.under_way:
            self.host.copy(*self.under_way)
        self.under_way = None
        self.idle = True

    def mem_alloc(self, nbytes):
        assert self.stack, "no current context"
        return Allocation(self, self.host.allocate(nbytes))

    def memcpy_htod(self, address, array):
        assert self.stack, "no current context"
        assert self.idle, "TensorRT may still read what was there"
        assert array.flags.c_contiguous
        self.under_way, self.idle = (address, array), False

    def memcpy_dtoh(self, array, address):
        assert self.stack, "no current context"
        assert self.idle, "what is to be read may not be there yet"
        self.host.read(address, array)


class Allocation:
    def __init__(self, driver, address):
        self.driver, self.address = driver, address

    def __int__(self):
        return self.address

    def free(self):
        self.driver.host.free(self.address)


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    package = ModuleType("pycuda")
    package.driver = made
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", made)
    device_memory._primary_context.cache_clear()
    yield made
    device_memory._primary_context.cache_clear()


def use(memory):
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    address = memory.allocate(24)
    memory.copy(address, array)
    return address, array.tobytes()


def test_a_copy_has_arrived_when_it_returns(driver):
    memory = PyCudaMemory()
    address, data = use(memory)
    assert driver.host.buffers[address].raw == data
    memory.free(address)
    assert not driver.host.buffers


def test_the_primary_context_is_retained_once_and_current_only_for_a_moment(driver):
    use(PyCudaMemory(1))
    use(PyCudaMemory(1))
    assert (driver.number, driver.retained, driver.stack) == (1, 1, [])


def test_a_context_of_the_caller_is_used_and_left(driver):
    mine = object()
    driver.stack.append(mine)
    use(PyCudaMemory())
    assert driver.stack == [mine]


def test_memory_can_be_used_in_another_thread_than_it_was_made_in(driver):
    memory, used = PyCudaMemory(), []
    thread = threading.Thread(target=lambda: used.append(use(memory)))
    thread.start()
    thread.join()
    assert len(used) == 1
