"""Child process: parse an ONNX file and build an engine with TensorRT or TensorRT-RTX.

Everything that the builder says goes to standard error as `[V] message`, unbuffered, so that the log
is whole even if the process dies in the next call.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from trtcal.backends.child import fail, read_request
from trtcal.errors import TrtcalError

# Polygraphy looks at these when it is imported.
REQUEST = read_request() if __name__ == "__main__" else {"module": "tensorrt_rtx"}
os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1" if REQUEST["module"] == "tensorrt_rtx" else "0"


def say(letter: str, message: str) -> None:
    """Write one message to the log at once."""
    os.write(2, f"[{letter}] {message}\n".encode("utf-8", "replace"))


def install_logger(trt: Any) -> list[str]:
    """Make Polygraphy use a logger that keeps every message; return the list that errors go to."""
    import polygraphy.backend.trt.util as polygraphy_trt
    from polygraphy.logger import G_LOGGER

    severity = trt.ILogger.Severity
    letters = {
        severity.INTERNAL_ERROR: "E",
        severity.ERROR: "E",
        severity.WARNING: "W",
        severity.INFO: "I",
        severity.VERBOSE: "V",
    }
    errors: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]  # trt is imported at run time
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, level: Any, message: str) -> None:
            if letters.get(level) == "E":
                errors.append(message)
            say(letters.get(level, "V"), message)

    G_LOGGER.colors = False
    polygraphy_trt.TRT_LOGGER = Logger()
    return errors


def build(request: dict[str, Any], trt: Any) -> bytes:
    """Return the serialized engine; Polygraphy's exception if there is none."""
    from polygraphy.backend.trt import (
        Profile,
        engine_bytes_from_network,
        network_from_onnx_path,
    )

    profile = Profile()
    for name, shapes in request["shapes"].items():
        profile.add(name, *shapes)
    rtx = request["module"] == "tensorrt_rtx"
    qdq = request.get("route", "qdq") == "qdq"
    strongly_typed = qdq and hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
    network = network_from_onnx_path(request["model"], strongly_typed=strongly_typed)
    common = {
        "profiles": [profile] if request["shapes"] else None,
        "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
    }
    with _routed(trt, network[1], request) as settings:
        common.update(settings)
        config = _rtx_config(request, common) if rtx else _config(request, common, strongly_typed)
        return bytes(engine_bytes_from_network(network, config=config))


def _routed(trt: Any, network: Any, request: dict[str, Any]) -> AbstractContextManager[Any]:
    """Take a route beside Q/DQ, up to TensorRT 10."""
    if request.get("route", "qdq") == "qdq":
        return nullcontext({})
    from trtcal.backends.tensorrt_routing import routed

    return routed(trt, network, request, say)


def _rtx_config(request: dict[str, Any], common: dict[str, Any]) -> Any:
    from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

    return CreateConfigRTX(compute_capabilities=[tuple(request["capability"])], **common)


def _config(request: dict[str, Any], common: dict[str, Any], strongly_typed: bool) -> Any:
    """Weakly typed TensorRT (up to 9) wants the INT8 flag for Q/DQ. Never yet run on a GPU."""
    from polygraphy.backend.trt import CreateConfig

    return CreateConfig(**{"int8": request["quantized"] and not strongly_typed, **common})


def telling(errors: list[str]) -> str:
    """Return the error that says why: the last with an assertion or a code, else the last of all."""
    reasons = [text for text in errors if "Assertion" in text or "Error Code" in text]
    causes = [text for text in reasons if "cudaError" not in text]  # there is no GPU to complain to
    return " ".join((causes or reasons or errors)[-1].split())


def main() -> None:
    """Do what the request says."""
    trt = __import__(REQUEST["module"])
    errors = install_logger(trt)
    say("I", f"{REQUEST['module']} {trt.__version__}")
    try:
        engine = build(REQUEST, trt)
    except TrtcalError as error:
        fail("; ".join(filter(None, [error.message, error.hint])))
    except Exception as error:  # Polygraphy's, TensorRT's and pybind11's own
        fail(telling(errors) if errors else str(error).strip())
    else:
        Path(REQUEST["engine"]).write_bytes(engine)


if __name__ == "__main__":
    main()
