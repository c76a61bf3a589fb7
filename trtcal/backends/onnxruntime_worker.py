"""Child process: lower a model for the CPU, and have ONNX Runtime save the graph that it will run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx

from trtcal.backends.child import fail, read_request
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import open_session
from trtcal.errors import TrtcalError
from trtcal.model.files import OnnxFile

VERBOSE = 0


def main() -> None:
    """Do what the request says; ONNX Runtime's own log goes to standard error."""
    request = read_request()
    proto = onnx.load(request["model"])
    engine = OnnxFile(lower(proto) if request["lowered"] else proto)
    if engine.weights is not None:
        fail("the engine would be one ONNX file of more than 2 GB, which protobuf can't write")
    engine.write(Path(request["engine"]))
    try:
        _optimize(request)
    except TrtcalError as error:
        fail(error.message)
    sys.stderr.flush()


def _optimize(request: dict[str, Any]) -> None:
    optimized = Path(request["optimized"]) if request["optimized"] else None
    open_session(
        Path(request["engine"]),
        optimized=optimized,
        severity=VERBOSE,
        provider=request["provider"],
    )


if __name__ == "__main__":
    main()
