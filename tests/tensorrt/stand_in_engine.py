"""TensorRT's builder, runtime and engine as far as the worker of a device calls them.

The one engine copies its input to its output, in the stream that it is given, on the stand-in of the
CUDA driver. What the classes have is what `claims.py` says that TensorRT has.
"""

import ctypes
import json
from types import SimpleNamespace

from tests.tensorrt.stand_in import chain, module

PLAN = b"the plan"
FORMS = {"x": (-1, 4), "y": (-1, 4)}
LOWEST, HIGHEST = (1, 4), (8, 4)


class Said:
    """A base class of the bindings."""

    def __init__(self):
        self.ready = True


class Driver:
    """The stand-in's library; TensorRT's own calls of it are not counted and do not fail."""

    library = None

    def copy(self, target, source, size, stream):
        self.library.stand_in_quiet(1)
        call = self.library.cuMemcpyDtoDAsync_v2
        arguments = map(ctypes.c_uint64, (target, source, size, stream))
        code = call(*arguments)
        self.library.stand_in_quiet(0)
        return not code


def tensorrt(version, driver, **faults):
    """Return TensorRT's module; `faults` name what goes wrong: parse, build, load or run."""
    trt = module(version)
    trt.ILogger = type("ILogger", (Said,), {"Severity": SimpleNamespace(ERROR="Severity.ERROR")})
    trt.IProfiler = type("IProfiler", (Said,), {})
    trt.NetworkDefinitionCreationFlag = SimpleNamespace(
        **({"EXPLICIT_BATCH": 0} if version in ("8.6", "10.16") else {}),
        **({} if version == "8.6" else {"STRONGLY_TYPED": 1 if version == "10.16" else 0}),
    )
    trt.init_libnvinfer_plugins = lambda logger, namespace: True
    trt.Builder = lambda logger: Builder(trt, logger, faults)
    trt.OnnxParser = lambda network, logger: Parser(trt, logger, faults)
    trt.Runtime = lambda logger: Runtime(trt, logger, driver, faults)
    return trt


class Parser:
    def __init__(self, trt, logger, faults):
        self.trt, self.logger, self.faults = trt, logger, faults

    def parse_from_file(self, path):
        with open(path, "rb") as file:
            assert file.read() == b"a model"
        if "parse" in self.faults:
            self.logger.log(self.trt.ILogger.Severity.ERROR, "no\nsuch operator")
        return "parse" not in self.faults


class Config:
    """A builder's configuration: what was set."""

    def __init__(self):
        self.flags, self.cleared, self.profiles, self.pools = [], [], [], {}
        self.int8_calibrator = self.calibration_profile = None
        self.profiling_verbosity = self.builder_optimization_level = None

    def set_flag(self, flag):
        self.flags.append(flag)

    def clear_flag(self, flag):
        self.cleared.append(flag)

    def set_memory_pool_limit(self, pool, size):
        self.pools[pool] = size

    def add_optimization_profile(self, profile):
        self.profiles.append(profile)

    def set_calibration_profile(self, profile):
        self.calibration_profile = profile


class Profile:
    def __init__(self):
        self.shapes = {}

    def set_shape(self, name, low, usual, high):
        self.shapes[name] = (low, usual, high)


class Builder:
    """Keeps what it was given in `built`, and calibrates as `tests/calibrators/bindings.py` does."""

    built = None
    calibrate = None

    def __init__(self, trt, logger, faults):
        self.trt, self.faults = trt, faults
        assert logger.ready

    def create_network(self, flags):
        self.network_flags, self.network = flags, chain("x", "a", "y")
        return self.network

    def create_builder_config(self):
        return Config()

    def create_optimization_profile(self):
        return Profile()

    def build_serialized_network(self, network, config):
        Builder.built = SimpleNamespace(config=config, network=network, flags=self.network_flags)
        if config.int8_calibrator is not None and Builder.calibrate:
            Builder.calibrate(config.int8_calibrator)
        return None if "build" in self.faults else bytearray(PLAN)


class Runtime:
    def __init__(self, trt, logger, driver, faults):
        self.trt, self.logger, self.driver, self.faults = trt, logger, driver, faults
        assert logger.ready

    def deserialize_cuda_engine(self, plan):
        if plan != PLAN or "load" in self.faults:
            self.logger.log(self.trt.ILogger.Severity.ERROR, "The engine plan file is not whole")
            return None
        return Engine(self.trt, self.logger, self.driver, self.faults)


class Engine:
    num_io_tensors = 2
    num_optimization_profiles = 2

    def __init__(self, trt, logger, driver, faults):
        self.trt, self.logger, self.driver, self.faults = trt, logger, driver, faults

    def get_tensor_name(self, number):
        return list(FORMS)[number]

    def get_tensor_mode(self, name):
        return self.trt.TensorIOMode.INPUT if name == "x" else "TensorIOMode.OUTPUT"

    def get_tensor_dtype(self, name):
        return self.trt.DataType.FLOAT

    def get_tensor_location(self, name):
        return "TensorLocation.DEVICE"

    def get_tensor_shape(self, name):
        return FORMS[name]

    def get_tensor_profile_shape(self, name, number):
        return [LOWEST, (2, 4), (2, 4)] if number == 0 else [(3, 4), (4, 4), HIGHEST]

    def create_engine_inspector(self):
        text = json.dumps({"Layers": [], "Bindings": list(FORMS)})
        return SimpleNamespace(get_engine_information=lambda form: f"{text} ")

    def create_execution_context(self):
        return Context(self)


class Context:
    profiler = None

    def __init__(self, engine):
        self.engine, self.shape, self.addresses, self.profile = engine, None, {}, 0

    def set_optimization_profile_async(self, number, stream):
        self.profile = number
        return True

    def set_input_shape(self, name, shape):
        low, _, high = self.engine.get_tensor_profile_shape(name, self.profile)
        self.shape = tuple(shape)
        return all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))

    def get_tensor_shape(self, name):
        return (-1, 4) if "sizes" in self.engine.faults and name == "y" else self.shape

    def set_tensor_address(self, name, address):
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream):
        if self.profiler:
            for layer, ms in (("one", 0.25), ("two", 0.75)):
                self.profiler.report_layer_time(layer, ms)
        if "run" in self.engine.faults:
            self.engine.logger.log(self.engine.trt.ILogger.Severity.ERROR, "Cuda Runtime (700)")
            return False
        rows, columns = self.shape
        size = 4 * rows * columns
        return self.engine.driver.copy(self.addresses["y"], self.addresses["x"], size, stream)
