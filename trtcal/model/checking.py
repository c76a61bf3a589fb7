"""What ONNX's own checker and shape inference say of a model, in a child process.

They are C++ that was not written for hostile models: a crash, an endless loop or too much memory there
ends the child, and becomes an error here. Where processes cannot be forked, they run in this one.
What the checker does not compare, types and sizes of constants, is compared here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import math
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from trtcal.documents.bounds import raising, scaled, seconds_for, too_slow
from trtcal.errors import InputError
from trtcal.model.files import ITEM_BITS, NARROW_TYPES, all_nodes, size_of, subgraphs_of, tensors_of
from trtcal.model.isolated import signal_name

MODEL_BYTES = 2 << 30  # protobuf reads no more
MEMORY_BYTES = 4 << 30  # that a check may take besides what this process has
TYPES = frozenset(onnx.TensorProto.DataType.values())
WAIT_S = 60.0  # beyond the time of a processor that it may take
REMEMBERED_BYTES = 16 << 20
PASSED: set[bytes] = set()
"""Digests of what passed in this process: a command reads one model often, and `--improve` many."""
EXPORT_AGAIN = "export it again; `python -m onnx.checker` lists what is wrong"


def check(proto: onnx.ModelProto, path: Path) -> None:
    """Check a model without its weights; `InputError` if it is not valid ONNX, or too much for ONNX.

    `ResourceError` if that takes too long.
    """
    size = proto.ByteSize()
    if size >= MODEL_BYTES:
        hint = "move constants from its subgraphs and nodes to initializers of the main graph"
        raise InputError(f"model {path} has 2 GiB outside the initializers of its main graph", hint)
    digest = sha256(proto.SerializeToString()).digest() if size <= REMEMBERED_BYTES else None
    if digest in PASSED:
        return
    answer, end = in_child(lambda: _problem(proto), seconds_for(size))
    if end in (signal.SIGXCPU, signal.SIGKILL):
        raise too_slow(f"model {path}", size)
    if end:
        raise InputError(f"model {path} crashes ONNX's checker ({signal_name(end)})", EXPORT_AGAIN)
    if answer == "MemoryError":
        raise InputError(f"model {path} needs over 4 GiB of memory to check", raising())
    if answer:
        raise InputError(f"model {path} is not valid ONNX: {answer}", EXPORT_AGAIN)
    if digest:
        PASSED.add(digest)


def check_sizes(proto: onnx.ModelProto) -> None:
    """Do what the checker doesn't: it sees no weights, and does not compare types and sizes."""
    for tensor in tensors_of(proto):
        if tensor.data_type not in TYPES or min(tensor.dims, default=0) < 0:
            raise ValueError(f"tensor {tensor.name!r} is of type {tensor.data_type}{tensor.dims}")
        actual, expected = len(tensor.raw_data), size_of(tensor)
        if tensor.HasField("raw_data") and tensor.data_type in ITEM_BITS and actual != expected:
            raise ValueError(
                f"tensor {tensor.name!r} has {actual} bytes, its type and shape need {expected}"
            )
        _check_values(tensor)
    for value in _annotations(proto):
        if value.type.tensor_type.elem_type not in TYPES:
            raise ValueError(f"{value.name!r} is of type {value.type.tensor_type.elem_type}")


def _annotations(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield what a model says of its tensors, those of subgraphs and functions too."""
    inner = (part for node in all_nodes(proto) for part in subgraphs_of(node))
    for graph in (proto.graph, *inner):
        yield from (*graph.input, *graph.output, *graph.value_info)
    for function in proto.functions:
        yield from function.value_info


def _check_values(tensor: onnx.TensorProto) -> None:
    """Check how many values a tensor lists that has neither bytes nor external data."""
    if tensor.HasField("raw_data") or uses_external_data(tensor):
        return
    if tensor.data_type not in (*ITEM_BITS, onnx.TensorProto.STRING):
        return  # others lie packed in their field
    actual = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
    expected = math.prod(map(int, tensor.dims))
    if tensor.data_type in NARROW_TYPES:
        expected = size_of(tensor)  # an entry holds a byte
    if actual != expected:
        raise ValueError(
            f"tensor {tensor.name!r} lists {actual} values, its shape needs {expected}"
        )


def _problem(proto: onnx.ModelProto) -> str:
    """Return what the checker has against a model; whether inference says anything is not asked."""
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError) as error:
        return first_line(error)
    try:
        onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except MemoryError:
        raise
    except Exception:  # it raises what it likes where it does not know an operator
        return ""
    return ""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def in_child(
    work: Callable[[], str | None], limit_s: float, is_bounded: bool = True
) -> tuple[str | None, int]:
    """Return a function's text, and 0 or the signal (or status) with which its process ended.

    That is SIGXCPU after `limit_s` seconds, of a processor if the child `is_bounded`, in memory too.
    """
    if not hasattr(os, "fork"):
        return work(), 0
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if not child:
        _answer(work, writing, limit_s if is_bounded else None)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        is_late = not select.select([pipe], [], [], limit_s + WAIT_S * is_bounded)[0]
        if is_late:  # it waits for what never comes
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (json.loads(text) if text else ""), signal.SIGXCPU if is_late else abs(status)


def _answer(work: Callable[[], str | None], writing: int, limit_s: float | None) -> None:
    status = 1
    gc.disable()  # it would copy the parent's memory, page by page
    try:
        _leave_alone(writing)
        _limit(limit_s)
        os.write(writing, json.dumps(work()).encode())
        status = 0
    except MemoryError:
        os.write(writing, b'"MemoryError"')
        status = 0
    finally:
        os._exit(status)


def _leave_alone(kept: int) -> None:
    """Let this process, which was forked, write to nothing of its parent's but one pipe."""
    faulthandler.disable()  # it would write into what the parent has open
    for ending in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    sys.stdout = sys.stderr = io.TextIOWrapper(io.FileIO(1, "r+"))  # "w" counts as making a file
    with contextlib.suppress(OSError):
        for number in map(int, os.listdir("/dev/fd")):
            with contextlib.suppress(OSError):  # it was that of the listing itself
                if number not in (0, 1, 2, kept):
                    os.close(number)


def _limit(limit_s: float | None) -> None:
    """Bound the child's time and memory, if at all; its crashes leave no core file."""
    import resource

    limits = {resource.RLIMIT_CORE: 0}
    with contextlib.suppress(OSError):  # other systems than Linux do not say how much they use
        if limit_s is not None:
            limits[resource.RLIMIT_CPU] = max(1, round(limit_s))
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            used = pages * os.sysconf("SC_PAGE_SIZE")
            limits[resource.RLIMIT_AS] = used + int(scaled(MEMORY_BYTES))
    for kind, most in limits.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
