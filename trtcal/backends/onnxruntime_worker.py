"""Child process: lower a model for the CPU, and have ONNX Runtime save the graph that it will run."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx

from trtcal.backends.lowering import lower
from trtcal.backends.sessions import open_session
from trtcal.backends.worker import fail, read_request
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
    path, optimized = Path(request["engine"]), request["optimized"]
    engine.write(path)
    saved = Path(optimized) if optimized else None
    try:
        open_session(path, optimized=saved, severity=VERBOSE, provider=request["provider"])
    except TrtcalError as error:
        fail(error.message)
    sys.stderr.flush()


if __name__ == "__main__":
    main()
