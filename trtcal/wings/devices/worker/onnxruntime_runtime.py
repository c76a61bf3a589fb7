"""ONNX Runtime on the device's CPU: an engine is the lowered model itself."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from time import perf_counter
from typing import Any

from .frames import Fault
from .power import describe
from .runtimes import Tensor

TYPES = {"float": "float32", "double": "float64"}
OPTIMIZED = "optimized.onnx"


def _package(name: str = "onnxruntime") -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = "python3 -m pip install onnxruntime"
        raise Fault("backend", f"{name} cannot be loaded on the device: {error}", hint) from error


def version() -> str | None:
    """Return the version that is installed, if any."""
    try:
        return str(_package().__version__)
    except Fault:
        return None


def lacks() -> list[dict[str, str]]:
    """Return its package, where a device without a GPU does not have it."""
    if version() or describe():
        return []
    command = f"{sys.executable or 'python3'} -m pip install onnxruntime"
    return [{"what": "ONNX Runtime, which builds where there is no GPU", "command": command}]


def build(job: Any, folder: str, log: Any) -> dict[str, Any]:
    """Have the model optimized, which shows what will run; the model is the engine."""
    engine, optimized = os.path.join(folder, "engine.onnx"), os.path.join(folder, OPTIMIZED)
    shutil.copyfile(job.path("model"), engine)
    _session(engine, dict(job.options, severity=0), optimized)
    files = {"engine": engine, "optimized": optimized}
    return {"files": {name: path for name, path in files.items() if os.path.exists(path)}}


def _session(path: str, options: dict[str, Any], optimized: str | None = None) -> Any:
    package = _package()
    settings = package.SessionOptions()
    settings.log_severity_level = int(options.get("severity", 4))
    settings.intra_op_num_threads = int(options.get("threads", 0))
    if optimized:
        settings.optimized_model_filepath = optimized
    for key, value in dict(options.get("config", {})).items():
        settings.add_session_config_entry(str(key), str(value))
    disabled = list(options.get("disabled_optimizers", []))
    try:
        return package.InferenceSession(
            path, settings, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
        )
    except Exception as error:
        raise _failed(f"ONNX Runtime {version()} cannot load the model", error) from error


def _failed(what: str, error: Exception, hint: str = "") -> Exception:
    """Return the error of ONNX Runtime, or that of a device without memory."""
    is_memory = re.search(r"bad_alloc|allocate memory|out of memory", str(error), re.IGNORECASE)
    return MemoryError() if is_memory else Fault("backend", f"{what}: {str(error).strip()}", hint)


def open(path: str, options: dict[str, Any]) -> Engine:  # noqa: A001  # the interface's name
    """Load an engine."""
    return Engine(_session(path, options))


class Engine:
    """One session on the CPU."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.inputs = [_described(value) for value in session.get_inputs()]
        self.outputs = [_described(value) for value in session.get_outputs()]
        self.metadata = dict(session.get_modelmeta().custom_metadata_map)
        self.feeds: dict[str, Any] = {}

    def run(self, feeds: dict[str, Tensor], names: list[str] | None) -> dict[str, Tensor]:
        """Run one batch."""
        results = self._run(_arrays(feeds), names)
        names = [value["name"] for value in self.outputs] if names is None else names
        return {name: _tensor(result) for name, result in zip(names, results)}

    def _run(self, feeds: dict[str, Any], names: list[str] | None) -> Any:
        if names == []:
            return []
        try:
            return self.session.run(names, feeds)
        except Exception as error:
            hint = "check that the data fit the model"
            raise _failed("ONNX Runtime failed while running the model", error, hint) from error

    def prepare(self, feeds: dict[str, Tensor]) -> None:
        """Keep a batch for `launch`."""
        self.feeds = _arrays(feeds)

    def launch(self) -> tuple[float, None]:
        """Run the batch once; a CPU has no transfers."""
        started = perf_counter()
        self._run(self.feeds, None)
        return 1e3 * (perf_counter() - started), None

    def close(self) -> None:
        """Free the session."""
        self.session = None


def _described(value: Any) -> dict[str, Any]:
    kind = value.type[len("tensor(") : -1]
    shape = [size if isinstance(size, int) else -1 for size in value.shape]
    return {"name": value.name, "dtype": TYPES.get(kind, kind), "shape": shape}


def _arrays(feeds: dict[str, Tensor]) -> dict[str, Any]:
    numpy = _package("numpy")
    try:
        return {n: numpy.frombuffer(t.data, t.dtype).reshape(t.shape) for n, t in feeds.items()}
    except (TypeError, ValueError) as error:
        raise Fault("input", f"NumPy on the device cannot hold the arrays: {error}") from error


def _tensor(result: Any) -> Tensor:
    array = _package("numpy").ascontiguousarray(result)
    return Tensor(str(array.dtype), tuple(array.shape), array.reshape(-1).view("uint8"))
