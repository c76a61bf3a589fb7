"""What native code may crash of is tried in a forked process first (docs/adr/0011).

The fork has the model in memory and its libraries loaded, so that a trial takes the time of the work
itself. It counts against the work only if a signal of a crash, or of the system's lack of memory, ends
it: an exception is raised again here, and what takes longer than `LIMIT_S` is not known.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

import onnx

from trtcal.errors import NativeCrash
from trtcal.model.checking import in_child

LIMIT_S = 60.0
SIGNALS = ("SEGV", "BUS", "ABRT", "FPE", "ILL", "TRAP", "SYS", "KILL")
CRASHES = {getattr(signal, f"SIG{name}") for name in SIGNALS}
DEPTH = 2

TOGETHER_S = 10.0  # of a trial of many
WORKS_WITHOUT_NEW_PARTS = 100  # in a row, which end it too

_survived = set[int]()
_crashed = dict[frozenset[int], int]()
_is_fork = False


class _TriedError(Exception):
    """Nothing else is to be done in the fork of a trial of many."""


def crash_of(parts: frozenset[int], work: Callable[[], None]) -> int:
    """Return the signal that work ends its process with, 0 for none.

    Work is tried if it has parts of which no work before consisted.
    """
    is_new = parts not in _crashed and not parts <= _survived
    if _is_fork:
        with contextlib.suppress(Exception):
            work() if is_new else None
        _survived.update(parts if is_new else ())
        raise _TriedError
    if is_new and sys.platform == "linux":
        number = 0
        with contextlib.suppress(OSError):  # no memory for a fork, or no process
            number = in_child(work, LIMIT_S, is_bounded=False)[1]
        if number in CRASHES:
            _crashed[parts] = number
        else:
            _survived.update(parts)
    return _crashed.get(parts, 0)


def try_together(works: Iterable[Callable[[], object]]) -> None:
    """Try in one fork what many works open; those that it does not reach are tried one by one."""

    def survivors() -> str:
        global _is_fork
        _is_fork, before, idle = True, set(_survived), 0
        until = monotonic() + TOGETHER_S
        for work in works:
            count = len(_survived)
            with contextlib.suppress(Exception):
                work()
            idle = idle + 1 if len(_survived) == count else 0
            if idle == WORKS_WITHOUT_NEW_PARTS or monotonic() > until:
                break
        return " ".join(map(str, _survived - before))

    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):  # MemoryError is no number
            text, number = in_child(survivors, LIMIT_S, is_bounded=False)
            _survived.update(map(int, (text or "").split()) if not number else ())


@contextlib.contextmanager
def crashes_as_warnings() -> Iterator[None]:
    """Warn of a `NativeCrash` in the block, and end the block there."""
    try:
        yield
    except NativeCrash as crash:
        warnings.warn(crash.message, RuntimeWarning, stacklevel=3)


def parts_of(graph: onnx.GraphProto, as_it_is: bool = False) -> frozenset[int]:
    """Return hashes of all nodes, each with what comes up to `DEPTH` nodes before it.

    They cover operators, attributes, types and shapes of weights, but neither values nor names. Which
    tensors are outputs only counts where nodes are fused, and they are not in a graph run as it is.
    """
    outputs = {value.name for value in graph.output if not as_it_is}
    known = {tensor.name: hash((tensor.data_type, *tensor.dims)) for tensor in graph.initializer}
    known |= {value.name: hash(value.type.SerializeToString()) for value in graph.input}
    own = []
    for node in graph.node:
        attributes = (attribute.SerializeToString() for attribute in node.attribute)
        own.append(hash((node.domain, node.op_type, outputs.isdisjoint(node.output), *attributes)))
    parts = [*own]
    for _ in range(DEPTH):
        for node, part in zip(graph.node, parts, strict=True):
            known |= dict.fromkeys(node.output, part)
        before = [tuple(map(known.get, node.input)) for node in graph.node]
        parts = list(map(hash, zip(own, before, strict=True)))
    return frozenset(hash((part, as_it_is)) for part in parts)
