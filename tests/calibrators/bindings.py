"""What stands between TensorRT's builder and a calibrator: its bindings, real or standing in.

`Builder` does what TensorRT's builder does with a calibrator. With TensorRT 8 or 10 installed it enters
the real bindings where the builder does, at the C++ object's table of virtual functions; that
needs no GPU. Without TensorRT, `stand_in` has base classes and a caller that behave as the bindings do:
`python/src/infer/pyInt8.cpp` in TensorRT's repository.
"""

import _thread
import ctypes
import itertools
import signal
import sys
from functools import partial
from types import SimpleNamespace

BASES = {
    "entropy": "IInt8EntropyCalibrator",
    "entropy2": "IInt8EntropyCalibrator2",
    "legacy": "IInt8LegacyCalibrator",
    "minmax": "IInt8MinMaxCalibrator",
}
CACHE = b"TRT-8600-EntropyCalibration2\nx: 3c010a14\n"


def installed():
    """Return TensorRT's module if it is there and has calibrators."""
    try:
        import tensorrt
    except ImportError:
        return None
    return tensorrt if hasattr(tensorrt, "IInt8Calibrator") else None


class StandInBase:
    """A base class of the bindings, which have to be initialized by name."""

    ready = False

    def __init__(self):
        self.ready = True


def stand_in(version="8.6.0"):
    """Return a module with the base classes that this version of TensorRT has."""
    bases = BASES.values() if int(version.split(".")[0]) < 11 else ()
    classes = {name: type(name, (StandInBase,), {}) for name in bases}
    return SimpleNamespace(__version__=version, **classes)


class StandInCalls:
    """The bindings' part: exceptions are printed, and become what means that there is no more."""

    def __init__(self, calibrator):
        assert calibrator.ready
        self.calibrator = calibrator

    def call(self, name, failed, *arguments):
        try:
            return getattr(self.calibrator, name)(*arguments)
        except BaseException as error:
            print(f"[ERROR] Exception caught in {name}(): {error}", file=sys.stderr)
            return failed

    def interrupted(self, name):
        """Enter a callback after Ctrl-C, which the bindings find and swallow on the way."""
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException as error:
            print(f"[ERROR] Exception caught in {name}(): {error!r}", file=sys.stderr)

    def get_batch_size(self):
        return self.call("get_batch_size", -1)

    def get_batch(self, names):
        found = self.call("get_batch", None, names)
        assert not found or len(found) == len(names), "TensorRT would read beyond the list"
        return found or None

    def read_calibration_cache(self):
        return self.call("read_calibration_cache", None)

    def write_calibration_cache(self, cache):
        text = bytearray(cache)
        self.call("write_calibration_cache", None, memoryview(text))
        text[:] = bytes(len(text))  # TensorRT's memory is gone after the call

    def get_quantile(self):
        return self.call("get_quantile", 0.0)

    def get_regression_cutoff(self):
        return self.call("get_regression_cutoff", 0.0)

    def read_histogram_cache(self):
        return self.call("read_histogram_cache", None, 0)

    def write_histogram_cache(self, histograms):
        self.call("write_histogram_cache", None, object(), len(histograms))


class NativeCalls:
    """The real bindings, called through the C++ object inside the Python one."""

    SLOTS = (
        "get_batch_size", "get_batch", "read_calibration_cache", "write_calibration_cache",
        "get_algorithm", "get_quantile", "get_regression_cutoff", "read_histogram_cache",
        "write_histogram_cache",
    )  # fmt: skip

    def __init__(self, calibrator):
        self.calibrator = calibrator

    def entry(self, name, result=ctypes.c_void_p, *arguments):
        """Return what calls a virtual function; `arguments` are ctypes objects."""
        # TensorRT 10 has two functions and two destructors of a common interface in front;
        # TensorRT 8 has its destructors behind `get_algorithm`.
        number = self.SLOTS.index(name)
        if int(installed().__version__.split(".")[0]) >= 10:
            number += 4
        elif number > self.SLOTS.index("get_algorithm"):
            number += 2
        if name == "get_batch" and not arguments:
            arguments = self.batch_arguments(["x"])
        this = pointer_at(id(self.calibrator) + object.__basicsize__)
        function = pointer_at(pointer_at(this) + number * ctypes.sizeof(ctypes.c_void_p))
        kinds = (ctypes.c_void_p, *map(type, arguments))
        return partial(ctypes.CFUNCTYPE(result, *kinds)(function), this, *arguments)

    def interrupted(self, name):
        """Enter a callback after Ctrl-C, with no Python code on the way that would handle it."""
        turns = [partial(_thread.interrupt_main), self.entry(name)]
        list(map(partial.__call__, turns))

    def call(self, name, result, *arguments):
        return self.entry(name, result, *arguments)()

    @staticmethod
    def batch_arguments(names):
        texts = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        return (ctypes.c_void_p * len(names))(), texts, ctypes.c_int(len(names))

    def get_batch_size(self):
        return self.call("get_batch_size", ctypes.c_int)

    def get_batch(self, names):
        arguments = self.batch_arguments(names)
        return list(arguments[0]) if self.call("get_batch", ctypes.c_bool, *arguments) else None

    def read_calibration_cache(self):
        length = ctypes.c_size_t()
        pointer = self.call("read_calibration_cache", ctypes.c_void_p, ctypes.pointer(length))
        return ctypes.string_at(pointer, length.value) if pointer else None

    def write_calibration_cache(self, cache):
        text = ctypes.create_string_buffer(cache, len(cache))
        self.call("write_calibration_cache", None, text, ctypes.c_size_t(len(cache)))
        ctypes.memset(text, 0, len(cache))  # TensorRT's memory is gone after the call

    def get_quantile(self):
        return self.call("get_quantile", ctypes.c_double)

    def get_regression_cutoff(self):
        return self.call("get_regression_cutoff", ctypes.c_double)

    def read_histogram_cache(self):
        length = ctypes.c_size_t()
        return self.call("read_histogram_cache", ctypes.c_void_p, ctypes.pointer(length))

    def write_histogram_cache(self, histograms):
        text = ctypes.create_string_buffer(histograms, len(histograms))
        self.call("write_histogram_cache", None, text, ctypes.c_size_t(len(histograms)))


def pointer_at(address):
    return ctypes.c_void_p.from_address(address).value


def calls(calibrator):
    """Return the bindings of a calibrator, as the builder sees them."""
    return (NativeCalls if installed() else StandInCalls)(calibrator)


class Builder:
    """Calibrates as TensorRT does: a cache if there is a good one, else batches until there is none.

    `refuses` says that it takes no cache, `at_most` that it fails after so many batches. `seen` are the
    bytes of each batch's inputs, read from the addresses that it got.
    """

    def __init__(self, sizes, refuses=False, at_most=None):
        self.sizes, self.refuses, self.at_most = sizes, refuses, at_most
        self.seen = []

    def build(self, calibrator, written=CACHE):
        bindings = calls(calibrator)
        if bindings.read_calibration_cache() and not self.refuses:
            return
        bindings.get_batch_size()
        for _ in itertools.islice(itertools.count(), self.at_most):
            addresses = bindings.get_batch(list(self.sizes))
            if addresses is None:
                break
            self.seen.append(
                {
                    name: self.read(address, size)
                    for (name, size), address in zip(self.sizes.items(), addresses, strict=True)
                }
            )
        if self.at_most is None and self.seen:
            bindings.write_calibration_cache(written)

    def read(self, address, size):
        return ctypes.string_at(address, size)


class HostMemory:
    """Memory of this machine instead of a device's."""

    def __init__(self):
        self.buffers, self.allocated = {}, 0

    def allocate(self, nbytes):
        buffer = ctypes.create_string_buffer(nbytes)
        self.allocated += 1
        self.buffers[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def copy(self, address, array):
        data = array.tobytes()
        assert len(data) == len(self.buffers[address])
        ctypes.memmove(address, data, len(data))

    def free(self, address):
        del self.buffers[address]
