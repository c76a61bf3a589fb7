"""What native code may crash of is tried in a forked process first (docs/adr/0011).

The fork has the model in memory and its libraries loaded, so that a trial takes the time of the work
itself. It counts against the work only if a signal of a crash, or of the system's lack of memory, ends
it: an exception is raised again here, and what takes longer than `LIMIT_S` is not known.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import select
import signal
import warnings
from collections.abc import Callable
from typing import Any

import onnx

from trtcal.documents import digest_bytes

LIMIT_S = 60.0
CRASHES = {
    getattr(signal, f"SIG{name}")
    for name in ("SEGV", "BUS", "ABRT", "FPE", "ILL", "TRAP", "SYS", "KILL")
}
SMALL_BYTES = 1024

_ended: dict[str, int] = {}
"""What was tried -> the signal that ended it, 0 for none."""


def crash_of(key: str, work: Callable[[], object]) -> int:
    """Return the signal that work ends its process with, 0 for none; tried once for each key."""
    if key not in _ended and hasattr(os, "pidfd_open"):  # Linux
        with contextlib.suppress(OSError):  # no memory for a fork, or no process
            _ended[key] = _signal_of(work)
    return _ended.get(key, 0)


def _signal_of(work: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        _do(work)
    handle = os.pidfd_open(child)
    try:
        select.select([handle], [], [], LIMIT_S)
    finally:
        os.close(handle)
        os.kill(child, signal.SIGUSR1)  # if it has not ended
        status = os.waitpid(child, 0)[1]
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return number if number in CRASHES else 0


def _do(work: Callable[[], object]) -> None:
    """In the fork: do the work and end, without a word and without what the parent does at its end."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        work()
    finally:
        os._exit(0)


def structure_digest(proto: onnx.ModelProto) -> str:
    """Return the digest of a graph and the types of its tensors: weights of any values are alike."""
    graph = proto.graph
    weights = [
        (tensor.name, tensor.data_type, *tensor.dims, tensor.raw_data[:SMALL_BYTES])
        if tensor.data_type == onnx.TensorProto.INT64
        else (tensor.name, tensor.data_type, *tensor.dims)
        for tensor in graph.initializer
    ]
    parts: list[Any] = [*graph.input, *graph.output, *graph.node, *proto.functions]
    parts += proto.opset_import
    texts = [part.SerializeToString(deterministic=True) for part in parts]
    return digest_bytes(b"\0".join([*texts, repr(weights).encode()]))
