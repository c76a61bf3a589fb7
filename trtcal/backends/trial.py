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
from collections.abc import Callable, Iterator

import onnx

from trtcal.errors import NativeCrash
from trtcal.model.checking import in_child

LIMIT_S = 60.0
SIGNALS = ("SEGV", "BUS", "ABRT", "FPE", "ILL", "TRAP", "SYS", "KILL")
CRASHES = {getattr(signal, f"SIG{name}") for name in SIGNALS}
DEPTH = 2

_survived = set[int]()
_crashed = dict[frozenset[int], int]()


def crash_of(parts: frozenset[int], work: Callable[[], None]) -> int:
    """Return the signal that work ends its process with, 0 for none.

    Work is tried if it has parts of which no work before consisted.
    """
    if parts not in _crashed and not parts <= _survived and sys.platform == "linux":
        number = 0
        with contextlib.suppress(OSError):  # no memory for a fork, or no process
            number = in_child(work, LIMIT_S, is_bounded=False)[1]
        if number in CRASHES:
            _crashed[parts] = number
        else:
            _survived.update(parts)
    return _crashed.get(parts, 0)


@contextlib.contextmanager
def crashes_as_warnings() -> Iterator[None]:
    """Warn of a `NativeCrash` in the block, and end the block there."""
    try:
        yield
    except NativeCrash as crash:
        warnings.warn(crash.message, RuntimeWarning, stacklevel=3)


def parts_of(graph: onnx.GraphProto, *settings: object) -> frozenset[int]:
    """Return hashes of each node with its constants, and of each with up to `DEPTH` nodes before it.

    The first cover operators, attributes, types and shapes of weights, the second no sizes of layers:
    layers of one kind are tried in each neighbourhood once. Values and names do not count.
    """
    outputs = {value.name for value in graph.output}
    known = {tensor.name: hash((tensor.data_type, *tensor.dims)) for tensor in graph.initializer}
    constants, own, sized = {*known}, [], []
    known |= {value.name: hash(value.type.SerializeToString()) for value in graph.input}
    for node in graph.node:
        kind = (node.domain, node.op_type, outputs.isdisjoint(node.output))
        attributes = {item.name: item.SerializeToString() for item in node.attribute}
        sized.append(hash((kind, *attributes.values(), *map(known.get, node.input))))
        if constants >= {*node.input}:
            constants.update(node.output)
            known |= dict.fromkeys(node.output, sized[-1])
        own.append(hash((kind, *(text for name, text in attributes.items() if name != "group"))))
    parts, kinds = own, dict[str, int]()
    for _ in range(DEPTH):
        for node, part in zip(graph.node, parts, strict=True):
            kinds |= dict.fromkeys(node.output, part)
        before = [tuple(map(kinds.get, node.input)) for node in graph.node]
        parts = list(map(hash, zip(own, before, strict=True)))
    return frozenset(hash((part, *settings)) for part in (*sized, *parts))
