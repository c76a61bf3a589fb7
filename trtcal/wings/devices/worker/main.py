"""The worker: answers requests on its standard streams until they end."""

from __future__ import annotations

import os
import sys
from typing import Any, BinaryIO, Callable, Sequence

from . import runtimes
from .blobs import Blobs
from .frames import Fault, fault_of, read_data, read_request, write_frame
from .job_folder import Jobs
from .jobs import supervise
from .lock import turn
from .machine import hello

SESSIONS = 8
BUSY_S = 10.0


class Worker:
    """What one connection is served by: a folder, and the engines that it opened."""

    def __init__(self, folder: str) -> None:
        self.folder, self.blobs, self.jobs = folder, Blobs(folder), Jobs(folder)
        self.engines: dict[str, Any] = {}
        self.operations: dict[Any, Callable[[dict[str, Any], bytes], Any]] = {
            "hello": lambda request, data: hello(folder),
            "put": self.blobs.put,
            "get": lambda request, data: ({}, [self.blobs.get(request)]),
            "start": lambda request, data: self.start(request),
            "poll": lambda request, data: self.jobs.poll(request),
            "cancel": lambda request, data: self.jobs.cancel(request),
            "clean": lambda request, data: {"removed_bytes": self.jobs.clean(request)},
            "open": lambda request, data: self.open(request),
            "run": self.run,
        }

    def serve(self, source: BinaryIO, target: BinaryIO) -> None:
        """Answer requests until the stream ends or is cut, or all was removed."""
        is_over = False
        while not is_over:
            request = read_request(source)
            if request is None:
                return
            try:
                is_over = True  # what follows bytes that cannot be read is unknown
                data = read_data(source, request)
                is_over = False
                answer, parts = self.answer(request, data)
                write_frame(target, dict(answer, id=request.get("id"), ok=True), parts)
                is_over = request.get("op") == "clean"  # this program is gone with it
            except (BrokenPipeError, EOFError):
                return
            except Exception as error:
                fault = fault_of(error, self.folder).fields()
                write_frame(target, {"id": request.get("id"), "ok": False, "error": fault})

    def answer(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], Sequence[Any]]:
        """Return the fields and bytes that answer a request."""
        operation = self.operations.get(request.get("op"))
        if operation is None:
            raise Fault("input", f"the worker has no operation {request.get('op')!r}")
        os.makedirs(self.folder, 0o700, exist_ok=True)
        result = operation(request, data)
        return result if isinstance(result, tuple) else (result, ())

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a job, which gets the memory of the engines that were open here."""
        while self.engines:
            self.engines.popitem()[1].close()
        return self.jobs.start(request)

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load an engine; return what it takes and gives."""
        engine = self._engine(request)
        described = {"inputs": engine.inputs, "outputs": engine.outputs}
        return dict(described, metadata=engine.metadata)

    def run(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], Sequence[Any]]:
        """Run one batch on an engine."""
        engine = self._engine(request)
        feeds = runtimes.unpack(request["feeds"], data)
        with turn(wait_s=BUSY_S):
            outputs = engine.run(feeds, request.get("outputs"))
        described = [dict(tensor.fields, name=name) for name, tensor in outputs.items()]
        return {"outputs": described}, [tensor.data for tensor in outputs.values()]

    def _engine(self, request: dict[str, Any]) -> Any:
        path, options = self.blobs.existing(request.get("engine")), request.get("options") or {}
        key = repr((request.get("runtime"), path, sorted(options.items())))
        if key not in self.engines:
            while len(self.engines) >= SESSIONS:
                self.engines.pop(next(iter(self.engines))).close()
            self.engines[key] = runtimes.runtime(request.get("runtime")).open(path, options)
        return self.engines[key]


def main(arguments: Sequence[str]) -> None:
    """Serve a FOLDER, or do a job: FOLDER, the folder of the job, the descriptor of its lock."""
    if len(arguments) > 1:
        supervise(arguments[0], arguments[1], int(arguments[2]))
        return
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    worker = Worker(arguments[0])
    worker.serve(sys.stdin.buffer, answers)
    if os.getpid() == 1:  # a container ends with it, and its jobs would
        worker.jobs.wait()
