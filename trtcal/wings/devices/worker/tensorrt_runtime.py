"""TensorRT 8.5 to 11 by its Python package, on the device's first GPU. Not yet run on a GPU.

It builds what `trtcal/backends/tensorrt_worker.py` builds where it runs, from the same request, without
Polygraphy, PyCUDA and, but for the route "cache" and "dynamic-ranges" with constants, NumPy.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import time
from array import array
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from trtcal.backends.tensorrt_objects import (
    VERBOSITIES,
    layer_information,
    layers_of,
    plugins_of,
    profiler_of,
    set_layer_precisions,
    shown,
    times_document,
    usual_shapes,
    warn,
)

from .cuda_driver import CudaError, Device, Driver, NoCudaError, Resources, Stream
from .frames import Fault
from .runtimes import Tensor, nbytes_of
from .tensorrt_routes import (
    Messages,
    Routed,
    converted,
    lacks_option,
    typing_of,
    version_of,
    write_file,
)

if TYPE_CHECKING:
    from .jobs import Job

OLDEST = (8, 5)
RUNS = 100  # for the times of layers
WARM_UP_S = 0.2  # that of trtexec
TYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "FP8": "float8_e4m3fn"}
"""NumPy's names of TensorRT's types, where they are others than in small letters."""


def version() -> str | None:
    """Return the version that is installed, if any."""
    try:
        return str(importlib.import_module("tensorrt").__version__)
    except Exception:  # whatever a library that is not whole raises
        return None


def lacks() -> list[dict[str, str]]:
    """Return what building and running takes and is not there."""
    command = "python3 -m pip install tensorrt"
    if os.path.exists("/etc/nv_tegra_release"):
        command = "sudo apt-get install python3-libnvinfer"
    try:
        Device()
    except NoCudaError:
        return []
    except CudaError as error:
        return [{"what": f"a CUDA driver that works ({error})", "command": "nvidia-smi"}]
    return [] if version() else [{"what": "TensorRT's Python package", "command": command}]


def _package() -> Any:
    """Return TensorRT's module; a fault if there is none, or it is too old."""
    try:
        trt = importlib.import_module("tensorrt")
    except Exception as error:
        what = f"TensorRT cannot be loaded on the device: {error}"
        raise Fault("backend", what, "`trtcal device check` says what it lacks") from error
    if version_of(trt) < OLDEST:
        what = f"TensorRT {trt.__version__} is older than 8.5, the first that the worker knows"
        raise Fault("backend", what, "update TensorRT on the device, or use trtexec")
    return trt


# Building.


def build(job: Job, folder: str, log: Callable[[str], None]) -> dict[str, Any]:
    """Build an engine, and list its layers; see `runtimes.py`."""
    trt = _package()
    messages = Messages(trt, log)
    messages.add("I", f"tensorrt {trt.__version__}")
    with closing(
        Driver()
    ) as driver:  # before TensorRT, whose runtime crashes where there is no GPU
        files, plugins = _build(trt, driver, job, folder, messages)
        files.update(_inspected(messages, files["engine"], folder, job.options))
    return {"files": files, "plugins": plugins}


def _build(
    trt: Any, driver: Driver, job: Job, folder: str, messages: Messages
) -> tuple[dict[str, str], list[str]]:
    """Return the engine's file, with the calibration cache's, and the plug-ins."""
    request = job.options
    is_qdq = request.get("route", "qdq") == "qdq"
    typed = is_qdq and hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
    builder = trt.Builder(messages.logger)
    network = builder.create_network(network_flags(trt, typed))
    trt.init_libnvinfer_plugins(None, "")
    parser = trt.OnnxParser(network, messages.logger)
    if not parser.parse_from_file(job.path("model")):
        raise messages.fault("TensorRT cannot read the model")
    config, plugins = builder.create_builder_config(), plugins_of(layers_of(network), trt)
    set_options(trt, config, request)
    if not typed:
        set_flags(trt, network, config, request, messages)
    add_profiles(builder, network, config, request)
    routed = Routed(trt, network, messages)
    with closing(Resources(driver)) as resources:
        calibrator = None if is_qdq else routed.take(job, resources)
        if calibrator is not None:
            config.int8_calibrator = calibrator
        plan = builder.build_serialized_network(network, config)
    routed.check(plan is not None)
    if plan is None:
        raise messages.fault("TensorRT built no engine")
    files = {"engine": write_file(folder, "engine.plan", plan)}
    if routed.cache:
        files["cache"] = write_file(folder, "calibration.cache", routed.cache)
    return files, plugins


def network_flags(trt: Any, typed: bool) -> int:
    """Return the bits of a network with explicit batch, strongly typed where that is asked for."""
    flag = trt.NetworkDefinitionCreationFlag
    bits = 1 << int(flag.EXPLICIT_BATCH) if version_of(trt) < (10, 0) else 0
    return bits | 1 << int(flag.STRONGLY_TYPED) if typed else bits


def set_options(trt: Any, config: Any, request: Mapping[str, Any]) -> None:
    """Set what bears on any engine; a fault for what this version lacks."""
    verbosity = request.get("verbosity") or "detailed"
    config.profiling_verbosity = getattr(trt.ProfilingVerbosity, VERBOSITIES[verbosity])
    config.clear_flag(trt.BuilderFlag.TF32)
    workspace, level = request.get("workspace_bytes"), request.get("optimization_level")
    if workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
    if level is not None:
        if not hasattr(trt.IBuilderConfig, "builder_optimization_level"):
            raise lacks_option(trt, "no option for the optimization level of the builder")
        config.builder_optimization_level = level


def set_flags(
    trt: Any, network: Any, config: Any, request: Mapping[str, Any], messages: Messages
) -> None:
    """Allow INT8 and FP16 where types are free, and hold layers to what they need."""
    int8, fp16, precisions, constraints = typing_of(request)
    if int8:
        if not hasattr(trt.BuilderFlag, "INT8"):
            raise lacks_option(trt, "only the route qdq")
        config.set_flag(trt.BuilderFlag.INT8)
    if fp16:
        config.set_flag(trt.BuilderFlag.FP16)
    if constraints:
        flags = trt.BuilderFlag
        config.set_flag(
            flags.OBEY_PRECISION_CONSTRAINTS
            if constraints == "obey"
            else flags.PREFER_PRECISION_CONSTRAINTS
        )
        absent = set_layer_precisions(trt, network, precisions, constraints)
        warn(messages.add, absent, "layers of the plan are not in TensorRT's network")


def add_profiles(builder: Any, network: Any, config: Any, request: Mapping[str, Any]) -> None:
    """Add the optimization profiles; TensorRT calibrates with the first."""
    for number, shapes in enumerate(request.get("profiles") or ()):
        shape_profile = builder.create_optimization_profile()
        for name, (low, usual, high) in shapes.items():
            shape_profile.set_shape(name, tuple(low), tuple(usual), tuple(high))
        config.add_optimization_profile(shape_profile)
        if not number and request.get("route", "qdq") != "qdq":
            config.set_calibration_profile(shape_profile)


# Layers.


def _inspected(log: Messages, path: str, folder: str, request: Mapping[str, Any]) -> dict[str, str]:
    """Return the files with the layers and their times; the log says what cannot be had."""
    files = {}
    try:
        with closing(Engine(path, {}, log)) as opened:
            files["layers"] = write_file(folder, "layers.json", opened.layers().encode())
            if request.get("layer_times"):
                times = json.dumps(opened.layer_times(usual_shapes(request)), indent=1)
                files["layer_times"] = write_file(folder, "layer-times.json", times.encode())
    except Exception as error:  # the engine is good
        log.add("W", f"the engine could not be inspected: {error}")
    return files


# Running.


def open(path: str, options: dict[str, Any]) -> Engine:  # noqa: A001  # the interface's name
    """Load an engine; `cuda_graph` in the options has it timed as a CUDA graph."""
    return Engine(path, options)


class Binding:
    """An input or output: its memory on both sides, for the shape that it has now."""

    def __init__(self, name: str, dtype: str, shape: Sequence[int], on_host: bool) -> None:
        self.name, self.dtype, self.on_host = name, dtype, on_host
        self.described: dict[str, Any] = {"name": name, "dtype": dtype, "shape": list(shape)}
        self.nbytes = self.moved = self.host = self.device = 0

    def allocate(self, resources: Resources, shape: Sequence[int]) -> None:
        """Take memory for a shape."""
        self.nbytes = nbytes_of(self.dtype, shape)
        self.moved = 0 if self.on_host else self.nbytes
        self.host = resources.allocate_host(self.nbytes)
        self.device = self.host if self.on_host else resources.allocate(self.nbytes)


class Engine:
    """An engine with one execution context; see `runtimes.py`."""

    def __init__(self, path: str, options: dict[str, Any], log: Messages | None = None) -> None:
        trt = _package()
        self.metadata: dict[str, str] = {}
        self.warnings: list[str] = []
        self._closing, self._graph = ExitStack(), 0
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._trt, self._with_graph = trt, bool(options.get("cuda_graph"))
        self._driver = Driver()  # before TensorRT, whose runtime crashes where there is no GPU
        self._closing.callback(self._driver.close)
        try:
            self._load(log or Messages(trt, lambda _: None), path)
        except BaseException:
            self.close()
            raise

    def _load(self, messages: Messages, path: str) -> None:
        trt, self._messages = self._trt, messages
        trt.init_libnvinfer_plugins(None, "")
        runtime = trt.Runtime(messages.logger)
        engine = runtime.deserialize_cuda_engine(Path(path).read_bytes())
        if engine is None:
            raise messages.fault(f"TensorRT {trt.__version__} cannot load the engine")
        context = engine.create_execution_context()
        if context is None:
            raise messages.fault("TensorRT cannot run the engine")
        self._objects = [runtime, engine, context]
        self._closing.callback(self._forget)
        self._fixed, self._buffers = Resources(self._driver), Resources(self._driver)
        self._closing.callback(self._fixed.close)
        self._closing.callback(lambda: self._buffers.close())
        self._stream = Stream(self._fixed)
        self._events = [self._fixed.event() for _ in range(4)]
        bindings = [self._binding(engine.get_tensor_name(n)) for n in range(engine.num_io_tensors)]
        modes = [engine.get_tensor_mode(binding.name) for binding in bindings]
        is_input = [mode == trt.TensorIOMode.INPUT for mode in modes]
        self._inputs = [binding for binding, first in zip(bindings, is_input) if first]
        self._outputs = [binding for binding, first in zip(bindings, is_input) if not first]
        self.inputs = [binding.described for binding in self._inputs]
        self.outputs = [binding.described for binding in self._outputs]

    def _forget(self) -> None:
        while self._objects:
            self._objects.pop()  # the context before its engine, this before its runtime

    def _binding(self, name: str) -> Binding:
        trt, engine = self._trt, self._objects[1]
        dtype = str(engine.get_tensor_dtype(name)).rpartition(".")[2]
        on_host = engine.get_tensor_location(name) == trt.TensorLocation.HOST
        shape = engine.get_tensor_shape(name)
        return Binding(name, TYPES.get(dtype, dtype.lower()), shape, on_host)

    def layers(self) -> str:
        """Return the inspector's JSON."""
        return layer_information(self._objects[1], self._trt)

    def layer_times(self, shapes: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
        """Run made-up data, dynamic inputs in these shapes; return the times of layers."""
        context = self._objects[2]
        runs: list[list[tuple[str, float]]] = []
        inputs = [binding.described for binding in self._inputs]
        self._bind(
            {x["name"]: made_up(x["dtype"], shapes.get(x["name"], x["shape"])) for x in inputs}
        )
        context.profiler = profiler_of(self._trt, runs)
        for _ in range(RUNS):
            runs.append([])
            self._enqueue()
            self._stream.wait()
        return times_document(runs)

    def run(self, feeds: dict[str, Tensor], names: list[str] | None) -> dict[str, Tensor]:
        """Run one batch."""
        self._bind(feeds)
        self.launch()
        outputs = {binding.name: binding for binding in self._outputs}
        chosen = list(outputs) if names is None else names
        lacking = [name for name in chosen if name not in outputs]
        if lacking:
            raise Fault("input", f"the engine has no output {shown(lacking)}")
        return {name: self._result(outputs[name]) for name in chosen}

    def _result(self, binding: Binding) -> Tensor:
        context = self._objects[2]
        shape = tuple(context.get_tensor_shape(binding.name))
        return Tensor(binding.dtype, shape, ctypes.string_at(binding.host, binding.nbytes))

    def prepare(self, feeds: dict[str, Tensor]) -> None:
        """Put a batch where `launch` takes it, warm up for 0.2 s, and capture the CUDA graph."""
        self._bind(feeds)
        end = time.monotonic() + WARM_UP_S
        self.launch()
        while time.monotonic() < end:
            self.launch()
        if self._with_graph and not self._graph:
            self._capture()

    def _capture(self) -> None:
        try:
            self._graph = self._buffers.graph(self._stream.handle, self._enqueue)
            self.launch()
        except Fault as error:  # engines with loops or data-dependent sizes have no graph
            self._graph = 0
            self.warnings.append(f"the engine was timed without a CUDA graph: {error}")

    def _bind(self, feeds: Mapping[str, Tensor]) -> None:
        lacking = [binding.name for binding in self._inputs if binding.name not in feeds]
        if lacking:
            raise Fault("input", f"the engine's inputs {shown(lacking)} are not fed")
        shapes = {binding.name: tuple(feeds[binding.name].shape) for binding in self._inputs}
        if shapes != self._shapes:
            self._shapes = None
            self._allocate(shapes)
            self._shapes = shapes
        for binding in self._inputs:
            data = converted(feeds[binding.name], binding.name, binding.dtype)
            ctypes.memmove(binding.host, data, binding.nbytes)

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._graph = 0
        self._buffers.close()
        self._buffers = Resources(self._driver)
        context = self._objects[2]
        self._choose_profile(shapes)
        for binding in self._inputs:
            shape = shapes[binding.name]
            if not context.set_input_shape(binding.name, shape):
                what = f"the engine's input {binding.name} cannot have the shape {list(shape)}"
                raise Fault("input", what, "build it with --shapes that hold it")
            self._place(binding, shape)
        for binding in self._outputs:
            shape = tuple(context.get_tensor_shape(binding.name))
            if min(shape, default=0) < 0:
                what = "the size of the output %s depends on values: the worker cannot run that"
                raise Fault("backend", what % binding.name, "cut the model before it")
            self._place(binding, shape)

    def _place(self, binding: Binding, shape: Sequence[int]) -> None:
        context = self._objects[2]
        binding.allocate(self._buffers, shape)
        if not context.set_tensor_address(binding.name, binding.device):
            raise self._messages.fault(f"TensorRT refuses the memory of {binding.name}")

    def _choose_profile(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Take the first profile that holds the shapes; the first of all if none does."""
        engine, context = self._objects[1], self._objects[2]
        count = engine.num_optimization_profiles
        for number in range(count if count > 1 else 0):
            limits = {n: engine.get_tensor_profile_shape(n, number) for n in shapes}
            if all(_holds(limits[name], shape) for name, shape in shapes.items()):
                context.set_optimization_profile_async(number, self._stream.handle)
                self._stream.wait()
                return

    def _enqueue(self) -> None:
        context = self._objects[2]
        if not context.execute_async_v3(self._stream.handle):
            raise self._messages.fault("TensorRT failed while running the engine")

    def launch(self) -> tuple[float, float]:
        """Run the batch once; return milliseconds with and without transfers, by CUDA's events."""
        stream, events = self._stream, self._events
        stream.record(events[0])
        for binding in self._inputs:
            stream.upload(binding.device, binding.host, binding.moved)
        stream.record(events[1])
        stream.launch(self._graph) if self._graph else self._enqueue()
        stream.record(events[2])
        for binding in self._outputs:
            stream.download(binding.host, binding.device, binding.moved)
        stream.record(events[3])
        stream.wait()
        return stream.elapsed_ms(events[0], events[3]), stream.elapsed_ms(events[1], events[2])

    def close(self) -> None:
        """Give all memory back."""
        self._closing.close()


def _holds(limits: Sequence[Sequence[int]], shape: Sequence[int]) -> bool:
    low, _, high = [list(limit) for limit in limits]
    return len(low) == len(shape) and all(a <= b <= c for a, b, c in zip(low, shape, high))


def made_up(dtype: str, shape: Sequence[int]) -> Tensor:
    """Return random numbers from 0 to 1 of a type that has them here, zeros of any other."""
    count, draw = nbytes_of("int8", shape), random.Random(0)  # noqa: S311  # no secret
    data: Any = bytes(nbytes_of(dtype, shape))
    if dtype == "float32":
        data = array("f", (draw.random() for _ in range(count))).tobytes()
    return Tensor(dtype, tuple(shape), data)
