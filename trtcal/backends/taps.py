"""Read tensors from inside a running ONNX Runtime session, at as little cost as can be had.

Asking a session for inner tensors in the plain way breaks its fusions and makes it reorder and copy
each one. A histogram does not care about the order of elements, so a tensor is tapped where the
optimized graph has it, in its blocked layout (NCHWc) if need be, into a buffer that is used again.

Where a tensor lies in the optimized graph is read off names that ONNX Runtime does not promise. So
every tap is checked against the plain way on the first batch; a tap that differs is given up and
its tensor asked for plainly, and a session without any tap is always possible.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trtcal.backends.sessions import Array, Session, open_session, run_bound, run_session

Feeds = Mapping[str, Array]
Shapes = tuple[tuple[int, ...], ...]
NCHWC = "_nchwc"
BLOCKED_DOMAIN = "com.microsoft.nchwc"
ACTIVATIONS = ("Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Reading:
    """A batch of one tensor: its elements in any order, and how many zeros among them are padding."""

    tensor: str
    values: Array
    padding: int


class Taps:
    """Reads the same tensors of one model, batch after batch.

    `first_bytes` is what the tensors of the first batch take.
    """

    def __init__(
        self, proto: onnx.ModelProto, tensors: Sequence[str], first: Feeds, threads: int = 0
    ) -> None:
        self.proto, self.tensors, self.threads = proto, tuple(tensors), threads
        self.data = proto.SerializeToString()
        self.known = {value.name for value in proto.graph.output}
        plain = open_session(self._with_outputs(self.data, tensors), threads)
        expected = dict(zip(tensors, _run(plain, tensors, first), strict=True))
        self.first_bytes = sum(array.nbytes for array in expected.values())
        self.channels = {name: _channels(array) for name, array in expected.items()}
        self.places: dict[str, str] = {}
        self.session = self._tapped(expected, first) or plain
        self.bound: tuple[Shapes, Any, list[Array]] | None = None

    def _tapped(self, expected: dict[str, Array], first: Feeds) -> Session | None:
        plainly: list[str] = []
        for _ in range(3):  # a tap that fails its check is asked for plainly, and all is done again
            data = optimize(self._with_outputs(self.data, plainly), self.threads)
            self.places = locate(onnx.ModelProto.FromString(data), self.proto, self.tensors)
            missing = [name for name in self.tensors if name not in self.places]
            if not missing:
                outputs = [name for name in self.places.values() if name not in plainly]
                tapped = self._with_outputs(data, outputs)
                session = open_session(tapped, self.threads, as_it_is=True)
                missing = self._differing(session, expected, first)
                if not missing:
                    return session
            plainly += missing
        self.places = {}
        return None

    def _with_outputs(self, data: bytes, tensors: Sequence[str]) -> bytes:
        """Return a serialized model with these tensors as graph outputs too.

        Serialized messages that are joined are merged, so that the weights need not be read again.
        """
        new = [name for name in dict.fromkeys(tensors) if name not in self.known]
        values = [onnx.ValueInfoProto(name=name) for name in new]
        more = onnx.ModelProto(graph=onnx.GraphProto(output=values))
        return bytes(data + more.SerializeToString())

    def _differing(self, session: Session, expected: dict[str, Array], first: Feeds) -> list[str]:
        values = _run(session, list(self.places.values()), first)
        return [
            name
            for name, array in zip(self.places, values, strict=True)
            if not _same_values(array, expected[name], self._padding(name, array))
        ]

    def _padding(self, name: str, values: Array) -> int:
        """Return how many zeros fill up a blocked tensor's channels; only those have any."""
        channels = self.channels[name]
        if self.places.get(name, name) == name or channels is None:
            return 0
        return int(values.size - values.size // values.shape[1] * channels)

    def read(self, feeds: Feeds) -> Iterator[Reading]:
        """Run one batch and yield every tensor; the arrays are overwritten by the next call."""
        if not self.tensors:  # only inputs are looked at: there is nothing to run for
            return
        names = [self.places.get(name, name) for name in self.tensors]
        for tensor, values in zip(self.tensors, self._values(names, feeds), strict=True):
            yield Reading(tensor, values, self._padding(tensor, values))

    def _values(self, names: list[str], feeds: Feeds) -> list[Array]:
        """Run into the buffers of the last batch of the same shapes, or make some."""
        shapes = tuple(array.shape for array in feeds.values())
        if self.bound is None or self.bound[0] != shapes:
            values = _run(self.session, names, feeds)
            self.bound = shapes, _binding(self.session, names, values), values
            return values
        _, binding, values = self.bound
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        run_bound(self.session, binding)
        return values


def optimize(data: bytes, threads: int) -> bytes:
    """Return the graph that ONNX Runtime would run on this machine, serialized."""
    with tempfile.TemporaryDirectory(prefix="trtcal-") as folder:
        path = Path(folder) / "optimized.onnx"
        open_session(data, threads, optimized=path)
        return path.read_bytes()


def locate(
    optimized: onnx.ModelProto, original: onnx.ModelProto, tensors: Sequence[str]
) -> dict[str, str]:
    """Return where in the optimized graph each tensor probably is: tensor -> name of a value there."""
    values = {name for node in optimized.graph.node for name in node.output}
    walker = _Walker(original)
    blocked = {
        walker.last_fused(node): node.output[0]
        for node in optimized.graph.node
        if node.domain == BLOCKED_DOMAIN and node.name.endswith(NCHWC)
    }
    places = {name: blocked.get(name, name) for name in tensors}
    return {name: place for name, place in places.items() if place in values}


class _Walker:
    """Finds the last tensor of the original graph that a blocked node computes."""

    def __init__(self, original: onnx.ModelProto) -> None:
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        self.producers = {name: node for node in original.graph.node for name in node.output}
        for node in original.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def last_fused(self, blocked: onnx.NodeProto) -> str:
        """Return the tensor: past the addition and the activation that were fused into the node."""
        tensor = blocked.name.removesuffix(NCHWC)
        if len(blocked.input) > 3:
            tensor = self._past(tensor, ("Add", "Sum"))
        activated = any(item.name == "activation" for item in blocked.attribute)
        producer = self.producers.get(tensor)
        if activated and producer is not None and producer.op_type not in ACTIVATIONS:
            tensor = self._past(tensor, ACTIVATIONS)
        return tensor

    def _past(self, tensor: str, ops: Sequence[str]) -> str:
        readers = self.readers.get(tensor, [])
        fused = [node for node in readers if node.op_type in ops]
        return fused[0].output[0] if len(readers) == 1 and fused else tensor


def _run(session: Session, names: Sequence[str], feeds: Feeds) -> list[Array]:
    """Run for outputs of which some may be named twice."""
    unique = list(dict.fromkeys(names))
    found = dict(zip(unique, run_session(session, unique, dict(feeds)), strict=True))
    return [found[name] for name in names]


def _binding(session: Session, names: Sequence[str], values: Sequence[Array]) -> Any:
    binding = session.io_binding()
    for name, array in dict(zip(names, values, strict=True)).items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    return binding


def _channels(array: Array) -> int | None:
    return array.shape[1] if array.ndim > 2 else None


def _same_values(found: Array, expected: Array, padding: int) -> bool:
    """Tell whether two arrays hold the same values in some order, but for zeros of padding.

    By number, type, extremes and three moments: a tensor that agrees in all of them to
    `TOLERANCE` is the same one, computed by other kernels.
    """
    if found.size - padding != expected.size or found.dtype != expected.dtype:
        return False
    if padding and np.count_nonzero(found == 0) < padding:
        return False
    ours, theirs = _moments(found, expected.size), _moments(expected, expected.size)
    near = TOLERANCE * (np.abs(theirs) + theirs[1])
    return bool((np.abs(ours - theirs) <= near).all() or np.array_equal(ours, theirs, True))


def _moments(values: Array, count: int) -> npt.NDArray[np.float64]:
    """Return mean, mean magnitude, mean square, minimum and maximum, zeros of padding not counted."""
    flat = values.reshape(-1).astype(np.float64)
    sums = [flat.sum(), np.abs(flat).sum(), np.square(flat).sum()]
    low, high = min(flat.min(), 0.0), max(flat.max(), 0.0)  # padding makes 0 a value of either
    return np.array([*(total / count for total in sums), low, high])
