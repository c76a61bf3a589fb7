"""The worker: answers requests on its standard streams until they end."""

from __future__ import annotations

import os
import sys
from typing import Any, BinaryIO, Sequence

from . import runtimes
from .blobs import Blobs
from .frames import Fault, fault_of, read_frame, write_frame
from .jobs import Jobs, supervise, turn
from .machine import hello

SESSIONS = 8
BUSY_S = 10.0


class Worker:
    """What one connection is served by: a folder, and the engines that it opened."""

    def __init__(self, folder: str) -> None:
        self.folder, self.blobs, self.jobs = folder, Blobs(folder), Jobs(folder)
        self.engines: dict[str, Any] = {}

    def serve(self, source: BinaryIO, target: BinaryIO) -> None:
        """Answer requests until the stream ends or is cut."""
        for request, data in iter(lambda: read_frame(source), None):
            number = request.get("id")
            try:
                answer, parts = self.answer(request, data)
                write_frame(target, dict(answer, id=number, ok=True), parts)
                if request.get("op") == "clean":  # this program is gone too
                    return
            except BrokenPipeError:
                return
            except Exception as error:
                fault = fault_of(error, self.folder)
                write_frame(target, {"id": number, "ok": False, "error": fault.fields()})

    def answer(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], Sequence[Any]]:
        """Return the fields and bytes that answer a request."""
        operation = getattr(self, "_{}".format(request.get("op")), None)
        if operation is None:
            raise Fault("input", "the worker has no operation {!r}".format(request.get("op")))
        os.makedirs(self.folder, 0o700, exist_ok=True)
        result = operation(request, data)
        return result if isinstance(result, tuple) else (result, ())

    def _hello(self, _request: dict[str, Any], _data: bytes) -> dict[str, Any]:
        return hello(self.folder)

    def _has(self, request: dict[str, Any], _data: bytes) -> dict[str, Any]:
        return self.blobs.has(request)

    def _put(self, request: dict[str, Any], data: bytes) -> dict[str, Any]:
        return self.blobs.put(request, data)

    def _get(self, request: dict[str, Any], _data: bytes) -> Any:
        return {}, [self.blobs.get(request)]

    def _start(self, request: dict[str, Any], _data: bytes) -> dict[str, Any]:
        return self.jobs.start(request)

    def _poll(self, request: dict[str, Any], _data: bytes) -> Any:
        state, log = self.jobs.poll(request)
        return state, [log]

    def _cancel(self, request: dict[str, Any], _data: bytes) -> dict[str, Any]:
        return self.jobs.cancel(request)

    def _jobs(self, _request: dict[str, Any], _data: bytes) -> dict[str, Any]:
        return {"jobs": self.jobs.all()}

    def _clean(self, _request: dict[str, Any], _data: bytes) -> dict[str, Any]:
        return {"removed_bytes": self.jobs.clean()}

    def _open(self, request: dict[str, Any], _data: bytes) -> dict[str, Any]:
        engine = self._engine(request)
        described = {"inputs": engine.inputs, "outputs": engine.outputs}
        return dict(described, metadata=engine.metadata)

    def _run(self, request: dict[str, Any], data: bytes) -> Any:
        engine = self._engine(request)
        feeds = runtimes.unpack(request["feeds"], data)
        with turn(is_shared=True, wait_s=BUSY_S):
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
    Worker(arguments[0]).serve(sys.stdin.buffer, answers)
