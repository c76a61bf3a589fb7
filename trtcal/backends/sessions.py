"""ONNX Runtime sessions: opened and run in one way everywhere."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from trtcal.backends.unsupported import hint_to_cut, lacking, refused_operators
from trtcal.errors import BackendError
from trtcal.model import first_line
from trtcal.model.files import fits, write_beside

onnxruntime.set_default_logger_severity(4)  # errors come as exceptions; its warnings are not ours

Array = npt.NDArray[Any]
Session: TypeAlias = onnxruntime.InferenceSession

CPU = "CPUExecutionProvider"
# Without VNNI instructions the uint8 x int8 kernels add in 16 bits and saturate. This makes ONNX
# Runtime use uint8 x uint8 kernels there, which are exact and slower.
EXACT_PRODUCTS = ("session.x64quantprecision", "1")
# It would quantize float weights and biases by itself, and let a large bias overflow.
QUANTIZES_UNASKED = "WeightBiasQuantization"
# The weights of an optimized graph are saved in a file of their own: a message ends at 2 GiB.
BESIDE = {
    "session.optimized_model_external_initializers_file_name": "optimized.bin",
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
}
# Idle threads that spin take the cores from the other sessions that are measured in turns.
NO_SPINNING = ("session.intra_op.allow_spinning", "0")


def open_session(
    model: onnx.ModelProto | bytes | Path,
    threads: int = 0,
    optimized: Path | None = None,
    severity: int = 4,
    as_it_is: bool = False,
    provider: str = CPU,
    arena: bool = True,
) -> Session:
    """Open a session; `threads` 0 takes all cores; `optimized` is where to save the final graph.

    With `as_it_is` the graph is run without any optimization: it is an optimized one already. Without
    `arena` it gives its memory back after each run: for sessions of which many are open at once.
    `BackendError` if ONNX Runtime refuses the model, or cannot load the provider.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or os.cpu_count() or 1
    options.log_severity_level = severity
    options.enable_cpu_mem_arena = arena
    options.add_session_config_entry(*EXACT_PRODUCTS)
    options.add_session_config_entry(*NO_SPINNING)
    if as_it_is:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
        for key, value in BESIDE.items():
            options.add_session_config_entry(key, value)
    try:
        with _source(model) as source:
            session = onnxruntime.InferenceSession(
                source,
                options,
                providers=list(dict.fromkeys([provider, CPU])),
                disabled_optimizers=[QUANTIZES_UNASKED],
            )
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        raise BackendError(
            f"ONNX Runtime {onnxruntime.__version__} cannot load the model: {first_line(error)}",
            _advice(model, str(error)),
        ) from error
    if provider not in session.get_providers():  # it would go on with the CPU
        raise BackendError(f"ONNX Runtime could not load its {provider}", "see its own log for why")
    return session


def _advice(model: onnx.ModelProto | bytes | Path, text: str) -> str:
    """Return what helps where ONNX Runtime refuses a model: a cut, if it lacks an operator."""
    if isinstance(model, onnx.ModelProto):
        nodes = lacking(model, refused_operators(text, model))
        if nodes:
            return hint_to_cut("model.onnx", model, nodes)
    return "run it in ONNX Runtime alone, and export it anew or update onnxruntime"


@contextmanager
def _source(model: onnx.ModelProto | bytes | Path) -> Iterator[bytes | str]:
    """Yield what a session is opened with: bytes, or the path of a file that may go afterwards."""
    if isinstance(model, Path):
        yield str(model)
    elif isinstance(model, bytes):
        yield model
    elif fits(model):
        yield bytes(model.SerializeToString())
    else:
        with tempfile.TemporaryDirectory(prefix="trtcal-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(write_beside(model, path.with_suffix(".bin")))
            yield str(path)


def run_session(
    session: Session, outputs: Sequence[str] | None, feeds: dict[str, Array]
) -> list[Array]:
    """Run one batch and return the outputs named (all if None); `BackendError` if it fails."""
    if outputs is not None and not outputs:
        return []
    try:
        results = session.run(
            outputs, {name: np.asarray(x, order="C") for name, x in feeds.items()}
        )
    except Exception as error:  # see open_session
        raise _failed(error) from error
    return [np.asarray(result) for result in results]


def run_bound(session: Session, binding: Any) -> None:
    """Run one batch from and into bound arrays; `BackendError` if it fails."""
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # see open_session
        raise _failed(error) from error


def give_back() -> None:
    """Return freed memory to the system, where the C library keeps it for later and can be asked.

    After a session or large arrays are freed: whether the C library used it again is left to chance.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _failed(error: Exception) -> BackendError:
    return BackendError(
        f"ONNX Runtime failed while running the model: {first_line(error)}",
        "check that the data fit the model, and --batch if a batch size is built into it",
    )
