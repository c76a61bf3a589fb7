"""In the child process, on the GPU: what TensorRT tells of an engine just built, layer by layer.

This has never been run on a GPU. TensorRT-RTX lists the layers in its log and is not asked here.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAYERS = "layers.json"
LAYER_TIMES = "layer-times.json"
RUNS = 100


def inspect_engine(engine: bytes, trt: Any, timed: bool) -> None:
    """Write `layers.json`, and `layer-times.json` if `timed`; say in the log what can't be had.

    The engine is the one that this process has just built: no other is ever loaded here.
    """
    try:
        from polygraphy.backend.trt import engine_from_bytes

        loaded = engine_from_bytes(engine)
        Path(LAYERS).write_text(layer_information(loaded, trt))
        if timed:
            Path(LAYER_TIMES).write_text(json.dumps(times_document(_time(loaded, trt)), indent=1))
    except Exception as error:  # Polygraphy's, CUDA's and pybind11's own: the engine is good
        sys.stderr.write(f"[W] the engine could not be inspected: {error}\n")


def layer_information(engine: Any, trt: Any) -> str:
    """Return the inspector's JSON; `AttributeError` if this TensorRT has no inspector."""
    inspector = engine.create_engine_inspector()
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _time(engine: Any, trt: Any) -> list[list[tuple[str, float]]]:
    """Run the engine on Polygraphy's made-up data; return each run's layers and milliseconds."""
    from polygraphy.backend.trt import TrtRunner
    from polygraphy.comparator import DataLoader

    runs: list[list[tuple[str, float]]] = []

    class Profiler(trt.IProfiler):  # type: ignore[misc]  # trt is imported at run time
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, name: str, ms: float) -> None:
            runs[-1].append((name, ms))

    with TrtRunner(engine) as runner:
        loader = DataLoader(seed=0)
        loader.input_metadata = runner.get_input_metadata()
        runner.context.profiler = Profiler()
        for _ in range(RUNS):
            runs.append([])
            runner.infer(loader[0])
    return runs


def times_document(runs: Sequence[Sequence[tuple[str, float]]]) -> list[dict[str, Any]]:
    """Return the times of layers in the form of `trtexec --exportProfile`, in milliseconds.

    Each run lists the layers in the engine's order, in which a name may come twice.
    """
    columns = list(zip(*runs, strict=True))
    total = sum(ms for run in runs for _, ms in run) or 1.0
    entries = [_entry([ms for _, ms in column], column[0][0], total) for column in columns]
    return [{"count": len(runs)}, *entries]


def _entry(times: list[float], name: str, total: float) -> dict[str, Any]:
    return {
        "name": name,
        "timeMs": sum(times),
        "averageMs": statistics.mean(times),
        "medianMs": statistics.median(times),
        "percentage": 100 * sum(times) / total,
    }
