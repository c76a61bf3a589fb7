"""Child process: parse an ONNX file and build an engine with TensorRT or TensorRT-RTX.

Everything that the builder says goes to standard error as `[V] message`, unbuffered, so that the log
is whole even if the process dies in the next call.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from trtcal.backends.tensorrt_objects import (
    VERBOSITIES,
    layer_information,
    logger_of,
    plugins_of,
    profiler_of,
    set_layer_precisions,
    times_document,
    usual_shapes,
)
from trtcal.backends.worker import fail, raise_in_parent, read_request
from trtcal.errors import InputError, TrtcalError

LAYERS, LAYER_TIMES = "layers.json", "layer-times.json"
RUNS = 100


def inspect_engine(engine: bytes, trt: Any, timed: bool, shapes: Mapping[str, Any]) -> None:
    """Write `layers.json`, and `layer-times.json` if `timed`; say in the log what can't be had.

    `shapes` are those of dynamic inputs at which the layers are timed. The engine is the one that this
    process has just built: no other is ever loaded here.
    """
    try:
        from polygraphy.backend.trt import engine_from_bytes

        loaded = engine_from_bytes(engine)
        Path(LAYERS).write_text(layer_information(loaded, trt))
        if timed:
            document = times_document(_time(loaded, trt, shapes))
            Path(LAYER_TIMES).write_text(json.dumps(document, indent=1))
    except Exception as error:  # Polygraphy's, CUDA's and pybind11's own: the engine is good
        sys.stderr.write(f"[W] the engine could not be inspected: {error}\n")


def _time(engine: Any, trt: Any, shapes: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """Run the engine on Polygraphy's made-up data; return each run's layers and milliseconds."""
    from polygraphy.backend.trt import TrtRunner
    from polygraphy.comparator import DataLoader

    runs: list[list[tuple[str, float]]] = []
    with TrtRunner(engine) as runner:
        loader = DataLoader(seed=0)
        loader.input_metadata = runner.get_input_metadata()
        for name, shape in shapes.items():
            loader.input_metadata.add(name, loader.input_metadata[name].dtype, shape)
        runner.context.profiler = profiler_of(trt, runs)
        for _ in range(RUNS):
            runs.append([])
            runner.infer(loader[0])
    return runs


# Polygraphy reads these when it is imported.
REQUEST = read_request() if __name__ == "__main__" else {"module": "tensorrt_rtx"}
os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1" if REQUEST["module"] == "tensorrt_rtx" else "0"


def say(letter: str, message: str) -> None:
    """Write one message to the log at once."""
    os.write(2, f"[{letter}] {message}\n".encode("utf-8", "replace"))


def install_logger(trt: Any) -> list[str]:
    """Make Polygraphy use a logger that writes all; return the errors to come."""
    import polygraphy.backend.trt.util as polygraphy_trt
    from polygraphy.logger import G_LOGGER

    errors: list[str] = []

    def add(letter: str, message: str) -> None:
        errors.extend([message] if letter == "E" else [])
        say(letter, message)

    G_LOGGER.colors = False
    polygraphy_trt.TRT_LOGGER = logger_of(trt, add)
    return errors


def build(request: dict[str, Any], trt: Any) -> bytes:
    """Return the serialized engine; Polygraphy's exception if there is none."""
    from polygraphy.backend.trt import (
        CreateConfig,
        engine_bytes_from_network,
        network_from_onnx_path,
    )

    qdq = request.get("route", "qdq") == "qdq"
    strongly_typed = qdq and hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
    common = settings(request, trt)
    network = network_from_onnx_path(request["model"], strongly_typed=strongly_typed)
    Path("plugins.json").write_text(json.dumps(plugins_of(network[1], trt)))
    cache = request.get("timing_cache")
    with _routed(trt, network[1], request) as further:
        common |= further
        if request["module"] == "tensorrt_rtx":
            from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

            capabilities = list(map(tuple, request["capabilities"])) or None
            config = CreateConfigRTX(compute_capabilities=capabilities, **common)
        else:
            config = CreateConfig(**_flags(request, network[1], trt, strongly_typed), **common)
        return bytes(engine_bytes_from_network(network, config=config, save_timing_cache=cache))


def _routed(trt: Any, network: Any, request: dict[str, Any]) -> AbstractContextManager[Any]:
    """Take a route beside Q/DQ, up to TensorRT 10."""
    if request.get("route", "qdq") == "qdq":
        return nullcontext({})
    from trtcal.backends.tensorrt_network import routed

    return routed(trt, network, request, say)


def settings(request: dict[str, Any], trt: Any) -> dict[str, Any]:
    """Return Polygraphy's arguments for the request's options; refuse what this version lacks."""
    level, workspace = request.get("optimization_level"), request.get("workspace_bytes")
    cache = request.get("timing_cache")
    if level is not None and not hasattr(trt.IBuilderConfig, "builder_optimization_level"):
        raise _lacks(trt, "no option for the optimization level of the builder")
    if workspace is not None and not hasattr(trt, "MemoryPoolType"):
        raise _lacks(trt, "no option for the size of memory pools")
    pools = None if workspace is None else {trt.MemoryPoolType.WORKSPACE: workspace}
    return {
        "profiles": [_profile(shapes) for shapes in request["profiles"]] or None,
        "profiling_verbosity": getattr(trt.ProfilingVerbosity, VERBOSITIES[request["verbosity"]]),
        "memory_pool_limits": pools,
        "builder_optimization_level": level,
        "load_timing_cache": cache if cache and Path(cache).exists() else None,
    }


def _lacks(trt: Any, what: str) -> InputError:
    hint = "`trtcal doctor` shows the versions here"
    return InputError(f"TensorRT {trt.__version__} has {what}", hint)


def _profile(shapes: dict[str, Any]) -> Any:
    from polygraphy.backend.trt import Profile

    profile = Profile()
    for name, (low, usual, high) in shapes.items():
        profile.add(name, low, usual, high)
    return profile


def _flags(request: dict[str, Any], network: Any, trt: Any, strongly_typed: bool) -> dict[str, Any]:
    """Weakly typed TensorRT (up to 8) wants flags for Q/DQ and float16, and what stays float32."""
    if strongly_typed:
        return {}
    flags = {"int8": request["quantized"], "fp16": request["fp16"]}
    if request["float32"]:
        set_layer_precisions(trt, network, request["float32"], "prefer")
        flags["precision_constraints"] = "prefer"
    return flags


def main() -> None:
    """Do what the request says."""
    trt = __import__(REQUEST["module"])
    errors = install_logger(trt)
    if REQUEST["module"] == "tensorrt":
        trt.init_libnvinfer_plugins(None, "")  # TensorRT's own ones
    say("I", f"{REQUEST['module']} {trt.__version__}")
    try:
        engine = build(REQUEST, trt)
    except TrtcalError as error:
        raise_in_parent(error)
    except Exception as error:  # Polygraphy's, TensorRT's and pybind11's own
        fail(" ".join((errors or [str(error)])[-1].split()))
    else:
        if REQUEST.get("inspect"):
            inspect_engine(engine, trt, bool(REQUEST.get("layer_times")), usual_shapes(REQUEST))
        Path(REQUEST["engine"]).write_bytes(engine)


if __name__ == "__main__":
    main()
